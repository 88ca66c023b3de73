#include "planner/bound.h"
#include "core/job/schedule.h"
#include "core/job/stages.h"
#include "core/plan/plan.h"
#include "core/program/pipeline.h"
#include "planner/shorten.h"
#include <math.h>
#include <string.h>

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

/* Of what products are taken in, the quickest. */
static double
matmul_rate (const struct weft_job *job)
{
  const enum weft_dtype dtypes[] = { weft_job_dtype (job), weft_job_product_dtype (job),
                                     weft_job_linear_dtype (job) };
  double rate = 0;

  for (unsigned i = 0; i < G_N_ELEMENTS (dtypes); i++)
    rate = fmax (rate, dtypes[i] == WEFT_FP32  ? job->cluster.f.gpu_fp32
                       : dtypes[i] == WEFT_FP8 ? job->cluster.f.gpu_fp8
                                               : job->cluster.f.gpu_bf16);
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

/* Nothing in this space is quicker.  Full recompute adds a third to the layers and nothing to the head. */
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

/* Kernels that a pass is made of, whoever keeps weights and gradients. */
static const gboolean counts[WEFT_N_OP] = {
  [WEFT_OP_MATMUL] = TRUE,
  [WEFT_OP_MATMUL_DGRAD] = TRUE,
  [WEFT_OP_MATMUL_WGRAD] = TRUE,
  [WEFT_OP_MATMUL_GELU] = TRUE,
  [WEFT_OP_MATMUL_DGRAD_GELU] = TRUE,
  [WEFT_OP_MOE_MATMUL] = TRUE,
  [WEFT_OP_MOE_MATMUL_DGRAD] = TRUE,
  [WEFT_OP_MOE_MATMUL_WGRAD] = TRUE,
  [WEFT_OP_FP8_MATMUL] = TRUE,
  [WEFT_OP_FP8_MATMUL_DGRAD] = TRUE,
  [WEFT_OP_FP8_MATMUL_WGRAD] = TRUE,
  [WEFT_OP_MOE_FP8_MATMUL] = TRUE,
  [WEFT_OP_MOE_FP8_MATMUL_DGRAD] = TRUE,
  [WEFT_OP_MOE_FP8_MATMUL_WGRAD] = TRUE,
  [WEFT_OP_MOE_ACT] = TRUE,
  [WEFT_OP_MOE_ACT_BWD] = TRUE,
  [WEFT_OP_NORM] = TRUE,
  [WEFT_OP_NORM_BWD] = TRUE,
  [WEFT_OP_ADD] = TRUE,
  [WEFT_OP_ADD_NORM] = TRUE,
  [WEFT_OP_ROPE] = TRUE,
  [WEFT_OP_ROPE_BWD] = TRUE,
  [WEFT_OP_ATTENTION] = TRUE,
  [WEFT_OP_ATTENTION_BWD] = TRUE,
  [WEFT_OP_ATTENTION_PART] = TRUE,
  [WEFT_OP_ATTENTION_PART_BWD] = TRUE,
  [WEFT_OP_SCORES] = TRUE,
  [WEFT_OP_SOFTMAX] = TRUE,
  [WEFT_OP_CONTEXT] = TRUE,
  [WEFT_OP_CONTEXT_BWD] = TRUE,
  [WEFT_OP_SOFTMAX_BWD] = TRUE,
  [WEFT_OP_SCORES_BWD] = TRUE,
  [WEFT_OP_GELU] = TRUE,
  [WEFT_OP_GELU_BWD] = TRUE,
  [WEFT_OP_SWIGLU] = TRUE,
  [WEFT_OP_SWIGLU_BWD] = TRUE,
  [WEFT_OP_RELU2] = TRUE,
  [WEFT_OP_RELU2_BWD] = TRUE,
  [WEFT_OP_XENT] = TRUE,
  [WEFT_OP_XENT_BWD] = TRUE,
  [WEFT_OP_XENT_GRAD] = TRUE,
};

/* ------------------------------------------------------------------------- segments */

/* The way of a microbatch is cut into what precedes the layers, the layers, and what follows them. */
enum { FORWARD, BACKWARD, N_PASS };
enum { DENSE, EXPERT, N_FAMILY }; /* of parameters: who shares them out is not the same */
enum { WEIGHTS, GRADIENTS, OPTIMIZER, N_STATE };

/* Of `way`, the first kernel and the end are another's where the neighbour is another (of sums and norms,
 * which are fused or not; products are the same everywhere). */
struct segment {
  double way[N_PASS];   /* seconds from its first kernel to the first of the next segment */
  double first[N_PASS]; /* the first kernel, unless it is a product */
  double last[N_PASS];  /* from the begin of the last kernel; of a product, from its end */
  double own, handed;   /* bytes that its backward needs; and that of the next segment does */
  double state[N_FAMILY][N_STATE]; /* bytes where replicas split nothing */
};

/* What changes the kernels of a layer. */
struct key {
  int64_t tensor, sequence, context, expert_tensor, expert, micro_batch, recompute;
};

struct known {
  struct key key;
  uint32_t n; /* segments; 0: nothing is known */
  struct segment *segment;
  weft_plan *plan; /* which they were measured in */
};

struct weft_bounds {
  GHashTable *known; /* of struct known, by key */
};

static guint
hash (gconstpointer key)
{
  const int64_t *at = key;
  guint sum = 0;

  for (size_t i = 0; i < sizeof (struct key) / sizeof *at; i++)
    sum = sum * 31 + (guint) at[i];
  return sum;
}

static gboolean
equal (gconstpointer a, gconstpointer b)
{
  return memcmp (a, b, sizeof (struct key)) == 0;
}

static void
forget (gpointer value)
{
  struct known *known = value;

  g_clear_pointer (&known->plan, weft_plan_free);
  g_free (known->segment);
  g_free (known);
}

weft_bounds *
weft_bounds_new (void)
{
  weft_bounds *bounds = g_new0 (weft_bounds, 1);

  bounds->known = g_hash_table_new_full (hash, equal, NULL, forget);
  return bounds;
}

void
weft_bounds_free (weft_bounds *bounds)
{
  g_hash_table_unref (bounds->known);
  g_free (bounds);
}

/* Layers count from one; what has none precedes the first or follows the last. */
static uint32_t
segment_of (const struct known *known, uint16_t layer, gboolean layers_seen)
{
  if (layer != WEFT_NO_LAYER)
    return MIN (layer + 1u, known->n - 1);
  return layers_seen ? known->n - 1 : 0;
}

static gboolean
is_of (const struct weft_op *row, int pass)
{
  return row->micro != WEFT_NO_MICRO && (pass == FORWARD ? row->phase == WEFT_PHASE_FORWARD
                                                         : row->phase == WEFT_PHASE_BACKWARD ||
                                                               row->phase == WEFT_PHASE_RECOMPUTE);
}

/* ----------------------------------------------------------------------------- time */

/* The first kernel of each segment in a pass, in the order of the program, and one past the last. */
static gboolean
find_starts (const weft_program *p, const struct known *known, int pass, uint32_t *start)
{
  uint32_t end = 0, n = known->n;
  int64_t at = -1; /* segments begun, less one */

  for (uint32_t op = 0; op < p->n_op; op++) {
    if (p->op[op].lane != WEFT_LANE_GPU || !is_of (&p->op[op], pass))
      continue;
    gboolean seen = pass == FORWARD ? at > 0 : at + 1 >= (int64_t) n - 1;
    uint32_t segment = segment_of (known, p->op[op].layer, pass == FORWARD ? seen : !seen);
    uint32_t place = pass == FORWARD ? segment : n - 1 - segment;
    if ((int64_t) place == at + 1)
      start[++at] = op;
    else if ((int64_t) place != at)
      return FALSE;
    end = op + 1;
  }
  start[n] = end;
  return at + 1 == (int64_t) n;
}

/* Collectives that a pass itself needs; those of replicas have other lanes. */
static gboolean
belongs_to_pass (enum weft_lane lane)
{
  return lane == WEFT_LANE_GPU || lane == WEFT_LANE_TP || lane == WEFT_LANE_CP ||
         lane == WEFT_LANE_EP;
}

static double
duration (const weft_program *p, uint32_t op, double seconds, int pass)
{
  const struct weft_op *row = &p->op[op];
  gboolean counted = row->lane == WEFT_LANE_GPU ? counts[row->kind] && !(row->flags & WEFT_OP_FUSED)
                                                : !(row->flags & WEFT_OP_GROUPED);
  return counted && is_of (row, pass) ? seconds : 0;
}

/* The longest way to the begin of an op, from that of the first of these. */
static double
begin_of (const weft_program *p, uint32_t op, uint32_t from, const double *end, double lane_end)
{
  double begin = lane_end;

  for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++)
    if (p->deps[d] >= from)
      begin = fmax (begin, end[p->deps[d] - from]);
  return begin;
}

