#include "planner/bound.h"
#include "core/job/schedule.h"
#include "core/job/stages.h"
#include "core/plan/plan.h"
#include "core/program/pipeline.h"
#include "planner/shorten.h"
#include <math.h>

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

/* A pass through a stage, of one microbatch. */
struct pass {
  double forward, backward; /* seconds */
  double kept;              /* bytes */
};

/* Axes of the space that change it. */
struct key {
  int64_t stages, micro_batch, recompute;
};

struct known {
  struct key key;
  uint32_t n; /* stages; 0: nothing is known */
  struct pass *pass;
};

struct weft_bounds {
  GArray *known;
};

static void
forget (void *known)
{
  g_free (((struct known *) known)->pass);
}

weft_bounds *
weft_bounds_new (void)
{
  weft_bounds *bounds = g_new0 (weft_bounds, 1);

  bounds->known = g_array_new (FALSE, TRUE, sizeof (struct known));
  g_array_set_clear_func (bounds->known, forget);
  return bounds;
}

void
weft_bounds_free (weft_bounds *bounds)
{
  g_array_unref (bounds->known);
  g_free (bounds);
}

static gboolean
is_backward (enum weft_phase phase)
{
  return phase == WEFT_PHASE_BACKWARD || phase == WEFT_PHASE_RECOMPUTE;
}

static gboolean
is_of (const struct weft_op *row, gboolean backward)
{
  return row->micro != WEFT_NO_MICRO &&
         (backward ? is_backward (row->phase) : row->phase == WEFT_PHASE_FORWARD);
}

/* The first and the last kernel of a pass that follow on what was received and precede what is sent. */
struct window {
  uint32_t from, to; /* of n_op, 0: there are none */
};

static gboolean
waits_for_receive (const weft_program *p, uint32_t op, enum weft_phase phase)
{
  for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++)
    if (p->op[p->deps[d]].kind == WEFT_OP_RECV && p->op[p->deps[d]].phase == phase)
      return TRUE;
  return FALSE;
}

/* What is sent waits for the kernels so far; without a dependency that says so, for none. */
static uint32_t
last_kernel_before (const weft_program *p, uint32_t op)
{
  uint32_t last = 0;

  for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++)
    if (p->op[p->deps[d]].lane == WEFT_LANE_GPU)
      last = MAX (last, p->deps[d]);
  return last;
}

static struct window
window_of (const weft_program *p, gboolean backward)
{
  enum weft_phase phase = backward ? WEFT_PHASE_BACKWARD : WEFT_PHASE_FORWARD;
  struct window w = { p->n_op, 0 };
  uint32_t sent = p->n_op;

  for (uint32_t op = 0; op < p->n_op; op++) {
    gboolean kernel = p->op[op].lane == WEFT_LANE_GPU;
    if (kernel && waits_for_receive (p, op, phase))
      w = (struct window){ op, op };
    if (kernel && is_of (&p->op[op], backward)) {
      w.from = MIN (w.from, op);
      w.to = op;
    }
    if (p->op[op].kind == WEFT_OP_SEND && p->op[op].phase == phase)
      sent = MIN (sent, last_kernel_before (p, op));
  }
  w.to = MIN (w.to, sent);
  return w;
}

/* Collectives that a pass itself needs; those of replicas have other lanes. */
static gboolean
belongs_to_pass (enum weft_lane lane)
{
  return lane == WEFT_LANE_GPU || lane == WEFT_LANE_TP || lane == WEFT_LANE_CP ||
         lane == WEFT_LANE_EP;
}

static double
duration (const weft_program *p, uint32_t op, double seconds, gboolean backward)
{
  const struct weft_op *row = &p->op[op];
  gboolean counted = row->lane == WEFT_LANE_GPU ? counts[row->kind] && !(row->flags & WEFT_OP_FUSED)
                                                : !(row->flags & WEFT_OP_GROUPED);
  return counted && is_of (row, backward) ? seconds : 0;
}

