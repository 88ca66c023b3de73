/* Compute kernels of one GPU: a run of ops without interruption is one timer.
 *
 * A run ends after an op that another lane or the host waits for, before an op that waits for
 * another lane, and before an op that the host issues only after the previous one has ended. When
 * communication takes or returns SMs, the position inside the run is looked up in the prefix sums
 * of the old speed, and the rest continues at the new speed; the current kernel keeps the fraction
 * of its work that is done. */
#include "core/plan/cost.h"
#include "exec_sim/bridge.h"
#include "exec_sim/machine.h"
#include <math.h>

static void
find_stops (struct sim_role *role, const weft_host *host)
{
  const weft_program *p = role->p;
  uint32_t n = p->lane_n[WEFT_LANE_GPU];
  g_autofree gboolean *signals = g_new0 (gboolean, p->n_op + 1);

  for (uint32_t op = 0; op < p->n_op; op++)
    for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++)
      signals[p->deps[d]] = TRUE;
  for (uint32_t i = 0; host && i < host->segment[host->n_segment].awaited; i++)
    signals[host->awaited[i]] = TRUE;
  role->stop = g_new (uint32_t, n + 1);
  for (uint32_t i = n; i-- > 0;) {
    uint32_t op = p->lane_ops[WEFT_LANE_GPU][i];
    uint32_t next = i + 1 < n ? p->lane_ops[WEFT_LANE_GPU][i + 1] : op;
    gboolean waits = i + 1 < n && p->op[next].deps < p->op[next + 1].deps;
    role->stop[i] = i + 1 == n || waits || signals[op] ? i : role->stop[i + 1];
  }
}

static void
free_pace (void *data)
{
  struct sim_pace *pace = data;

  for (guint i = 0; i < pace->speeds->len; i++)
    g_free (g_array_index (pace->speeds, struct sim_speed, i).prefix);
  g_array_unref (pace->speeds);
  g_free (pace);
}

/* The kind of the GPU of an actor. */
static uint32_t
kind_of (const struct sim *x, uint32_t actor)
{
  return weft_cluster_kind_of (&x->base.plan->job.cluster, x->base.actors->rank[actor]);
}

/* The pace of an actor: an existing one if another actor has the same kernel times. */
static struct sim_pace *
pace_of (struct sim *x, uint32_t actor)
{
  const weft_actors *a = x->base.actors;
  struct sim_pace wanted = { .kind = kind_of (x, actor),
                             .role = a->role[actor],
                             .actor = WEFT_NO_ACTOR,
                             .slow = 1 };

  if (x->disturb.slow)
    wanted.slow = x->disturb.slow[a->rank[actor]];
  if (x->disturb.jitter > 0)
    wanted.actor = actor;
  for (guint i = 0; i < x->paces->len && wanted.actor == WEFT_NO_ACTOR; i++) {
    struct sim_pace *pace = x->paces->pdata[i];
    if (pace->kind == wanted.kind && pace->role == wanted.role && pace->slow == wanted.slow)
      return pace;
  }
  struct sim_pace *made = g_memdup2 (&wanted, sizeof wanted);
  made->speeds = g_array_new (FALSE, FALSE, sizeof (struct sim_speed));
  g_ptr_array_add (x->paces, made);
  return made;
}

void
sim_gpu_open (struct sim *x)
{
  const weft_plan *plan = x->base.plan;

  x->role = g_new0 (struct sim_role, plan->n_roles);
  x->gpu = g_new0 (struct sim_gpu, x->base.actors->n);
  x->paces = g_ptr_array_new_with_free_func (free_pace);
  for (uint32_t r = 0; r < plan->n_roles; r++) {
    x->role[r].p = plan->role[r];
    x->role[r].times = g_array_new (FALSE, FALSE, sizeof (struct sim_times));
    find_stops (&x->role[r], x->hosts[r]);
  }
  for (uint32_t actor = 0; actor < x->base.actors->n; actor++)
    x->gpu[actor].pace = pace_of (x, actor);
}

