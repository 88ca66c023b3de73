#include "planner/planner.h"
#include "core/base/error.h"
#include "core/job/collectives.h"
#include "planner/bound.h"
#include "planner/searcher.h"
#include "planner/trials.h"
#include <math.h>
#include <string.h>

const char *const weft_fate_words[] = { WEFT_FATE_LIST (WEFT_WORD_TEXT) NULL };

/* A candidate is not simulated if its bound by FLOPs exceeds this many times the best clock
 * time. */
#define PRUNE_FACTOR 1.5

/* Number of finalists unless the user gives it. The search then simulates up to MOST_OPS ops (about
 * 15 s of one core; fewer in the whole space), and more only as long as the gap exceeds NEAR. */
enum { FINALISTS = 10, MOST_OPS = 1200000, MOST_OPS_OF_WHOLE = 600000 };
#define NEAR 0.01

/* The gap with which a search ends exceeds NEAR after MANY times as many ops, up to MOST_NEAR times
 * NEAR. */
#define MANY 2.2
#define MOST_NEAR 4.0

/* An op of a trial that only computes a clock time counts as one of this many: it takes about
 * 0.4 us, and 10 us if buffers are placed and proved and the step is simulated. */
enum { OPS_PER_OP = 16 };

void
weft_searcher_progress (const struct searcher *s, const char *phase, uint32_t done, uint32_t of)
{
  const struct weft_search_progress now = {
    .phase = phase,
    .done = done,
    .of = of,
    .steps = s->n_steps,
    .best = isfinite (s->best_simulated) ? s->best_simulated : s->best_clock,
  };

  if (s->options->progress)
    s->options->progress (s->options->user, &now);
}

gboolean
weft_searcher_stops (struct searcher *s)
{
  s->stopped = s->stopped || (s->options->stop && s->options->stop (s->options->user));
  return s->stopped;
}

/* Adds the number of plans that a trial has built, and stores the error of the first candidate
 * whose step cannot be captured as a CUDA graph, or not be simulated. */
static void
count_trial (struct searcher *s, struct weft_trial *t)
{
  for (int depth = 0; depth <= WEFT_PLAN_PROVED; depth++)
    s->plans.by_depth[depth] += t->plans[depth];
  if (t->refused && !s->refused)
    s->refused = g_steal_pointer (&t->error);
  if (t->refused)
    g_clear_error (&t->error);
}

static gboolean
run_trials (struct searcher *s, struct weft_trial *t, uint32_t n, GError **error)
{
  if (!weft_trials_run (&s->trials, t, n, error))
    return FALSE;
  for (uint32_t i = 0; i < n; i++)
    count_trial (s, &t[i]);
  return TRUE;
}

/* Whether the whole space is searched, for any number of finalists: the search may then end before
 * the tenth. */
static gboolean
is_wide (const struct searcher *s)
{
  return s->options->finalists == 0 && s->options->ranges && s->options->ranges->whole;
}

/* Takes over the bound of a program without buffer addresses. This bound holds for the clock time,
 * because buffers that share an address can only make ops wait. The bytes that are alive hold for
 * the memory: a candidate that exceeds the GPU with these needs no addresses. */
static void
take_bound (struct searcher *s, struct weft_candidate *c, const struct weft_trial *t)
{
  c->bound = fmax (c->bound, fmax (t->seconds, t->contended));
  c->work = t->work;
  c->known = WEFT_PROGRAM;
  if (t->least > weft_plan_capacity (&t->job)) {
    c->fate = WEFT_FATE_MEMORY;
    c->bytes = (uint64_t) t->least;
    return;
  }
  if (!is_wide (s))
    return;
  s->n_ops += t->ops / OPS_PER_OP;
  if (!s->nearest || c->bound < s->nearest->bound)
    s->nearest = c;
}

/* Takes over the clock time, the memory and the report of a candidate. An extrapolated clock time
 * may be slightly below the candidate's lower bound, and is then replaced by the bound. */
