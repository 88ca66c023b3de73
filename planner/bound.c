#include "planner/bound.h"
#include "core/job/finetune.h"
#include "core/job/pipeline.h"
#include "core/job/stages.h"
#include "core/passes/step.h"
#include "planner/shorten.h"
#include <math.h>

/* The closed formula for the microbatches in flight of the job's schedule. With
 * WEFT_IN_FLIGHT_UNKNOWN there is none, and lower bounds count them in the cells (flights.h). */
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

/* FLOPs per token of a job with frozen parts, without the first layer's: backward leaves out what
 * is below its lowest trained tensor. */
static double
tuned_flops (const struct weft_job *job, double whole, double head)
{
  struct weft_tuned_flops tuned = weft_job_tuned_flops (job, TRUE);

  return weft_tuned_flops_sum (&tuned) - (whole - head) / (double) job->model.num_layers;
}

/* Full recompute of all layers adds a third to the FLOPs of the layers, and nothing to the FLOPs of
 * the output head. */
double
weft_bound_flops (const struct weft_job *job)
{
  double tokens = (double) job->train.global_batch_size * job->model.seq_length;
  double flops = weft_model_flops_per_token (&job->model, TRUE);
  double head = 6.0 * job->model.vocab_size * job->model.hidden_size;
  double again = recomputes_all (job) ? (flops - head) / 3 : 0;

  if (is_measured (job))
    return 0;
  if (weft_job_frozen (job, NULL)) {
    flops = fmax (0, tuned_flops (job, flops, head));
    again = 0;
  }
  flops += again;
  return flops * tokens / (matmul_rate (job) * job->cluster.n_gpus) * bubble_stretch (job);
}

/* ------------------------------------------------------------------------ one chunk */

/* The layers of one chunk of a rank. The first `most` layers are recomputed, the other layers are
 * not. */
struct chunk {
  const struct weft_segments *recomputed, *other;
  uint32_t n_offloaded; /* the activations of the first layers of the model may be on the host */
  uint32_t first, end;  /* the chunk has the segments [first, end) of the model's layers */
  uint32_t most;        /* number of layers of the chunk that are recomputed */
  /* some backward passes are not split, so that their weight gradients fill waits for collectives;
   * segments are measured on split passes */
  gboolean filled;
};