/* Products are the same at the ends of a stage; what adds and normalises is fused or not. */
static gboolean
is_product (const weft_program *p, uint32_t op)
{
  return weft_op_flops (p, op) > 0 && !(p->op[op].flags & WEFT_OP_FUSED);
}

/* Of the segment whose kernels are those from `from` until `to`, of a pass that ends at `stop`. */
static void
measure_way (const weft_program *p, const double *seconds, int pass, uint32_t from, uint32_t to,
             uint32_t stop, struct segment *segment)
{
  g_autofree double *end = g_new (double, to - from);
  double lane_end[WEFT_N_LANE], last = 0;

  for (int lane = 0; lane < WEFT_N_LANE; lane++)
    lane_end[lane] = lane == WEFT_LANE_GPU ? 0 : -INFINITY;
  for (uint32_t op = from; op < to; op++) {
    double *at = &lane_end[p->op[op].lane];
    end[op - from] = -INFINITY; /* no way from the first kernel leads here */
    if (!belongs_to_pass (p->op[op].lane))
      continue;
    *at = begin_of (p, op, from, end, *at);
    double begin = *at;
    *at += duration (p, op, seconds[op], pass);
    end[op - from] = *at;
    if (p->op[op].lane == WEFT_LANE_GPU && is_of (&p->op[op], pass))
      last = is_product (p, op) ? *at : begin;
  }
  segment->way[pass] =
      to == stop ? lane_end[WEFT_LANE_GPU] : begin_of (p, to, from, end, lane_end[WEFT_LANE_GPU]);
  segment->first[pass] = is_product (p, from) ? 0 : duration (p, from, seconds[from], pass);
  segment->last[pass] = segment->way[pass] - last;
}