static void
take_clock (struct searcher *s, struct weft_candidate *c, struct weft_trial *t)
{
  double capacity = weft_plan_capacity (&t->job);

  c->clock = fmax (fmax (t->seconds, t->contended), c->bound);
  c->fate = t->bytes <= capacity ? WEFT_FATE_RANKED : WEFT_FATE_MEMORY;
  c->bytes = t->least > capacity ? t->least : t->bytes;
  c->plan = g_steal_pointer (&t->plan);
  c->report = g_steal_pointer (&t->report);
  s->n_ops += c->report ? t->work : 0;
  double *best = c->fate == WEFT_FATE_RANKED ? &s->best_clock : &s->nearest_miss;
  *best = fmin (*best, c->clock);
  if (is_wide (s) && c->report && c->report->fits)
    s->best_simulated = fmin (s->best_simulated, c->report->iteration.time_s);
}

/* Takes over the result of a trial, unless the search was stopped before. A failed internal check
 * (WEFT_ERROR_BUG) rejects only this candidate; the search continues. */
static gboolean
settle (struct searcher *s, struct weft_candidate *c, struct weft_trial *t, GError **error)
{
  if (t->skipped)
    return TRUE;
  s->n_steps++;
  if (t->refused)
    c->fate = WEFT_FATE_RULE;
  else if (!t->error && t->depth == WEFT_TRIAL_BOUND)
    take_bound (s, c, t);
  else if (!t->error)
    take_clock (s, c, t);
  else if (!g_error_matches (t->error, WEFT_ERROR, WEFT_ERROR_BUG)) {
    g_propagate_error (error, g_steal_pointer (&t->error));
    return FALSE;
  } else {
    c->fate = WEFT_FATE_FAULT;
    if (!s->fault)
      s->fault = g_steal_pointer (&t->error);
  }
  weft_trial_clear (t);
  return TRUE;
}

gboolean
weft_searcher_rank (struct searcher *s, struct weft_candidate *c, GError **error)
{
  struct weft_trial t = { .job = weft_space_job (s->job, &c->choice), .depth = WEFT_TRIAL_CLOCK };

  return run_trials (s, &t, 1, error) && settle (s, c, &t, error);
}

gboolean
weft_searcher_weigh (struct searcher *s, struct weft_candidate *c, GError **error)
{
  struct weft_trial t = { .job = weft_space_job (s->job, &c->choice), .depth = WEFT_TRIAL_CLOCK };

  if (!run_trials (s, &t, 1, error))
    return FALSE;
  double seconds = t.seconds, bytes = t.bytes;
  gboolean good = !t.error && !t.refused && !t.skipped;
  if (!settle (s, c, &t, error))
    return FALSE;
  if (!good)
    return TRUE;
  c->fate = WEFT_FATE_MEMORY;
  c->clock = seconds;
  c->bytes = (uint64_t) bytes;
  c->weighed = TRUE;
  return TRUE;
}

/* Whether the next bound of a candidate is computed without the programs of its step. */
static gboolean
is_quick (const struct weft_candidate *c)
{
  return c->known < WEFT_LANES;
}

/* An order of candidates that have equal times and bytes. */
static int
by_choice (const struct weft_candidate *x, const struct weft_candidate *y)
{
  unsigned i = 0;

  while (i + 1 < WEFT_N_AXIS && x->choice.value[i] == y->choice.value[i])
    i++;
  return (x->choice.value[i] > y->choice.value[i]) - (x->choice.value[i] < y->choice.value[i]);
}

static int
compare (const void *a, const void *b)
{
  const struct weft_candidate *x = *(struct weft_candidate *const *) a,
                              *y = *(struct weft_candidate *const *) b;
  double tx = x->fate == WEFT_FATE_SIMULATED ? x->seconds : x->clock;
  double ty = y->fate == WEFT_FATE_SIMULATED ? y->seconds : y->clock;

  if (x->fate != y->fate)
    return (int) y->fate - (int) x->fate;
  if (tx != ty)
    return tx < ty ? -1 : 1;
  if (x->bytes != y->bytes)
    return x->bytes < y->bytes ? -1 : 1;
  return by_choice (x, y);
}

/* Makes a candidate with a simulated time a finalist. The candidate may turn out not to fit,
 * although its extrapolated memory fitted. */
static void
accept (struct searcher *s, struct weft_candidate *c)
{
  c->bytes = c->report->peak_bytes;
  if (!c->report->fits) {
    c->fate = WEFT_FATE_MEMORY;
    return;
  }
  c->seconds = c->report->iteration.time_s;
  s->best_simulated = fmin (s->best_simulated, c->seconds);
  c->fate = WEFT_FATE_SIMULATED;
}

