/* control.h - what a real step needs that is no part of the plan: tokens in, hyper-parameters, a
 * few numbers out.  The caller owns it; an executor reads it while a step runs and the caller
 * changes it between steps. */
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

  /* Only forward, where nothing is dropped: ops of backward, reduction and update end at once and
   * touch nothing.  They still take their place in the order, so memory is as safe as in a whole
   * step. */
  gboolean forward_only;
};

static inline float
weft_control_loss_scale (const struct weft_control *control)
{
  return control->loss_scale > 0 ? (float) control->loss_scale : 1;
}

/* What copy_out brings to the host, by row of the executor. */
struct weft_metrics {
  double loss;      /* mean over all tokens of the global batch; NaN where no head is */
  double mtp_loss;  /* of multi-token prediction, which is not in it: the mean over depths; NaN without */
  double grad_norm; /* before clipping; NaN without clip_grad */
  gboolean skipped; /* nothing was updated: the norm was not finite, or with a loss scale a gradient
                       was not; FALSE without clip_grad and loss scale */
  uint32_t large;    /* check_for_large_grads: buckets of this rank that are far above the first ones */
};
