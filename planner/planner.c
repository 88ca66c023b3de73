#include "planner/planner.h"
#include "core/base/error.h"
#include "exec_sim/exec_sim.h"
#include "planner/bound.h"
#include "planner/shorten.h"
#include <math.h>
#include <stdlib.h>

/* A candidate is not simulated if its bound by FLOPs exceeds this many times the best clock
 * time. */
#define PRUNE_FACTOR 1.5

struct searcher {
  const struct weft_search_options *options;
  const struct weft_job *job;
  struct weft_candidate *all;
  uint32_t n;
  GSequence *open; /* candidates that may still be among the best, in the order of comes_before() */
  weft_segment_cache *segments;
  double best_clock;   /* lowest clock time among the candidates that fit in memory */
  double nearest_miss; /* lowest clock time among the candidates that do not fit in memory */
  double last_clock;   /* highest clock time of the finalists; set once all finalists are known */
  double best_simulated; /* lowest simulated time of all candidates */
  uint32_t n_steps;    /* number of calls of attempt() */
  struct weft_search_plans plans;
  gboolean stopped;
  /* error of the first candidate whose step cannot be captured as a CUDA graph */
  GError *refused;
  /* error of the first candidate that an internal check rejected (WEFT_FATE_FAULT) */
  GError *fault;
};

static void
progress (const struct searcher *s, const char *phase, uint32_t done, uint32_t of)
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

/* Whether the user has asked to end the search now. */
static gboolean
stops (struct searcher *s)
{
  s->stopped = s->stopped || (s->options->stop && s->options->stop (s->options->user));
  return s->stopped;
}

struct sample {
  double seconds;
  /* bytes of the role that needs most: the planned bytes, and the bytes without padding */
  double bytes, least;
  /* the step cannot be captured as a CUDA graph; the other fields are then 0 */
  gboolean refused;
};

static weft_plan *
build (struct searcher *s, const struct weft_job *job, enum weft_plan_depth depth, GError **error)
{
  s->plans.by_depth[depth]++;
  return weft_plan_new_draft (job, depth, weft_segment_cache_placements (s->segments), error);
}

static gboolean
sample (struct searcher *s, const struct weft_job *job, enum weft_plan_depth depth,
        struct sample *out, GError **error)
{
  const union weft_clock_options own = { { .graph = s->options->graph, .roles = TRUE } };
  const struct weft_exec_options exec = { .own = weft_own_options_of (weft_exec_clock.options,
                                                                      own.at) };
  g_autoptr (weft_plan) plan = build (s, job, depth, error);

  if (!plan)
    return FALSE;
  *out = (struct sample){ 0 };
  out->refused = own.graph && !weft_exec_check_graph (plan, s->refused ? NULL : &s->refused);
  if (out->refused)
    return TRUE;
  g_autoptr (weft_timeline) t = weft_exec_run (&weft_exec_clock, plan, &exec, error);
  if (!t)
    return FALSE;
  out->seconds = t->seconds;
  if (depth == WEFT_PLAN_PRICED)
    return TRUE;
  out->bytes = (double) weft_plan_worst_bytes (plan);
  out->least = (double) weft_plan_least_bytes (plan);
  return TRUE;
}

/* Computes the clock time and the memory of a job's step. A long step is extrapolated from two
 * short steps. */
static gboolean
measure (struct searcher *s, const struct weft_job *job, enum weft_plan_depth depth,
         struct sample *out, GError **error)
{
  struct weft_shortened shortened;
  double seconds[2], bytes[2], least[2];

  weft_shorten (job, &shortened);
  for (uint32_t i = 0; i < shortened.n; i++) {
    if (!sample (s, &shortened.job[i], depth, out, error))
      return FALSE;
    if (out->refused)
      return TRUE;
    seconds[i] = out->seconds;
    bytes[i] = out->bytes;
    least[i] = out->least;
  }
  out->seconds = weft_shortened_seconds (&shortened, seconds);
  out->bytes = weft_shortened_bytes (&shortened, bytes);
  out->least = weft_shortened_bytes (&shortened, least);
  return TRUE;
}

/* Computes the clock time of a candidate. An extrapolated clock time may be slightly below the
 * candidate's lower bound, and is then replaced by the bound. */
