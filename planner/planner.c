#include "planner/planner.h"
#include "core/base/error.h"
#include "core/job/schedule.h"
#include "core/job/stages.h"
#include "exec_sim/exec_sim.h"
#include "planner/shorten.h"
#include "planner/space.h"
#include <math.h>
#include <stdlib.h>

/* A candidate whose lower bound is this much behind the best clock time so far is not built. */
#define PRUNE_FACTOR 1.5

struct searcher {
  const struct weft_search_options *options;
  GArray *all;
  double best_clock;
};

static void
progress (const struct searcher *s, const char *phase, uint32_t done, uint32_t of)
{
  if (s->options->progress)
    s->options->progress (s->options->user, phase, done, of);
}

/* How much longer than its work a step takes at least: chunks make the bubble shorter, and schedules with
 * weight gradients apart, or of the user's own, may have none. */
static double
bubble_stretch (const struct weft_job *job)
{
  double m = (double) weft_job_microbatches (job) * weft_job_chunks (job);

  if (job->strategy.pipeline_schedule > WEFT_SCHEDULE_GPIPE || weft_job_schedule_file (job))
    return 1;
  return (m + job->strategy.pipeline_model_parallel_size - 1) / m;
}

/* Model FLOPs at the reachable matmul rate, stretched by the bubble of the pipeline: nothing in this
 * space is quicker.  Full recompute adds a third to the layers and nothing to the head. */
static double
lower_bound (const struct weft_job *job)
{
  double tokens = (double) job->train.global_batch_size * job->model.seq_length;
  double flops = weft_model_flops_per_token (&job->model, TRUE);
  double head = 6.0 * job->model.vocab_size * job->model.hidden_size;
  double rate =
      job->train.precision == WEFT_FP32 ? job->cluster.f.gpu_fp32 : job->cluster.f.gpu_bf16;

  if (job->strategy.recompute_granularity == WEFT_RECOMPUTE_FULL)
    flops += (flops - head) / 3;
  return flops * tokens / (rate * job->cluster.n_gpus) * bubble_stretch (job);
}

struct sample {
  double seconds;
  double bytes;
};

static gboolean
sample (const struct weft_job *job, struct sample *out, GError **error)
{
  struct weft_exec_options folded = { 0 };
  g_autoptr (weft_plan) plan = weft_plan_new (job, error);

  if (!plan)
    return FALSE;
  g_autoptr (weft_timeline) t = weft_exec_run (&weft_exec_clock, plan, &folded, error);
  if (!t)
    return FALSE;
  *out = (struct sample){ t->seconds, weft_plan_worst_bytes (plan) };
  return TRUE;
}

/* By two short steps where the job is a long one. */
static gboolean
measure (const struct weft_job *job, struct sample *out, GError **error)
{
  struct weft_shortened shortened;
  double seconds[2], bytes[2];

  weft_shorten (job, &shortened);
  for (uint32_t i = 0; i < shortened.n; i++) {
    if (!sample (&shortened.job[i], out, error))
      return FALSE;
    seconds[i] = out->seconds;
    bytes[i] = out->bytes;
  }
  out->seconds = weft_shortened_seconds (&shortened, seconds);
  out->bytes = weft_shortened_bytes (&shortened, bytes);
  return TRUE;
}

static gboolean
rank_one (struct searcher *s, struct weft_candidate *c, GError **error)
{
  struct sample got;

  c->fate = WEFT_FATE_RULE;
  if (!weft_job_check (&c->job, NULL))
    return TRUE;
  c->bound = lower_bound (&c->job);
  c->fate = WEFT_FATE_PRUNED;
  if (c->bound > s->best_clock * PRUNE_FACTOR)
    return TRUE;
  if (!measure (&c->job, &got, error))
    return FALSE;
  c->clock = got.seconds;
  c->bytes = got.bytes;
  c->fate = got.bytes <= c->job.cluster.f.gpu_memory ? WEFT_FATE_RANKED : WEFT_FATE_MEMORY;
  if (c->fate == WEFT_FATE_RANKED)
    s->best_clock = fmin (s->best_clock, c->clock);
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
  qsort (s->all->data, s->all->len, sizeof (struct weft_candidate), compare);
}

/* Full program, exact memory: an extrapolated fit may turn out not to be one. */
static gboolean
simulate (struct weft_candidate *c, GError **error)
{
  struct weft_exec_options folded = { 0 };

  c->plan = weft_plan_new (&c->job, error);
  if (!c->plan)
    return FALSE;
  c->bytes = weft_plan_worst_bytes (c->plan);
  if (!weft_plan_fits (c->plan)) {
    c->fate = WEFT_FATE_MEMORY;
    g_clear_pointer (&c->plan, weft_plan_free);
    return TRUE;
  }
  c->timeline = weft_exec_run (&weft_exec_sim, c->plan, &folded, error);
  if (!c->timeline)
    return FALSE;
  c->seconds = c->timeline->seconds;
  c->fate = WEFT_FATE_SIMULATED;
  return TRUE;
}

static gboolean
simulate_best (struct searcher *s, GError **error)
{
  uint32_t wanted = s->options->finalists ? s->options->finalists : 10, done = 0;

  for (guint i = 0; i < s->all->len && done < wanted; i++) {
    struct weft_candidate *c = &g_array_index (s->all, struct weft_candidate, i);
    if (c->fate != WEFT_FATE_RANKED)
      continue;
    progress (s, "simulating", done, wanted);
    if (!simulate (c, error))
      return FALSE;
    done += c->fate == WEFT_FATE_SIMULATED;
  }
  return TRUE;
}

static double
gap (const struct weft_search *search)
{
  double best = search->candidate[0].seconds, unseen = best;

  for (uint32_t i = 0; i < search->n; i++) {
    const struct weft_candidate *c = &search->candidate[i];
    if (c->fate == WEFT_FATE_RANKED)
      unseen = fmin (unseen, c->clock);
    if (c->fate == WEFT_FATE_PRUNED)
      unseen = fmin (unseen, c->bound);
  }
  return best > 0 ? (best - unseen) / best : 0;
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
  if (search->by_fate[WEFT_FATE_SIMULATED])
    search->gap = gap (search);
  return search;
}

weft_search *
weft_search_run (const struct weft_job *job, const struct weft_search_options *options,
                 GError **error)
{
  struct searcher s = { .options = options,
                        .all = weft_space_enumerate (job),
                        .best_clock = INFINITY };
  gint64 start = g_get_monotonic_time ();
  gboolean ok = TRUE;

  for (guint i = 0; ok && i < s.all->len; i++) {
    progress (&s, "ranking", i, s.all->len);
    ok = rank_one (&s, &g_array_index (s.all, struct weft_candidate, i), error);
  }
  sort (&s);
  ok = ok && simulate_best (&s, error);
  weft_search *search = collect (&s);
  search->wall_seconds = (g_get_monotonic_time () - start) * 1e-6;
  if (ok && search->by_fate[WEFT_FATE_SIMULATED] == 0)
    g_set_error (error, WEFT_ERROR, WEFT_ERROR_INFEASIBLE,
                 "no strategy of %u fits: %u do not fit in memory, %u break a rule", search->n,
                 search->by_fate[WEFT_FATE_MEMORY], search->by_fate[WEFT_FATE_RULE]);
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
