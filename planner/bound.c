#include "planner/bound.h"
#include "core/job/pipeline.h"
#include "core/job/stages.h"
#include "planner/shorten.h"
#include <math.h>

/* The number of microbatches in flight that lower bounds may assume. For schedules with
 * WEFT_IN_FLIGHT_UNKNOWN most bounds are 0. */
static enum weft_in_flight
in_flight_of (const struct weft_job *job)
{
  const struct weft_schedule_row *row = weft_job_schedule (job);

  return row ? row->in_flight : WEFT_IN_FLIGHT_UNKNOWN;
}

/* A lower bound of step time divided by the busy time of a rank. It is 1 + (p - 1) / (m v), the
 * bubble of Narayanan et al. 2021, section 2.2. It is 1 if the number of microbatches in flight is
 * not known and the schedule may have no bubble. */
static double
bubble_stretch (const struct weft_job *job)
{
  double m = (double) weft_job_microbatches (job) * weft_job_chunks (job);

  if (in_flight_of (job) == WEFT_IN_FLIGHT_UNKNOWN)
    return 1;
  return (m + job->strategy.pipeline_model_parallel_size - 1) / m;
}

/* The highest FLOP/s rate among the dtypes of the job's matrix products. */
static double
matmul_rate (const struct weft_job *job)
{
  const enum weft_dtype dtypes[] = { weft_job_dtype (job), weft_job_product_dtype (job),
                                     weft_job_linear_dtype (job) };
  double rate = 0;

  for (unsigned i = 0; i < G_N_ELEMENTS (dtypes); i++)
    rate = fmax (rate, weft_cluster_matmul_rate (&job->cluster, dtypes[i]));
  if (job->strategy.fp8_priced_as == WEFT_FP8_PRICE_NVFP4)
    rate = fmax (rate, weft_cluster_nvfp4_rate (&job->cluster));
  return rate;
}

static gboolean
is_measured (const struct weft_job *job)
{
  const char *table = g_quark_to_string ((GQuark) job->cluster.f.cost_table);

  return table && *table;
}

static gboolean
recomputes_all (const struct weft_job *job)
{
  struct weft_job_recompute r = weft_job_recompute (job);

  return r.granularity == WEFT_RECOMPUTE_FULL && r.method == WEFT_RECOMPUTE_UNIFORM &&
         job->strategy.num_microbatches_with_partial_activation_checkpoints == WEFT_NONE;
}

/* Full recompute of all layers adds a third to the FLOPs of the layers, and nothing to the FLOPs of
 * the output head. */
double
weft_bound_flops (const struct weft_job *job)
{
  double tokens = (double) job->train.global_batch_size * job->model.seq_length;
  double flops = weft_model_flops_per_token (&job->model, TRUE);
  double head = 6.0 * job->model.vocab_size * job->model.hidden_size;

  if (is_measured (job))
    return 0;
  if (recomputes_all (job))
    flops += (flops - head) / 3;
  return flops * tokens / (matmul_rate (job) * job->cluster.n_gpus) * bubble_stretch (job);
}

/* ------------------------------------------------------------------------ one chunk */

/* The layers of one chunk of a rank. The first `most` layers are recomputed, the other layers are
 * not. */
struct chunk {
  const struct weft_segments *recomputed, *other;
  uint32_t first, end; /* the chunk has the segments [first, end) of the model's layers */
  uint32_t most;       /* number of layers of the chunk that are recomputed */
};

/* For one microbatch of one chunk: the seconds of each pass, and the bytes of activations kept for
 * backward. */
struct pass {
  double way[WEFT_N_SEGMENT_PASS], kept;
};

static const struct weft_segments *
known_of (const struct chunk *c, uint32_t segment)
{
  uint32_t layer = segment - MAX (c->first, 1);

  return segment > 0 && segment + 1 < c->other->n && layer < c->most ? c->recomputed : c->other;
}

/* Whether a segment (one layer, or the ops before or after the layers) has another neighbour in
 * this chunk than in the program on which it was measured. TRUE: the kernel at the boundary may
 * differ from the measured kernel. */
