#include "exec_sim/energy.h"
#include "exec_sim/bridge.h"
#include <math.h>

/* The meter of one row, and its changes. `next`: the change that comes next; `before` and `since`:
 * joules and date at the last change. */
struct row {
  uint32_t meter, next;
  GArray *changes; /* struct weft_power_change */
  double before, since;
};

struct metering {
  const weft_plan *plan;
  const weft_timeline *t;
  weft_energy *energy;
  struct row *row;
};

static const struct weft_power_change *
change_at (const struct row *row, uint32_t i)
{
  return &g_array_index (row->changes, struct weft_power_change, i);
}

/* Sets the timer of the next change, or, after the last one, of the end of the step. */
static void
wait_for_next (struct metering *m, uint32_t i)
{
  const struct row *row = &m->row[i];
  double date = row->next < row->changes->len ? change_at (row, row->next)->date : m->t->seconds;

  weft_bridge_after (fmax (date - weft_bridge_now (), 0), i);
}

/* Adds what the meter has counted since the last change to the state that ends now. */
static void
on_change (void *user, uint64_t i)
{
  struct metering *m = user;
  struct row *row = &m->row[i];
  enum weft_power state = change_at (row, row->next - 1)->state;
  double joules = weft_bridge_meter_joules (row->meter), ranks = m->t->stands_for[i];

  m->energy->gpu_j[state] += ranks * (joules - row->before);
  m->energy->gpu_s[state] += ranks * (weft_bridge_now () - row->since);
  row->before = joules;
  row->since = weft_bridge_now ();
  if (row->next == row->changes->len)
    return;
  weft_bridge_meter_set (row->meter, change_at (row, row->next++)->state);
  wait_for_next (m, (uint32_t) i);
}

static gboolean
count (struct metering *m, GError **error)
{
  if (!weft_bridge_open (on_change, m, error))
    return FALSE;
  for (uint32_t i = 0; i < m->t->n; i++) {
    double watts[WEFT_N_POWER];
    weft_energy_watts (&m->plan->job.cluster, m->t->rank[i], watts);
    m->row[i].meter = weft_bridge_meter (watts, WEFT_N_POWER);
    m->row[i].next = 1;
    wait_for_next (m, i);
  }
  gboolean done = weft_bridge_run (error);
  weft_bridge_close ();
  return done;
}

gboolean
weft_sim_energy (const weft_plan *plan, const weft_timeline *t, weft_energy *energy, GError **error)
{
  g_autofree struct row *rows = g_new0 (struct row, t->n + 1);
  struct metering m = { plan, t, energy, rows };

  if (!weft_energy_check (&plan->job.cluster, error))
    return FALSE;
  *energy = weft_energy_begin (plan, t);
  for (uint32_t i = 0; i < t->n; i++)
    rows[i].changes = weft_energy_changes (plan, t, i);
  gboolean done = count (&m, error);
  for (uint32_t i = 0; i < t->n; i++)
    g_array_unref (rows[i].changes);
  return done;
}
