/* Linear layers: product, input gradient, weight gradient. */
#include "kernels/fp8.h"
#include "kernels/gemm.h"
#include "kernels/kernel.h"
#include "kernels/part.h"
#include "kernels/reference.h"
#include "kernels/sums.h"

/* Operand numbers, in the order of core/ops.def. */
enum { X, W, B, Y };
enum { DGRAD_DY, DGRAD_W, DGRAD_DX };
enum { WGRAD_DY, WGRAD_X, WGRAD_DW, WGRAD_DB };
enum { M, N, K, LEAVES, TAIL };

/* Number of rows of a thread's share: whole tiles. */
#define GRAIN WEFT_TILE_ROWS

/* A factor of a matrix product, stored in rows of `columns` elements. The terms of a sum lie along
 * a row. */
static struct weft_factor
by_rows (const struct weft_operand *o, uint64_t columns)
{
  return (struct weft_factor){ o->data, columns, 1, o->dtype };
}

/* A factor of a matrix product, stored in rows of `columns` elements. The terms of a sum lie along
 * a column. */
static struct weft_factor
by_columns (const struct weft_operand *o, uint64_t columns)
{
  return (struct weft_factor){ o->data, 1, columns, o->dtype };
}

static struct weft_gemm_result
result_in (const struct weft_operand *o, uint64_t columns)
{
  return (struct weft_gemm_result){
    .data = o->data, .row = columns, .dtype = o->dtype, .accumulate = o->accumulate
  };
}

/* Divides the terms of a matmul's sums over k or n into leaves (partial sums, kernels/leaves.h). */
static struct weft_leaves
dealt (const struct weft_kernel *k, uint64_t terms)
{
  return weft_leaves_dealt (terms, (uint32_t) k->shape.dim[LEAVES], k->shape.dim[TAIL]);
}

/* -------------------------------------------------------------------------- y = x w^T + b */

void
weft_cpu_matmul (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const uint64_t *dim = k->shape.dim;
  struct weft_range rows = weft_part (dim[M], GRAIN, part, parts);
  struct weft_gemm g = {
    .a = by_rows (&k->operand[X], dim[K]),
    .b = by_rows (&k->operand[W], dim[K]),
    .c = result_in (&k->operand[Y], dim[N]),
    .first = rows.begin,
    .last = rows.end,
    .columns = dim[N],
    .terms = dealt (k, dim[K]),
  };

  g.c.bias = k->operand[B].data;
  g.c.bias_dtype = k->operand[B].dtype;
  weft_gemm (&g);
}

void
weft_ref_matmul (const struct weft_kernel *k)
{
  const uint64_t *dim = k->shape.dim;
  const double *x = k->operand[X].data, *w = k->operand[W].data, *b = k->operand[B].data;
  double *y = k->operand[Y].data;

  for (uint64_t m = 0; m < dim[M]; m++)
    for (uint64_t n = 0; n < dim[N]; n++) {
      double sum = 0;
      for (uint64_t t = 0; t < dim[K]; t++)
        sum += x[m * dim[K] + t] * w[n * dim[K] + t];
      y[m * dim[N] + n] = sum + (b ? b[n] : 0);
    }
}

uint64_t
weft_extent_matmul (const struct weft_kernel *k, uint32_t operand)
{
  const uint64_t *dim = k->shape.dim;
  const uint64_t extent[] = {
    [X] = dim[M] * dim[K], [W] = dim[N] * dim[K], [B] = dim[N], [Y] = dim[M] * dim[N]
  };

  return extent[operand];
}

/* ------------------------------------------------------------------------------ dx = dy w */

void
weft_cpu_matmul_dgrad (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const uint64_t *dim = k->shape.dim;
  struct weft_range rows = weft_part (dim[M], GRAIN, part, parts);
  const struct weft_gemm g = {
    .a = by_rows (&k->operand[DGRAD_DY], dim[N]),
    .b = by_columns (&k->operand[DGRAD_W], dim[K]),
    .c = result_in (&k->operand[DGRAD_DX], dim[K]),
    .first = rows.begin,
    .last = rows.end,
    .columns = dim[K],
    .terms = dealt (k, dim[N]),
  };

  weft_gemm (&g);
}

