/* cuda_case.h - calls of CUDA kernels as the CPU emulates them (emulated_cuda.hh). */
#pragma once
#include "kernels/kernel.h"

/* Scratch is as large as said and not a byte more: what lies behind it must stay.  `backwards`: the
 * order in which threads run. */
void cuda_case_launch (const struct weft_kernel *k, gboolean backwards);

/* The same call in memory of its own, with the same content, which cuda_case_free() frees. */
struct weft_kernel cuda_case_copy (const struct weft_kernel *k);
void cuda_case_free (struct weft_kernel *k);

/* Runs the call by the CPU's kernel, and copies of it by CUDA's in both orders of threads: these must
 * have the same bits, and no element may be further from the CPU's than rounding to its type and
 * `tolerance` of the largest explain. */
void cuda_case_check (const struct weft_kernel *k, double tolerance);
