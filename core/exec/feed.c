#include "core/exec/feed.h"
#include "core/base/error.h"
#include "core/base/exact.h"
#include <math.h>
#include <string.h>

static const weft_program *
program_of (const weft_plan *plan, uint32_t rank)
{
  return plan->role[weft_mesh_stage (&plan->mesh, rank)];
}

static const struct weft_buf *
first_buffer (const weft_program *p, uint32_t op)
{
  return &p->buf[p->uses[p->op[op].uses].buf];
}

gboolean
weft_feed_is_training (const weft_program *p, uint32_t op)
{
  const struct weft_op *row = &p->op[op];

  switch (weft_op_info[row->kind].skipped) {
  case WEFT_SKIPPED:
    return TRUE;
  case WEFT_SKIPPED_ON_GRADIENTS:
    return first_buffer (p, op)->kind == WEFT_BUF_GRADIENTS;
  case WEFT_SKIPPED_BUT_MASTERS:
    return row->phase != WEFT_PHASE_FORWARD && first_buffer (p, op)->kind != WEFT_BUF_OPTIMIZER;
  case WEFT_SKIPPED_AFTER_FORWARD:
    return row->phase != WEFT_PHASE_FORWARD;
  case WEFT_SKIPPED_BACKWARD:
    break;
  }
  return row->phase != WEFT_PHASE_FORWARD && row->phase != WEFT_PHASE_OPTIMIZER;
}

int64_t
weft_feed_first_sequence (const weft_plan *plan, uint32_t rank, const struct weft_op *row)
{
  struct weft_place replica = weft_mesh_place (&plan->mesh, rank, WEFT_GROUP_DP);
  struct weft_place context = weft_mesh_place (&plan->mesh, rank, WEFT_GROUP_CP);

  return weft_job_sequence (&plan->job, replica.at / context.of, row->micro);
}

uint64_t
weft_feed_tokens (const weft_plan *plan, uint32_t rank, uint32_t op, const int32_t *tokens,
                  int32_t *out)
{
  const weft_program *p = program_of (plan, rank);
  struct weft_place context = weft_mesh_place (&plan->mesh, rank, WEFT_GROUP_CP);
  uint64_t length = plan->job.model.seq_length, n = length / context.of;
  gboolean targets = strcmp (p->name[p->op[op].name], "targets") == 0;
  uint64_t depth = weft_op_shape (p, op)->dim[1];
  uint64_t rows = plan->job.train.micro_batch_size;

  if (!out)
    return rows * n;
  uint64_t first = (uint64_t) weft_feed_first_sequence (plan, rank, &p->op[op]);
  for (uint64_t i = 0; i < rows; i++) {
    const int32_t *from = tokens + (first + i) * (length + 1) + targets;
    for (uint64_t t = 0; t < n; t++) {
      uint64_t at = weft_position (context, n, t) + depth;
      *out++ = at < length ? from[at] : targets ? -1 : 0;
    }
  }
  return rows * n;
}

/* ------------------------------------------------------------------ numbers out */

/* One of the numbers in operand i of an op: number `at`. */
static double
scalar_at (const weft_program *p, uint32_t op, uint32_t i, const void *const *value, int64_t at)
{
  const struct weft_use *use = &p->uses[p->op[op].uses + i];

  if (p->buf[use->buf].dtype == WEFT_INT64)
    return weft_exact_value ((const int64_t *) value[i] + at * WEFT_EXACT_WORDS);
  return ((const float *) value[i])[at];
}

static double
scalar (const weft_program *p, uint32_t op, uint32_t i, const void *const *value)
{
  return scalar_at (p, op, i, value, 0);
}

/* A gradient norm is large if it is at least ten times the largest of the first hundred norms, as
 * in Megatron-Core's rerun_state_machine.py. */
enum { N_SAMPLES = 100, TIMES_LARGER = 10 };

