#include "planner/planner.h"
#include "core/base/error.h"
#include "exec_sim/exec_sim.h"
#include "planner/bound.h"
#include "planner/shorten.h"
#include "planner/space.h"
#include <math.h>
#include <stdlib.h>

/* A candidate whose FLOPs alone take this much longer than the best is not listed, whatever else is. */
#define PRUNE_FACTOR 1.5

struct searcher {
  const struct weft_search_options *options;
  GArray *all;
  weft_bounds *bounds;
  double best_clock;   /* of what fits */
  double nearest_miss; /* clock of the quickest that does not */
  GError *refused;     /* why the first that cannot be a graph is none */
  double last_clock;   /* of those listed, if the list is full: what is slower would not stand in it */
};

static struct weft_candidate *
at (const struct searcher *s, guint i)
{
  return &g_array_index (s->all, struct weft_candidate, i);
}

static void
progress (const struct searcher *s, const char *phase, uint32_t done, uint32_t of)
{
  if (s->options->progress)
    s->options->progress (s->options->user, phase, done, of);
}

struct sample {
  double seconds;
  double bytes;
  gboolean refused; /* and nothing else is known */
};

static gboolean
sample (struct searcher *s, const struct weft_job *job, struct sample *out, GError **error)
{
  g_autoptr (weft_plan) plan = weft_plan_new_draft (job, WEFT_PLAN_PLACED, error);

  if (!plan)
    return FALSE;
  *out = (struct sample){ 0 };
  out->refused = s->options->exec.graph &&
                 !weft_exec_check_graph (plan, s->refused ? NULL : &s->refused);
  if (out->refused)
    return TRUE;
  g_autoptr (weft_timeline) t = weft_exec_run (&weft_exec_clock, plan, &s->options->exec, error);
  if (!t)
    return FALSE;
  *out = (struct sample){ t->seconds, weft_plan_worst_bytes (plan), FALSE };
  return TRUE;
}

/* By two short steps where the job is a long one. */
static gboolean
measure (struct searcher *s, const struct weft_job *job, struct sample *out, GError **error)
{
  struct weft_shortened shortened;
  double seconds[2], bytes[2];

  weft_shorten (job, &shortened);
  for (uint32_t i = 0; i < shortened.n; i++) {
    if (!sample (s, &shortened.job[i], out, error))
      return FALSE;
    if (out->refused)
      return TRUE;
    seconds[i] = out->seconds;
    bytes[i] = out->bytes;
  }
  out->seconds = weft_shortened_seconds (&shortened, seconds);
  out->bytes = weft_shortened_bytes (&shortened, bytes);
  return TRUE;
}

/* The line through two short steps may lie a little below what is proved. */
static gboolean
rank (struct searcher *s, struct weft_candidate *c, GError **error)
{
  struct sample got;

  if (!measure (s, &c->job, &got, error))
    return FALSE;
  if (got.refused) {
    c->fate = WEFT_FATE_RULE;
    return TRUE;
  }
  c->clock = fmax (got.seconds, c->bound);
  c->bytes = got.bytes;
  c->fate = got.bytes <= c->job.cluster.f.gpu_memory ? WEFT_FATE_RANKED : WEFT_FATE_MEMORY;
  double *best = c->fate == WEFT_FATE_RANKED ? &s->best_clock : &s->nearest_miss;
  *best = fmin (*best, c->clock);
  return TRUE;
}

/* First what is known without a look at its program. */
static void
begin (struct weft_candidate *c)
{
  c->fate = weft_job_check (&c->job, NULL) ? WEFT_FATE_PRUNED : WEFT_FATE_RULE;
  c->flops = c->bound = c->fate == WEFT_FATE_PRUNED ? weft_bound_flops (&c->job) : 0;
}

/* With `exhaustive` all of them have clocks before any bound is asked. */
static gboolean
begin_all (struct searcher *s, GError **error)
{
  gboolean ok = TRUE;

  for (guint i = 0; ok && i < s->all->len; i++) {
    struct weft_candidate *c = at (s, i);
    progress (s, "ranking", i, s->all->len);
    begin (c);
    if (s->options->exhaustive && c->fate == WEFT_FATE_PRUNED)
      ok = rank (s, c, error);
  }
  return ok;
}