/* The best known lower bound of a candidate's step time, in seconds. */
static double
least (const struct weft_candidate *c)
{
  return c->clock > 0 ? c->clock : c->bound;
}

/* The order of refinement: lowest bound first. Among equal bounds, candidates without a clock time
 * come first: when take() returns a candidate with a clock time, no other candidate can have a
 * lower clock time. */
static int
comes_before (gconstpointer a, gconstpointer b, gpointer unused)
{
  const struct weft_candidate *x = a, *y = b;

  (void) unused;
  if (least (x) != least (y))
    return least (x) < least (y) ? -1 : 1;
  if ((x->clock > 0) != (y->clock > 0))
    return x->clock > 0 ? 1 : -1;
  if (x->clock > 0 && x->bytes != y->bytes)
    return x->bytes < y->bytes ? -1 : 1;
  return by_choice (x, y);
}

static void
put (GSequence *open, struct weft_candidate *c)
{
  g_sequence_insert_sorted (open, c, comes_before, NULL);
}

/* Removes the first candidate of a sequence and returns it; NULL if the sequence is empty. */
static struct weft_candidate *
take (GSequence *open)
{
  GSequenceIter *at = g_sequence_get_begin_iter (open);

  if (g_sequence_iter_is_end (at))
    return NULL;
  struct weft_candidate *c = g_sequence_get (at);
  g_sequence_remove (at);
  return c;
}

static GSequence *
open_all (const struct searcher *s,
          gboolean (*is_wanted) (const struct searcher *s, const struct weft_candidate *c))
{
  GSequence *open = g_sequence_new (NULL);

  for (guint i = 0; i < s->families->len; i++)
    if (is_wanted (s, s->families->pdata[i]))
      g_sequence_append (open, s->families->pdata[i]);
  for (guint i = 0; i < s->strategies->len; i++)
    if (is_wanted (s, s->strategies->pdata[i]))
      g_sequence_append (open, s->strategies->pdata[i]);
  g_sequence_sort (open, comes_before, NULL);
  return open;
}

static gboolean
may_win (const struct searcher *s, const struct weft_candidate *c)
{
  (void) s;
  return !c->expanded && (c->fate == WEFT_FATE_PRUNED || c->fate == WEFT_FATE_RANKED);
}

static gboolean
is_far_behind (const struct searcher *s, const struct weft_candidate *c)
{
  return c->flops > s->best_clock * PRUNE_FACTOR;
}

static gboolean
may_be_a_miss (const struct searcher *s, const struct weft_candidate *c)
{
  return !c->expanded && (c->fate == WEFT_FATE_PRUNED || c->fate == WEFT_FATE_MEMORY) &&
         c->clock == 0 && !is_far_behind (s, c);
}

/* ------------------------------------------------------------------------- rounds */

/* Number of candidates whose programs are built at a time: the first candidate in the order of
 * refinement and the candidates that follow it, which are likely to be next. The number does not
 * depend on the machine, so that the numbers of candidates by fate do not either. */
enum { MOST_AT_A_TIME = 8 };

/* The candidates that are refined, and the limit of the refinement. */
struct aim {
  GSequence *open;
  gboolean (*is_wanted) (const struct searcher *s, const struct weft_candidate *c);
  enum weft_trial_depth depth; /* depth of the trial of candidates that have all bounds */
  double limit;                /* candidates from this bound on are not refined, seconds */
  uint32_t most;               /* number of candidates with a report that end a round */
};

static enum weft_trial_depth
next_depth (const struct weft_candidate *c, const struct aim *aim)
{
  return c->known < WEFT_PROGRAM ? WEFT_TRIAL_BOUND : aim->depth;
}

/* A round takes no further programs once their schedules have so many cells, which take about two
 * seconds: the first clock times tell which long steps are worth a simulation. */
enum { MOST_CELLS_OF_ROUND = 40000 };

/* Adds the cells of the programs that a candidate's bound builds. */
static void
add_cells (const struct searcher *s, const struct aim *aim, const struct weft_candidate *c,
           uint64_t *n_cells)
{
  const struct weft_job job = weft_space_job (s->job, &c->choice);

  if (next_depth (c, aim) == WEFT_TRIAL_BOUND)
    *n_cells += weft_trial_cells (&s->trials, &job);
}