static gboolean
measure_ways (const weft_program *p, const double *seconds, struct known *known)
{
  g_autofree uint32_t *start = g_new (uint32_t, known->n + 1);

  for (int pass = 0; pass < N_PASS; pass++) {
    if (!find_starts (p, known, pass, start))
      return FALSE;
    for (uint32_t i = 0; i < known->n; i++)
      measure_way (p, seconds, pass, start[i], start[i + 1], start[known->n],
                   &known->segment[pass == FORWARD ? i : known->n - 1 - i]);
  }
  return TRUE;
}

/* ---------------------------------------------------------------------------- bytes */

static gboolean
is_kept (const weft_program *p, const struct weft_buf *b)
{
  return b->base == WEFT_NO_BUF && !b->permanent && b->kind == WEFT_BUF_ACTIVATIONS &&
         b->pool == WEFT_POOL_DEVICE && b->micro != WEFT_NO_MICRO && b->first != WEFT_NO_OP &&
         is_of (&p->op[b->first], FORWARD) && is_of (&p->op[b->last], BACKWARD);
}

/* What a layer hands to the next is that one's input, which a stage may have received. */
static void
measure_kept (const weft_program *p, struct known *known)
{
  for (uint32_t i = 0; i < p->n_buf; i++) {
    const struct weft_buf *b = &p->buf[i];
    if (!is_kept (p, b) || p->op[b->first].layer == WEFT_NO_LAYER)
      continue;
    struct segment *segment = &known->segment[segment_of (known, p->op[b->first].layer, TRUE)];
    gboolean own = p->op[b->last].layer == p->op[b->first].layer;
    *(own ? &segment->own : &segment->handed) += (double) b->bytes;
  }
}

