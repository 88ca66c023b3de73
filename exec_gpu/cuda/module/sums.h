/* sums.h - what ranks that share a GPU do instead of NCCL. */
#pragma once
#include "exec_gpu/shared.h"

#ifdef __cplusplus
extern "C" {
#endif

const char *weft_cuda_join_terms (const struct weft_gpu_join *join, void *stream);
const char *weft_cuda_load_joins (void *stream); /* while launchers load only: those of floats */
const char *weft_cuda_exchange_rows (const struct weft_gpu_exchange *x, void *stream);

#ifdef __cplusplus
}
#endif
