/* Selects the next op.
 *
 * A lane runs its ops in order.  The op at the head of a lane may start when the ops that it
 * depends on have ended.  A rank polls its lanes and runs one unit at a time; lanes of
 * communication come first, because other ranks may be waiting for them.  A thread takes a ready
 * rank and runs it until none of its ops can start; the rank then sleeps, without a thread, until
 * another rank wakes it.  Under stress one thread runs units of all ranks in a random order given
 * by a seed. */
#include "exec_cpu/lanes.h"
#include "core/base/error.h"
#include "exec_cpu/arena.h"
#include "exec_cpu/collectives.h"
#include "exec_cpu/launch.h"
#include "exec_cpu/ready.h"

/* ------------------------------------------------------------------ one rank */

static gboolean
has_ended (const struct cpu_rank *r, uint32_t op)
{
  return r->p->pos[op] < r->lane[r->p->op[op].lane].cursor;
}

static gboolean
may_start (const struct cpu_rank *r, uint32_t op)
{
  for (uint32_t w = r->first_wait[op]; w < r->end_wait[op]; w++)
    if (!has_ended (r, r->waits[w]))
      return FALSE;
  return TRUE;
}

static gboolean
group_may_start (const struct cpu_rank *r, enum weft_lane lane)
{
  uint32_t first = r->lane[lane].cursor, last = weft_program_group_end (r->p, lane, first);

  for (uint32_t i = first; i < last; i++)
    if (!may_start (r, r->p->lane_ops[lane][i]))
      return FALSE;
  return TRUE;
}

static void
run_alone (struct cpu_rank *r, enum weft_lane lane, uint32_t op)
{
  double begin = cpu_now (r->m);

  cpu_arena_touch (r, op);
  if (!cpu_skips (r, op))
    cpu_launch (r, op);
  cpu_launch_end (r, op, begin, cpu_now (r->m));
  r->lane[lane].cursor++;
}

/* Runs the next piece of work of a lane: a kernel, a copy, one round of a collective, or transfers.
 * FALSE: no work of the lane can start. */
static gboolean
try_lane (struct cpu_rank *r, enum weft_lane lane)
{
  struct cpu_lane *l = &r->lane[lane];

  if (l->cursor == l->issued)
    return FALSE;
  uint32_t op = r->p->lane_ops[lane][l->cursor];
  enum weft_op_class class = weft_op_info[r->p->op[op].kind].class;
  if (class == WEFT_CLASS_P2P)
    return (l->posted || group_may_start (r, lane)) && cpu_transfers_advance (r, lane);
  /* Collectives that are launched together (as in one ncclGroup) run one after the other, as soon
   * as the dependencies of all of them have ended. */
  if (!l->posted &&
      !(class == WEFT_CLASS_COLLECTIVE ? group_may_start (r, lane) : may_start (r, op)))
    return FALSE;
  if (class == WEFT_CLASS_COLLECTIVE && !cpu_skips (r, op))
    return cpu_collective_advance (r, lane, op);
  run_alone (r, lane, op);
  return TRUE;
}

static gboolean
try_lanes (struct cpu_rank *r)
{
  for (int lane = 0; lane < WEFT_N_LANE; lane++)
    if (lane != WEFT_LANE_GPU && try_lane (r, lane))
      return TRUE;
  return try_lane (r, WEFT_LANE_GPU);
}

static gboolean
is_through (const struct cpu_rank *r)
{
  for (int lane = 0; lane < WEFT_N_LANE; lane++)
    if (r->lane[lane].cursor < r->lane[lane].issued)
      return FALSE;
  return TRUE;
}

/* ------------------------------------------------------------------ threads */

/* Runs a rank until none of its ops can start.  If another rank sent a signal meanwhile, the rank
 * may have missed the change and is put back into the queue. */
static void
run_rank (struct cpu_machine *m, struct cpu_rank *r)
{
  uint64_t seen = atomic_load (&r->signals);

  pthread_mutex_unlock (&m->lock);
  while (try_lanes (r))
    continue;
  pthread_mutex_lock (&m->lock);
  if (is_through (r))
    m->n_done++;
  else if (atomic_load (&r->signals) != seen)
    cpu_ready_add (m, r->row);
  else
    r->asleep = TRUE;
}

/* Whether no rank runs or is ready.  Then the step has ended, or the remaining ranks wait for each
 * other. */
static gboolean
is_quiet (const struct cpu_machine *m)
{
  return m->n_ready == 0 && m->n_busy == 0;
}

void *
cpu_thread_main (void *machine)
{
  struct cpu_machine *m = machine;

  pthread_mutex_lock (&m->lock);
  while (!m->closing) {
    if (m->n_ready == 0) {
      m->n_idle++;
      pthread_cond_wait (&m->work, &m->lock);
      m->n_idle--;
      continue;
    }
    m->n_busy++;
    run_rank (m, cpu_ready_take (m));
    m->n_busy--;
    if (is_quiet (m))
      pthread_cond_signal (&m->quiet);
  }
  pthread_mutex_unlock (&m->lock);
  return NULL;
}

/* ------------------------------------------------------------------ all ranks */

static gboolean
report_stuck (const struct cpu_machine *m, GError **error)
{
  g_autoptr (GString) text = g_string_new ("all ranks wait for each other:");

  for (uint32_t i = 0; i < m->n; i++)
    for (int lane = 0; lane < WEFT_N_LANE; lane++) {
      const struct cpu_rank *r = &m->rank[i];
      if (r->lane[lane].cursor == r->lane[lane].issued)
        continue;
      uint32_t op = r->p->lane_ops[lane][r->lane[lane].cursor];
      g_autofree char *label = weft_op_label (r->p, op);
      g_string_append_printf (text, " rank %u at op %u (%s);", r->rank, op, label);
    }
  return weft_run_error (error, "%s", text->str);
}