/* The longest way from the first kernel of a pass to its last. */
static double
longest_way (const weft_program *p, const double *seconds, gboolean backward)
{
  struct window w = window_of (p, backward);
  double lane_end[WEFT_N_LANE];

  if (w.from > w.to)
    return 0;
  g_autofree double *end = g_new (double, w.to - w.from + 1);
  for (int lane = 0; lane < WEFT_N_LANE; lane++)
    lane_end[lane] = lane == WEFT_LANE_GPU ? 0 : -INFINITY;
  for (uint32_t op = w.from; op <= w.to; op++) {
    double *at = &lane_end[p->op[op].lane];
    end[op - w.from] = -INFINITY; /* no way from the first kernel leads here */
    if (!belongs_to_pass (p->op[op].lane))
      continue;
    for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++)
      if (p->deps[d] >= w.from)
        *at = fmax (*at, end[p->deps[d] - w.from]);
    *at += duration (p, op, seconds[op], backward);
    end[op - w.from] = *at;
  }
  return lane_end[WEFT_LANE_GPU];
}

static double
kept (const weft_program *p)
{
  double sum = 0;

  for (uint32_t i = 0; i < p->n_buf; i++) {
    const struct weft_buf *b = &p->buf[i];
    if (b->base == WEFT_NO_BUF && !b->permanent && b->kind == WEFT_BUF_ACTIVATIONS &&
        b->pool == WEFT_POOL_DEVICE && b->micro != WEFT_NO_MICRO && b->first != WEFT_NO_OP &&
        p->op[b->first].phase == WEFT_PHASE_FORWARD && is_backward (p->op[b->last].phase))
      sum += (double) b->bytes;
  }
  return sum;
}

/* Every microbatch has the same kernels, and those of a pass are enqueued in one piece. */
static gboolean
passes_are_alike (const struct weft_job *job)
{
  const union weft_strategy *k = &job->strategy;

  return k->pipeline_schedule <= WEFT_SCHEDULE_GPIPE && !weft_job_schedule_file (job) &&
         weft_job_chunks (job) == 1 && !k->fp8_param_gather &&
         k->num_microbatches_with_partial_activation_checkpoints == WEFT_NONE &&
         !k->delay_wgrad_compute && !k->defer_embedding_wgrad_compute &&
         !k->overlap_moe_expert_parallel_comm;
}

static void
look (const struct weft_job *job, struct known *known)
{
  struct weft_job one = weft_shorten_to (job, 1);

  if (!passes_are_alike (job) || !weft_job_check (&one, NULL))
    return;
  g_autoptr (weft_plan) plan = weft_plan_new_draft (&one, WEFT_PLAN_PRICED, NULL);
  if (!plan)
    return;
  known->n = plan->n_roles;
  known->pass = g_new0 (struct pass, known->n);
  for (uint32_t r = 0; r < known->n; r++)
    known->pass[r] = (struct pass){ longest_way (plan->role[r], plan->seconds[r], FALSE),
                                    longest_way (plan->role[r], plan->seconds[r], TRUE),
                                    kept (plan->role[r]) };
}

static const struct known *
find (weft_bounds *bounds, const struct weft_job *job)
{
  struct known asked = { .key = { job->strategy.pipeline_model_parallel_size,
                                  job->train.micro_batch_size,
                                  job->strategy.recompute_granularity } };

  for (guint i = 0; i < bounds->known->len; i++) {
    const struct known *known = &g_array_index (bounds->known, struct known, i);
    if (memcmp (&known->key, &asked.key, sizeof asked.key) == 0)
      return known;
  }
  look (job, &asked);
  g_array_append_val (bounds->known, asked);
  return &g_array_index (bounds->known, struct known, bounds->known->len - 1);
}

/* Microbatches that a stage has begun and not ended, at most. */
static double
in_flight (const struct weft_job *job, uint32_t stage)
{
  int64_t m = weft_job_microbatches (job);
  int64_t ahead = job->strategy.pipeline_model_parallel_size - (int64_t) stage;

  return (double) (job->strategy.pipeline_schedule == WEFT_SCHEDULE_GPIPE ? m : MIN (m, ahead));
}

/* Sums in another order differ in the last digits. */
#define ROUNDING (1 - 1e-9)

struct weft_bound
weft_bound_passes (weft_bounds *bounds, const struct weft_job *job)
{
  const struct known *known = find (bounds, job);
  struct weft_bound bound = { 0, 0 };
  double m = (double) weft_job_microbatches (job), ends = 0;

  for (uint32_t r = 0; r < known->n; r++) {
    double both = known->pass[r].forward + known->pass[r].backward;
    bound.seconds = fmax (bound.seconds, (m * both + ends) * ROUNDING);
    bound.bytes = fmax (bound.bytes, in_flight (job, r) * known->pass[r].kept);
    ends += both;
  }
  return bound;
}
