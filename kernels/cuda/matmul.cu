/* Linear layers as products of cuBLASLt: which factor is transposed and what accumulates. Bias
 * gradients are column sums, in the epilogue of the product or by a kernel, whichever is faster. */
#include "kernels/cuda/columns.cuh"
#include <string.h>

enum { X, W, B, Y };
enum { DY, DX = 2 };
enum { WGRAD_X = 1, DW, DB };
enum { M, N, K };

static struct weft_cuda_gemm
gemm_of (const struct weft_cuda_launch *l, uint32_t a, uint32_t b, uint32_t y)
{
  const struct weft_cuda_operand *o = l->operand;
  struct weft_cuda_gemm g = {};

  g.a = o[a].data;
  g.b = o[b].data;
  g.y = o[y].data;
  g.dtype = o[a].dtype;
  g.y_dtype = o[y].dtype;
  g.accumulate = o[y].accumulate;
  return g;
}

static void
set_size (struct weft_cuda_gemm *g, uint64_t m, uint64_t n, uint64_t k)
{
  g->m = m;
  g->n = n;
  g->k = k;
}

const char *
weft_cuda_convert_bias (struct weft_cuda_launch *l, const struct weft_cuda_operand *from,
                        const struct weft_cuda_operand *y, const void **bias)
{
  struct weft_cuda_launch cast = *l;

  *bias = from->data;
  if (!from->data || from->dtype == y->dtype)
    return NULL;
  *bias = weft_cuda_take (l, l->dim[N] * sizeof (float));
  memset (cast.dim, 0, sizeof cast.dim);
  cast.dim[0] = l->dim[N];
  cast.dim[2] = 0; /* divisor; 0: cast does not divide */
  cast.operand[0] = *from;
  cast.operand[1] = *y;
  cast.operand[1].data = (void *) *bias;
  cast.operand[1].n = l->dim[N];
  return weft_cuda_cast (&cast);
}

WEFT_CUDA_SCRATCH (matmul, WEFT_BLAS_SCRATCH)
WEFT_CUDA_SCRATCH (matmul_dgrad, WEFT_BLAS_SCRATCH)
WEFT_CUDA_SCRATCH (matmul_gelu, WEFT_BLAS_SCRATCH)
WEFT_CUDA_SCRATCH (matmul_dgrad_gelu, WEFT_BLAS_SCRATCH)
WEFT_CUDA_SCRATCH (matmul_swiglu, WEFT_BLAS_SCRATCH)

const char *
weft_cuda_matmul (const struct weft_cuda_launch *l)
{
  struct weft_cuda_launch on = *l;
  struct weft_cuda_gemm g = gemm_of (l, X, W, Y);
  const char *error = weft_cuda_convert_bias (&on, &l->operand[B], &l->operand[Y], &g.bias);

  set_size (&g, l->dim[M], l->dim[N], l->dim[K]);
  g.b_turned = 1;
  return error ? error : weft_cuda_multiply (&on, &g);
}

const char *
weft_cuda_matmul_dgrad (const struct weft_cuda_launch *l)
{
  struct weft_cuda_gemm g = gemm_of (l, DY, W, DX);

  set_size (&g, l->dim[M], l->dim[K], l->dim[N]);
  return weft_cuda_multiply (l, &g);
}

/* ------------------------------------------------------- products with gelu or swiglu */

enum { PRE = 3, GELU_Y = 4 };
enum { SLOPE_PRE = 2, SLOPE_DX = 3 };
enum { GATED_BOTH = 3, GATED_Y = 4 };

__global__ void
spread_bias (struct array bias, struct array y, uint64_t rows, uint64_t columns)
{
  for (WEFT_EACH (i, rows * columns))
    put (y, i, get (bias, i % columns));
}

const char *
weft_cuda_put_bias (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g)
{
  enum { THREADS = 256, MOST_BLOCKS = 8192 };
  struct array bias = { (void *) g->bias, g->y_dtype }, y = { g->y, g->y_dtype };

  WEFT_LAUNCH (spread_bias, blocks_for (g->m * g->n, THREADS, MOST_BLOCKS), THREADS, 0, on->stream,
               bias, y, g->m, g->n);
  return launched ();
}

static const char *
sum_rows_of_a (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g)
{
  const struct column_sums sums = { on->stream, on->scratch, g->m };
  const struct weft_cuda_operand a = { (void *) g->a, g->k * g->m, g->dtype, 0 };

  return WEFT_BY_DTYPE (g->dtype, sum_matrix, &sums, &a, g->k, &g->sums);
}

static const char *
gate (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g)
{
  struct weft_cuda_launch l = *on;

  l.dim[0] = g->m;
  l.dim[1] = g->n / 2;
  l.operand[0] = { g->aux, g->m * g->n, g->y_dtype, 0 };
  l.operand[1] = { g->y, g->m * (g->n / 2), g->y_dtype, 0 };
  return weft_cuda_swiglu (&l);
}

