/* Linear layers as products of cuBLASLt: which factor is transposed and what accumulates. Bias
 * gradients are column sums. */
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

/* --------------------------------------------------------------- products with gelu */

enum { PRE = 3, GELU_Y = 4 };
enum { SLOPE_PRE = 2, SLOPE_DX = 3 };

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

const char *
weft_cuda_follow (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *g)
{
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

/* Bytes of scratch. The product and the bias gradient run one after the other and use the same
 * scratch. */
static uint64_t
wgrad_bytes (uint64_t rows, uint64_t columns)
{
  uint64_t bias = column_scratch (rows, columns, 1);

  return bias > WEFT_BLAS_SCRATCH ? bias : WEFT_BLAS_SCRATCH;
}

WEFT_CUDA_SCRATCH (matmul_wgrad, wgrad_bytes (s->dim[M], s->dim[N]))

const char *
weft_cuda_matmul_wgrad (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  struct weft_cuda_gemm g = gemm_of (l, DY, WGRAD_X, DW);
  struct column_sums sums = { l->stream, l->scratch, l->dim[N] };

  set_size (&g, l->dim[N], l->dim[K], l->dim[M]);
  g.a_turned = 1;
  const char *error = weft_cuda_multiply (l, &g);
  if (error || !o[DB].data)
    return error;
  return WEFT_BY_DTYPE (o[DY].dtype, sum_matrix, &sums, &o[DY], l->dim[M], &o[DB]);
}
