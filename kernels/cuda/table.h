/* table.h - the CUDA kernels by op, for the executor: C11 without CUDA headers. */
#pragma once
#include "kernels/cuda/launch.h"
#include "kernels/kernel.h"

typedef const char *weft_cuda_launcher (const struct weft_cuda_launch *l);

/* The table of kernel launchers, by op kind. NULL: the op has no CUDA kernel. */
extern weft_cuda_launcher *const weft_cuda_launchers[WEFT_N_OP];

/* Converts a kernel call, whose operands and control are on the device, to launch arguments. The
 * caller then sets stream, scratch and blas. CUDA kernels do not support canonical order. */
struct weft_cuda_launch weft_cuda_launch_of (const struct weft_kernel *k);

/* Bytes of scratch that a call of this kind and shape needs, as its kernel declares with
 * WEFT_CUDA_SCRATCH(). */
uint64_t weft_cuda_scratch (enum weft_op_kind kind, const struct weft_shape *shape);

/* Launches all calls of one op in order, in as few launches as the kernel allows. */
const char *
weft_cuda_launch_all (enum weft_op_kind kind, const struct weft_cuda_launch *l, uint32_t n);