/* Number of ops after whose simulation the search ends if the gap is small. */
static uint64_t
most_ops (const struct searcher *s)
{
  if (s->options->finalists > 0)
    return UINT64_MAX;
  if (s->options->most_ops > 0)
    return s->options->most_ops;
  return is_wide (s) ? MOST_OPS_OF_WHOLE : MOST_OPS;
}

/* Whether a candidate is simulated in this round, which has simulated `n_ops` ops so far. */
static gboolean
joins (const struct searcher *s, const struct aim *aim, const struct weft_candidate *c,
       uint64_t *n_ops)
{
  if (next_depth (c, aim) != WEFT_TRIAL_SIMULATED)
    return TRUE;
  *n_ops += c->work;
  return s->n_ops + *n_ops <= most_ops (s);
}

/* Most jobs that are measured at a time, and how many candidates are looked at for them. */
enum { MOST_MEASURED = 8, MOST_LOOKED_AT = 32 };

/* What the next bound of a candidate measures: the trial's job and depth. FALSE: nothing, or it is
 * known. */
static gboolean
asks (const struct searcher *s, const struct weft_candidate *c, struct weft_trial *trial)
{
  struct weft_job job;

  if (c->level < WEFT_SPACE_STRATEGIES || (c->known != WEFT_SCHEDULE && c->known != WEFT_ENDS))
    return FALSE;
  job = weft_space_job (s->job, &c->choice);
  *trial =
      (struct weft_trial){ .depth = c->known == WEFT_ENDS ? WEFT_TRIAL_PATHS : WEFT_TRIAL_ENDS };
  return c->known == WEFT_ENDS ? weft_bound_lanes_measures (s->segments, &job, &trial->job)
                               : weft_bound_ends_measures (s->segments, &job, &trial->job);
}

/* Adds what the next bound of a candidate measures to n trials, unless it is among them. Returns
 * the number of trials. */
static uint32_t
add_measurement (const struct searcher *s, const struct weft_candidate *c, struct weft_trial *trial,
                 uint32_t n)
{
  if (!asks (s, c, &trial[n]))
    return n;
  for (uint32_t i = 0; i < n; i++)
    if (trial[i].depth == trial[n].depth &&
        memcmp (&trial[i].job, &trial[n].job, sizeof trial->job) == 0)
      return n;
  return n + 1;
}

/* Keeps what was measured, unless the process of the trial ended early. */
static void
keep_measurement (struct searcher *s, struct weft_trial *t)
{
  if (t->depth == WEFT_TRIAL_PATHS)
    weft_segment_cache_keep_paths (s->segments, &t->job, g_steal_pointer (&t->paths));
  else if (t->ends)
    weft_segment_cache_keep_ends (s->segments, &t->job, g_steal_pointer (&t->ends));
  weft_trial_clear (t);
}

/* Measures what the next bound of a candidate needs, and at the same time what those of the
 * candidates that follow it need. */
static gboolean
measure (struct searcher *s, const struct aim *aim, const struct weft_candidate *first,
         GError **error)
{
  g_autofree struct weft_trial *trial = g_new (struct weft_trial, MOST_MEASURED + 1);
  GSequenceIter *at = g_sequence_get_begin_iter (aim->open);
  uint32_t n = add_measurement (s, first, trial, 0);

  if (n == 0)
    return TRUE;
  for (uint32_t i = 0; i < MOST_LOOKED_AT && n < MOST_MEASURED && !g_sequence_iter_is_end (at);
       i++, at = g_sequence_iter_next (at))
    n = add_measurement (s, g_sequence_get (at), trial, n);
  if (!weft_trials_run (&s->trials, trial, n, error))
    return FALSE;
  for (uint32_t i = 0; i < n; i++)
    keep_measurement (s, &trial[i]);
  return TRUE;
}

/* Refines a candidate by one bound that needs no programs of its whole step, and puts it, or what
 * an expanded family consists of, back. */
