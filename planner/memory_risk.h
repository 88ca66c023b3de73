/* memory_risk.h - strategies that fit by prediction, but may not fit in reality. */
#pragma once
#include "planner/bands.h"

/* The fraction by which memory may exceed its prediction: the upper end of the band of the job, at
 * least 0. */
double weft_memory_error (weft_bands *bands, const struct weft_job *job);

/* Whether a GPU would be too small if a step took that much more memory than predicted. The
 * head-room of the job (--memory-headroom) counts as room. */
gboolean weft_memory_is_risky (weft_bands *bands, const struct weft_job *job, double bytes);
