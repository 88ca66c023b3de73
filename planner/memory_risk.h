/* memory_risk.h - strategies that fit by prediction, but may not fit in reality. */
#pragma once
#include "core/job/job.h"

/* The mean absolute error of predicted memory, as a fraction, against published measurements. The
 * only place where this number comes from. */
double weft_memory_error (const struct weft_job *job);

/* Whether a GPU would be too small if a step took more memory than predicted, by that error. The
 * head-room of the job (--memory-headroom) counts as room. */
gboolean weft_memory_is_risky (const struct weft_job *job, double bytes);
