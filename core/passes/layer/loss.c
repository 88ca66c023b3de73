/* Cross entropy of logits. Each tensor parallel rank has a part of the vocabulary (Megatron-Core
 * tensor_parallel/cross_entropy.py, fusions/fused_cross_entropy.py, and Transformer Engine's
 * parallel cross entropy). For T tokens each rank
 * sends:
 *
 *   not fused      largest logit (4 T bytes, max), target's logit (4 T), sum of exponentials (4 T),
 *                  in three collectives
 *   fused, native  largest logit, then target's logit and sum in one collective (8 T)
 *   fused, te      the three numbers of all ranks in one all-gather (12 T for each rank)
 *   linear         for each chunk of the tokens, the collectives of `native`: head_chunks.c
 *
 * In multi-token prediction the last tokens of a sequence have no targets. Each of these losses has
 * a separate running sum.
 *
 * Backward needs no collective: each rank replaces its logits by their gradient, which it computes
 * from the logsumexp of all ranks. With fused_loss (core/stack.def) a rank with the whole
 * vocabulary does so in forward, in the kernel of the loss: the gradient of the loss is known then,
 * and the gradient of the logits needs no memory of its own. */
#include "core/passes/layer/ends.h"
#include "core/job/loss.h"

enum { MOST, TARGET, SUM, N_STATS };

static gboolean
is_te (const struct weft_step *s)
{
  return s->strategy->cross_entropy_loss_fusion &&
         s->strategy->cross_entropy_fusion_impl == WEFT_LOSS_TE;
}

/* The sum of exponentials of a single rank in the order of `te` with several ranks exists in the
 * separate kernel only. */
gboolean
weft_loss_is_fused (const struct weft_step *s)
{
  return s->mesh->tp == 1 && s->job->stack.fused_loss && !(is_te (s) && s->canonical);
}

/* Returns a view of `n` of the N_STATS arrays of statistics that ranks exchange, from array `first`
 * on. */
static uint32_t
view (struct weft_step *s, uint32_t stats, uint32_t first, uint32_t n)
{
  return weft_build_view (s->b, stats, first * s->tokens * 4, n * s->tokens * 4, "loss_parts");
}

static struct weft_shape
shape_of (const struct weft_step *s)
{
  return WEFT_SHAPE (s->product_dtype, s->tokens, s->width.vocab, s->leaves.vocab,
                     s->model->vocab_size);
}

/* Reduces the three statistics of cross entropy over the tensor parallel ranks. Ops read and write
 * `stats` through different views, for which no dependencies are added automatically. The caller
 * must make the next op wait for the last collective. */
static uint32_t
reduce (struct weft_step *s, const struct weft_saved_end *end)
{
  uint32_t stats =
      weft_step_buffer (s, WEFT_BUF_WORKSPACE, WEFT_FP32, N_STATS * s->tokens, "loss_parts");
  uint32_t most = view (s, stats, MOST, 1), rest = view (s, stats, TARGET, 2);

  weft_emit (s, WEFT_OP_XENT_MAX, "loss", shape_of (s),
             WEFT_USES (WEFT_R (end->logits), WEFT_W (most)));
  weft_tensor_all_reduce (s, most, WEFT_REDUCE_MAX, "largest_logit");
  weft_emit (s, WEFT_OP_XENT_PART, "loss", shape_of (s),
             WEFT_USES (WEFT_R (end->logits), WEFT_R (end->targets), WEFT_R (most), WEFT_W (rest)));
  if (s->strategy->cross_entropy_loss_fusion) {
    weft_tensor_all_reduce (s, rest, WEFT_REDUCE_SUM, "loss_parts");
    return stats;
  }
  weft_tensor_all_reduce (s, view (s, stats, TARGET, 1), WEFT_REDUCE_SUM, "target_logit");
  weft_tensor_all_reduce (s, view (s, stats, SUM, 1), WEFT_REDUCE_SUM, "sum_exp");
  return stats;
}

static uint32_t
gather (struct weft_step *s, const struct weft_saved_end *end)
{
  uint32_t stats =
      weft_step_buffer (s, WEFT_BUF_WORKSPACE, WEFT_FP32, N_STATS * s->tokens, "loss_parts");

  weft_emit (s, WEFT_OP_XENT_PART, "loss", shape_of (s),
             WEFT_USES (WEFT_R (end->logits), WEFT_R (end->targets), WEFT_R (WEFT_NO_BUF),
                        WEFT_W (stats)));
  return weft_tensor_all_gather (s, stats, "loss_parts");
}

static uint32_t
mtp_loss (struct weft_step *s, uint32_t depth)
{
  uint64_t bytes = weft_build_buf_at (s->b, s->scalars.loss)->bytes;

  if (s->model->mtp_num_layers == 1)
    return s->scalars.mtp_loss;
  return weft_build_view (s->b, s->scalars.mtp_loss, (depth - 1) * bytes, bytes, "mtp_loss");
}

