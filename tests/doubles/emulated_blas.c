/* A double of cuBLASLt that computes the matmuls of kernels/cuda/launch.h in fp32. Each output is
 * summed over k in rising order, from k = 0. */
#include "kernels/cuda/fp8_scales.h"
#include "kernels/cuda/launch.h"
#include "kernels/float.h"
#include "kernels/kernel.h"
#include <glib.h>

static float *
wide (const void *data, enum weft_dtype dtype, uint64_t n)
{
  float *out = g_new (float, n);

  for (uint64_t i = 0; i < n; i += WEFT_STRETCH) {
    uint64_t some = MIN (WEFT_STRETCH, n - i);
    const float *value = weft_floats (data, dtype, i, some, out + i);
    if (value != out + i)
      memcpy (out + i, value, some * sizeof *out);
  }
  return out;
}

/* Returns the transposed matrix in new memory, and frees `matrix`. */
static float *
turned (float *matrix, uint64_t rows, uint64_t columns)
{
  float *out = g_new (float, rows *columns);

  for (uint64_t i = 0; i < rows; i++)
    for (uint64_t j = 0; j < columns; j++)
      out[j * rows + i] = matrix[i * columns + j];
  g_free (matrix);
  return out;
}

static void
add_product (const struct weft_cuda_gemm *g, const float *a, const float *b, float *y)
{
  for (uint64_t m = 0; m < g->m; m++)
    for (uint64_t k = 0; k < g->k; k++)
      for (uint64_t n = 0; n < g->n; n++)
        y[m * g->n + n] += a[m * g->k + k] * b[k * g->n + n];
}

/* Multiplies fp8 values by their scales. The scales have the layout that cuBLASLt requires. */
static void
scale_codes (float *value, const void *scale, const uint64_t size[2],
             const struct weft_fp8_layout *l)
{
  for (uint64_t i = 0; i < size[0] * size[1]; i++) {
    uint64_t row = i / size[1], t = i % size[1], at = 0;
    if (l->block)
      at = weft_fp8_layout_place (l, l->square ? row / l->block : row, t / l->block);
    value[i] *= l->block == WEFT_MX_BLOCK ? weft_e8m0_float (((const uint8_t *) scale)[at])
                                          : ((const float *) scale)[at];
  }
}

/* Asserts that a GPU supports this matmul (rules in blas.c and playing_cublaslt.h). */
static void
check (const struct weft_cuda_gemm *g)
{
  gboolean codes = g->a_scale != NULL;

  g_assert (g->m && g->n && g->k);
  g_assert (codes == (g->b_scale != NULL) && codes == (g->dtype > WEFT_FP16));
  g_assert (g->y_dtype == WEFT_FP32 || (!codes && g->y_dtype == g->dtype) ||
            (codes && g->y_dtype <= WEFT_FP16));
  if (!codes)
    return;
  /* the only fp8 layout that all GPUs support: b is transposed, a is not */
  g_assert (!g->a_turned && g->b_turned);
  g_assert (!(g->dtype == WEFT_E5M2 && g->b_dtype == WEFT_E5M2));
  g_assert (!(g->fast && g->block == 128) && !(g->bias && g->y_dtype == WEFT_FP32));
  g_assert (g->block == 0 ||
            ((uintptr_t) g->a_scale % 16 == 0 && (uintptr_t) g->b_scale % 16 == 0));
}

static void
scale_both (const struct weft_cuda_gemm *g, float *a, float *b)
{
  const struct weft_fp8_layout of_a = weft_fp8_layout_of (g->m, g->k, g->block, 0);
  const struct weft_fp8_layout of_b = weft_fp8_layout_of (g->n, g->k, g->block, g->square);

  scale_codes (a, g->a_scale, (const uint64_t[]){ g->m, g->k }, &of_a);
  scale_codes (b, g->b_scale, (const uint64_t[]){ g->n, g->k }, &of_b);
}

/* Applies the epilogue (GELU or its derivative) to the unrounded output, as cuBLASLt does. The aux
 * output has the type of y. */
