/* Which op is next.
 *
 * A lane runs its ops in order; its head may start when the ops it waits for have ended.  A rank
 * looks at all its lanes, meetings first because others may be waiting for it, and runs what is
 * ready, one unit at a time.  With threads every rank is one, and sleeps when nothing is ready;
 * under stress one thread takes units of all ranks in an order drawn from a seed. */
#include "core/base/error.h"
#include "exec_cpu/machine.h"

gboolean
cpu_skips (const struct cpu_rank *r, uint32_t op)
{
  return r->m->options.control && r->m->options.control->forward_only &&
         weft_feed_is_training (r->p, op);
}

/* ------------------------------------------------------------------- waking */

static void
wake_locked (struct cpu_machine *m, uint32_t row)
{
  struct cpu_rank *r = &m->rank[row];

  r->signals++;
  if (r->asleep) {
    r->asleep = FALSE;
    m->n_awake++;
    pthread_cond_signal (&r->wake);
  }
}

void
cpu_wake_rank (struct cpu_machine *m, uint32_t row)
{
  if (m->options.stress)
    return;
  pthread_mutex_lock (&m->lock);
  wake_locked (m, row);
  pthread_mutex_unlock (&m->lock);
}

void
cpu_wake (struct cpu_machine *m, const struct weft_group *group)
{
  if (m->options.stress)
    return;
  pthread_mutex_lock (&m->lock);
  for (uint32_t i = 0; i < weft_group_size (group); i++)
    wake_locked (m, weft_group_rank (group, i));
  pthread_mutex_unlock (&m->lock);
}

/* Nobody is awake and somebody is not done: nothing will ever happen again. */
static void
notice_end (struct cpu_machine *m)
{
  if (m->n_awake > 0)
    return;
  if (m->n_done < m->n) {
    m->stuck = TRUE;
    for (uint32_t i = 0; i < m->n; i++)
      pthread_cond_signal (&m->rank[i].wake);
  }
  pthread_cond_broadcast (&m->stepped);
}

/* Returns FALSE when the machine is stuck. */
static gboolean
sleep_after (struct cpu_rank *r, uint64_t seen)
{
  struct cpu_machine *m = r->m;

  pthread_mutex_lock (&m->lock);
  if (r->signals == seen) {
    r->asleep = TRUE;
    m->n_awake--;
    notice_end (m);
    while (r->asleep && !m->stuck)
      pthread_cond_wait (&r->wake, &m->lock);
  }
  gboolean stuck = m->stuck;
  pthread_mutex_unlock (&m->lock);
  return !stuck;
}

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

void
cpu_end_op (struct cpu_rank *r, uint32_t op, double begin, double end)
{
  cpu_arena_release (r, op);
  r->m->t->begin[r->row][op] = begin;
  r->m->t->end[r->row][op] = end;
}

static void
run_alone (struct cpu_rank *r, enum weft_lane lane, uint32_t op)
{
  double begin = cpu_now (r->m);

  cpu_arena_touch (r, op);
  if (!cpu_skips (r, op))
    cpu_launch (r, op);
  cpu_end_op (r, op, begin, cpu_now (r->m));
  r->lane[lane].cursor++;
}

