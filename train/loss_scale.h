/* loss_scale.h - loss scaling, which keeps fp16 gradients above the smallest fp16 number.
 *
 * A constant scale is train.loss_scale. A dynamic scale follows Megatron-Core's DynamicGradScaler
 * (optimizer/grad_scaler.py): it starts at initial_loss_scale. A step whose gradients overflow is
 * skipped. The first hysteresis - 1 overflows do not change the scale; every further overflow
 * halves the scale, down to min_loss_scale. loss_scale_window consecutive steps without overflow
 * double the scale and restore the hysteresis. */
#pragma once
#include "core/job/job.h"

struct weft_loss_scale {
  double scale;        /* loss scale for the next step; 0: the loss is not scaled */
  /* number of consecutive steps without overflow since the scale was last doubled */
  uint64_t good;
  uint64_t hysteresis; /* number of overflows until the scale is halved */
};

/* The loss scale for the first step of a new run. */
struct weft_loss_scale weft_loss_scale_start (const struct weft_job *job);

/* Updates a dynamic loss scale after a step. A constant loss scale does not change. `overflow`:
 * whether the gradients of the step overflowed. */
void weft_loss_scale_update (struct weft_loss_scale *scale, const struct weft_job *job,
                             gboolean overflow);

/* The loss scale for a resumed run: the saved scale if this run scales dynamically and the
 * checkpoint contains a loss scale, else the scale of a new run. */
struct weft_loss_scale weft_loss_scale_resume (const struct weft_loss_scale *saved,
                                               const struct weft_job *job);

/* Whether an overflow can still lower the loss scale: the scale is dynamic and above
 * min_loss_scale. */
gboolean weft_loss_scale_can_fall (const struct weft_loss_scale *scale, const struct weft_job *job);
