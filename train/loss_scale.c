#include "train/loss_scale.h"

struct weft_loss_scale
weft_loss_scale_start (const struct weft_job *job)
{
  if (!weft_job_scales_loss (job))
    return (struct weft_loss_scale){ 0 };
  return (struct weft_loss_scale){ .scale = weft_job_scales_dynamically (job)
                                                ? job->train.initial_loss_scale
                                                : job->train.loss_scale,
                                   .hysteresis = (uint64_t) job->train.hysteresis };
}

static void
fall (struct weft_loss_scale *s, const union weft_train *train)
{
  s->good = 0;
  if (s->hysteresis > 0)
    s->hysteresis--;
  if (s->hysteresis == 0)
    s->scale = MAX (s->scale / 2, train->min_loss_scale);
}

static void
rise (struct weft_loss_scale *s, const union weft_train *train)
{
  if (++s->good < (uint64_t) train->loss_scale_window)
    return;
  s->good = 0;
  s->hysteresis = (uint64_t) train->hysteresis;
  s->scale *= 2;
}

void
weft_loss_scale_update (struct weft_loss_scale *s, const struct weft_job *job, gboolean overflow)
{
  if (weft_job_scales_dynamically (job))
    (overflow ? fall : rise) (s, &job->train);
}

struct weft_loss_scale
weft_loss_scale_resume (const struct weft_loss_scale *saved, const struct weft_job *job)
{
  return weft_job_scales_dynamically (job) && saved->scale > 0 ? *saved
                                                               : weft_loss_scale_start (job);
}

gboolean
weft_loss_scale_can_fall (const struct weft_loss_scale *s, const struct weft_job *job)
{
  return weft_job_scales_dynamically (job) && s->scale > job->train.min_loss_scale;
}