void
sim_gpu_close (struct sim *x)
{
  for (uint32_t r = 0; r < x->base.plan->n_roles; r++) {
    for (guint i = 0; i < x->role[r].times->len; i++)
      g_free (g_array_index (x->role[r].times, struct sim_times, i).seconds);
    g_array_unref (x->role[r].times);
    g_free (x->role[r].stop);
  }
  g_ptr_array_unref (x->paces);
  g_free (x->role);
  g_free (x->gpu);
}

/* Undisturbed seconds of the kernels of an actor, by op. */
static const double *
times_of (struct sim *x, uint32_t actor, uint32_t sms_taken)
{
  uint32_t role = x->base.actors->role[actor], kind = kind_of (x, actor);
  struct weft_cost cost = weft_plan_cost_on (x->base.plan, kind);
  GArray *known = x->role[role].times;

  for (guint i = 0; i < known->len; i++) {
    const struct sim_times *times = &g_array_index (known, struct sim_times, i);
    if (times->sms_taken == sms_taken && times->kind == kind)
      return times->seconds;
  }
  struct sim_times times = { sms_taken, kind, g_new (double, x->role[role].p->n_op + 1) };
  weft_cost_program (&cost, x->role[role].p, sms_taken, times.seconds);
  g_array_append_val (known, times);
  return times.seconds;
}

double
sim_kernel_factor (const struct sim *x, uint32_t actor, uint32_t op)
{
  return weft_disturb_factor (&x->disturb, x->base.actors->rank[actor], op);
}

static double *
make_prefix (struct sim *x, uint32_t actor, uint32_t sms_taken)
{
  const weft_program *p = sim_program (x, actor);
  const double *seconds = times_of (x, actor, sms_taken);
  uint32_t n = p->lane_n[WEFT_LANE_GPU];
  double *prefix = g_new (double, n + 1);

  prefix[0] = 0;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t op = p->lane_ops[WEFT_LANE_GPU][i];
    prefix[i + 1] = prefix[i] + seconds[op] * sim_kernel_factor (x, actor, op);
  }
  return prefix;
}

static const double *
prefix_of (struct sim *x, uint32_t actor, uint32_t sms_taken)
{
  GArray *speeds = x->gpu[actor].pace->speeds;

  for (guint i = 0; i < speeds->len; i++) {
    const struct sim_speed *speed = &g_array_index (speeds, struct sim_speed, i);
    if (speed->sms_taken == sms_taken)
      return speed->prefix;
  }
  struct sim_speed speed = { sms_taken, make_prefix (x, actor, sms_taken) };
  g_array_append_val (speeds, speed);
  return speed.prefix;
}

static uint32_t
op_at (const struct sim *x, uint32_t actor, uint32_t position)
{
  return sim_program (x, actor)->lane_ops[WEFT_LANE_GPU][position];
}

/* Seconds until the current sequence of kernels ends if communication occupies `sms_taken` SMs. */
static double
rest_of_run (struct sim *x, uint32_t actor, uint32_t sms_taken)
{
  const struct sim_gpu *g = &x->gpu[actor];
  const double *prefix = prefix_of (x, actor, sms_taken);

  return prefix[g->stop + 1] - prefix[g->at] - g->done * (prefix[g->at + 1] - prefix[g->at]);
}

/* Last position of the current sequence of kernels that the host issues before the previous kernel
 * ends. Returns the end of the sequence if the host issues all its kernels in time. */
static uint32_t
last_issued_in_time (struct sim *x, uint32_t actor)
{
  const struct sim_gpu *g = &x->gpu[actor];
  const double *prefix = prefix_of (x, actor, g->sms_taken);
  double start = prefix[g->at] + g->done * (prefix[g->at + 1] - prefix[g->at]), date;
  uint32_t stop = x->role[x->base.actors->role[actor]].stop[g->at];

  if (sim_host_issues (x, actor, op_at (x, actor, stop), &date) && date <= g->since)
    return stop;
  for (uint32_t i = g->at + 1; i <= stop; i++)
    if (!sim_host_issues (x, actor, op_at (x, actor, i), &date) ||
        date > g->since + (prefix[i] - start))
      return i - 1;
  return stop;
}

