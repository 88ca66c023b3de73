/* blas_call.h - a product, as cuBLASLt's descriptors say it.
 *
 * cuBLASLt's matrices are column-major, so the library computes the row-major y = a b as y^T = b^T
 * a^T: Weft's `b` is the library's A, Weft's `a` is its B, and rows are the leading dimension. */
#pragma once
#include "kernels/cuda/launch.h"
#include <cublasLt.h>
#include <glib.h>

typedef struct weft_blas_call {
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t a, b, y; /* a: the layout of the library's matrix A, which is Weft's b */
} weft_blas_call;

/* Describes a product whose epilogue and bias the library computes. Returns NULL or an error text;
 * the caller clears the call in either case. The descriptors contain the addresses of bias, aux and
 * scales. */
const char *weft_blas_call_init (weft_blas_call *call, const struct weft_cuda_gemm *g);
void weft_blas_call_clear (weft_blas_call *call);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (weft_blas_call, weft_blas_call_clear)

/* Text of an error, or NULL for success. */
const char *weft_blas_text (cublasStatus_t status);

/* Type of b. */
static inline uint8_t
weft_blas_b_dtype (const struct weft_cuda_gemm *g)
{
  return g->b_scale ? g->b_dtype : g->dtype;
}
