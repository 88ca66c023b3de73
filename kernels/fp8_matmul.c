/* fp8 x fp8 matrix products. The terms of both factors are contiguous, as tensor cores require. */
#include "kernels/fp8.h"
#include "kernels/gemm.h"
#include "kernels/kernel.h"
#include "kernels/part.h"
#include "kernels/reference.h"
#include "kernels/sums.h"

/* Operand numbers, in the order of core/ops.def. */
enum { X, X_SCALE, W, W_SCALE, B, Y };
enum { DX = 4 };
enum { WGRAD_DW = 4, WGRAD_DB };
enum { M, N, K, LEAVES, TAIL, BLOCK };
enum { PASSES = 3, WGRAD_BLOCK };

/* Whether an operand has one scale per square. With blockwise scaling, weights do: a weight is the
 * second factor of every product except the weight gradient. */
static gboolean
has_squares (const struct weft_kernel *k)
{
  return k->kind != WEFT_OP_FP8_MATMUL_WGRAD && k->shape.dim[BLOCK] > WEFT_MX_BLOCK;
}

static uint32_t
block_of (const struct weft_kernel *k)
{
  return (uint32_t) k->shape.dim[k->kind == WEFT_OP_FP8_MATMUL_WGRAD ? WGRAD_BLOCK : BLOCK];
}

static struct weft_factor
factor (const struct weft_kernel *k, uint32_t operand, uint64_t terms)
{
  return (struct weft_factor){ .data = k->operand[operand].data,
                               .along = terms,
                               .sum = 1,
                               .dtype = k->operand[operand].dtype,
                               .scale = k->operand[operand + 1].data,
                               .block = block_of (k),
                               .scale_along =
                                   block_of (k) ? weft_fp8_blocks (terms, block_of (k)) : 0,
                               .scale_sum = 1,
                               .square = operand == W && has_squares (k) };
}

static struct weft_gemm_result
result_in (const struct weft_operand *o, uint64_t columns)
{
  return (struct weft_gemm_result){
    .data = o->data, .row = columns, .dtype = o->dtype, .accumulate = o->accumulate
  };
}

/* Matrix product: each row of the first factor times each row of the second factor, summed over
 * `terms` terms. */
static void
multiply (const struct weft_kernel *k, struct weft_gemm *g, uint64_t terms, struct weft_range rows)
{
  g->a = factor (k, X, terms);
  g->b = factor (k, W, terms);
  g->first = rows.begin;
  g->last = rows.end;
  weft_gemm (g);
}

static struct weft_leaves
dealt (const struct weft_kernel *k, uint64_t terms)
{
  return weft_leaves_dealt (terms, (uint32_t) k->shape.dim[LEAVES], k->shape.dim[TAIL]);
}

void
weft_cpu_fp8_matmul (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const uint64_t *dim = k->shape.dim;
  struct weft_gemm g = { .c = result_in (&k->operand[Y], dim[N]),
                         .columns = dim[N],
                         .terms = dealt (k, dim[K]) };

  g.c.bias = k->operand[B].data;
  g.c.bias_dtype = k->operand[B].dtype;
  multiply (k, &g, dim[K], weft_part (dim[M], WEFT_TILE_ROWS, part, parts));
}

void
weft_cpu_fp8_matmul_dgrad (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const uint64_t *dim = k->shape.dim;
  struct weft_gemm g = { .c = result_in (&k->operand[DX], dim[K]),
                         .columns = dim[K],
                         .terms = dealt (k, dim[N]) };

  multiply (k, &g, dim[N], weft_part (dim[M], WEFT_TILE_ROWS, part, parts));
}

void
weft_cpu_fp8_matmul_wgrad (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const uint64_t *dim = k->shape.dim;
  struct weft_range rows = weft_part (dim[N], WEFT_TILE_ROWS, part, parts);
  struct weft_gemm g = { .c = result_in (&k->operand[WGRAD_DW], dim[K]),
                         .columns = dim[K],
                         .terms = weft_sums_leaves_of (k, dim[M], MAX (1, dim[PASSES])) };

  g.c.rounds = k->canonical;
  multiply (k, &g, dim[M], rows);
  if (!k->operand[WGRAD_DB].data)
    return;
  struct weft_gemm_result db = result_in (&k->operand[WGRAD_DB], dim[N]);
  db.rounds = k->canonical;
  weft_gemm_sums (&g.a, &db, rows, &g.terms);
}

/* ---------------------------------------------------------------------- references */

