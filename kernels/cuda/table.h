/* table.h - CUDA's kernels by op, for an executor: C11 without a CUDA header. */
#pragma once
#include "kernels/cuda/launch.h"
#include "kernels/kernel.h"

typedef const char *weft_cuda_launcher (const struct weft_cuda_launch *l);

/* By op kind; NULL: CUDA has no kernel for it. */
extern weft_cuda_launcher *const weft_cuda_launchers[WEFT_N_OP];

/* A call for CUDA: operands and control of `k` lie on the device.  Stream, scratch and blas are the
 * caller's to set.  Canonical order is not kept: sums have an order of their own. */
struct weft_cuda_launch weft_cuda_launch_of (const struct weft_kernel *k);

/* Bytes of scratch that a call needs; 256 is its alignment. */
uint64_t weft_cuda_scratch (enum weft_op_kind kind, const struct weft_shape *shape);

/* Calls of one op, in order: as few launches as its kernel can do with. */
const char *weft_cuda_launch_all (enum weft_op_kind kind, const struct weft_cuda_launch *l, uint32_t n);