static gboolean
is_torn (const struct chunk *c, uint32_t segment, uint32_t neighbour)
{
  /* the segment is the first or the last of the model and has no neighbour on this side */
  if (neighbour >= c->other->n)
    return FALSE;
  return neighbour < c->first || neighbour >= c->end ||
         known_of (c, neighbour) != known_of (c, segment);
}

static struct pass
measure_chunk (const struct chunk *c)
{
  struct pass sum = { { 0, 0 }, 0 };

  for (uint32_t s = c->first; s < c->end; s++) {
    const struct weft_segment_cost *it = &known_of (c, s)->segment[s];
    gboolean before = is_torn (c, s, s - 1), after = is_torn (c, s, s + 1);
    sum.way[WEFT_SEGMENT_FORWARD] +=
        fmax (0, it->way[WEFT_SEGMENT_FORWARD] - before * it->first[WEFT_SEGMENT_FORWARD] -
                     after * it->last[WEFT_SEGMENT_FORWARD]);
    sum.way[WEFT_SEGMENT_BACKWARD] +=
        fmax (0, it->way[WEFT_SEGMENT_BACKWARD] - after * it->first[WEFT_SEGMENT_BACKWARD] -
                     before * it->last[WEFT_SEGMENT_BACKWARD]);
    sum.kept += it->own + (after ? 0 : it->handed);
  }
  return sum;
}

/* ------------------------------------------------------------------------ the ranks */

struct asked {
  const struct weft_job *job;
  const struct weft_segments *recomputed, *other;
  uint32_t n_ranks, n_chunks, m;
  uint32_t *layers; /* number of layers of each stage; chunk c of rank r is stage c * n_ranks + r */
};

static struct chunk
chunk_of (const struct asked *a, uint32_t stage)
{
  gboolean block = a->recomputed != a->other;
  struct chunk c = { a->recomputed, a->other, 1, 0, 0 };

  for (uint32_t i = 0; i < stage; i++)
    c.first += a->layers[i];
  c.end = c.first + a->layers[stage];
  c.most = block ? (uint32_t) a->job->strategy.recompute_num_layers : 0;
  c.first = stage == 0 ? 0 : c.first;
  c.end += stage + 1 == a->n_ranks * a->n_chunks;
  return c;
}

/* Number of microbatches in flight in one chunk of a rank when its first backward pass begins. */
static double
in_flight (const struct asked *a, uint32_t rank, uint32_t chunk)
{
  const union weft_strategy *k = &a->job->strategy;
  uint32_t ahead = a->n_ranks - rank, in_chunk = 0;

  if (in_flight_of (a->job) == WEFT_IN_FLIGHT_ALL)
    return a->m;
  if (a->n_chunks == 1)
    return MIN (a->m, ahead);
  uint32_t group = k->microbatch_group_size_per_vp_stage == WEFT_NONE
                       ? a->n_ranks
                       : (uint32_t) k->microbatch_group_size_per_vp_stage;
  uint32_t passes = MIN (2 * (ahead - 1) + (a->n_chunks - 1) * group + 1, a->m * a->n_chunks);
  for (uint32_t i = 0; i < passes; i++)
    in_chunk += i / group % a->n_chunks == chunk;
  return in_chunk;
}

/* The fraction of weights, gradients or optimizer state that one rank stores: 1, or one divided by
 * the number of replicas if the sharding level covers this state. */
static double
share (const struct asked *a, int family, int state)
{
  static const int level_of[WEFT_N_STATE] = { WEFT_SHARD_PARAMS, WEFT_SHARD_GRADS,
                                              WEFT_SHARD_OPTIM };
  const union weft_strategy *k = &a->job->strategy;
  int level = k->use_megatron_fsdp           ? weft_job_sharding (a->job)
              : k->use_distributed_optimizer ? WEFT_SHARD_OPTIM
                                             : WEFT_NO_SHARD;
  int64_t holders = family == WEFT_FAMILY_DENSE
                        ? k->tensor_model_parallel_size
                        : weft_job_expert_tp (a->job) * k->expert_model_parallel_size;

  return level < level_of[state]
             ? 1
             : (double) (holders * a->n_ranks) / (double) a->job->cluster.n_gpus;
}