/* Sets the timer for the end of the current sequence of kernels at the current speed. */
static void
set_timer (struct sim *x, uint32_t actor)
{
  struct sim_gpu *g = &x->gpu[actor];
  g->stop = last_issued_in_time (x, actor);
  double rest = rest_of_run (x, actor, g->sms_taken);

  g->generation = (g->generation + 1) & 0xfffffff;
  if (g->sms_taken > 0)
    x->t->contended |= rest > rest_of_run (x, actor, 0) * (1 + 1e-9);
  weft_bridge_after (fmax (g->since - weft_bridge_now () + rest, 0),
                     sim_tag (SIM_KERNELS, g->generation, actor));
}

/* Kernels [at, to) of the current sequence have ended: records their times. `to` becomes the first
 * kernel of the sequence. */
static void
record_until (struct sim *x, uint32_t actor, uint32_t to)
{
  struct sim_gpu *g = &x->gpu[actor];
  const double *prefix = prefix_of (x, actor, g->sms_taken);
  double *begin = x->t->begin[actor], *end = x->t->end[actor];
  /* Subtract before adding: on a rank of topology cpu that is paused, the prefix sums are so large
   * that adding first would round the date. */
  double start = prefix[g->at] + g->done * (prefix[g->at + 1] - prefix[g->at]);

  for (uint32_t i = g->at; i < to; i++) {
    end[op_at (x, actor, i)] = g->since + (prefix[i + 1] - start);
    if (i < g->stop)
      begin[op_at (x, actor, i + 1)] = end[op_at (x, actor, i)];
  }
  if (to > g->at) {
    g->since += prefix[to] - start;
    g->at = to;
    g->done = 0;
  }
}

void
sim_gpu_advance (struct sim *x, uint32_t actor)
{
  struct sim_gpu *g = &x->gpu[actor];
  const weft_program *p = sim_program (x, actor);
  double date;

  if (g->running || g->cursor == p->lane_n[WEFT_LANE_GPU] ||
      !sim_deps_done (x, actor, op_at (x, actor, g->cursor)) ||
      !sim_host_issues (x, actor, op_at (x, actor, g->cursor), &date))
    return;
  g->running = TRUE;
  g->at = g->cursor;
  g->since = fmax (weft_bridge_now (), date);
  g->done = 0;
  x->t->begin[actor][op_at (x, actor, g->at)] = g->since;
  set_timer (x, actor);
}

gboolean
sim_gpu_fired (struct sim *x, uint32_t actor, uint32_t generation)
{
  struct sim_gpu *g = &x->gpu[actor];

  if (!g->running || g->generation != generation)
    return FALSE;
  uint32_t last = g->stop;
  record_until (x, actor, last + 1);
  x->t->end[actor][op_at (x, actor, last)] = weft_bridge_now ();
  g->running = FALSE;
  g->cursor = last + 1;
  sim_lane_at (x, actor, WEFT_LANE_GPU)->cursor = g->cursor;
  return TRUE;
}

/* First kernel of the current sequence that has not ended `elapsed` seconds after g->since.
 * `prefix`: prefix sums of kernel times, at the speed since g->since. */
static uint32_t
position_after (const double *prefix, const struct sim_gpu *g, double elapsed)
{
  double target = prefix[g->at] + g->done * (prefix[g->at + 1] - prefix[g->at]) + elapsed;
  uint32_t low = g->at, high = g->stop;

  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (prefix[middle + 1] <= target)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

void
sim_gpu_take_sms (struct sim *x, uint32_t actor, int32_t sms)
{
  struct sim_gpu *g = &x->gpu[actor];

  if (sms == 0)
    return;
  /* If the host has not yet issued the first kernel of the sequence, no work of the sequence is
   * done. */
  if (g->running && weft_bridge_now () >= g->since) {
    const double *prefix = prefix_of (x, actor, g->sms_taken);
    double now = weft_bridge_now ();
    record_until (x, actor, position_after (prefix, g, now - g->since));
    double whole = prefix[g->at + 1] - prefix[g->at];
    g->done = whole > 0 ? fmin (1, g->done + (now - g->since) / whole) : 1;
    g->since = now;
  }
  g->sms_taken += sms;
  if (g->running)
    set_timer (x, actor);
}