static double
optimizer_bytes (const weft_program *p)
{
  double bytes = 0, elements = 0;

  for (uint32_t i = 0; i < p->n_buf; i++)
    if (p->buf[i].base == WEFT_NO_BUF && p->buf[i].kind == WEFT_BUF_OPTIMIZER &&
        p->buf[i].pool != WEFT_POOL_HOST)
      bytes += (double) p->buf[i].bytes;
  for (uint32_t i = 0; i < p->n_param; i++)
    elements += (double) (p->param[i].rows * p->param[i].columns);
  return elements > 0 ? bytes / elements : 0;
}

static double
bytes_of (const weft_program *p, uint32_t buf)
{
  return buf == WEFT_NO_BUF || p->buf[weft_buf_owner (p, buf)].pool == WEFT_POOL_HOST
             ? 0
             : (double) p->buf[buf].bytes;
}

static void
measure_state (const weft_program *p, struct known *known)
{
  double optimizer = optimizer_bytes (p);
  gboolean layers_seen = FALSE;

  for (uint32_t i = 0; i < p->n_param; i++) {
    const struct weft_param *param = &p->param[i];
    layers_seen = layers_seen || param->layer != WEFT_NO_LAYER;
    uint32_t at = segment_of (known, param->layer, layers_seen);
    double *state = known->segment[at].state[param->block > 0 ? EXPERT : DENSE];
    state[WEIGHTS] += bytes_of (p, param->weight);
    state[GRADIENTS] += bytes_of (p, param->grad);
    state[OPTIMIZER] += optimizer * (double) (param->rows * param->columns);
  }
}

/* ---------------------------------------------------------------------- what is known */

/* Every microbatch has the same kernels, and those of a pass are enqueued in one piece. */
static gboolean
passes_are_alike (const struct weft_job *job)
{
  const union weft_strategy *k = &job->strategy;

  return k->pipeline_schedule <= WEFT_SCHEDULE_GPIPE && !weft_job_schedule_file (job) &&
         weft_job_layout_stages (job) == 0 && !k->fp8_param_gather &&
         k->num_microbatches_with_partial_activation_checkpoints == WEFT_NONE &&
         !k->delay_wgrad_compute && !k->defer_embedding_wgrad_compute &&
         !k->overlap_moe_expert_parallel_comm;
}

/* One microbatch through one stage, in a data parallel wrapper that splits nothing. */
static struct weft_job
simplest (const struct weft_job *job)
{
  struct weft_job one = *job;
  union weft_strategy *k = &one.strategy;

  k->pipeline_model_parallel_size = 1;
  k->pipeline_schedule = WEFT_SCHEDULE_1F1B;
  k->virtual_pipeline_model_parallel_size = k->microbatch_group_size_per_vp_stage = WEFT_NONE;
  k->decoder_first_pipeline_num_layers = k->decoder_last_pipeline_num_layers = WEFT_NONE;
  k->account_for_embedding_in_pipeline_split = k->account_for_loss_in_pipeline_split = FALSE;
  k->overlap_p2p_comm = k->overlap_p2p_comm_warmup_flush = FALSE;
  if (!weft_job_is_torch (job)) {
    k->use_megatron_fsdp = k->use_distributed_optimizer = FALSE;
    k->data_parallel_sharding_strategy = WEFT_NO_SHARD;
    k->overlap_grad_reduce = k->overlap_param_gather = FALSE;
  }
  return weft_shorten_to (&one, 1);
}