static double
state_bytes (const struct asked *a, const struct chunk *c)
{
  double sum = 0;

  for (uint32_t s = c->first; s < c->end; s++)
    for (int family = 0; family < WEFT_N_FAMILY; family++)
      for (int state = 0; state < WEFT_N_STATE; state++)
        sum += c->other->segment[s].state[family][state] * share (a, family, state);
  return sum;
}

/* Lower bounds are multiplied by this factor, because sums in different orders differ in their last
 * digits. */
#define ROUNDING (1 - 1e-9)

static struct weft_bound
bound_ranks (const struct asked *a)
{
  const union weft_stack *stack = &a->job->stack;
  struct weft_bound bound = { 0, 0 };
  double ends = 0;

  for (uint32_t r = 0; r < a->n_ranks; r++) {
    double seconds = 0, bytes = stack->context_bytes + stack->workspace_bytes, end = 0;
    for (uint32_t i = 0; i < a->n_chunks; i++) {
      struct chunk c = chunk_of (a, i * a->n_ranks + r);
      struct pass pass = measure_chunk (&c);
      double both = pass.way[WEFT_SEGMENT_FORWARD] + pass.way[WEFT_SEGMENT_BACKWARD];
      end = i == 0 ? both : end;
      seconds += both;
      bytes += in_flight (a, r, i) * pass.kept + state_bytes (a, &c);
    }
    bound.seconds = fmax (bound.seconds, (a->m * seconds + ends) * ROUNDING);
    bound.bytes = fmax (bound.bytes, bytes * ROUNDING);
    ends += end;
  }
  return bound;
}

/* Measures the layers of the job (segments.h), or finds them in the cache. If recompute_method is
 * `block`, only some layers are recomputed, and the bound needs segments with full recompute and
 * segments without. */
static void
find_both (weft_segment_cache *cache, const struct weft_job *job, struct asked *a)
{
  struct weft_job all = *job, none = *job;

  if (job->strategy.recompute_granularity != WEFT_RECOMPUTE_FULL ||
      job->strategy.recompute_method != WEFT_RECOMPUTE_BLOCK) {
    a->recomputed = a->other = weft_segment_cache_get (cache, job);
    return;
  }
  all.strategy.recompute_method = WEFT_RECOMPUTE_UNIFORM;
  all.strategy.recompute_num_layers = 1;
  none.strategy.recompute_granularity = WEFT_RECOMPUTE_NONE;
  none.strategy.recompute_method = none.strategy.recompute_num_layers = WEFT_NONE;
  a->recomputed = weft_segment_cache_get (cache, &all);
  a->other = weft_segment_cache_get (cache, &none);
}

/* Whether all microbatches have the same kernels, and no pass starts before another pass has
 * ended. */
static gboolean
passes_are_alike (const struct weft_job *job)
{
  for (unsigned i = 0; i < WEFT_N_KNOB; i++)
    if (weft_knob_traits[i].unlike && !weft_knob_is_default (&job->strategy, i))
      return FALSE;
  return in_flight_of (job) != WEFT_IN_FLIGHT_UNKNOWN && weft_job_layout_stages (job) == 0;
}

/* Collects the layers and segments of the job. Returns FALSE if no bound is known for the job. */
static gboolean
ask (weft_segment_cache *cache, const struct weft_job *job, struct asked *a)
{
  *a = (struct asked){ .job = job,
                       .n_ranks = (uint32_t) job->strategy.pipeline_model_parallel_size,
                       .n_chunks = weft_job_chunks (job),
                       .m = (uint32_t) weft_job_microbatches (job) };
  if (!passes_are_alike (job))
    return FALSE;
  find_both (cache, job, a);
  if (a->recomputed->n == 0 || a->other->n == 0)
    return FALSE;
  g_autofree uint32_t *rank = g_new (uint32_t, a->n_ranks * a->n_chunks);
  for (uint32_t i = 0; i < a->n_ranks * a->n_chunks; i++)
    rank[i] = i % a->n_ranks;
  a->layers = weft_job_stage_layers (job, rank, a->n_ranks * a->n_chunks);
  return TRUE;
}

struct weft_bound
weft_bound_passes (weft_segment_cache *cache, const struct weft_job *job)
{
  struct asked a;

  if (!ask (cache, job, &a))
    return (struct weft_bound){ 0, 0 };
  struct weft_bound bound = bound_ranks (&a);
  g_free (a.layers);
  return bound;
}