static gboolean
check_bucket (struct weft_watch *watch, const struct weft_job *job, double norm)
{
  if (weft_job_checks_nan (job) && !isfinite (norm))
    return FALSE;
  if (!job->strategy.check_for_large_grads || !isfinite (norm))
    return TRUE;
  if (watch->n_norm < N_SAMPLES) {
    watch->largest_norm = MAX (watch->largest_norm, norm);
    watch->n_norm++;
  } else {
    watch->n_large += norm >= TIMES_LARGER * watch->largest_norm;
  }
  return TRUE;
}

/* Loss of multi-token prediction: the mean over prediction depths. The operand has sums over tokens
 * with a target, divided by the number of all tokens; this function scales them to means over
 * tokens with a target. NaN if the op does not copy this loss. */
static double
mtp_loss (const weft_plan *plan, const weft_program *p, uint32_t op, const void *const *value)
{
  const union weft_model *m = &plan->job.model;
  double n = (double) m->mtp_num_layers, s = (double) m->seq_length, sum = 0;

  if (p->op[op + 1].uses - p->op[op].uses <= 2 || p->uses[p->op[op].uses + 2].buf == WEFT_NO_BUF)
    return NAN;
  for (int64_t depth = 0; depth < m->mtp_num_layers; depth++)
    sum += scalar_at (p, op, 2, value, depth) * s / (s - (double) (depth + 1)) / n;
  return sum;
}

/* Converts the operands of a copy_out op, which copies results to the host, to metrics. A loss that
 * is an exact sum (int64) covers all tokens of the global batch; a loss in fp32 covers the tokens
 * of one replica. */
static struct weft_metrics
metrics_of (const struct weft_watch *watch, const weft_plan *plan, uint32_t rank, uint32_t op,
            const void *const *value)
{
  const weft_program *p = program_of (plan, rank);
  double tokens = (double) plan->job.train.global_batch_size * plan->job.model.seq_length;
  gboolean last = weft_program_has_loss (p), clips = plan->job.train.clip_grad > 0;
  gboolean exact = first_buffer (p, op)->dtype == WEFT_INT64;
  double replicas = exact ? 1 : weft_mesh_place (&plan->mesh, rank, WEFT_GROUP_DP).of;
  double norm = sqrt (scalar (p, op, 1, value));

  return (struct weft_metrics){ .loss = last ? scalar (p, op, 0, value) * replicas / tokens : NAN,
                                .mtp_loss = mtp_loss (plan, p, op, value) * replicas / tokens,
                                .grad_norm = clips ? norm : NAN,
                                .skipped = watch->overflow || (clips && !isfinite (norm)),
                                .large = watch->n_large };
}

gboolean
weft_watch_read (struct weft_watch *watch, const weft_plan *plan, uint32_t rank, uint32_t op,
                 const void *const *value, struct weft_metrics *metrics)
{
  const weft_program *p = program_of (plan, rank);

  if (p->op[op].phase < WEFT_PHASE_REDUCE)
    return TRUE; /* a number that only the executor needs, such as a row count, and no metric */
  if (p->op[op + 1].uses - p->op[op].uses > 1) {
    *metrics = metrics_of (watch, plan, rank, op, value);
    watch->n_large = 0;
    watch->overflow = FALSE;
  } else if (p->op[op].phase == WEFT_PHASE_REDUCE) {
    return check_bucket (watch, &plan->job, sqrt (scalar (p, op, 0, value)));
  } else if (p->op[op].phase == WEFT_PHASE_OPTIMIZER) {
    watch->overflow = scalar (p, op, 0, value) > 0;
  }
  return TRUE;
}

gboolean
weft_watch_refuse (const weft_plan *plan, uint32_t rank, uint32_t op, GError **error)
{
  g_autofree char *label = weft_op_label (program_of (plan, rank), op);

  return weft_run_error (error, "rank %u: %s is not finite (check_for_nan_in_grad)", rank, label);
}