static void
look (const struct weft_job *job, struct known *known)
{
  struct weft_job one = simplest (job);

  if (!weft_job_check (&one, NULL))
    return;
  known->plan = weft_plan_new_draft (&one, WEFT_PLAN_PRICED, NULL);
  if (!known->plan)
    return;
  const weft_program *p = known->plan->role[0];
  known->n = (uint32_t) job->model.num_layers + 2;
  known->segment = g_new0 (struct segment, known->n);
  if (!measure_ways (p, known->plan->seconds[0], known)) {
    known->n = 0;
    return;
  }
  measure_kept (p, known);
  if (!weft_job_is_torch (job))
    measure_state (p, known);
}

static const struct known *
find (weft_bounds *bounds, const struct weft_job *job)
{
  const union weft_strategy *k = &job->strategy;
  const struct key key = { .tensor = k->tensor_model_parallel_size,
                           .sequence = k->sequence_parallel,
                           .context = k->context_parallel_size,
                           .expert_tensor = weft_job_expert_tp (job),
                           .expert = k->expert_model_parallel_size,
                           .micro_batch = job->train.micro_batch_size,
                           .recompute = k->recompute_granularity };
  struct known *known = g_hash_table_lookup (bounds->known, &key);

  if (known)
    return known;
  known = g_new0 (struct known, 1);
  known->key = key;
  look (job, known);
  g_hash_table_insert (bounds->known, &known->key, known);
  return known;
}

/* ------------------------------------------------------------------------ one chunk */

/* The layers of one chunk of a rank: some of the first ones are recomputed, the others are not. */
struct chunk {
  const struct known *recomputed, *other;
  uint32_t first, end; /* segments */
  uint32_t most;       /* layers that are recomputed */
};

/* Of a chunk and one microbatch, or summed. */
struct pass {
  double way[N_PASS], kept;
};

static const struct known *
known_of (const struct chunk *c, uint32_t segment)
{
  uint32_t layer = segment - MAX (c->first, 1);

  return segment > 0 && segment + 1 < c->other->n && layer < c->most ? c->recomputed : c->other;
}

/* Whether a segment has another neighbour than where it was measured, and so another kernel there. */
static gboolean
is_torn (const struct chunk *c, uint32_t segment, uint32_t neighbour)
{
  if (neighbour >= c->other->n) /* there is none: before the first or after the last */
    return FALSE;
  return neighbour < c->first || neighbour >= c->end ||
         known_of (c, neighbour) != known_of (c, segment);
}

static struct pass
measure_chunk (const struct chunk *c)
{
  struct pass sum = { { 0, 0 }, 0 };

  for (uint32_t s = c->first; s < c->end; s++) {
    const struct segment *it = &known_of (c, s)->segment[s];
    gboolean before = is_torn (c, s, s - 1), after = is_torn (c, s, s + 1);
    sum.way[FORWARD] +=
        fmax (0, it->way[FORWARD] - before * it->first[FORWARD] - after * it->last[FORWARD]);
    sum.way[BACKWARD] +=
        fmax (0, it->way[BACKWARD] - after * it->first[BACKWARD] - before * it->last[BACKWARD]);
    sum.kept += it->own + (after ? 0 : it->handed);
  }
  return sum;
}

/* ------------------------------------------------------------------------ the ranks */

