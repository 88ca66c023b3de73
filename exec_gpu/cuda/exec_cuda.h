/* exec_cuda.h - the executor for NVIDIA GPUs: exec_gpu.h with CUDA and NCCL. */
#pragma once
#include "exec_gpu/exec_gpu.h"

extern const struct weft_exec_ops weft_exec_cuda;

/* Opens the executor with another table of calls (a test double), which must outlive the
 * executor. */
weft_exec *weft_exec_cuda_open (const struct weft_gpu_calls *calls, const weft_plan *plan,
                                const struct weft_exec_options *options, GError **error);

/* Loads the module and returns its table of calls, which is static.  NULL with an error: the
 * module, the driver or a GPU is missing. */
const struct weft_gpu_calls *weft_cuda_load (GError **error);