/* Returns the buffer of the running sum of one loss (the model's own, or of multi-token
 * prediction). */
static uint32_t
loss_of (struct weft_step *s, const struct weft_saved_end *end)
{
  return end->depth ? mtp_loss (s, end->depth) : s->scalars.loss;
}

/* Returns the buffer with the running number of tokens, or WEFT_NO_BUF. Only the model's own loss
 * counts tokens. */
static uint32_t
count_of (const struct weft_step *s, const struct weft_saved_end *end)
{
  return end->depth ? WEFT_NO_BUF : s->scalars.count;
}

void
weft_loss_forward (struct weft_step *s, struct weft_saved_end *end)
{
  struct weft_shape shape = shape_of (s);
  uint32_t loss = loss_of (s, end), count = count_of (s, end);

  if (weft_loss_is_fused (s)) {
    weft_loss_both (s, end, weft_loss_gradient (s));
    return;
  }
  end->lse = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, WEFT_FP32, s->tokens, "loss_lse");
  shape.dim[4] = is_te (s) && s->canonical;
  if (s->mesh->tp == 1) {
    weft_emit (s, WEFT_OP_XENT, "loss", shape,
               WEFT_USES (WEFT_R (end->logits), WEFT_R (end->targets), WEFT_W (end->lse),
                          WEFT_RW (count), WEFT_RW (loss)));
    return;
  }
  uint32_t stats = is_te (s) ? gather (s, end) : reduce (s, end);
  weft_emit (s, WEFT_OP_XENT_END, "loss",
             WEFT_SHAPE (WEFT_FP32, s->tokens, is_te (s) ? s->mesh->tp : 1),
             WEFT_USES (WEFT_R (stats), WEFT_W (end->lse), WEFT_RW (count), WEFT_RW (loss),
                        WEFT_R (end->targets)));
  weft_build_dep (s->b, weft_build_last (s->b, WEFT_LANE_TP));
}

/* ------------------------------------------------------------------------ backward */

/* Returns the number of tokens by which the loss is divided. Normally these are the tokens of this
 * replica: a later reduction divides gradients by the number of replicas (Megatron-Core;
 * average_in_collective). In canonical order without average_in_collective these are the tokens of
 * all replicas, so that the loss is divided only once. With calculate_per_token_loss the result is
 * 1, because finish.c divides the gradients. */
static uint64_t
mean_over (const struct weft_step *s)
{
  gboolean all = s->canonical && !s->strategy->average_in_collective;
  uint64_t tokens = weft_job_tokens (s->job) * s->n_micro;

  if (s->strategy->calculate_per_token_loss)
    return 1;
  return tokens * (all ? weft_mesh_group_size (s->mesh, WEFT_GROUP_DP) : 1);
}

/* Megatron-Core multiplies the loss by grad_scale_func before backward
 * (pipeline_parallel/schedules.py, backward_step). The gradient of the loss is therefore the loss
 * scale. */
uint32_t
weft_loss_gradient (struct weft_step *s)
{
  if (!s->scales_loss)
    return WEFT_NO_BUF;
  uint32_t gradient = weft_step_buffer (s, WEFT_BUF_WORKSPACE, WEFT_FP32, 1, "loss_gradient");
  weft_emit (s, WEFT_OP_SCALE_LOSS, "grad_scale_func", WEFT_SHAPE (WEFT_FP32, 1),
             WEFT_USES (WEFT_W (gradient)));
  return gradient;
}

void
weft_loss_backward (struct weft_step *s, const struct weft_saved_end *end, uint32_t gradient)
{
  if (weft_loss_is_fused (s))
    return;
  weft_emit (s, WEFT_OP_XENT_BWD, "loss",
             WEFT_SHAPE (s->product_dtype, s->tokens, s->width.vocab, mean_over (s),
                         s->model->vocab_size, end->depth),
             WEFT_USES (WEFT_RW (end->logits), WEFT_R (end->targets), WEFT_R (end->lse),
                        WEFT_R (gradient)));
}

void
weft_loss_both (struct weft_step *s, struct weft_saved_end *end, uint32_t gradient)
{
  struct weft_shape shape = shape_of (s);

  if (s->mesh->tp > 1) {
    weft_loss_forward (s, end);
    weft_loss_backward (s, end, gradient);
    return;
  }
  shape.dim[4] = end->depth;
  shape.dim[5] = mean_over (s);
  weft_emit (s, WEFT_OP_XENT_GRAD, "loss", shape,
             WEFT_USES (WEFT_RW (end->logits), WEFT_R (end->targets), WEFT_RW (count_of (s, end)),
                        WEFT_R (gradient), WEFT_RW (loss_of (s, end))));
}
