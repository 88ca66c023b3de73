/* control.h - inputs and results of a real step that the plan does not hold: tokens and
 * hyper-parameters in, a few numbers out.  The caller owns it; an executor reads it while a step
 * runs, and the caller changes it between steps. */
#pragma once
#include <glib.h>
#include <stdint.h>

struct weft_control {
  uint64_t step; /* of the optimizer, from 1: Adam's bias correction, and draws of dropout */
  uint64_t seed; /* of dropout */
  double lr, beta1, beta2, epsilon, weight_decay;
  double clip_grad; /* limit of the gradient norm */
  double loss_scale; /* of jobs that scale the loss; 0 is 1 */

  /* The global batch, (global_batch_size, seq_length + 1) token ids: sequence i reads row i without
   * its last token and predicts row i without its first. */
  const int32_t *tokens;

  /* Forward alone, without dropout: ops of backward, reduction and update end at once and touch
   * nothing.  They keep their place in the order, so memory is as safe as in a whole step. */
  gboolean forward_only;
};

static inline float
weft_control_loss_scale (const struct weft_control *control)
{
  return control->loss_scale > 0 ? (float) control->loss_scale : 1;
}

/* What copy_out brings to the host, by row of the executor. */
struct weft_metrics {
  double loss;      /* mean over all tokens of the global batch; NaN on stages without a head */
  double mtp_loss;  /* multi-token prediction, not part of `loss`: mean over depths; NaN without */
  double grad_norm; /* before clipping; NaN without clip_grad */
  gboolean skipped; /* nothing was updated: the norm was not finite, or with a loss scale a gradient
                       was not; FALSE without clip_grad and loss scale */
  uint32_t large;   /* check_for_large_grads: buckets of this rank far above the first ones */
};
