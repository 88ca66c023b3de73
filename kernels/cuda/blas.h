/* blas.h - matrix products by cuBLASLt, with one algorithm per shape chosen before the first step.
 *
 * The fastest algorithm depends on the GPU and the library version, and the choice determines the
 * bits of the result. So the algorithm of a shape is measured once, among the first
 * WEFT_BLAS_CANDIDATES suggestions of the library's heuristic, and saved in a file: every run on
 * the same machine gives the same bits. For a product whose tiles do not fill the multiprocessors
 * twice and whose inner dimension is long, as that of weight gradients, the first suggestions are
 * also measured with the inner dimension cut into parts (split-K). A shape that was not prepared
 * uses the first suggestion. Partial sums are added in fp32, in a fixed order, never in order of
 * arrival (cublasLtReductionScheme_t). */
#pragma once
#include "kernels/cuda/launch.h"
#include <glib.h>

#define WEFT_BLAS_CANDIDATES 64

struct weft_cuda_blas;

/* Opens cuBLASLt. On failure returns NULL, and *error is a static text. */
struct weft_cuda_blas *weft_blas_new (const char **error);
void weft_blas_free (struct weft_cuda_blas *blas);

/* While `on`, weft_cuda_multiply() does not multiply: it chooses the algorithm of a shape without
 * an algorithm, by timing on random operands in temporary memory, or by the heuristic if that
 * memory is not available. The call then waits for the stream. */
void weft_blas_only_prepare (struct weft_cuda_blas *blas, gboolean on);

/* Number of shapes for which an algorithm is known. */
uint32_t weft_blas_count (const struct weft_cuda_blas *blas);

/* Saves and loads algorithms. The file has a first line that names library, driver and GPU, then
 * one line per shape. The lines of a file of another machine are skipped; *found is the number of
 * lines loaded. */
gboolean weft_blas_save (const struct weft_cuda_blas *blas, const char *path, GError **error);
gboolean weft_blas_load (struct weft_cuda_blas *blas, const char *path, uint32_t *found,
                         GError **error);

/* Text that names library, driver and GPU, for which the algorithms are valid; owned by `blas`. */
const char *weft_blas_machine (const struct weft_cuda_blas *blas);

/* Default file for this machine's algorithms: in the user's cache folder, named after library,
 * driver and GPU. The caller frees it. */
char *weft_blas_path (const struct weft_cuda_blas *blas);
