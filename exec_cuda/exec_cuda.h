/* exec_cuda.h - the executor of GPUs.
 *
 * Ranks have a GPU each, or share one: virtual ranks, whose collectives are kernels and copies of
 * that GPU.  What of it needs CUDA and NCCL is a module that the first opening loads. */
#pragma once
#include "core/exec/exec.h"
#include "exec_cuda/calls.h"

extern const struct weft_exec_ops weft_exec_cuda;

/* The same over calls of another make, which outlive it. */
weft_exec *weft_exec_cuda_open (const struct weft_cuda_calls *calls, const weft_plan *plan,
                                const struct weft_exec_options *options, GError **error);

/* The calls of this machine's CUDA; NULL without module, driver or GPU. */
const struct weft_cuda_calls *weft_cuda_load (GError **error);
