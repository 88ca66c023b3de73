/* sums.h - kernels that replace NCCL for ranks that share a GPU.  The functions return NULL or an
 * error message. */
#pragma once
#include "exec_gpu/shared.h"

#ifdef __cplusplus
extern "C" {
#endif

const char *weft_cuda_join_terms (const struct weft_gpu_join *join, void *stream);

/* Loads the kernels for sums of float types. Call it while
 * weft_cuda_load_only (TRUE) applies. */
const char *weft_cuda_load_joins (void *stream);

const char *weft_cuda_exchange_rows (const struct weft_gpu_exchange *x, void *stream);

#ifdef __cplusplus
}
#endif