/* Then its passes. */
static void
look_closer (struct searcher *s, struct weft_candidate *c)
{
  struct weft_bound bound = weft_bound_passes (s->bounds, &c->job);

  c->looked = TRUE;
  c->bound = fmax (c->bound, bound.seconds);
  if (bound.bytes > c->job.cluster.f.gpu_memory) {
    c->bytes = bound.bytes;
    c->fate = WEFT_FATE_MEMORY;
  }
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
  qsort (s->all->data, s->all->len, sizeof (struct weft_candidate), compare);
}

/* Full program, exact memory: an extrapolated fit may turn out not to be one. */
static gboolean
simulate (struct searcher *s, struct weft_candidate *c, GError **error)
{
  c->plan = weft_plan_new (&c->job, error);
  if (!c->plan)
    return FALSE;
  c->bytes = weft_plan_worst_bytes (c->plan);
  if (!weft_plan_fits (c->plan)) {
    c->fate = WEFT_FATE_MEMORY;
    g_clear_pointer (&c->plan, weft_plan_free);
    return TRUE;
  }
  c->timeline = weft_exec_run (&weft_exec_sim, c->plan, &s->options->exec, error);
  if (!c->timeline)
    return FALSE;
  c->seconds = c->timeline->seconds;
  c->fate = WEFT_FATE_SIMULATED;
  return TRUE;
}

/* The least that it can take, as far as is known. */
static double
least (const struct weft_candidate *c)
{
  return c->clock > 0 ? c->clock : c->bound;
}

/* Whether x is looked at before y: of equal ones that about which less is known, so that whatever is
 * taken with its clock known, nothing else can be before it. */
static gboolean
comes_before (const struct weft_candidate *x, const struct weft_candidate *y)
{
  if (least (x) != least (y))
    return least (x) < least (y);
  if ((x->clock > 0) != (y->clock > 0))
    return y->clock > 0;
  return x->clock > 0 && x->bytes < y->bytes;
}

/* Which candidates are looked for. */
typedef gboolean wanted (const struct searcher *s, const struct weft_candidate *c);

static gboolean
may_be_listed (const struct searcher *s, const struct weft_candidate *c)
{
  return (c->fate == WEFT_FATE_PRUNED || c->fate == WEFT_FATE_RANKED) &&
         c->flops <= s->best_clock * PRUNE_FACTOR;
}

static gboolean
may_be_better (const struct searcher *s, const struct weft_candidate *c)
{
  (void) s;
  return c->fate == WEFT_FATE_PRUNED || c->fate == WEFT_FATE_RANKED;
}

static gboolean
may_be_a_miss (const struct searcher *s, const struct weft_candidate *c)
{
  return (c->fate == WEFT_FATE_PRUNED || c->fate == WEFT_FATE_MEMORY) && c->clock == 0 &&
         c->flops <= s->best_clock * PRUNE_FACTOR;
}

static struct weft_candidate *
next (const struct searcher *s, wanted *is_wanted)
{
  struct weft_candidate *best = NULL;

  for (guint i = 0; i < s->all->len; i++)
    if (is_wanted (s, at (s, i)) && (!best || comes_before (at (s, i), best)))
      best = at (s, i);
  return best;
}

/* A step closer to the clock of a candidate that has none. */
static gboolean
approach (struct searcher *s, struct weft_candidate *c, GError **error)
{
  if (c->looked)
    return rank (s, c, error);
  look_closer (s, c);
  return TRUE;
}

/* The quickest by clock, one after the other: a clock that is below all bounds of others is the
 * smallest. */
static gboolean
simulate_best (struct searcher *s, GError **error)
{
  uint32_t most = s->options->finalists ? s->options->finalists : 10, done = 0;
  struct weft_candidate *c;

  while (done < most && (c = next (s, may_be_listed))) {
    progress (s, "simulating", done, most);
    if (c->fate != WEFT_FATE_RANKED ? !approach (s, c, error) : !simulate (s, c, error))
      return FALSE;
    if (c->fate == WEFT_FATE_SIMULATED && ++done == most)
      s->last_clock = c->clock;
  }
  return TRUE;
}