/* Value of element (row, t) of a factor: code times scale. */
static double
element (const struct weft_kernel *k, uint32_t operand, const uint64_t at[2], uint64_t terms)
{
  const double *code = k->operand[operand].data, *scale = k->operand[operand + 1].data;
  uint64_t block = block_of (k), high = operand == W && has_squares (k) ? block : 1;
  double value = code[at[0] * terms + at[1]];

  if (block)
    return value * scale[at[0] / high * weft_fp8_blocks (terms, block) + at[1] / block];
  double most = (double) weft_fp8_most (k->operand[operand].dtype == WEFT_E5M2);
  return value / weft_double_fp8_scale (*scale, most);
}

static double
dot (const struct weft_kernel *k, uint64_t i, uint64_t j, uint64_t terms)
{
  double sum = 0;

  for (uint64_t t = 0; t < terms; t++)
    sum += element (k, X, (const uint64_t[]){ i, t }, terms) *
           element (k, W, (const uint64_t[]){ j, t }, terms);
  return sum;
}

void
weft_ref_fp8_matmul (const struct weft_kernel *k)
{
  const uint64_t *dim = k->shape.dim;
  const double *b = k->operand[B].data;
  double *y = k->operand[Y].data;

  for (uint64_t m = 0; m < dim[M]; m++)
    for (uint64_t n = 0; n < dim[N]; n++)
      y[m * dim[N] + n] = dot (k, m, n, dim[K]) + (b ? b[n] : 0);
}

void
weft_ref_fp8_matmul_dgrad (const struct weft_kernel *k)
{
  const uint64_t *dim = k->shape.dim;
  double *dx = k->operand[DX].data;

  for (uint64_t m = 0; m < dim[M]; m++)
    for (uint64_t t = 0; t < dim[K]; t++)
      dx[m * dim[K] + t] = dot (k, m, t, dim[N]);
}

void
weft_ref_fp8_matmul_wgrad (const struct weft_kernel *k)
{
  const uint64_t *dim = k->shape.dim;
  double *dw = k->operand[WGRAD_DW].data, *db = k->operand[WGRAD_DB].data;

  for (uint64_t n = 0; n < dim[N]; n++)
    for (uint64_t t = 0; t < dim[K]; t++)
      dw[n * dim[K] + t] =
          dot (k, n, t, dim[M]) + (k->operand[WGRAD_DW].accumulate ? dw[n * dim[K] + t] : 0);
  for (uint64_t n = 0; db && n < dim[N]; n++) {
    double sum = k->operand[WGRAD_DB].accumulate ? db[n] : 0;
    for (uint64_t m = 0; m < dim[M]; m++)
      sum += element (k, X, (const uint64_t[]){ n, m }, dim[M]);
    db[n] = sum;
  }
}

/* ------------------------------------------------------------------------- extents */

static uint64_t
scales (const struct weft_kernel *k, uint32_t operand, uint64_t rows, uint64_t terms)
{
  uint64_t block = block_of (k), high = operand == W_SCALE && has_squares (k) ? block : 1;

  return block ? weft_fp8_blocks (rows, high) * weft_fp8_blocks (terms, block) : 1;
}

/* Number of elements that an operand must have. rows: number of rows of the first and of the second
 * factor. */
static uint64_t
extent (const struct weft_kernel *k, uint32_t operand, const uint64_t rows[2], uint64_t terms)
{
  if (operand > W_SCALE)
    return rows[0] * rows[1];
  uint64_t own = rows[operand / W];
  return operand % 2 ? scales (k, operand, own, terms) : own * terms;
}

uint64_t
weft_extent_fp8_matmul (const struct weft_kernel *k, uint32_t operand)
{
  const uint64_t *dim = k->shape.dim;

  return operand == B ? dim[N] : extent (k, operand, (const uint64_t[]){ dim[M], dim[N] }, dim[K]);
}

uint64_t
weft_extent_fp8_matmul_dgrad (const struct weft_kernel *k, uint32_t operand)
{
  const uint64_t *dim = k->shape.dim;

  return extent (k, operand, (const uint64_t[]){ dim[M], dim[K] }, dim[N]);
}

uint64_t
weft_extent_fp8_matmul_wgrad (const struct weft_kernel *k, uint32_t operand)
{
  const uint64_t *dim = k->shape.dim;

  return operand == WGRAD_DB ? dim[N]
                             : extent (k, operand, (const uint64_t[]){ dim[N], dim[K] }, dim[M]);
}