static gboolean
advance (struct searcher *s, const struct aim *aim, struct weft_candidate *c, GError **error)
{
  const guint n[] = { s->families->len, s->strategies->len };
  GPtrArray *const lists[] = { s->families, s->strategies };

  if (!measure (s, aim, c, error))
    return FALSE;
  weft_searcher_approach (s, c);
  if (aim->is_wanted (s, c))
    put (aim->open, c);
  for (unsigned k = 0; k < G_N_ELEMENTS (lists); k++)
    for (guint i = n[k]; i < lists[k]->len; i++)
      if (aim->is_wanted (s, lists[k]->pdata[i]))
        put (aim->open, lists[k]->pdata[i]);
  return TRUE;
}

/* Puts the simulation of a round back if it is the only one, and the round has bounds to compute:
 * the simulation takes many times longer than these, and would leave all processes but one idle. It
 * waits for the candidates that follow it, which are likely to be simulated too, unless it is so
 * long that few others will be. Returns the number of candidates that remain. */
static uint32_t
postpone (const struct searcher *s, const struct aim *aim,
          struct weft_candidate *batch[MOST_AT_A_TIME], uint32_t n)
{
  uint32_t n_simulated = 0, n_left = 0;
  uint64_t work = 0;

  for (uint32_t i = 0; i < n; i++)
    if (next_depth (batch[i], aim) == WEFT_TRIAL_SIMULATED) {
      n_simulated++;
      work += batch[i]->work;
    }
  if (n_simulated != 1 || n == 1 || work > most_ops (s))
    return n;
  for (uint32_t i = 0; i < n; i++)
    if (next_depth (batch[i], aim) == WEFT_TRIAL_SIMULATED)
      put (aim->open, batch[i]);
    else
      batch[n_left++] = batch[i];
  return n_left;
}

/* Collects the candidates of a round, which begins with batch[0]. On the way, refines candidates by
 * bounds that need no programs. Sets *n to the number of candidates in batch[]. */
static gboolean
gather (struct searcher *s, const struct aim *aim, struct weft_candidate *batch[MOST_AT_A_TIME],
        uint32_t *n, GError **error)
{
  g_autoptr (GPtrArray) ready = g_ptr_array_new ();
  struct weft_candidate *c;
  uint64_t n_ops = 0, n_cells = 0;
  gboolean ok = TRUE;

  joins (s, aim, batch[0], &n_ops);
  add_cells (s, aim, batch[0], &n_cells);
  *n = 1;
  while (ok && *n < MOST_AT_A_TIME && n_cells < MOST_CELLS_OF_ROUND && ready->len < aim->most &&
         (c = take (aim->open))) {
    if (least (c) >= aim->limit || is_far_behind (s, c)) {
      put (aim->open, c);
      break;
    }
    if (c->fate == WEFT_FATE_RANKED && (c->report || aim->depth == WEFT_TRIAL_CLOCK))
      g_ptr_array_add (ready, c);
    else if (is_quick (c))
      ok = advance (s, aim, c, error);
    else if (joins (s, aim, c, &n_ops)) {
      add_cells (s, aim, c, &n_cells);
      batch[(*n)++] = c;
    } else {
      put (aim->open, c);
      break;
    }
  }
  for (guint i = 0; i < ready->len; i++)
    put (aim->open, g_ptr_array_index (ready, i));
  *n = postpone (s, aim, batch, *n);
  return ok;
}

/* Refines `first` and, if its programs are built, candidates that follow it in the order of
 * refinement. */
static gboolean
refine (struct searcher *s, const struct aim *aim, struct weft_candidate *first, GError **error)
{
  struct weft_candidate *batch[MOST_AT_A_TIME] = { first };
  struct weft_trial trial[MOST_AT_A_TIME] = { 0 };
  uint32_t n;

  if (is_quick (first))
    return advance (s, aim, first, error);
  gboolean ok = gather (s, aim, batch, &n, error);
  for (uint32_t i = 0; i < n && ok; i++) {
    trial[i].job = weft_space_job (s->job, &batch[i]->choice);
    trial[i].depth = next_depth (batch[i], aim);
    trial[i].expected_ops = batch[i]->work;
  }
  ok = ok && run_trials (s, trial, n, error);
  for (uint32_t i = 0; i < n && ok; i++)
    ok = settle (s, batch[i], &trial[i], error);
  for (uint32_t i = 0; i < n; i++)
    if (aim->is_wanted (s, batch[i]))
      put (aim->open, batch[i]);
  return ok;
}

