/* adam_rates.h - the numbers of an AdamW step, the same for all elements. */
#pragma once
#include "kernels/kernel.h"

struct weft_adam_rates {
  float factor; /* of the gradient (clip, loss scale) */
  float keep;   /* of the weight: 1 - lr * weight decay */
  float beta1, beta2;
  float new1, new2; /* 1 - beta1, 1 - beta2 */
  float step;       /* lr / (1 - beta1^t) */
  float unbias;     /* 1 / sqrt (1 - beta2^t) */
  float epsilon;
};

static inline struct weft_adam_rates
weft_adam_rates (const struct weft_kernel *k, float factor)
{
  const struct weft_control *c = k->control;
  const struct weft_correction corrected = weft_control_correction (c);

  return (struct weft_adam_rates){
    .factor = factor,
    .keep = k->decay ? (float) (1 - c->lr * c->weight_decay) : 1,
    .beta1 = (float) c->beta1,
    .beta2 = (float) c->beta2,
    .new1 = (float) (1 - c->beta1),
    .new2 = (float) (1 - c->beta2),
    .step = (float) corrected.step,
    .unbias = (float) corrected.unbias,
    .epsilon = (float) c->epsilon,
  };
}