static void
follow (const struct weft_cuda_gemm *g, float *y, uint64_t n)
{
  static const union weft_model by_tanh = { .activation = WEFT_GELU };
  struct weft_kernel k = { .kind = WEFT_OP_GELU, .shape = { .dim = { 1, n } }, .model = &by_tanh };
  struct weft_operand all = { .data = y, .n = n, .dtype = WEFT_FP32 };
  g_autofree float *of = NULL;

  k.operand[0] = k.operand[1] = k.operand[2] = all;
  if (g->epilogue == WEFT_CUDA_GELU && g->aux)
    weft_store (g->aux, g->y_dtype, 0, n, y);
  if (g->epilogue == WEFT_CUDA_GELU)
    weft_cpu_gelu (&k, 0, 1);
  if (g->epilogue != WEFT_CUDA_GELU_SLOPE)
    return;
  k.operand[0].data = of = wide (g->aux, g->y_dtype, n);
  weft_cpu_gelu_bwd (&k, 0, 1);
}

/* Stores the sums of the rows of a (m, k), as BGRADB of cuBLASLt: in the type of y, without adding
 * to what is there (cublasLt.h). */
static const char *
leave_sums (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g, const float *a)
{
  g_autofree float *sum = g_malloc0_n (g->m, sizeof *sum);

  for (uint64_t i = 0; i < g->m * g->k; i++)
    sum[i / g->k] += a[i];
  weft_store (g->aux, g->y_dtype, 0, g->m, sum);
  return weft_cuda_bring_sums (on, g);
}

/* Whether the epilogue runs as a separate kernel, as if cuBLASLt could not fuse it. TRUE for odd
 * sizes, so that tests cover this case. */
static gboolean
is_apart (const struct weft_cuda_gemm *g)
{
  return (g->epilogue != WEFT_CUDA_PLAIN && g->n % 2) || (g->epilogue == WEFT_CUDA_SUMS && !g->aux);
}

const char *
weft_cuda_multiply (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g)
{
  if (weft_cuda_loads_only ())
    return NULL;
  uint64_t n = g->m * g->n;
  struct weft_cuda_gemm gated = *g;
  check (g);
  if (g->epilogue == WEFT_CUDA_GATE && weft_cuda_gated_takes (on, g))
    return weft_cuda_gated (on, g);
  if (g->epilogue == WEFT_CUDA_GATE) {
    gated.y = g->aux;
    gated.epilogue = WEFT_CUDA_PLAIN;
    const char *error = weft_cuda_multiply (on, &gated);
    return error ? error : weft_cuda_follow (on, g);
  }
  g_autofree float *a = wide (g->a, g->dtype, g->m * g->k),
                   *b = wide (g->b, g->a_scale ? g->b_dtype : g->dtype, g->k * g->n);
  g_autofree float *y =
      g->accumulate ? wide (g->y, g->y_dtype, n) : g_malloc0_n (n, sizeof (float));
  g_autofree float *bias = g->bias ? wide (g->bias, g->y_dtype, g->n) : NULL;

  if (g->a_scale)
    scale_both (g, a, b);
  if (g->a_turned)
    a = turned (a, g->k, g->m);
  if (g->b_turned)
    b = turned (b, g->n, g->k);
  add_product (g, a, b, y);
  for (uint64_t i = 0; i < n && g->scale; i++)
    y[i] *= *g->scale;
  for (uint64_t i = 0; i < n && bias; i++)
    y[i] += bias[i % g->n];
  if (is_apart (g)) {
    weft_store (g->epilogue == WEFT_CUDA_GELU && g->aux ? g->aux : g->y, g->y_dtype, 0, n, y);
    return weft_cuda_follow (on, g);
  }
  follow (g, y, n);
  weft_store (g->y, g->y_dtype, 0, n, y);
  return g->epilogue == WEFT_CUDA_SUMS ? leave_sums (on, g, a) : NULL;
}
