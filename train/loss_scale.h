/* loss_scale.h - what the loss is multiplied by, so that gradients in fp16 stay above the smallest
 * number of that type.
 *
 * A constant scale is train.loss_scale.  A dynamic one is Megatron-Core's DynamicGradScaler
 * (optimizer/grad_scaler.py): it begins with initial_loss_scale; a step whose gradients overflow is
 * skipped and counts as one of `hysteresis` overflows, from the last of which on each halves the scale,
 * not below min_loss_scale; loss_scale_window steps in a row without overflow double it and restore
 * the hysteresis. */
#pragma once
#include "core/job/job.h"

struct weft_loss_scale {
  double scale;        /* of the next step; 0: the loss is not scaled */
  uint64_t good;       /* steps without overflow since one, or since the scale was doubled */
  uint64_t hysteresis; /* overflows that are left before the scale is halved */
};

/* Of a new run. */
struct weft_loss_scale weft_loss_scale_start (const struct weft_job *job);

/* After a step: a constant scale stays. */
void weft_loss_scale_update (struct weft_loss_scale *scale, const struct weft_job *job,
                             gboolean overflow);

/* What a run that is resumed goes on with: the scale it had, where both are dynamic. */
struct weft_loss_scale weft_loss_scale_resume (const struct weft_loss_scale *saved,
                                               const struct weft_job *job);

/* Whether an overflow may yet be answered by a smaller scale. */
gboolean weft_loss_scale_can_fall (const struct weft_loss_scale *scale, const struct weft_job *job);
