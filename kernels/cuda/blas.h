/* blas.h - products by cuBLASLt: for every shape an algorithm, chosen once.
 *
 * Which algorithm is the fastest depends on the GPU and on the version of the library, and which one
 * is taken decides the bits: it is found before the first step, by measuring the library's first
 * WEFT_BLAS_CANDIDATES guesses, and kept in a file, so that every run of the same machine has the same
 * bits.  A shape that nobody prepared gets the first guess.  Partial sums are never added to the output in the order of arrival
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

/* While it is on, weft_cuda_multiply() multiplies nothing: it finds the algorithm of a shape that has
 * none, on random operands in memory of its own, or by the library's guess where there is no room for
 * them.  It waits for the stream then. */
void weft_blas_only_prepare (struct weft_cuda_blas *blas, gboolean on);

/* How many shapes have an algorithm. */
uint32_t weft_blas_count (const struct weft_cuda_blas *blas);

/* Algorithms as a file: a line for each shape, after one that names library, driver and GPU.  Those of
 * another machine are left out, and *found says how many were taken. */
gboolean weft_blas_save (const struct weft_cuda_blas *blas, const char *path, GError **error);
gboolean weft_blas_load (struct weft_cuda_blas *blas, const char *path, uint32_t *found,
                         GError **error);

/* What they were found on: library, driver and GPU.  Lives as long as blas does. */
const char *weft_blas_machine (const struct weft_cuda_blas *blas);

/* Where algorithms of this machine are kept: in the user's folder for caches, under a name made of
 * library, driver and GPU.  Caller frees. */
char *weft_blas_path (const struct weft_cuda_blas *blas);
