/* sums.h - what ranks that share a GPU do instead of NCCL, and numbers as the device has them. */
#pragma once
#include "exec_cuda/shared.h"

#ifdef __cplusplus
extern "C" {
#endif

const char *weft_cuda_join_terms (const struct weft_cuda_join *join, void *stream);
const char *weft_cuda_exchange_rows (const struct weft_cuda_exchange *x, void *stream);

/* The bits of a number in a floating type, from the first byte on. */
uint64_t weft_cuda_scalar (enum weft_dtype dtype, double value);

#ifdef __cplusplus
}
#endif