void
weft_ref_matmul_dgrad (const struct weft_kernel *k)
{
  const uint64_t *dim = k->shape.dim;
  const double *dy = k->operand[DGRAD_DY].data, *w = k->operand[DGRAD_W].data;
  double *dx = k->operand[DGRAD_DX].data;

  for (uint64_t m = 0; m < dim[M]; m++)
    for (uint64_t t = 0; t < dim[K]; t++) {
      double sum = 0;
      for (uint64_t n = 0; n < dim[N]; n++)
        sum += dy[m * dim[N] + n] * w[n * dim[K] + t];
      dx[m * dim[K] + t] = sum;
    }
}

uint64_t
weft_extent_matmul_dgrad (const struct weft_kernel *k, uint32_t operand)
{
  const uint64_t *dim = k->shape.dim;
  const uint64_t extent[] = {
    [DGRAD_DY] = dim[M] * dim[N], [DGRAD_W] = dim[N] * dim[K], [DGRAD_DX] = dim[M] * dim[K]
  };

  return extent[operand];
}

/* ------------------------------------------------------------- dw += dy^T x, db += 1^T dy */

enum { PASSES = 3 };

void
weft_cpu_matmul_wgrad (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const uint64_t *dim = k->shape.dim;
  struct weft_range rows = weft_part (dim[N], GRAIN, part, parts);
  struct weft_gemm g = {
    .a = by_columns (&k->operand[WGRAD_DY], dim[N]),
    .b = by_columns (&k->operand[WGRAD_X], dim[K]),
    .c = result_in (&k->operand[WGRAD_DW], dim[K]),
    .first = rows.begin,
    .last = rows.end,
    .columns = dim[K],
    .terms = weft_sums_leaves_of (k, dim[M], MAX (1, dim[PASSES])),
  };

  g.c.rounds = k->canonical;
  weft_gemm (&g);
  if (!k->operand[WGRAD_DB].data)
    return;
  struct weft_gemm_result db = result_in (&k->operand[WGRAD_DB], dim[N]);
  db.rounds = k->canonical;
  weft_gemm_sums (&g.a, &db, rows, &g.terms);
}

void
weft_ref_matmul_wgrad (const struct weft_kernel *k)
{
  const uint64_t *dim = k->shape.dim;
  const double *dy = k->operand[WGRAD_DY].data, *x = k->operand[WGRAD_X].data;
  double *dw = k->operand[WGRAD_DW].data, *db = k->operand[WGRAD_DB].data;

  for (uint64_t n = 0; n < dim[N]; n++)
    for (uint64_t t = 0; t < dim[K]; t++) {
      double sum = k->operand[WGRAD_DW].accumulate ? dw[n * dim[K] + t] : 0;
      for (uint64_t m = 0; m < dim[M]; m++)
        sum += dy[m * dim[N] + n] * x[m * dim[K] + t];
      dw[n * dim[K] + t] = sum;
    }
  for (uint64_t n = 0; db && n < dim[N]; n++) {
    double sum = k->operand[WGRAD_DB].accumulate ? db[n] : 0;
    for (uint64_t m = 0; m < dim[M]; m++)
      sum += dy[m * dim[N] + n];
    db[n] = sum;
  }
}

uint64_t
weft_extent_matmul_wgrad (const struct weft_kernel *k, uint32_t operand)
{
  const uint64_t *dim = k->shape.dim;
  const uint64_t extent[] = { [WGRAD_DY] = dim[M] * dim[N],
                              [WGRAD_X] = dim[M] * dim[K],
                              [WGRAD_DW] = dim[N] * dim[K],
                              [WGRAD_DB] = dim[N] };

  return extent[operand];
}

/* ------------------------------------------------- products with fused gelu or swiglu */

enum { GATED_BOTH = Y, GATED_Y };

enum { GELU_X, GELU_W, GELU_B, GELU_PRE, GELU_Y };
enum { SLOPE_DY, SLOPE_W, SLOPE_PRE, SLOPE_DX };

/* A range of rows of an operand; each row has `columns` elements. */
static struct weft_operand
rows_of (const struct weft_operand *o, uint64_t columns, struct weft_range rows)
{
  uint64_t first = rows.begin * columns * weft_dtype_bytes (o->dtype);

  return (struct weft_operand){ .data = (uint8_t *) o->data + first,
                                .n = (rows.end - rows.begin) * columns,
                                .dtype = o->dtype };
}

/* Matrix product with gelu: gelu reads the stored (rounded) product, so the result has the bits of
 * two separate ops. */