/* ---------------------------------------------------------------------- the schedule */

/* A lower bound of the transfer time between two stages. It assumes that all transfers use the
 * fastest link between adjacent stages, and that each tensor-parallel rank sends only its share. */
static double
transfer_seconds (const struct asked *a)
{
  const struct weft_job *job = a->job;
  const union weft_strategy *k = &job->strategy;
  uint32_t ranks = job->cluster.n_gpus / a->n_ranks;
  struct weft_shape shape = {
    .dtype = k->pipeline_dtype == WEFT_NONE ? weft_job_dtype (job) : (uint8_t) k->pipeline_dtype,
    .dim = { job->train.micro_batch_size * job->model.seq_length /
             (k->context_parallel_size * k->tensor_model_parallel_size) * job->model.hidden_size },
  };
  double least = INFINITY;

  for (uint32_t r = 0; r < a->n_ranks; r++)
    least = fmin (
        least, weft_plan_transfer (a->other->plan, r * ranks, (r + 1) % a->n_ranks * ranks, &shape)
                   .seconds);
  return least;
}

/* A schedule is replayed only if its cells, summed over all ranks, are at most this many. */
enum { MOST_CELLS = 1 << 22 };

double
weft_bound_schedule (weft_segment_cache *cache, const struct weft_job *job)
{
  struct asked a;

  if (!ask (cache, job, &a))
    return 0;
  g_autofree uint32_t *layers = a.layers;
  g_autoptr (weft_grid) grid = a.n_ranks > 1 && 2ull * a.m * a.n_chunks * a.n_ranks <= MOST_CELLS
                                   ? weft_job_grid (job, NULL)
                                   : NULL;
  if (!grid)
    return 0;
  g_autofree struct weft_cell_times *times =
      g_new0 (struct weft_cell_times, a.n_ranks * a.n_chunks);
  for (uint32_t stage = 0; stage < a.n_ranks * a.n_chunks; stage++) {
    struct chunk c = chunk_of (&a, stage);
    struct pass pass = measure_chunk (&c);
    times[stage % a.n_ranks * a.n_chunks + stage / a.n_ranks] =
        (struct weft_cell_times){ .forward = pass.way[WEFT_SEGMENT_FORWARD],
                                  .input = pass.way[WEFT_SEGMENT_BACKWARD] };
  }
  return weft_grid_replay_uneven (grid, times, transfer_seconds (&a)) * ROUNDING;
}

/* ------------------------------------------------------------------------- the lanes */

/* Seconds for which the ops of one microbatch occupy the busiest lane of a role: of the microbatch
 * that occupies the lane for the shortest time. */
static double
lane_seconds (const weft_plan *plan, uint32_t role, uint32_t m)
{
  const weft_program *p = plan->role[role];
  g_autofree double *sum = g_new0 (double, WEFT_N_LANE *m);
  double most = 0;

  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].micro < m && weft_lane_traits[p->op[op].lane].communicates)
      sum[p->op[op].lane * m + p->op[op].micro] += plan->seconds[role][op];
  for (uint32_t lane = 0; lane < WEFT_N_LANE; lane++) {
    double least = INFINITY;
    for (uint32_t i = 0; i < m; i++)
      least = fmin (least, sum[lane * m + i]);
    most = fmax (most, least);
  }
  return most;
}

double
weft_bound_lanes (weft_segment_cache *cache, const struct weft_job *job)
{
  struct weft_job few = weft_shorten_most (job);
  uint32_t m = (uint32_t) weft_job_microbatches (&few);
  double most = 0;

  if (!job->strategy.use_megatron_fsdp || weft_job_sharding (job) < WEFT_SHARD_GRADS ||
      weft_job_microbatches (job) < m || !weft_job_check (&few, NULL))
    return 0;
  g_autoptr (weft_plan) plan = weft_segment_cache_plan (cache, &few);
  for (uint32_t role = 0; plan && role < plan->n_roles; role++)
    most = fmax (most, lane_seconds (plan, role, m));
  return most * (double) weft_job_microbatches (job) * ROUNDING;
}