static gboolean
run_threads (struct cpu_machine *m)
{
  pthread_mutex_lock (&m->lock);
  m->n_done = 0;
  for (uint32_t i = 0; i < m->n; i++)
    cpu_ready_add (m, i);
  while (!is_quiet (m))
    pthread_cond_wait (&m->quiet, &m->lock);
  gboolean through = m->n_done == m->n;
  pthread_mutex_unlock (&m->lock);
  return through;
}

/* A set of lanes (queues of ops) that may have an op that can run. */
struct crowd {
  uint32_t n, *pair; /* rank * WEFT_N_LANE + lane, for each lane of the set */
};

/* Random order under stress.  The seed makes some lanes of some ranks reluctant: these run only
 * when no other lane can run, which uncovers missing dependencies.  Other lanes are selected with
 * equal probability.  A lane that could not run is parked until its rank has run a unit or was
 * woken. */
struct shuffle {
  struct cpu_machine *m;
  GRand *rand;
  struct crowd eager, reluctant;
  gboolean *is_reluctant; /* [rank * WEFT_N_LANE + lane] */
  gboolean *is_parked;
  /* [rank]: value of the rank's number of wake-ups when its lanes were last unparked */
  uint64_t *signals;
};

static void
join_crowd (struct shuffle *s, uint32_t pair)
{
  struct crowd *c = s->is_reluctant[pair] ? &s->reluctant : &s->eager;

  c->pair[c->n++] = pair;
}

static void
unpark (struct shuffle *s, uint32_t row)
{
  for (uint32_t pair = row * WEFT_N_LANE; pair < (row + 1) * WEFT_N_LANE; pair++)
    if (s->is_parked[pair]) {
      s->is_parked[pair] = FALSE;
      join_crowd (s, pair);
    }
}

/* After a rank has run an op or a round: returns the parked lanes of this rank, and of the ranks
 * that it has woken, to the set of lanes to try. */
static void
notice_unit (struct shuffle *s, uint32_t of)
{
  for (uint32_t row = 0; row < s->m->n; row++) {
    uint64_t signals = atomic_load (&s->m->rank[row].signals);
    if (row != of && signals == s->signals[row])
      continue;
    s->signals[row] = signals;
    unpark (s, row);
  }
}

static gboolean
is_over (const struct cpu_machine *m, uint32_t pair)
{
  const struct cpu_lane *l = &m->rank[pair / WEFT_N_LANE].lane[pair % WEFT_N_LANE];
  return l->cursor == l->issued;
}

static gboolean
try_crowd (struct shuffle *s, struct crowd *c)
{
  while (c->n > 0) {
    uint32_t i = (uint32_t) g_rand_int_range (s->rand, 0, (gint32) c->n), pair = c->pair[i];
    uint32_t row = pair / WEFT_N_LANE;
    gboolean moved = try_lane (&s->m->rank[row], pair % WEFT_N_LANE);
    if (!moved || is_over (s->m, pair)) {
      c->pair[i] = c->pair[--c->n];
      s->is_parked[pair] = !moved;
    }
    if (!moved)
      continue;
    notice_unit (s, row);
    return TRUE;
  }
  return FALSE;
}

static gboolean
all_through (const struct cpu_machine *m)
{
  for (uint32_t i = 0; i < m->n; i++)
    if (!is_through (&m->rank[i]))
      return FALSE;
  return TRUE;
}

static gboolean
run_shuffled (struct cpu_machine *m)
{
  uint32_t n = m->n * WEFT_N_LANE;
  g_autoptr (GRand) rand = g_rand_new_with_seed ((guint32) (m->own.stress + m->step++));
  g_autofree uint32_t *pair = g_new (uint32_t, 2 * n);
  g_autofree gboolean *state = g_new0 (gboolean, 2 * n);
  g_autofree uint64_t *signals = g_new0 (uint64_t, m->n);
  struct shuffle s = { .m = m,
                       .rand = rand,
                       .eager.pair = pair,
                       .reluctant.pair = pair + n,
                       .is_reluctant = state,
                       .is_parked = state + n,
                       .signals = signals };

  for (uint32_t i = 0; i < n; i++) {
    s.is_reluctant[i] = g_rand_int_range (rand, 0, 4) == 0;
    if (!is_over (m, i))
      join_crowd (&s, i);
  }
  while (try_crowd (&s, &s.eager) || try_crowd (&s, &s.reluctant))
    continue;
  return all_through (m);
}

static gboolean
report_bad (const struct cpu_machine *m, uint64_t bad, GError **error)
{
  const struct cpu_rank *r = &m->rank[(bad >> 32) - 1];
  g_autofree char *label = weft_op_label (r->p, (uint32_t) bad);

  return weft_run_error (error, "rank %u: %s is not finite (check_for_nan_in_grad)", r->rank,
                         label);
}

gboolean
cpu_run_issued (struct cpu_machine *m, GError **error)
{
  gboolean ok = m->own.stress ? run_shuffled (m) : run_threads (m);
  uint64_t lost = atomic_exchange (&m->lost, 0), bad = atomic_exchange (&m->bad, 0);

  if (!ok)
    return report_stuck (m, error);
  if (bad)
    return report_bad (m, bad, error);
  return !lost || weft_run_error (error, "rank %u: op %u reads tokens that were not supplied",
                                  (uint32_t) (lost >> 32) - 1, (uint32_t) lost);
}