struct asked {
  const struct weft_job *job;
  const struct known *recomputed, *other;
  uint32_t n_ranks, n_chunks, m;
  uint32_t *layers; /* by stage; chunk c of rank r is stage c * n_ranks + r */
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

/* Microbatches that a rank has in flight in one of its chunks when it begins the first backward. */
static double
in_flight (const struct asked *a, uint32_t rank, uint32_t chunk)
{
  const union weft_strategy *k = &a->job->strategy;
  uint32_t ahead = a->n_ranks - rank, in_chunk = 0;

  if (k->pipeline_schedule == WEFT_SCHEDULE_GPIPE)
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

/* Ranks that split what replicas have in common: weights, gradients, state; and how many they are. */
static double
share (const struct asked *a, int family, int state)
{
  static const int level_of[N_STATE] = { WEFT_SHARD_PARAMS, WEFT_SHARD_GRADS, WEFT_SHARD_OPTIM };
  const union weft_strategy *k = &a->job->strategy;
  int level = k->use_megatron_fsdp           ? weft_job_sharding (a->job)
              : k->use_distributed_optimizer ? WEFT_SHARD_OPTIM
                                             : WEFT_NO_SHARD;
  int64_t holders = family == DENSE ? k->tensor_model_parallel_size
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
    for (int family = 0; family < N_FAMILY; family++)
      for (int state = 0; state < N_STATE; state++)
        sum += c->other->segment[s].state[family][state] * share (a, family, state);
  return sum;
}

/* Sums in another order differ in the last digits. */
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
      double both = pass.way[FORWARD] + pass.way[BACKWARD];
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

/* Full recompute of all layers, or of none: where some are recomputed, both are looked at. */
static void
find_both (weft_bounds *bounds, const struct weft_job *job, struct asked *a)
{
  struct weft_job all = *job, none = *job;

  if (job->strategy.recompute_granularity != WEFT_RECOMPUTE_FULL ||
      job->strategy.recompute_method != WEFT_RECOMPUTE_BLOCK) {
    a->recomputed = a->other = find (bounds, job);
    return;
  }
  all.strategy.recompute_method = WEFT_RECOMPUTE_UNIFORM;
  all.strategy.recompute_num_layers = 1;
  none.strategy.recompute_granularity = WEFT_RECOMPUTE_NONE;
  none.strategy.recompute_method = none.strategy.recompute_num_layers = WEFT_NONE;
  a->recomputed = find (bounds, &all);
  a->other = find (bounds, &none);
}

/* FALSE where nothing is known. */
static gboolean
ask (weft_bounds *bounds, const struct weft_job *job, struct asked *a)
{
  *a = (struct asked){ .job = job,
                       .n_ranks = (uint32_t) job->strategy.pipeline_model_parallel_size,
                       .n_chunks = weft_job_chunks (job),
                       .m = (uint32_t) weft_job_microbatches (job) };
  if (!passes_are_alike (job))
    return FALSE;
  find_both (bounds, job, a);
  if (a->recomputed->n == 0 || a->other->n == 0)
    return FALSE;
  g_autofree uint32_t *rank = g_new (uint32_t, a->n_ranks * a->n_chunks);
  for (uint32_t i = 0; i < a->n_ranks * a->n_chunks; i++)
    rank[i] = i % a->n_ranks;
  a->layers = weft_job_stage_layers (job, rank, a->n_ranks * a->n_chunks);
  return TRUE;
}

struct weft_bound
weft_bound_passes (weft_bounds *bounds, const struct weft_job *job)
{
  struct asked a;

  if (!ask (bounds, job, &a))
    return (struct weft_bound){ 0, 0 };
  struct weft_bound bound = bound_ranks (&a);
  g_free (a.layers);
  return bound;
}

/* ---------------------------------------------------------------------- the schedule */

/* What a stage hands to the next, at least: over the quickest link between two of them, and with tensor
 * parallel ranks each its share. */
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

/* Cells of all ranks above which the schedule is not replayed. */
enum { MOST_CELLS = 1 << 22 };

double
weft_bound_schedule (weft_bounds *bounds, const struct weft_job *job)
{
  struct asked a;

  if (!ask (bounds, job, &a))
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
        (struct weft_cell_times){ .forward = pass.way[FORWARD], .input = pass.way[BACKWARD] };
  }
  return weft_grid_replay_uneven (grid, times, transfer_seconds (&a)) * ROUNDING;
}