/* Moves all candidates of `aside`, which were not refined because they were far behind the best,
 * back to s->open. They may be needed, because the best simulated time may exceed their bounds. */
static void
reopen (struct searcher *s, GSequence *aside)
{
  struct weft_candidate *c;

  while ((c = take (aside)))
    put (s->open, c);
  g_sequence_free (aside);
}

/* The gap with which the search may end if the next simulation takes `more` work: none before much
 * was simulated, then NEAR, and more after many times as much, so that very long steps are not
 * simulated for minutes. The next simulation counts twice, because it seldom closes the gap. */
static double
gap_enough (const struct searcher *s, uint64_t more)
{
  double share = (double) (s->n_ops + 2 * more) / (double) most_ops (s);

  return share < 1 ? 0 : NEAR * CLAMP (share / MANY, 1, MOST_NEAR);
}

/* Whether the search has simulated many ops, or would with those of `c`, and no candidate is much
 * faster than the best, if `c` has the lowest bound of those that were not simulated. */
static gboolean
is_near (const struct searcher *s, const struct weft_candidate *c)
{
  double gap = gap_enough (s, c->work);

  return gap > 0 && least (c) >= s->best_simulated * (1 - gap);
}

/* The candidate that is refined next, although its bound is not the lowest: before the first
 * simulation one that is almost as fast as the lowest bound, because its simulated time tells how
 * low bounds need be. It is removed from s->open. NULL: there is none. `first` has the lowest
 * bound. */
static struct weft_candidate *
take_nearest (struct searcher *s, const struct weft_candidate *first)
{
  struct weft_candidate *c = s->nearest;

  if (!is_wide (s) || isfinite (s->best_simulated) || !c || c == first ||
      c->bound * (1 - NEAR) > least (first))
    return NULL;
  s->nearest = NULL;
  GSequenceIter *at = g_sequence_lookup (s->open, c, comes_before, NULL);
  if (!at)
    return NULL;
  g_sequence_remove (at);
  return c;
}

/* Makes the candidates that were simulated, but whose turn did not come, finalists too. */
static void
accept_all (struct searcher *s)
{
  for (guint i = 0; i < s->strategies->len; i++) {
    struct weft_candidate *c = s->strategies->pdata[i];
    if (c->fate == WEFT_FATE_RANKED && c->report)
      accept (s, c);
  }
}

/* Refines a candidate on the way to `most` finalists. */
static gboolean
refine_best (struct searcher *s, struct weft_candidate *c, uint32_t most, GError **error)
{
  struct weft_candidate *nearest = take_nearest (s, c);
  const struct aim aim = {
    .open = s->open,
    .is_wanted = may_win,
    .depth = WEFT_TRIAL_SIMULATED,
    .limit = is_wide (s) && gap_enough (s, 0) > 0 ? s->best_simulated * (1 - gap_enough (s, 0))
                                                  : INFINITY,
    .most = most,
  };

  if (nearest)
    put (s->open, c);
  return refine (s, &aim, nearest ? nearest : c, error);
}

/* Simulates the candidates with the lowest clock times, in ascending order. A clock time that is
 * below the bounds of all other candidates is the lowest clock time of all. */
static gboolean
simulate_best (struct searcher *s, GError **error)
{
  uint32_t most = s->options->finalists ? s->options->finalists : FINALISTS, done = 0;
  GSequence *aside = g_sequence_new (NULL);
  struct weft_candidate *c;
  gboolean ok = TRUE;

  while (ok && done < most && !weft_searcher_stops (s) && (c = take (s->open))) {
    weft_searcher_progress (s, "simulating the best", done, most);
    if (is_far_behind (s, c)) {
      put (aside, c);
      continue;
    }
    if (!c->report && is_near (s, c)) {
      put (s->open, c);
      s->last_clock = s->best_clock;
      accept_all (s);
      break;
    }
    if (!c->report) {
      ok = refine_best (s, c, most - done, error);
      continue;
    }
    accept (s, c);
    if (c->fate == WEFT_FATE_SIMULATED && ++done == most)
      s->last_clock = c->clock;
  }
  reopen (s, aside);
  return ok;
}

/* Refines the candidates whose bounds are below the best simulated time, the candidate with the
 * lowest bound first. Stops when the lowest bound is a clock time: the gap is then the same as if
 * all candidates had clock times. Stops earlier after long simulations, if the gap is small. */