void
weft_cpu_matmul_gelu (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const struct weft_operand *o = k->operand, *pre = o[GELU_PRE].data ? &o[GELU_PRE] : &o[GELU_Y];
  struct weft_range rows = weft_part (k->shape.dim[M], GRAIN, part, parts);
  struct weft_kernel product = *k, gelu = *k;

  product.operand[Y] = *pre;
  weft_cpu_matmul (&product, part, parts);
  gelu.shape.dim[0] = rows.end - rows.begin;
  gelu.operand[0] = rows_of (pre, k->shape.dim[N], rows);
  gelu.operand[1] = rows_of (&o[GELU_Y], k->shape.dim[N], rows);
  weft_cpu_gelu (&gelu, 0, 1);
}

void
weft_ref_matmul_gelu (const struct weft_kernel *k)
{
  const struct weft_operand *o = k->operand;
  struct weft_kernel product = *k, gelu = *k;

  product.operand[Y] = gelu.operand[0] = o[GELU_PRE].data ? o[GELU_PRE] : o[GELU_Y];
  gelu.operand[1] = o[GELU_Y];
  weft_ref_matmul (&product);
  weft_ref_gelu (&gelu);
}

uint64_t
weft_extent_matmul_gelu (const struct weft_kernel *k, uint32_t operand)
{
  return weft_extent_matmul (k, MIN (operand, Y));
}

/* Matrix product with a gate, which reads the stored product. `both`: columns of gate and up. */
void
weft_cpu_matmul_swiglu (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const struct weft_operand *o = k->operand;
  struct weft_range rows = weft_part (k->shape.dim[M], GRAIN, part, parts);
  uint64_t both = k->shape.dim[N];
  struct weft_kernel gate = *k;

  weft_cpu_matmul (k, part, parts);
  gate.shape.dim[0] = rows.end - rows.begin;
  gate.shape.dim[1] = both / 2;
  gate.operand[0] = rows_of (&o[GATED_BOTH], both, rows);
  gate.operand[1] = rows_of (&o[GATED_Y], both / 2, rows);
  weft_cpu_swiglu (&gate, 0, 1);
}

void
weft_ref_matmul_swiglu (const struct weft_kernel *k)
{
  struct weft_kernel gate = *k;

  weft_ref_matmul (k);
  gate.shape.dim[1] = k->shape.dim[N] / 2;
  gate.operand[0] = k->operand[GATED_BOTH];
  gate.operand[1] = k->operand[GATED_Y];
  weft_ref_swiglu (&gate);
}

uint64_t
weft_extent_matmul_swiglu (const struct weft_kernel *k, uint32_t operand)
{
  return operand == GATED_Y ? k->shape.dim[M] * (k->shape.dim[N] / 2)
                            : weft_extent_matmul (k, operand);
}

void
weft_cpu_matmul_dgrad_gelu (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const struct weft_operand *o = k->operand;
  struct weft_range rows = weft_part (k->shape.dim[M], GRAIN, part, parts);
  struct weft_kernel product = *k, slope = *k;

  product.operand[DGRAD_DX] = o[SLOPE_DX];
  weft_cpu_matmul_dgrad (&product, part, parts);
  slope.shape.dim[0] = rows.end - rows.begin;
  slope.shape.dim[1] = k->shape.dim[K];
  slope.operand[0] = rows_of (&o[SLOPE_PRE], k->shape.dim[K], rows);
  slope.operand[1] = slope.operand[2] = rows_of (&o[SLOPE_DX], k->shape.dim[K], rows);
  weft_cpu_gelu_bwd (&slope, 0, 1);
}

void
weft_ref_matmul_dgrad_gelu (const struct weft_kernel *k)
{
  const struct weft_operand *o = k->operand;
  struct weft_kernel product = *k, slope = *k;

  product.operand[DGRAD_DX] = o[SLOPE_DX];
  weft_ref_matmul_dgrad (&product);
  slope.shape.dim[1] = k->shape.dim[K];
  slope.operand[0] = o[SLOPE_PRE];
  slope.operand[1] = slope.operand[2] = o[SLOPE_DX];
  weft_ref_gelu_bwd (&slope);
}

uint64_t
weft_extent_matmul_dgrad_gelu (const struct weft_kernel *k, uint32_t operand)
{
  return weft_extent_matmul_dgrad (k, MIN (operand, DGRAD_DX));
}

/* ---------------------------------------------------------------------------- fp8 weights */