static gboolean
rank (struct searcher *s, struct weft_candidate *c, GError **error)
{
  struct weft_job job = weft_space_job (s->job, &c->choice);
  struct sample got;

  if (!measure (s, &job, WEFT_PLAN_PLACED, &got, error))
    return FALSE;
  if (got.refused) {
    c->fate = WEFT_FATE_RULE;
    return TRUE;
  }
  c->clock = fmax (got.seconds, c->bound);
  double capacity = weft_plan_capacity (&job);
  c->fate = got.bytes <= capacity ? WEFT_FATE_RANKED : WEFT_FATE_MEMORY;
  c->bytes = got.least > capacity ? got.least : got.bytes;
  double *best = c->fate == WEFT_FATE_RANKED ? &s->best_clock : &s->nearest_miss;
  *best = fmin (*best, c->clock);
  return TRUE;
}

/* Does one step of work on a candidate. A failed internal check (WEFT_ERROR_BUG) rejects only this
 * candidate; the search continues. */
typedef gboolean (*candidate_step) (struct searcher *s, struct weft_candidate *c, GError **error);

static gboolean
attempt (struct searcher *s, struct weft_candidate *c, candidate_step step, GError **error)
{
  GError *failure = NULL;

  s->n_steps++;
  if (step (s, c, &failure))
    return TRUE;
  if (!g_error_matches (failure, WEFT_ERROR, WEFT_ERROR_BUG)) {
    g_propagate_error (error, failure);
    return FALSE;
  }
  c->fate = WEFT_FATE_FAULT;
  if (s->fault)
    g_error_free (failure);
  else
    s->fault = failure;
  return TRUE;
}

/* Checks the rules of a candidate's job and computes the bound by FLOPs, without building a
 * program. */
static void
begin (struct searcher *s, struct weft_candidate *c)
{
  struct weft_job job = weft_space_job (s->job, &c->choice);

  c->fate = weft_job_check (&job, NULL) ? WEFT_FATE_PRUNED : WEFT_FATE_RULE;
  c->flops = c->bound = c->fate == WEFT_FATE_PRUNED ? weft_bound_flops (&job) : 0;
}

/* Checks the rules of all candidates and computes the first lower bound of each. If `exhaustive` is
 * set, also computes the time of every candidate with the executor `clock`. */
static gboolean
begin_all (struct searcher *s, GError **error)
{
  gboolean ok = TRUE;

  for (uint32_t i = 0; ok && i < s->n && !stops (s); i++) {
    struct weft_candidate *c = &s->all[i];
    if (i % 256 == 0)
      progress (s, "checking rules", i, s->n);
    begin (s, c);
    if (s->options->exhaustive && c->fate == WEFT_FATE_PRUNED)
      ok = attempt (s, c, rank, error);
  }
  return ok;
}

static void
look_at_passes (struct searcher *s, const struct weft_job *job, struct weft_candidate *c)
{
  struct weft_bound bound = weft_bound_passes (s->segments, job);

  c->bound = fmax (c->bound, bound.seconds);
  c->bytes = (uint64_t) bound.bytes;
  if (bound.bytes > weft_plan_capacity (job))
    c->fate = WEFT_FATE_MEMORY;
}

/* Computes the clock time of a program without buffer addresses as a bound. This time is a lower
 * bound of the clock time, because buffers that share an address can only make ops wait. */
static gboolean
look_at_program (struct searcher *s, const struct weft_job *job, struct weft_candidate *c,
                 GError **error)
{
  struct sample got;

  if (!measure (s, job, WEFT_PLAN_PRICED, &got, error))
    return FALSE;
  if (got.refused)
    c->fate = WEFT_FATE_RULE;
  else
    c->bound = fmax (c->bound, got.seconds);
  return TRUE;
}

/* Refines a candidate without a clock time by one step: the bound from its passes, from its
 * schedule, from its program without buffer addresses, and then the clock time. */
static gboolean
approach (struct searcher *s, struct weft_candidate *c, GError **error)
{
  struct weft_job job = weft_space_job (s->job, &c->choice);

  switch (c->known) {
  case WEFT_FLOPS:
    look_at_passes (s, &job, c);
    break;
  case WEFT_PASSES:
    c->bound = fmax (c->bound, weft_bound_schedule (s->segments, &job));
    break;
  case WEFT_SCHEDULE:
    if (!look_at_program (s, &job, c, error))
      return FALSE;
    break;
  case WEFT_PROGRAM:
    return rank (s, c, error);
  }
  c->known++;
  return TRUE;
}