/* For one microbatch of one chunk: the seconds of each pass, and bytes of activations. */
struct pass {
  double way[WEFT_N_SEGMENT_PASS];
  /* bytes of activations of a microbatch: kept until its input gradients; kept from then on for its
   * weight gradients */
  double kept, late;
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

/* The seconds of a pass of one segment, without the kernels at torn boundaries, and if `filled`
 * without waits. */
static double
way_of (const struct weft_segment_cost *it, int pass, gboolean filled, gboolean before,
        gboolean after)
{
  double all = filled ? it->kernels[pass] : it->way[pass];
  gboolean first = pass == WEFT_SEGMENT_FORWARD ? before : after,
           last = pass == WEFT_SEGMENT_FORWARD ? after : before;

  return fmax (0, all - first * it->first[pass] - last * it->last[pass]);
}

static struct pass
measure_chunk (const struct chunk *c)
{
  struct pass sum = { { 0 }, 0, 0 };

  for (uint32_t s = c->first; s < c->end; s++) {
    const struct weft_segment_cost *it = &known_of (c, s)->segment[s];
    gboolean before = is_torn (c, s, s - 1), after = is_torn (c, s, s + 1);
    for (int pass = 0; pass < WEFT_N_SEGMENT_PASS; pass++)
      sum.way[pass] += way_of (it, pass, c->filled, before, after);
    if (s <= c->n_offloaded)
      continue;
    for (int life = 0; life < WEFT_N_LIFE; life++)
      sum.kept += it->own[life] + (after ? 0 : it->handed[life]);
    sum.late += it->own[WEFT_LIFE_WEIGHT] + (after ? 0 : it->handed[WEFT_LIFE_WEIGHT]) + it->late +
                (before ? 0 : it->late_handed);
  }
  return sum;
}

/* ------------------------------------------------------------------------ the ranks */

struct asked {
  const struct weft_job *job;
  const struct weft_segments *recomputed, *other;
  /* the cells of the schedule; NULL: a closed formula gives the microbatches in flight, and chunk c
   * of rank r is stage c * n_ranks + r */
  const struct weft_flights *flights;
  uint32_t n_ranks, n_stages;
  uint32_t n_chunks; /* number of chunks on a rank, over all copies of the model */
  uint32_t m;        /* number of microbatches that pass through a chunk */
  uint32_t *layers;  /* number of layers of each stage */
};

static uint32_t
stage_of (const struct asked *a, uint32_t rank, uint32_t chunk)
{
  return a->flights ? weft_grid_stage (a->flights->grid, rank, chunk) : chunk * a->n_ranks + rank;
}

static struct chunk
chunk_of (const struct asked *a, uint32_t rank, uint32_t index)
{
  gboolean block = a->recomputed != a->other;
  const union weft_strategy *k = &a->job->strategy;
  struct chunk c = { a->recomputed,
                     a->other,
                     k->cpu_offloading ? (uint32_t) k->cpu_offloading_num_layers : 0,
                     1,
                     0,
                     0 };
  uint32_t stage = stage_of (a, rank, index);

  for (uint32_t i = 0; i < stage; i++)
    c.first += a->layers[i];
  c.end = c.first + a->layers[stage];
  c.most = block ? (uint32_t) a->job->strategy.recompute_num_layers : 0;
  c.first = stage == 0 ? 0 : c.first;
  c.end += stage + 1 == a->n_stages;
  c.filled = a->flights && a->flights->wholes;
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

/* Number of groups of ranks that each shard a state among themselves. */
static int64_t
groups_of (const struct weft_job *job, int family, int state)
{
  if (state == WEFT_STATE_OPTIMIZER && job->strategy.outer_dp_sharding_strategy != WEFT_NO_SHARD)
    return 1;
  return family == WEFT_FAMILY_DENSE ? weft_job_instances (job) : weft_job_expert_instances (job);
}

/* The fraction of weights, gradients or optimizer state that one rank stores on its GPU: 1, or one
 * divided by the number of replicas of a group if the sharding level covers this state. */
static double
share (const struct weft_job *job, uint32_t n_ranks, int family, int state)
{
  static const int level_of[WEFT_N_STATE] = { WEFT_SHARD_PARAMS, WEFT_SHARD_GRADS,
                                              WEFT_SHARD_OPTIM };
  const union weft_strategy *k = &job->strategy;
  int level = k->use_megatron_fsdp           ? weft_job_sharding (job)
              : k->use_distributed_optimizer ? WEFT_SHARD_OPTIM
                                             : WEFT_NO_SHARD;
  int64_t ranks = family == WEFT_FAMILY_DENSE
                      ? k->tensor_model_parallel_size
                      : weft_job_expert_tp (job) * k->expert_model_parallel_size;
  gboolean offloaded = state == WEFT_STATE_OPTIMIZER && k->optimizer_cpu_offload;
  double here = offloaded ? 1 - k->optimizer_offload_fraction : 1;

  return level < level_of[state]
             ? here
             : here * (double) (ranks * n_ranks * groups_of (job, family, state)) /
                   (double) job->cluster.n_gpus;
}

/* Adds the state of a chunk before sharding. */
static void
add_state (const struct chunk *c, struct weft_rank_bytes *rank)
{
  for (uint32_t s = c->first; s < c->end; s++)
    for (int family = 0; family < WEFT_N_FAMILY; family++)
      for (int state = 0; state < WEFT_N_STATE; state++)
        rank->state[family][state] += c->other->segment[s].state[family][state];
}

/* Lower bounds are multiplied by this factor, because sums in different orders differ in their last
 * digits. */
#define ROUNDING (1 - 1e-9)

/* Bytes that one rank has at one time: state of all its chunks, and activations. */
static struct weft_rank_bytes
rank_bytes (const struct asked *a, uint32_t rank, const struct pass *pass)
{
  const union weft_stack *stack = &a->job->stack;
  struct weft_rank_bytes bytes = { .fixed = stack->context_bytes + stack->workspace_bytes };
  double most = 0;

  for (uint32_t i = 0; i < a->n_chunks; i++) {
    struct chunk c = chunk_of (a, rank, i);
    add_state (&c, &bytes);
  }
  for (int moment = 0; moment < (a->flights ? WEFT_N_MOMENT : 1); moment++) {
    double sum = 0;
    for (uint32_t i = 0; i < a->n_chunks; i++) {
      const struct weft_flight *at =
          a->flights ? &a->flights->at[(rank * WEFT_N_MOMENT + moment) * a->n_chunks + i] : NULL;
      sum += at ? at->whole * pass[i].kept + at->late * pass[i].late
                : in_flight (a, rank, i) * pass[i].kept;
    }
    most = fmax (most, sum);
  }
  bytes.fixed += most;
  return bytes;
}

/* Seconds of recompute with which the backward cell of a chunk may begin before the gradient of the
 * next stage arrives. Schedules whose transfers are part of a step wait for it before the cell. */
static double
early_of (const struct asked *a, const struct chunk *c)
{
  return weft_job_schedule (a->job)->exchange == WEFT_EXCHANGE_FREE
             ? known_of (c, c->end - 1)->segment[c->end - 1].early
             : 0;
}

/* Seconds for which earlier ranks delay the work of the ranks after `rank`: the passes of one
 * microbatch through its first chunk. If the backward is split, only the forward pass counts,
 * because weight gradients may run meanwhile. In a V and with two copies of the model, later ranks
 * need not wait. early: seconds of the backward pass that need not wait for later ranks. */
static double
delay_of (const struct asked *a, const struct pass *first, double early)
{
  if (!a->flights)
    return first->way[WEFT_SEGMENT_FORWARD] + fmax (0, first->way[WEFT_SEGMENT_BACKWARD] - early);
  return a->flights->grid->n_stages == a->n_ranks && a->n_chunks == 1
             ? first->way[WEFT_SEGMENT_FORWARD]
             : 0;
}

/* The lower bound of time. Appends the bytes of each rank to `ranks`. */
static double
bound_ranks (const struct asked *a, GArray *ranks)
{
  g_autofree struct pass *pass = g_new (struct pass, a->n_chunks);
  double most = 0, ends = 0;

  for (uint32_t r = 0; r < a->n_ranks; r++) {
    double seconds = 0;
    for (uint32_t i = 0; i < a->n_chunks; i++) {
      struct chunk c = chunk_of (a, r, i);
      pass[i] = measure_chunk (&c);
      for (int way = 0; way < WEFT_N_SEGMENT_PASS; way++)
        seconds += pass[i].way[way];
    }
    most = fmax (most, (a->m * seconds + ends) * ROUNDING);
    struct weft_rank_bytes bytes = rank_bytes (a, r, pass);
    g_array_append_val (ranks, bytes);
    struct chunk first = chunk_of (a, r, 0);
    ends += delay_of (a, &pass[0], early_of (a, &first));
  }
  return most;
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
  return weft_job_schedule (job) && weft_job_layout_stages (job) == 0;
}

/* The pipeline rank of each stage of the model. The caller frees the array. */
static uint32_t *
ranks_of_stages (const struct asked *a)
{
  uint32_t *rank = g_new (uint32_t, a->n_stages);

  for (uint32_t i = 0; i < a->n_stages; i++)
    rank[i] = a->flights ? a->flights->grid->place[i] / a->n_chunks : i % a->n_ranks;
  return rank;
}

/* Collects the layers, segments and cells of the job. Returns FALSE if no bound is known for the
 * job. */
static gboolean
ask (weft_segment_cache *cache, const struct weft_job *job, struct asked *a)
{
  const struct weft_grid_spec spec = weft_job_grid_spec (job);

  *a = (struct asked){
    .job = job, .n_ranks = spec.n_ranks, .n_chunks = weft_job_chunks (job), .m = spec.n_micro
  };
  if (!passes_are_alike (job))
    return FALSE;
  a->n_stages = a->n_ranks * a->n_chunks;
  if (in_flight_of (job) == WEFT_IN_FLIGHT_UNKNOWN) {
    if (!(a->flights = weft_segment_cache_flights (cache, &spec)))
      return FALSE;
    a->n_chunks = a->flights->grid->n_chunks;
    a->m = spec.n_micro / a->flights->grid->n_copies;
  }
  find_both (cache, job, a);
  if (a->recomputed->n == 0 || a->other->n == 0)
    return FALSE;
  g_autofree uint32_t *rank = ranks_of_stages (a);
  a->layers = weft_job_stage_layers (job, rank, a->n_stages);
  return TRUE;
}

double
weft_bound_family (weft_segment_cache *cache, const struct weft_job *job, GArray *ranks)
{
  struct asked a;

  g_array_set_size (ranks, 0);
  if (!ask (cache, job, &a))
    return 0;
  double seconds = bound_ranks (&a, ranks);
  g_free (a.layers);
  return seconds;
}

double
weft_bound_bytes (const struct weft_job *job, const GArray *ranks)
{
  double share_of[WEFT_N_FAMILY][WEFT_N_STATE], most = 0;

  for (int family = 0; family < WEFT_N_FAMILY; family++)
    for (int state = 0; state < WEFT_N_STATE; state++)
      share_of[family][state] = share (job, ranks->len, family, state);
  for (guint r = 0; r < ranks->len; r++) {
    const struct weft_rank_bytes *rank = &g_array_index (ranks, struct weft_rank_bytes, r);
    double bytes = rank->fixed;
    for (int family = 0; family < WEFT_N_FAMILY; family++)
      for (int state = 0; state < WEFT_N_STATE; state++)
        bytes += rank->state[family][state] * share_of[family][state];
    most = fmax (most, bytes);
  }
  return most * ROUNDING;
}

struct weft_bound
weft_bound_passes (weft_segment_cache *cache, const struct weft_job *job)
{
  g_autoptr (GArray) ranks = g_array_new (FALSE, FALSE, sizeof (struct weft_rank_bytes));
  struct weft_bound bound = { .seconds = weft_bound_family (cache, job, ranks) };

  bound.bytes = weft_bound_bytes (job, ranks);
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
  const struct weft_mesh mesh = weft_step_mesh (job);
  struct weft_shape shape = {
    .dtype = k->pipeline_dtype == WEFT_NONE ? weft_job_dtype (job) : (uint8_t) k->pipeline_dtype,
    .dim = { job->train.micro_batch_size * job->model.seq_length /
             (k->context_parallel_size * k->tensor_model_parallel_size) * job->model.hidden_size },
  };
  double least = a->n_ranks > 1 ? INFINITY : 0;

  for (uint32_t r = 0; r < a->n_ranks && a->n_ranks > 1; r++) {
    uint32_t from = weft_mesh_stage_rank (&mesh, r, 0),
             to = weft_mesh_stage_rank (&mesh, (r + 1) % a->n_ranks, 0);
    least = fmin (least, weft_plan_transfer (a->other->plan, from, to, &shape).seconds);
  }
  return least;
}

static struct weft_cell_times *
cell_times (const struct asked *a)
{
  struct weft_cell_times *times = g_new0 (struct weft_cell_times, a->n_ranks * a->n_chunks);

  for (uint32_t r = 0; r < a->n_ranks; r++)
    for (uint32_t i = 0; i < a->n_chunks; i++) {
      struct chunk c = chunk_of (a, r, i);
      struct pass pass = measure_chunk (&c);
      times[r * a->n_chunks + i] = (struct weft_cell_times){
        .forward = pass.way[WEFT_SEGMENT_FORWARD],
        .input = fmax (0, pass.way[WEFT_SEGMENT_BACKWARD] - early_of (a, &c)),
        .weight = pass.way[WEFT_SEGMENT_WEIGHT]
      };
    }
  return times;
}

/* Replays the schedule. Returns the seconds at which the last pass of each rank ends; the caller
 * frees the array. NULL: the schedule was not replayed. */
static double *
replay_ranks (const struct asked *a)
{
  const struct weft_grid_spec spec = weft_job_grid_spec (a->job);
  gboolean few = weft_spec_cells (&spec) <= WEFT_MOST_CELLS;
  g_autoptr (weft_grid) own = few && !a->flights ? weft_job_grid (a->job, NULL) : NULL;
  const weft_grid *grid = a->flights ? a->flights->grid : own;

  if (!grid)
    return NULL;
  g_autofree struct weft_cell_times *times = cell_times (a);
  double *end = g_new0 (double, a->n_ranks);
  weft_grid_replay_uneven (grid, times, transfer_seconds (a), end);
  return end;
}

/* The result of replay_ranks() for the family of a job: a replay depends on nothing in which the
 * members of a family differ. Sets *n to the number of ranks. NULL: there is none. */
static const double *
replay_of (weft_segment_cache *cache, const struct weft_job *job, uint32_t *n)
{
  const double *end;
  struct asked a;

  *n = (uint32_t) job->strategy.pipeline_model_parallel_size;
  if (weft_segment_cache_replay (cache, job, &end))
    return end;
  if (!ask (cache, job, &a))
    return NULL;
  end = weft_segment_cache_keep_replay (cache, job, replay_ranks (&a));
  g_free (a.layers);
  return end;
}

double
weft_bound_schedule (weft_segment_cache *cache, const struct weft_job *job)
{
  uint32_t n;
  double most = 0;

  if (job->strategy.pipeline_model_parallel_size == 1)
    return 0;
  const double *end = replay_of (cache, job, &n);
  for (uint32_t r = 0; end && r < n; r++)
    most = fmax (most, end[r]);
  return most * ROUNDING;
}

/* ------------------------------------------------------------------- before and after */

/* All passes follow the first pass of the first stage, which is on rank 0. */
double
weft_bound_ends (weft_segment_cache *cache, const struct weft_job *job)
{
  uint32_t n;
  double most = 0;
  const double *end = replay_of (cache, job, &n);
  const struct weft_ends *ends = end ? weft_segment_cache_ends (cache, job) : NULL;

  for (uint32_t r = 0; ends && r < n; r++)
    most = fmax (most, weft_ends_at (ends, 0, 0)->before + end[r] +
                           weft_ends_at (ends, r, 0)->after);
  return most * ROUNDING;
}

gboolean
weft_bound_ends_measures (const weft_segment_cache *cache, const struct weft_job *job,
                          struct weft_job *one)
{
  return weft_ends_job (job, one) && !weft_segment_cache_has_ends (cache, one);
}

/* ------------------------------------------------------------------------- the paths */

/* Whether every microbatch transfers weights, gradients or activations outside its layers. */
static gboolean
fills_lanes (const struct weft_job *job)
{
  return job->strategy.cpu_offloading ||
         (job->strategy.use_megatron_fsdp && weft_job_sharding (job) >= WEFT_SHARD_GRADS);
}

/* Resets the settings that change no pass, or only the first forward and the last backward pass.
 * Without the alignment of gathers, collectives start as early as they can. */
static void
reset (union weft_strategy *s, gboolean sharded)
{
  static const enum weft_knob knobs[] = {
    WEFT_KNOB_outer_dp_sharding_strategy,
    WEFT_KNOB_optimizer_cpu_offload,
    WEFT_KNOB_optimizer_offload_fraction,
    WEFT_KNOB_overlap_cpu_optimizer_d2h_h2d,
    WEFT_KNOB_grad_sync_func,
    WEFT_KNOB_align_param_gather,
    WEFT_KNOB_param_sync_func,
  };

  for (unsigned i = 0; i < G_N_ELEMENTS (knobs); i++)
    s->at[knobs[i]] = weft_strategy_defaults ()->at[knobs[i]];
  for (unsigned i = 0; i < WEFT_N_KNOB; i++)
    if (weft_knob_traits[i].of_replicas && !sharded)
      s->at[i] = weft_strategy_defaults ()->at[i];
}

/* Changes the schedule of a job to one with the same passes and two microbatches. FALSE: there is
 * none. Schedules that need more microbatches have passes of their own. */
static gboolean
set_simple_schedule (struct weft_job *job)
{
  const struct weft_schedule_row *row = weft_job_schedule (job);
  union weft_strategy *s = &job->strategy;
  gboolean chunked = weft_job_chunks (job) > 1;
  enum weft_schedule schedule = weft_ends_schedule (row, chunked);

  if (row->least_micros > 0 || schedule == WEFT_N_SCHEDULE ||
      (!chunked && weft_schedules[schedule].exchange != row->exchange))
    return FALSE;
  s->pipeline_schedule = schedule;
  if (chunked) {
    s->microbatch_group_size_per_vp_stage = WEFT_NONE;
    s->overlap_p2p_comm = s->overlap_p2p_comm_warmup_flush = FALSE;
  }
  *job = weft_shorten_to (job, MIN (2, weft_job_microbatches (job)));
  return weft_job_check (job, NULL);
}

/* Makes the job of few microbatches whose passes are measured. FALSE: it breaks a rule, or it is as
 * long as `job` and serves no other job. */
static gboolean
few_of (const struct weft_job *job, struct weft_job *few)
{
  const struct weft_schedule_row *row = weft_job_schedule (job);
  int64_t least = row->least_micros * job->strategy.pipeline_model_parallel_size;
  gboolean sharded = fills_lanes (job) || weft_job_is_torch (job);
  struct weft_job own = *job;

  reset (&own.strategy, sharded);
  *few = own;
  if (!set_simple_schedule (few)) {
    *few = weft_shorten_most (&own);
    if (weft_job_microbatches (few) < least)
      *few = weft_shorten_to (few, least);
  }
  return weft_job_microbatches (few) < weft_job_microbatches (job) + !sharded &&
         weft_job_check (few, NULL);
}

/* Whether a job has a bound from its lanes, and the job of few microbatches on which its paths are
 * measured. */
static gboolean
has_lanes (const struct weft_job *job, struct weft_job *few)
{
  const struct weft_grid_spec spec = weft_job_grid_spec (job);

  return passes_are_alike (job) && few_of (job, few) && weft_spec_cells (&spec) <= WEFT_MOST_CELLS;
}

gboolean
weft_bound_lanes_measures (const weft_segment_cache *cache, const struct weft_job *job,
                           struct weft_job *few)
{
  return has_lanes (job, few) && !weft_segment_cache_has_paths (cache, few);
}

double
weft_bound_lanes (weft_segment_cache *cache, const struct weft_job *job)
{
  struct weft_job few;

  if (!has_lanes (job, &few))
    return 0;
  const struct weft_paths *paths = weft_segment_cache_paths (cache, &few);
  g_autoptr (weft_grid) grid = paths ? weft_job_grid (job, NULL) : NULL;
  if (!grid)
    return 0;
  const struct weft_ends *ends = weft_segment_cache_ends (cache, job);
  gboolean alike = ends && ends->n_chunks == grid->n_chunks;
  return weft_paths_replay (paths, grid, alike ? ends : NULL) * ROUNDING;
}
