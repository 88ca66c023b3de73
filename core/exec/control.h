/* control.h - inputs and results of a real step that are not part of the plan: tokens and
 * hyper-parameters in, loss and gradient norm out.  The caller owns struct weft_control and changes
 * it between steps; an executor reads it while a step runs. */
#pragma once
#include <glib.h>
#include <math.h>
#include <stdint.h>

/* Bias correction of Adam's moments: lr / (1 - beta1^step), and 1 / sqrt (1 - beta2^step). */
struct weft_correction {
  double step, unbias;
};

struct weft_control {
  uint64_t step; /* number of the optimizer step, from 1; for Adam's bias correction and dropout */
  uint64_t seed; /* seed of the random numbers of dropout */
  double lr, beta1, beta2, epsilon, weight_decay;
  double clip_grad; /* norm to which a larger gradient norm is clipped */
  double loss_scale; /* factor of the loss in jobs that scale the loss; 0 stands for 1 */
  /* weft_control_correction(), in a copy that kernels of a device read; unused elsewhere */
  struct weft_correction corrected;

  /* The global batch, (global_batch_size, seq_length + 1) token ids: sequence i reads row i without
   * its last token and predicts row i without its first. */
  const int32_t *tokens;

  /* TRUE: the step is a forward pass without dropout.  Ops of backward, reduction and update end at
   * once and access no memory.  They keep their places in the order of ops, so that memory is
   * reused as safely as in a whole step. */
  gboolean forward_only;
};

static inline float
weft_control_loss_scale (const struct weft_control *control)
{
  return control->loss_scale > 0 ? (float) control->loss_scale : 1;
}

static inline struct weft_correction
weft_control_correction (const struct weft_control *control)
{
  double t = (double) control->step;

  return (struct weft_correction){ control->lr / (1 - pow (control->beta1, t)),
                                   1 / sqrt (1 - pow (control->beta2, t)) };
}

/* Results that the copy_out ops of one rank copy to the host. */
struct weft_metrics {
  /* loss of the step: mean over all tokens of the global batch; NaN on stages without an output
   * head */
  double loss;
  /* loss of multi-token prediction, not included in `loss`: mean over the prediction depths; NaN
   * without multi-token prediction */
  double mtp_loss;
  double grad_norm; /* norm of the gradient before clipping; NaN without clip_grad */
  gboolean skipped; /* whether the update was skipped: the gradient norm, or with a loss scale a
                       gradient, was not finite; FALSE without clip_grad and loss scale */
  /* with check_for_large_grads: number of buckets of this rank whose gradient norm is large
   * (feed.h) */
  uint32_t large;
};