const char *
weft_cuda_bring_sums (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g)
{
  if (g->aux == g->sums.data)
    return NULL;
  WEFT_LAUNCH ((add_chunks<1>), blocks_for (g->m, 256, 4096), 256, 0, on->stream,
               (const float *) g->aux, 1u, g->m, array_of (&g->sums), (bool) g->sums.accumulate,
               0u);
  return launched ();
}

const char *
weft_cuda_follow (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g)
{
  if (g->epilogue == WEFT_CUDA_SUMS)
    return sum_rows_of_a (on, g);
  if (g->epilogue == WEFT_CUDA_GATE)
    return gate (on, g);
  struct weft_cuda_launch l = *on;
  struct weft_cuda_operand y = { g->y, g->m * g->n, g->y_dtype, 0 }, aux = y;

  aux.data = g->aux ? g->aux : g->y;
  l.dim[0] = g->m;
  l.dim[1] = g->n;
  l.operand[0] = aux;
  l.operand[1] = l.operand[2] = y;
  return g->epilogue == WEFT_CUDA_GELU ? weft_cuda_gelu (&l) : weft_cuda_gelu_bwd (&l);
}

const char *
weft_cuda_matmul_gelu (const struct weft_cuda_launch *l)
{
  struct weft_cuda_launch on = *l;
  struct weft_cuda_gemm g = gemm_of (l, X, W, GELU_Y);
  const char *error = weft_cuda_convert_bias (&on, &l->operand[B], &l->operand[GELU_Y], &g.bias);

  set_size (&g, l->dim[M], l->dim[N], l->dim[K]);
  g.b_turned = 1;
  g.epilogue = WEFT_CUDA_GELU;
  g.aux = l->operand[PRE].data;
  return error ? error : weft_cuda_multiply (&on, &g);
}

const char *
weft_cuda_matmul_dgrad_gelu (const struct weft_cuda_launch *l)
{
  struct weft_cuda_gemm g = gemm_of (l, DY, W, SLOPE_DX);

  set_size (&g, l->dim[M], l->dim[K], l->dim[N]);
  g.epilogue = WEFT_CUDA_GELU_SLOPE;
  g.aux = l->operand[SLOPE_PRE].data;
  return weft_cuda_multiply (l, &g);
}

const char *
weft_cuda_matmul_swiglu (const struct weft_cuda_launch *l)
{
  struct weft_cuda_launch on = *l;
  struct weft_cuda_gemm g = gemm_of (l, X, W, GATED_Y);
  const char *error = weft_cuda_convert_bias (&on, &l->operand[B], &l->operand[GATED_Y], &g.bias);

  set_size (&g, l->dim[M], l->dim[N], l->dim[K]);
  g.b_turned = 1;
  g.epilogue = WEFT_CUDA_GATE;
  g.aux = l->operand[GATED_BOTH].data;
  return error ? error : weft_cuda_multiply (&on, &g);
}

/* Bytes of scratch. The product and the kernel for the bias gradient run one after the other and
 * use the same scratch, except what room_for_sums() takes. */
static uint64_t
wgrad_bytes (uint64_t rows, uint64_t columns)
{
  uint64_t bias = column_scratch (rows, columns, 1), room = columns * sizeof (float);

  return (bias > WEFT_BLAS_SCRATCH ? bias : WEFT_BLAS_SCRATCH) + (room + 255) / 256 * 256;
}

/* Where cuBLASLt may store a bias gradient. It stores sums in the type of dw, and adds to none
 * (cublasLtEpilogue_t, BGRADB; BIAS_POINTER): so to db itself, or to memory from which a kernel
 * adds them. NULL: nowhere, because 16-bit sums would be rounded twice, or because of
 * deterministic_mode, since nothing says in which order the library adds. */
static void *
room_for_sums (struct weft_cuda_launch *on, const struct weft_cuda_operand *dw,
               const struct weft_cuda_operand *db)
{
  bool itself = dw->dtype == db->dtype && !db->accumulate;

  if (on->deterministic || (!itself && dw->dtype != WEFT_FP32))
    return NULL;
  return itself ? db->data : weft_cuda_take (on, on->dim[N] * sizeof (float));
}

WEFT_CUDA_SCRATCH (matmul_wgrad, wgrad_bytes (s->dim[M], s->dim[N]))

const char *
weft_cuda_matmul_wgrad (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  struct weft_cuda_launch on = *l;
  struct weft_cuda_gemm g = gemm_of (l, DY, WGRAD_X, DW);

  set_size (&g, l->dim[N], l->dim[K], l->dim[M]);
  g.a_turned = 1;
  if (o[DB].data) {
    g.epilogue = WEFT_CUDA_SUMS;
    g.sums = o[DB];
    g.aux = room_for_sums (&on, &o[DW], &o[DB]);
  }
  return weft_cuda_multiply (&on, &g);
}