static int
compare (const void *a, const void *b)
{
  const struct weft_candidate *x = a, *y = b;
  double tx = x->fate == WEFT_FATE_SIMULATED ? x->seconds : x->clock;
  double ty = y->fate == WEFT_FATE_SIMULATED ? y->seconds : y->clock;

  if (x->fate != y->fate)
    return (int) y->fate - (int) x->fate;
  if (tx != ty)
    return tx < ty ? -1 : 1;
  return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static void
sort (struct searcher *s)
{
  qsort (s->all, s->n, sizeof (struct weft_candidate), compare);
}

static weft_report *
simulate_plan (const weft_plan *plan, gboolean graph, GError **error)
{
  const union weft_sim_options own = { { .graph = graph } };
  const struct weft_exec_options exec = { .own =
                                              weft_own_options_of (weft_exec_sim.options, own.at) };
  g_autoptr (weft_timeline) t = weft_exec_run (&weft_exec_sim, plan, &exec, error);

  if (!t)
    return NULL;
  weft_report *report = weft_report_new (plan, t);
  report->timeline = NULL; /* the caller frees the timeline */
  return report;
}

static weft_report *
simulate_job (struct searcher *s, const struct weft_job *job, GError **error)
{
  g_autoptr (weft_plan) plan = build (s, job, WEFT_PLAN_PROVED, error);

  return plan ? simulate_plan (plan, s->options->graph, error) : NULL;
}

/* Simulates a plan that fits, and frees its programs, because the programs of one finalist may take
 * a gigabyte. A long step is extrapolated from two short steps. */
static weft_report *
simulate_step (struct searcher *s, weft_plan *plan, GError **error)
{
  struct weft_shortened shortened;
  weft_report *of[2] = { NULL, NULL }, *report;

  weft_shorten (&plan->job, &shortened);
  report = shortened.n == 1 ? simulate_plan (plan, s->options->graph, error)
                            : weft_report_new (plan, NULL);
  weft_plan_drop_programs (plan);
  if (shortened.n == 1)
    return report;
  if ((of[0] = simulate_job (s, &shortened.job[0], error)) &&
      (of[1] = simulate_job (s, &shortened.job[1], error)))
    weft_shortened_report (&shortened, &plan->job, of, report);
  else
    g_clear_pointer (&report, weft_report_free);
  g_clear_pointer (&of[0], weft_report_free);
  g_clear_pointer (&of[1], weft_report_free);
  return report;
}

/* Builds the full plan of a candidate and simulates it. The candidate may turn out not to fit,
 * although its extrapolated memory fitted. */
static gboolean
simulate (struct searcher *s, struct weft_candidate *c, GError **error)
{
  struct weft_job job = weft_space_job (s->job, &c->choice);

  c->plan = build (s, &job, WEFT_PLAN_PROVED, error);
  if (!c->plan)
    return FALSE;
  c->bytes = weft_plan_worst_bytes (c->plan);
  if (!weft_plan_fits (c->plan)) {
    c->fate = WEFT_FATE_MEMORY;
    g_clear_pointer (&c->plan, weft_plan_free);
    return TRUE;
  }
  c->report = simulate_step (s, c->plan, error);
  if (!c->report)
    return FALSE;
  c->seconds = c->report->iteration.time_s;
  s->best_simulated = fmin (s->best_simulated, c->seconds);
  c->fate = WEFT_FATE_SIMULATED;
  return TRUE;
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
  return (x > y) - (x < y);
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

  for (uint32_t i = 0; i < s->n; i++)
    if (is_wanted (s, &s->all[i]))
      g_sequence_append (open, &s->all[i]);
  g_sequence_sort (open, comes_before, NULL);
  return open;
}

static gboolean
may_win (const struct searcher *s, const struct weft_candidate *c)
{
  (void) s;
  return c->fate == WEFT_FATE_PRUNED || c->fate == WEFT_FATE_RANKED;
}

static gboolean
is_far_behind (const struct searcher *s, const struct weft_candidate *c)
{
  return c->flops > s->best_clock * PRUNE_FACTOR;
}

static gboolean
may_be_a_miss (const struct searcher *s, const struct weft_candidate *c)
{
  return (c->fate == WEFT_FATE_PRUNED || c->fate == WEFT_FATE_MEMORY) && c->clock == 0 &&
         !is_far_behind (s, c);
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

/* Simulates the candidates with the lowest clock times, in ascending order. A clock time that is
 * below the bounds of all other candidates is the lowest clock time of all. */
static gboolean
simulate_best (struct searcher *s, GError **error)
{
  uint32_t most = s->options->finalists ? s->options->finalists : 10, done = 0;
  GSequence *aside = g_sequence_new (NULL);
  struct weft_candidate *c;
  gboolean ok = TRUE;

  while (ok && done < most && !stops (s) && (c = take (s->open))) {
    progress (s, "simulating the best", done, most);
    if (is_far_behind (s, c)) {
      put (aside, c);
      continue;
    }
    ok = attempt (s, c, c->fate == WEFT_FATE_RANKED ? simulate : approach, error);
    if (c->fate == WEFT_FATE_SIMULATED && ++done == most)
      s->last_clock = c->clock;
    if (may_win (s, c))
      put (s->open, c);
  }
  reopen (s, aside);
  return ok;
}

/* Refines the candidates whose bounds are below the best simulated time, the candidate with the
 * lowest bound first. Stops when the lowest bound is a clock time. The gap is then the same as if
 * all candidates had clock times. */
static gboolean
find_gap (struct searcher *s, double *gap, GError **error)
{
  double best = s->best_simulated;
  struct weft_candidate *c;

  *gap = 0;
  while (!stops (s) && (c = take (s->open)) && least (c) < best) {
    progress (s, "bounding the gap", 0, 0);
    if (c->fate == WEFT_FATE_RANKED) {
      *gap = (best - c->clock) / best;
      return TRUE;
    }
    if (!attempt (s, c, approach, error))
      return FALSE;
    if (may_win (s, c))
      put (s->open, c);
  }
  return TRUE;
}

/* Computes the clock times of the fastest candidates that do not fit in memory. */
static gboolean
find_miss (struct searcher *s, GError **error)
{
  GSequence *open = open_all (s, may_be_a_miss);
  struct weft_candidate *c;
  gboolean ok = TRUE;

  while (ok && !stops (s) && (c = take (open)) &&
         least (c) <= fmin (s->nearest_miss, s->last_clock)) {
    progress (s, "looking for what nearly fits", 0, 0);
    ok = attempt (s, c, approach, error);
    if (may_be_a_miss (s, c))
      put (open, c);
  }
  g_sequence_free (open);
  return ok;
}

/* The fastest candidate that does not fit in memory; NULL if there is none, or if it is slower than
 * all finalists. The candidates of `search` are sorted. */
static const struct weft_candidate *
miss_of (const struct searcher *s, const weft_search *search)
{
  for (uint32_t i = 0; i < search->n; i++) {
    const struct weft_candidate *c = &search->candidate[i];
    if (c->fate == WEFT_FATE_MEMORY && c->clock > 0 && !is_far_behind (s, c))
      return c->clock <= s->last_clock ? c : NULL;
  }
  return NULL;
}

/* ------------------------------------------------------------------ where nothing fits */

/* Largest numbers of candidates whose memory is measured, in find_closest() and, for each cluster
 * size, in anything_fits(). They are limited because measuring memory builds the candidate's
 * programs. */
enum { MOST_CLOSEST = 12, MOST_TRIES = 4 };

static int
compare_bytes (const void *a, const void *b)
{
  const struct weft_candidate *x = *(struct weft_candidate *const *) a,
                              *y = *(struct weft_candidate *const *) b;

  return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* The candidates with one fate, sorted by memory in ascending order. The caller frees the array. */
static GPtrArray *
by_bytes (const struct searcher *s, enum weft_fate fate)
{
  GPtrArray *list = g_ptr_array_new ();

  for (uint32_t i = 0; i < s->n; i++)
    if (s->all[i].fate == fate)
      g_ptr_array_add (list, &s->all[i]);
  g_ptr_array_sort (list, compare_bytes);
  return list;
}

/* Replaces the lower bound of a candidate's memory by its measured memory, and sets the candidate's
 * clock time. */
static gboolean
weigh (struct searcher *s, struct weft_candidate *c, GError **error)
{
  struct weft_job job = weft_space_job (s->job, &c->choice);
  struct sample got;

  if (!measure (s, &job, WEFT_PLAN_PLACED, &got, error))
    return FALSE;
  c->clock = got.seconds;
  c->bytes = (uint64_t) got.bytes;
  c->weighed = TRUE;
  return TRUE;
}

/* Measures the memory of the candidates with the lowest bounds on memory. Stops when no other
 * candidate's bound is below the least memory measured so far. */
static gboolean
find_closest (struct searcher *s, GError **error)
{
  g_autoptr (GPtrArray) list = by_bytes (s, WEFT_FATE_MEMORY);
  guint n = MIN (list->len, MOST_CLOSEST);
  uint64_t least_bytes = UINT64_MAX;

  for (guint i = 0; i < n && !stops (s); i++) {
    struct weft_candidate *c = g_ptr_array_index (list, i);
    progress (s, "looking for what nearly fits", i, n);
    if (c->bytes >= least_bytes)
      break;
    if (!attempt (s, c, weigh, error))
      return FALSE;
    least_bytes = MIN (least_bytes, c->bytes);
  }
  return TRUE;
}

/* Sets *fits to TRUE if one of the strategies with the lowest bounds on memory fits. */
static gboolean
anything_fits (struct searcher *s, gboolean *fits, GError **error)
{
  if (!begin_all (s, error))
    return FALSE;
  for (uint32_t i = 0; i < s->n && !stops (s); i++) {
    struct weft_job job = weft_space_job (s->job, &s->all[i].choice);
    if (s->all[i].fate == WEFT_FATE_PRUNED)
      look_at_passes (s, &job, &s->all[i]);
  }
  g_autoptr (GPtrArray) list = by_bytes (s, WEFT_FATE_PRUNED);
  *fits = FALSE;
  for (guint i = 0; i < MIN (list->len, MOST_TRIES) && !*fits && !stops (s); i++) {
    struct weft_candidate *c = g_ptr_array_index (list, i);
    if (!attempt (s, c, rank, error))
      return FALSE;
    *fits = c->fate == WEFT_FATE_RANKED;
  }
  return TRUE;
}

static struct weft_candidate *
candidates (const struct weft_job *job, uint32_t *n)
{
  g_autoptr (GArray) choices = weft_space_enumerate (job);
  struct weft_candidate *all = g_new0 (struct weft_candidate, choices->len);

  for (guint i = 0; i < choices->len; i++)
    all[i].choice = g_array_index (choices, struct weft_choice, i);
  *n = choices->len;
  return all;
}

/* Makes the state of a search that has found nothing yet. The caller frees `all` and `segments`. */
static struct searcher
searcher_of (const struct weft_job *job, const struct weft_search_options *options)
{
  struct searcher s = { .options = options,
                        .job = job,
                        .segments = weft_segment_cache_new (),
                        .best_clock = INFINITY,
                        .nearest_miss = INFINITY,
                        .last_clock = INFINITY,
                        .best_simulated = INFINITY };

  s.all = candidates (job, &s.n);
  return s;
}

gboolean
weft_search_fits (const struct weft_job *job, const struct weft_search_options *options,
                  gboolean *fits, GError **error)
{
  struct searcher s = searcher_of (job, options);
  gboolean ok = anything_fits (&s, fits, error);

  weft_segment_cache_free (s.segments);
  g_free (s.all);
  g_clear_error (&s.refused);
  g_clear_error (&s.fault);
  return ok;
}

static gboolean
fits_on (struct searcher *outer, uint32_t gpus, gboolean *fits, GError **error)
{
  struct weft_job job = *outer->job;

  return weft_cluster_resize (&job.cluster, gpus, 0, error) &&
         weft_search_fits (&job, outer->options, fits, error);
}

/* Doubles the number of GPUs until a strategy fits. Then tries three sizes between the last size on
 * which no strategy fits and this size. */
static gboolean
find_enough (struct searcher *s, uint32_t *enough, GError **error)
{
  const struct weft_cluster *cluster = &s->job->cluster;
  uint64_t node = (uint64_t) cluster->f.node_gpus;
  uint64_t most = node * (uint64_t) cluster->f.fabric_max_nodes;
  uint64_t few = cluster->n_gpus, gpus = few < node ? node : 2 * few;
  gboolean fits = FALSE;

  for (; gpus <= most && !fits && !stops (s); gpus *= 2) {
    progress (s, "trying more GPUs", (uint32_t) gpus, (uint32_t) most);
    if (!fits_on (s, (uint32_t) gpus, &fits, error))
      return FALSE;
    if (fits)
      break;
    few = gpus;
  }
  if (!fits)
    return TRUE;
  *enough = (uint32_t) gpus;
  for (uint64_t part = 5; part < 8 && !stops (s); part++) {
    if (few * part % (4 * node))
      continue;
    if (!fits_on (s, (uint32_t) (few * part / 4), &fits, error))
      return FALSE;
    if (fits) {
      *enough = (uint32_t) (few * part / 4);
      break;
    }
  }
  return TRUE;
}

static const struct weft_candidate *
closest_of (const weft_search *search)
{
  const struct weft_candidate *closest = NULL;

  for (uint32_t i = 0; i < search->n; i++) {
    const struct weft_candidate *c = &search->candidate[i];
    if (c->weighed && (!closest || c->bytes < closest->bytes))
      closest = c;
  }
  return closest;
}

static weft_search *
collect (struct searcher *s)
{
  weft_search *search = g_new0 (weft_search, 1);

  sort (s);
  search->n = s->n;
  search->candidate = g_steal_pointer (&s->all);
  for (uint32_t i = 0; i < search->n; i++)
    search->by_fate[search->candidate[i].fate]++;
  if (s->options->near_miss)
    search->miss = miss_of (s, search);
  search->closest = closest_of (search);
  return search;
}

static gboolean
search_all (struct searcher *s, double *gap, GError **error)
{
  if (!begin_all (s, error))
    return FALSE;
  s->open = open_all (s, may_win);
  gboolean ok = simulate_best (s, error) && find_gap (s, gap, error) &&
                (!s->options->near_miss || find_miss (s, error));
  g_sequence_free (s->open);
  return ok;
}

weft_search *
weft_search_run (const struct weft_job *job, const struct weft_search_options *options,
                 GError **error)
{
  gint64 start = g_get_monotonic_time ();
  struct searcher s = searcher_of (job, options);
  double gap = 0;
  uint32_t enough = 0;
  gboolean ok = search_all (&s, &gap, error);
  if (ok && options->near_miss && !isfinite (s.best_simulated) && !s.refused)
    ok = find_closest (&s, error) && find_enough (&s, &enough, error);
  weft_search *search = collect (&s);
  search->enough_gpus = enough;
  search->stopped = s.stopped;
  search->plans = s.plans;
  search->plans.of_layers = weft_segment_cache_plans (s.segments);
  search->gap = !search->by_fate[WEFT_FATE_SIMULATED] ? 0 : s.stopped ? 1 : gap;
  weft_segment_cache_free (s.segments);
  search->wall_seconds = (g_get_monotonic_time () - start) * 1e-6;
  if (ok && s.refused && search->by_fate[WEFT_FATE_RULE] == search->n)
    g_propagate_error (error, g_steal_pointer (&s.refused));
  else if (ok && s.fault && search->by_fate[WEFT_FATE_SIMULATED] == 0)
    g_propagate_error (error, g_error_copy (s.fault));
  else if (ok && s.stopped && search->by_fate[WEFT_FATE_SIMULATED] == 0)
    weft_run_error (error, "stopped before a strategy was simulated");
  else if (ok && search->by_fate[WEFT_FATE_SIMULATED] == 0)
    g_set_error (error, WEFT_ERROR, WEFT_ERROR_INFEASIBLE,
                 "none of %u strategies fits: %u do not fit in memory, %u break a rule", search->n,
                 search->by_fate[WEFT_FATE_MEMORY], search->by_fate[WEFT_FATE_RULE]);
  g_clear_error (&s.refused);
  search->fault = s.fault;
  return search;
}

void
weft_search_free (weft_search *search)
{
  for (uint32_t i = 0; i < search->n; i++) {
    g_clear_pointer (&search->candidate[i].report, weft_report_free);
    g_clear_pointer (&search->candidate[i].plan, weft_plan_free);
  }
  g_free (search->candidate);
  g_clear_error (&search->fault);
  g_free (search);
}