/* One unit of a lane, when it has one: a kernel, a copy, a round of a collective, a transfer. */
static gboolean
try_lane (struct cpu_rank *r, enum weft_lane lane)
{
  struct cpu_lane *l = &r->lane[lane];

  if (l->cursor == l->issued)
    return FALSE;
  uint32_t op = r->p->lane_ops[lane][l->cursor];
  enum weft_op_class class = weft_op_info[r->p->op[op].kind].class;
  if (class == WEFT_CLASS_P2P)
    return (l->posted || group_may_start (r, lane)) && cpu_meet_transfers (r, lane);
  /* Collectives of one launch start when all of them may, and follow each other. */
  if (!l->posted &&
      !(class == WEFT_CLASS_COLLECTIVE ? group_may_start (r, lane) : may_start (r, op)))
    return FALSE;
  if (class == WEFT_CLASS_COLLECTIVE && !cpu_skips (r, op))
    return cpu_meet_collective (r, lane, op);
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

static uint64_t
signals_of (struct cpu_rank *r)
{
  pthread_mutex_lock (&r->m->lock);
  uint64_t signals = r->signals;
  pthread_mutex_unlock (&r->m->lock);
  return signals;
}

static void
run_rank (struct cpu_rank *r)
{
  while (!is_through (r)) {
    uint64_t seen = signals_of (r);
    gboolean moved = FALSE;
    while (try_lanes (r))
      moved = TRUE;
    if (!moved && !sleep_after (r, seen))
      return;
  }
}

void *
cpu_rank_main (void *data)
{
  struct cpu_rank *r = data;
  struct cpu_machine *m = r->m;
  uint64_t step = 0;

  pthread_mutex_lock (&m->lock);
  for (;;) {
    while (m->step == step && !m->closing)
      pthread_cond_wait (&m->stepped, &m->lock);
    if (m->closing)
      break;
    step = m->step;
    pthread_mutex_unlock (&m->lock);
    run_rank (r);
    pthread_mutex_lock (&m->lock);
    if (m->stuck)
      continue;
    m->n_done++;
    m->n_awake--;
    notice_end (m);
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
  m->n_awake = m->n;
  m->n_done = 0;
  m->step++;
  pthread_cond_broadcast (&m->stepped);
  while (m->n_done < m->n && !m->stuck)
    pthread_cond_wait (&m->stepped, &m->lock);
  gboolean stuck = m->stuck;
  pthread_mutex_unlock (&m->lock);
  return !stuck;
}

/* A seed makes some lanes of some ranks reluctant: they move only when nobody else can, which is
 * how a dependency that is missing comes to light.  The rest is drawn evenly. */
struct shuffle {
  GRand *rand;
  uint32_t n;     /* (rank, lane) pairs that have something to do */
  uint32_t *pair; /* in the order they are asked in */
  gboolean *reluctant;
};

static gboolean
is_over (const struct cpu_machine *m, uint32_t pair)
{
  const struct cpu_lane *l = &m->rank[pair / WEFT_N_LANE].lane[pair % WEFT_N_LANE];
  return l->cursor == l->issued;
}

static gboolean
try_pairs (struct cpu_machine *m, struct shuffle *s, gboolean reluctant)
{
  for (uint32_t i = 0; i < s->n; i++) {
    uint32_t j = i + (uint32_t) g_rand_int_range (s->rand, 0, (gint32) (s->n - i));
    uint32_t pair = s->pair[j];
    s->pair[j] = s->pair[i];
    s->pair[i] = pair;
    if (s->reluctant[pair] != reluctant ||
        !try_lane (&m->rank[pair / WEFT_N_LANE], pair % WEFT_N_LANE))
      continue;
    if (is_over (m, pair))
      s->pair[i] = s->pair[--s->n];
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
  g_autoptr (GRand) rand = g_rand_new_with_seed ((guint32) (m->options.stress + m->step++));
  g_autofree uint32_t *pair = g_new (uint32_t, n);
  g_autofree gboolean *reluctant = g_new (gboolean, n);
  struct shuffle s = { rand, 0, pair, reluctant };

  for (uint32_t i = 0; i < n; i++) {
    reluctant[i] = g_rand_int_range (rand, 0, 4) == 0;
    if (!is_over (m, i))
      pair[s.n++] = i;
  }
  while (try_pairs (m, &s, FALSE) || try_pairs (m, &s, TRUE))
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
  gboolean ok = m->options.stress ? run_shuffled (m) : run_threads (m);
  uint64_t lost = atomic_exchange (&m->lost, 0), bad = atomic_exchange (&m->bad, 0);

  if (!ok)
    return report_stuck (m, error);
  if (bad)
    return report_bad (m, bad, error);
  return !lost || weft_run_error (error, "rank %u: op %u reads tokens that are not there",
                                  (uint32_t) (lost >> 32) - 1, (uint32_t) lost);
}