static gboolean
find_gap (struct searcher *s, double *gap, GError **error)
{
  double best = s->best_simulated;
  struct weft_candidate *c;

  *gap = 0;
  while (!weft_searcher_stops (s) && (c = take (s->open)) && least (c) < best) {
    weft_searcher_progress (s, "bounding the gap", 0, 0);
    if (c->fate == WEFT_FATE_RANKED || is_near (s, c)) {
      *gap = (best - least (c)) / best;
      return TRUE;
    }
    const struct aim aim = { s->open, may_win, WEFT_TRIAL_CLOCK, best, G_MAXUINT };
    if (!refine (s, &aim, c, error))
      return FALSE;
  }
  return TRUE;
}

/* Most plans that are built for candidates that do not fit in memory, after long simulations. */
enum { MOST_MISS_PLANS = 64, MOST_MISS_PLANS_OF_WHOLE = 16 };

/* Computes the clock times of the fastest candidates that do not fit in memory. If this takes too
 * long, the fastest of them stays unknown. */
static gboolean
find_miss (struct searcher *s, GError **error)
{
  GSequence *open = open_all (s, may_be_a_miss);
  const uint32_t most = is_wide (s) ? MOST_MISS_PLANS_OF_WHOLE : MOST_MISS_PLANS;
  const uint32_t *plans = &s->plans.by_depth[WEFT_PLAN_PRICED], before = *plans;
  struct weft_candidate *c;
  gboolean ok = TRUE;

  while (ok && !weft_searcher_stops (s) && (c = take (open)) &&
         least (c) <= fmin (s->nearest_miss, s->last_clock)) {
    weft_searcher_progress (s, "looking for what nearly fits", 0, 0);
    s->miss_unknown = s->n_ops >= most_ops (s) && *plans - before > most;
    if (s->miss_unknown)
      break;
    const struct aim aim = { open, may_be_a_miss, WEFT_TRIAL_CLOCK,
                             nextafter (fmin (s->nearest_miss, s->last_clock), INFINITY),
                             G_MAXUINT };
    ok = refine (s, &aim, c, error);
  }
  g_sequence_free (open);
  return ok;
}

/* The fastest candidate that does not fit in memory; NULL if there is none, if it is not known, or
 * if it is slower than all finalists. The candidates of `search` are sorted. */
static const struct weft_candidate *
miss_of (const struct searcher *s, const weft_search *search)
{
  for (uint32_t i = 0; i < search->n_listed && !s->miss_unknown; i++) {
    const struct weft_candidate *c = &search->candidate[i];
    if (c->fate == WEFT_FATE_MEMORY && c->clock > 0 && !is_far_behind (s, c))
      return c->clock <= s->last_clock ? c : NULL;
  }
  return NULL;
}

struct searcher
weft_searcher_of (const struct weft_job *job, const struct weft_search_options *options)
{
  weft_segment_cache *segments = weft_segment_cache_new ();

  return (struct searcher){ .options = options,
                            .job = job,
                            .families = g_ptr_array_new_with_free_func (g_free),
                            .strategies = g_ptr_array_new_with_free_func (g_free),
                            .segments = segments,
                            .trials = { .graph = options->graph,
                                        .placements = weft_segment_cache_placements (segments),
                                        .n_workers = options->n_workers,
                                        .stop = options->stop,
                                        .user = options->user },
                            .best_clock = INFINITY,
                            .nearest_miss = INFINITY,
                            .last_clock = INFINITY,
                            .best_simulated = INFINITY };
}

void
weft_searcher_clear (struct searcher *s)
{
  weft_trials_end (&s->trials);
  weft_segment_cache_free (s->segments);
  g_ptr_array_unref (s->families);
  g_ptr_array_unref (s->strategies);
  g_clear_error (&s->refused);
  g_clear_error (&s->fault);
}

static const struct weft_candidate *
closest_of (const weft_search *search)
{
  const struct weft_candidate *closest = NULL;

  for (uint32_t i = 0; i < search->n_listed; i++) {
    const struct weft_candidate *c = &search->candidate[i];
    if (c->weighed && (!closest || c->bytes < closest->bytes))
      closest = c;
  }
  return closest;
}