enum { FP8_X, FP8_W, FP8_SCALE, FP8_B, FP8_Y };
enum { FP8_DY, FP8_WT, FP8_SCALE_T, FP8_DX };

/* Forward reads weights as n rows of k terms; dgrad reads the transposed copy, k rows of n terms.
 * So the terms of weights are always contiguous. */
static void
multiply_fp8 (const struct weft_kernel *k, struct weft_gemm *g, uint64_t terms, uint32_t part,
              uint32_t parts)
{
  struct weft_range rows = weft_part (k->shape.dim[M], GRAIN, part, parts);

  g->a = by_rows (&k->operand[FP8_X], terms);
  g->b = by_rows (&k->operand[FP8_W], terms);
  g->terms = dealt (k, terms);
  g->b.scale = k->operand[FP8_SCALE].data;
  g->b.block = k->operand[FP8_SCALE].dtype == WEFT_E8M0 ? WEFT_MX_BLOCK : 0;
  g->b.scale_along = weft_mx_blocks (terms);
  g->b.scale_sum = 1;
  g->first = rows.begin;
  g->last = rows.end;
  weft_gemm (g);
}

void
weft_cpu_matmul_fp8 (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const uint64_t *dim = k->shape.dim;
  struct weft_gemm g = { .c = result_in (&k->operand[FP8_Y], dim[N]), .columns = dim[N] };

  g.c.bias = k->operand[FP8_B].data;
  g.c.bias_dtype = k->operand[FP8_B].dtype;
  multiply_fp8 (k, &g, dim[K], part, parts);
}

void
weft_cpu_matmul_dgrad_fp8 (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const uint64_t *dim = k->shape.dim;
  struct weft_gemm g = { .c = result_in (&k->operand[FP8_DX], dim[K]), .columns = dim[K] };

  multiply_fp8 (k, &g, dim[N], part, parts);
}

/* fp8 scale of element (row, column): one scale for the tensor, or one per block of a row. */
static double
ref_scale (const struct weft_operand *scale, uint64_t row, uint64_t column, uint64_t columns)
{
  const double *s = scale->data;

  if (scale->dtype == WEFT_E8M0)
    return s[row * weft_mx_blocks (columns) + column / WEFT_MX_BLOCK];
  return 1 / weft_double_fp8_scale (*s, (double) WEFT_E4M3_MOST);
}

static void
ref_fp8 (const struct weft_kernel *k, uint64_t columns, uint64_t terms, const double *bias,
         double *y)
{
  const double *x = k->operand[FP8_X].data, *w = k->operand[FP8_W].data;

  for (uint64_t i = 0; i < k->shape.dim[M]; i++)
    for (uint64_t j = 0; j < columns; j++) {
      double sum = bias ? bias[j] : 0;
      for (uint64_t t = 0; t < terms; t++)
        sum +=
            x[i * terms + t] * w[j * terms + t] * ref_scale (&k->operand[FP8_SCALE], j, t, terms);
      y[i * columns + j] = sum;
    }
}

void
weft_ref_matmul_fp8 (const struct weft_kernel *k)
{
  ref_fp8 (k, k->shape.dim[N], k->shape.dim[K], k->operand[FP8_B].data, k->operand[FP8_Y].data);
}

void
weft_ref_matmul_dgrad_fp8 (const struct weft_kernel *k)
{
  ref_fp8 (k, k->shape.dim[K], k->shape.dim[N], NULL, k->operand[FP8_DX].data);
}

/* Number of elements that an operand must have; 0: not checked. The number of scales is not
 * checked: one for the tensor, or one per block. */
uint64_t
weft_extent_matmul_fp8 (const struct weft_kernel *k, uint32_t operand)
{
  const uint64_t *dim = k->shape.dim;
  const uint64_t extent[] = { [FP8_X] = dim[M] * dim[K],
                              [FP8_W] = dim[N] * dim[K],
                              [FP8_SCALE] = 0,
                              [FP8_B] = dim[N],
                              [FP8_Y] = dim[M] * dim[N] };

  return extent[operand];
}

uint64_t
weft_extent_matmul_dgrad_fp8 (const struct weft_kernel *k, uint32_t operand)
{
  const uint64_t *dim = k->shape.dim;
  const uint64_t extent[] = { [FP8_DY] = dim[M] * dim[N],
                              [FP8_WT] = dim[K] * dim[N],
                              [FP8_SCALE_T] = 0,
                              [FP8_DX] = dim[M] * dim[K] };

  return extent[operand];
}
