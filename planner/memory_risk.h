/* memory_risk.h - strategies whose predicted memory fits the GPU, but whose real memory may not. */
#pragma once
#include "planner/bands.h"

/* The fraction by which a step may take more memory than predicted: the upper end of the memory
 * band of the job, at least 0. */
double weft_memory_error (weft_bands *bands, const struct weft_job *job);

/* Whether a GPU's memory would be too small if the step took more memory than predicted by the
 * fraction weft_memory_error(). `bytes`: predicted peak. The part of memory that --memory-headroom
 * leaves free may be used for the difference. */
gboolean weft_memory_is_risky (weft_bands *bands, const struct weft_job *job, double bytes);
