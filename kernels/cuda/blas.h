/* blas.h - products by cuBLASLt: for every shape an algorithm, chosen once.
 *
 * Which algorithm is the fastest depends on the GPU and on the version of the library, and which one
 * is taken decides the bits: it is found before the first step, by the library's own guess or by
 * measuring its first WEFT_BLAS_CANDIDATES guesses, and kept in a file, so that every run of the same
 * machine has the same bits.  Partial sums are never added to the output in the order of arrival
 * (cublasLtReductionScheme_t). */
#pragma once
#include "kernels/cuda/launch.h"
#include <glib.h>

#define WEFT_BLAS_CANDIDATES 16

/* What a product may use besides its operands (executor of a Hopper GPU: 32 MiB, of which split sums
 * are kept). */
#define WEFT_BLAS_SCRATCH (32u << 20)

struct weft_cuda_blas;

/* NULL with *error, a text that lives for ever. */
struct weft_cuda_blas *weft_blas_new (const char **error);
void weft_blas_free (struct weft_cuda_blas *blas);

/* Finds the algorithm of a shape, whose pointers say how they are aligned; with `measure` the fastest
 * on these operands, which it overwrites.  Waits for the stream of `on`. */
const char *weft_blas_prepare (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *gemm,
                               gboolean measure);

/* Algorithms as a file: a line for each shape, after one that names library and GPU.  Those of another
 * library or GPU are left out, and *found says how many were taken. */
gboolean weft_blas_save (const struct weft_cuda_blas *blas, const char *path, GError **error);
gboolean weft_blas_load (struct weft_cuda_blas *blas, const char *path, uint32_t *found,
                         GError **error);