/* Frees the reports of candidates that were simulated but are not among the finalists. */
static void
drop_reports (struct searcher *s)
{
  for (guint i = 0; i < s->strategies->len; i++) {
    struct weft_candidate *c = s->strategies->pdata[i];
    if (c->fate == WEFT_FATE_SIMULATED)
      continue;
    g_clear_pointer (&c->report, weft_report_free);
    g_clear_pointer (&c->plan, weft_plan_free);
  }
}

/* Expands families until there is a strategy, so that a search that ends by itself has an example
 * of what is wrong with all. */
static void
list_any (struct searcher *s)
{
  for (guint i = 0; s->strategies->len == 0 && i < s->families->len && !s->stopped; i++) {
    struct weft_candidate *family = s->families->pdata[i];
    if (!family->expanded)
      weft_searcher_expand (s, family);
  }
}

static weft_search *
collect (struct searcher *s)
{
  weft_search *search = g_new0 (weft_search, 1);

  drop_reports (s);
  list_any (s);
  g_ptr_array_sort (s->strategies, compare);
  search->n_listed = s->strategies->len;
  search->candidate = g_new (struct weft_candidate, MAX (search->n_listed, 1));
  for (uint32_t i = 0; i < search->n_listed; i++) {
    search->candidate[i] = *(struct weft_candidate *) s->strategies->pdata[i];
    search->by_fate[search->candidate[i].fate]++;
  }
  for (guint i = 0; i < s->families->len; i++) {
    const struct weft_candidate *family = s->families->pdata[i];
    search->by_fate[family->fate] += family->expanded ? 0 : family->n_strategies;
  }
  for (int fate = 0; fate < WEFT_N_FATE; fate++)
    search->n += search->by_fate[fate];
  if (s->options->near_miss)
    search->miss = miss_of (s, search);
  search->closest = closest_of (search);
  return search;
}

static gboolean
search_all (struct searcher *s, double *gap, GError **error)
{
  if (!weft_searcher_begin (s, error))
    return FALSE;
  s->open = open_all (s, may_win);
  gboolean ok = simulate_best (s, error);
  if (ok && !weft_searcher_stops (s))
    ok = find_gap (s, gap, error) && (!s->options->near_miss || find_miss (s, error));
  g_sequence_free (s->open);
  return ok;
}

/* Refuses collectives that are data: their proof holds for one size of a group, and the bounds of
 * the search are those of the library's algorithms. */
static gboolean
check_collectives (const struct weft_job *job, GError **error)
{
  return !weft_job_has_algorithms (job) ||
         weft_bad_input (error, "collective_algorithm_files: found files, wanted none in a search");
}

weft_search *
weft_search_run (const struct weft_job *job, const struct weft_search_options *options,
                 GError **error)
{
  gint64 start = g_get_monotonic_time ();
  struct searcher s = weft_searcher_of (job, options);
  double gap = 0;
  uint32_t enough = 0;
  gboolean ok = weft_cluster_one_kind (&job->cluster, "weft plan", error) &&
                check_collectives (job, error) && search_all (&s, &gap, error);
  if (ok && options->near_miss && !isfinite (s.best_simulated) && !s.refused &&
      !weft_searcher_stops (&s))
    ok = weft_searcher_find_closest (&s, error) && weft_searcher_find_enough (&s, &enough, error);
  weft_search *search = collect (&s);
  search->enough_gpus = enough;
  search->stopped = s.stopped;
  search->plans = s.plans;
  search->plans.of_layers = weft_segment_cache_plans (s.segments);
  search->gap = !search->by_fate[WEFT_FATE_SIMULATED] ? 0 : s.stopped ? 1 : gap;
  search->wall_seconds = (g_get_monotonic_time () - start) * 1e-6;
  if (ok)
    weft_searcher_explain (&s, search, error);
  search->fault = g_steal_pointer (&s.fault);
  weft_searcher_clear (&s);
  return search;
}

void
weft_search_free (weft_search *search)
{
  for (uint32_t i = 0; i < search->n_listed; i++) {
    g_clear_pointer (&search->candidate[i].report, weft_report_free);
    g_clear_pointer (&search->candidate[i].plan, weft_plan_free);
  }
  g_free (search->candidate);
  g_clear_error (&search->fault);
  g_free (search);
}
