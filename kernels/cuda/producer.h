/* producer.h - attention with a producer warp (attention_producer.cu), for the code that chooses
 * between kernels. */
#pragma once
#include "kernels/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Values of struct weft_cuda_launch.warpgroups. PRODUCER: attention, and matmuls with swiglu
 * (gated.cu), with a producer warp, where they take the shape; no GPU has run them yet. */
enum weft_cuda_warpgroups { WEFT_NO_WARPGROUPS, WEFT_WARPGROUPS, WEFT_WARPGROUPS_PRODUCER };

/* Scratch of attention_bwd with a producer warp. With less, the other kernel runs. */
uint64_t weft_cuda_producer_scratch (const struct weft_cuda_shape *s);

/* Whether this launch of attention or attention_bwd, with WEFT_WARPGROUPS_PRODUCER, runs the kernel
 * with a producer warp. */
int weft_cuda_producer_runs (const struct weft_cuda_launch *l, int backward);

#ifdef __cplusplus
}
#endif