static double
best_seconds (const struct searcher *s)
{
  double best = INFINITY;

  for (guint i = 0; i < s->all->len; i++)
    if (at (s, i)->fate == WEFT_FATE_SIMULATED)
      best = fmin (best, at (s, i)->seconds);
  return best;
}

/* Bounds that leave room for something better than the best become clocks until none does: then the
 * gap is what it would be if all were ranked. */
static gboolean
find_gap (struct searcher *s, double *gap, GError **error)
{
  double best = best_seconds (s);
  struct weft_candidate *c;

  *gap = 0;
  while ((c = next (s, may_be_better)) && least (c) < best) {
    if (c->fate == WEFT_FATE_RANKED) {
      *gap = (best - c->clock) / best;
      return TRUE;
    }
    if (!approach (s, c, error))
      return FALSE;
  }
  return TRUE;
}

/* Clocks of the quickest that do not fit. */
static gboolean
find_miss (struct searcher *s, GError **error)
{
  struct weft_candidate *c;

  while ((c = next (s, may_be_a_miss)) && least (c) <= fmin (s->nearest_miss, s->last_clock))
    if (!approach (s, c, error))
      return FALSE;
  return TRUE;
}

/* Of candidates in their order. */
static const struct weft_candidate *
miss_of (const struct searcher *s, const weft_search *search)
{
  for (uint32_t i = 0; i < search->n; i++) {
    const struct weft_candidate *c = &search->candidate[i];
    if (c->fate == WEFT_FATE_MEMORY && c->clock > 0 && c->flops <= s->best_clock * PRUNE_FACTOR)
      return c->clock <= s->last_clock ? c : NULL;
  }
  return NULL;
}

static weft_search *
collect (struct searcher *s)
{
  weft_search *search = g_new0 (weft_search, 1);

  sort (s);
  search->n = s->all->len;
  search->candidate =
      (struct weft_candidate *) (void *) g_array_free (g_steal_pointer (&s->all), FALSE);
  for (uint32_t i = 0; i < search->n; i++)
    search->by_fate[search->candidate[i].fate]++;
  if (s->options->near_miss)
    search->miss = miss_of (s, search);
  return search;
}

weft_search *
weft_search_run (const struct weft_job *job, const struct weft_search_options *options,
                 GError **error)
{
  struct searcher s = { .options = options,
                        .all = weft_space_enumerate (job),
                        .bounds = weft_bounds_new (),
                        .best_clock = INFINITY,
                        .nearest_miss = INFINITY,
                        .last_clock = INFINITY };
  gint64 start = g_get_monotonic_time ();
  double gap = 0;
  gboolean ok = begin_all (&s, error) && simulate_best (&s, error) && find_gap (&s, &gap, error) &&
                (!options->near_miss || find_miss (&s, error));

  weft_search *search = collect (&s);
  search->gap = search->by_fate[WEFT_FATE_SIMULATED] ? gap : 0;
  weft_bounds_free (s.bounds);
  search->wall_seconds = (g_get_monotonic_time () - start) * 1e-6;
  if (ok && s.refused && search->by_fate[WEFT_FATE_RULE] == search->n)
    g_propagate_error (error, g_steal_pointer (&s.refused));
  else if (ok && search->by_fate[WEFT_FATE_SIMULATED] == 0)
    g_set_error (error, WEFT_ERROR, WEFT_ERROR_INFEASIBLE,
                 "no strategy of %u fits: %u do not fit in memory, %u break a rule", search->n,
                 search->by_fate[WEFT_FATE_MEMORY], search->by_fate[WEFT_FATE_RULE]);
  g_clear_error (&s.refused);
  return search;
}

void
weft_search_free (weft_search *search)
{
  for (uint32_t i = 0; i < search->n; i++) {
    g_clear_pointer (&search->candidate[i].plan, weft_plan_free);
    g_clear_pointer (&search->candidate[i].timeline, weft_timeline_free);
  }
  g_free (search->candidate);
  g_free (search);
}
