/* loss_scale.h - loss scaling, which keeps fp16 gradients above the smallest fp16 number.
 *
 * A constant scale is train.loss_scale. A dynamic scale follows Megatron-Core's DynamicGradScaler
 * (optimizer/grad_scaler.py): it starts at initial_loss_scale. A step whose gradients overflow is
 * skipped and uses up one of `hysteresis` overflows; from the last one on, each overflow halves the
 * scale, down to min_loss_scale. loss_scale_window steps in a row without overflow double the scale
 * and restore the hysteresis. */
#pragma once
#include "core/job/job.h"

struct weft_loss_scale {
  double scale;        /* for the next step; 0: the loss is not scaled */
  uint64_t good;       /* steps in a row without overflow, counted again from 0 when the scale is
                        * doubled */
  uint64_t hysteresis; /* overflows left before the scale is halved */
};

/* The scale for the first step of a new run. */
struct weft_loss_scale weft_loss_scale_start (const struct weft_job *job);

/* Updates a dynamic scale after a step; a constant scale does not change. */
void weft_loss_scale_update (struct weft_loss_scale *scale, const struct weft_job *job,
                             gboolean overflow);

/* The scale for a resumed run: the saved scale if both runs scale dynamically, else that of a new
 * run. */
struct weft_loss_scale weft_loss_scale_resume (const struct weft_loss_scale *saved,
                                               const struct weft_job *job);

/* Whether another overflow would lower the scale. */
gboolean weft_loss_scale_can_fall (const struct weft_loss_scale *scale, const struct weft_job *job);
