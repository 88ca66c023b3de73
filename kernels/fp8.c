/* fp8: largest magnitude of a tensor, quantisation with one scale or block scales, transposed
 * copies. Matrix products read an element as code times scale (gemm.h). */
#include "kernels/fp8_blocks.h"
#include "kernels/elementwise.h"
#include "kernels/float.h"
#include "kernels/part.h"
#include "kernels/reference.h"

/* ------------------------------------------------------------------------- amax */

enum { AMAX_X, AMAX_Y };

uint64_t
weft_extent_amax (const struct weft_kernel *k, uint32_t operand)
{
  return operand == AMAX_X ? k->shape.dim[0] : 1;
}

WEFT_WIDE static float
largest (const float *x, uint64_t n, float most)
{
  for (uint64_t i = 0; i < n; i++)
    most = fabsf (x[i]) > most ? fabsf (x[i]) : most;
  return most;
}

void
weft_cpu_amax (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const struct weft_operand *x = &k->operand[AMAX_X];
  float room[WEFT_STRETCH], *amax = k->operand[AMAX_Y].data;
  float most = k->operand[AMAX_Y].accumulate ? *amax : 0;

  (void) part;
  (void) parts;
  for (uint64_t first = 0; first < k->shape.dim[0]; first += WEFT_STRETCH) {
    uint64_t n = weft_least (k->shape.dim[0] - first, WEFT_STRETCH);
    most = largest (weft_floats (x->data, x->dtype, first, n, room), n, most);
  }
  *amax = most;
}

void
weft_ref_amax (const struct weft_kernel *k)
{
  const double *x = k->operand[AMAX_X].data;
  double *amax = k->operand[AMAX_Y].data;

  if (!k->operand[AMAX_Y].accumulate)
    *amax = 0;
  for (uint64_t i = 0; i < k->shape.dim[0]; i++)
    *amax = fmax (*amax, fabs (x[i]));
}

/* ------------------------------------------------------------------ amax_update */

uint64_t
weft_extent_amax_update (const struct weft_kernel *k, uint32_t operand)
{
  (void) operand;
  return k->shape.dim[0];
}

void
weft_cpu_amax_update (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const float *seen = k->operand[0].data;
  float *amax = k->operand[1].data;
  struct weft_range range = weft_part (k->shape.dim[0], WEFT_STRETCH, part, parts);

  for (uint64_t i = range.begin; i < range.end; i++)
    amax[i] = weft_fp8_next_amax (seen[i], amax[i]);
}

void
weft_ref_amax_update (const struct weft_kernel *k)
{
  const double *seen = k->operand[0].data;
  double *amax = k->operand[1].data;

  for (uint64_t i = 0; i < k->shape.dim[0]; i++)
    if (isfinite (seen[i]) && seen[i] > 0)
      amax[i] = seen[i];
}

/* --------------------------------------------------------------------- quantise */

enum { X, AMAX, Y };

uint64_t
weft_extent_quantise (const struct weft_kernel *k, uint32_t operand)
{
  return operand == AMAX ? 1 : k->shape.dim[0];
}

struct scaling {
  float scale, largest;
};

WEFT_WIDE static void
multiply (const void *with, float *const *at, uint64_t n)
{
  const struct scaling s = *(const struct scaling *) with;
  const float *x = at[X];
  float *y = at[Y];

  WEFT_NO_OVERLAP
  for (uint64_t i = 0; i < n; i++)
    y[i] = weft_fp8_scaled (x[i], s.scale, s.largest);
}

void
weft_cpu_quantise (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  struct scaling s = { .largest = *(const float *) k->operand[AMAX].data };

  s.scale = weft_fp8_scale_to (s.largest, weft_fp8_most (k->operand[Y].dtype == WEFT_E5M2));
  weft_elementwise_run (k, &(struct weft_elementwise){ "r-w", k->shape.dim[0], multiply, &s }, part,
                        parts);
}

/* Reference: the nearest number of an fp8 format, found by trying all codes. Ties go to the even
 * code. */
static double
nearest (double x, enum weft_dtype dtype)
{
  gboolean wide = dtype == WEFT_E5M2;
  double best = 0, least = fabs (x), most = (double) weft_fp8_most (wide);

  if (isnan (x) || least > most)
    return isnan (x) ? x : copysign (most, x);
  for (unsigned code = 1; code < (wide ? 0x7cu : 0x7fu); code++) {
    double value = wide ? weft_e5m2_float ((uint8_t) code) : weft_e4m3_float ((uint8_t) code);
    double d = fabs (value - fabs (x));
    if (d < least || (d == least && code % 2 == 0)) {
      best = value;
      least = d;
    }
  }
  return copysign (best, x);
}

void
weft_ref_quantise (const struct weft_kernel *k)
{
  const double *x = k->operand[X].data;
  double amax = *(const double *) k->operand[AMAX].data, *y = k->operand[Y].data;
  enum weft_dtype dtype = k->operand[Y].dtype;
  double scale = weft_double_fp8_scale (amax, (double) weft_fp8_most (dtype == WEFT_E5M2));

  for (uint64_t i = 0; i < k->shape.dim[0]; i++)
    y[i] = isinf (amax) && isinf (x[i]) ? NAN : nearest (x[i] * scale, dtype);
}

/* ------------------------------------------------------------- quantise_delayed */

enum { SEEN = 3 };

uint64_t
weft_extent_quantise_delayed (const struct weft_kernel *k, uint32_t operand)
{
  return operand == AMAX || operand == SEEN ? 1 : k->shape.dim[0];
}

/* Arguments of the separate op amax, which measures the largest magnitude of x. */
static struct weft_kernel
as_amax (const struct weft_kernel *k)
{
  struct weft_kernel measure = *k;

  measure.operand[AMAX_Y] = k->operand[SEEN];
  return measure;
}

void
weft_cpu_quantise_delayed (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const struct weft_kernel measure = as_amax (k);

  weft_cpu_quantise (k, part, parts);
  weft_cpu_amax (&measure, part, parts);
}

void
weft_ref_quantise_delayed (const struct weft_kernel *k)
{
  const struct weft_kernel measure = as_amax (k);

  weft_ref_quantise (k);
  weft_ref_amax (&measure);
}

/* -------------------------------------------------------------- quantise_blocks */

enum { B_X, B_Y, B_SCALE, B_YT, B_SCALE_T };
enum { ROWS, COLUMNS, BLOCK, SQUARE };

#define MOST_BLOCK 128

/* Blocks that share a scale. turned FALSE: blocks lie along the rows of the input; TRUE: along the
 * columns. Codes and scales are stored block line by block line. */
static struct weft_blocks
blocks_of (const struct weft_kernel *k, gboolean turned)
{
  uint64_t rows = k->shape.dim[ROWS], columns = k->shape.dim[COLUMNS];
  struct weft_blocks b = { { rows, columns }, { columns, 1 } };

  if (turned)
    b = (struct weft_blocks){ { columns, rows }, { 1, columns } };
  b.block = k->shape.dim[BLOCK];
  b.high = k->shape.dim[SQUARE] ? b.block : 1;
  b.to[0] = b.size[1];
  b.to[1] = b.scale[1] = 1;
  b.scale[0] = weft_fp8_blocks (b.size[1], b.block);
  return b;
}

uint64_t
weft_extent_quantise_blocks (const struct weft_kernel *k, uint32_t operand)
{
  struct weft_blocks b = blocks_of (k, operand == B_SCALE_T);

  if (operand == B_SCALE || operand == B_SCALE_T)
    return weft_fp8_blocks (b.size[0], b.high) * weft_fp8_blocks (b.size[1], b.block);
  return b.size[0] * b.size[1];
}

/* Stores the scale of a block, and returns the scale's E8M0 code. */
static uint8_t
store_scale (const struct weft_operand *scale, uint64_t at, float most, float largest)
{
  uint8_t code = weft_e8m0_scale_to (most, largest);

  if (scale->dtype == WEFT_E8M0)
    ((uint8_t *) scale->data)[at] = code;
  else
    ((float *) scale->data)[at] = weft_e8m0_float (code);
  return code;
}

/* Returns elements [columns[0], columns[1]) of row i as floats. */
static const float *
row_of_block (const struct weft_operand *x, const struct weft_blocks *b, uint64_t i,
              const uint64_t columns[2], float *room)
{
  uint64_t at = i * b->stride[0] + columns[0] * b->stride[1], n = columns[1] - columns[0];

  if (b->stride[1] == 1)
    return weft_floats (x->data, x->dtype, at, n, room);
  for (uint64_t j = 0; j < n; j++)
    room[j] = *weft_floats (x->data, x->dtype, at + j * b->stride[1], 1, &room[j]);
  return room;
}

/* Multiplies n elements of x by `up`, rounds them to fp8 and stores the codes. at[0]: index of the
 * first code in y; at[1]: distance between codes. */
static void
round_row (const float *x, uint64_t n, float up, const struct weft_operand *y, const uint64_t at[2])
{
  float scaled[MOST_BLOCK];

  for (uint64_t j = 0; j < n; j++)
    scaled[j] = x[j] * up;
  if (at[1] == 1)
    weft_store (y->data, y->dtype, at[0], n, scaled);
  for (uint64_t j = 0; j < n && at[1] != 1; j++)
    weft_store (y->data, y->dtype, at[0] + j * at[1], 1, &scaled[j]);
}

void
weft_blocks_round (const struct weft_blocks *b, const struct weft_operand *x,
                   const struct weft_operand *y, const struct weft_operand *scale)
{
  float room[MOST_BLOCK];

  for (uint64_t row = 0; row < b->size[0]; row += b->high)
    for (uint64_t column = 0; column < b->size[1]; column += b->block) {
      uint64_t end = weft_least (row + b->high, b->size[0]);
      const uint64_t columns[] = { column, weft_least (column + b->block, b->size[1]) };
      uint64_t n = columns[1] - column;
      float most = 0;
      for (uint64_t i = row; i < end; i++)
        most = largest (row_of_block (x, b, i, columns, room), n, most);
      uint64_t at = row / b->high * b->scale[0] + column / b->block * b->scale[1];
      uint8_t code = store_scale (scale, at, most, weft_fp8_most (y->dtype == WEFT_E5M2));
      float up = weft_e8m0_float ((uint8_t) (254 - code));
      for (uint64_t i = row; i < end; i++)
        round_row (row_of_block (x, b, i, columns, room), n, up, y,
                   (const uint64_t[]){ i * b->to[0] + column * b->to[1], b->to[1] });
    }
}

void
weft_cpu_quantise_blocks (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const struct weft_operand *o = k->operand;
  struct weft_blocks rows = blocks_of (k, FALSE), columns = blocks_of (k, TRUE);

  (void) part;
  (void) parts;
  if (o[B_Y].data)
    weft_blocks_round (&rows, &o[B_X], &o[B_Y], &o[B_SCALE]);
  if (o[B_YT].data)
    weft_blocks_round (&columns, &o[B_X], &o[B_YT], &o[B_SCALE_T]);
}

/* Loops over the elements (i, j) of the block that begins at (row, column). */
#define EACH_OF_BLOCK(b, row, column)                                                              \
  for (uint64_t i = (row); i < weft_least ((row) + (b)->high, (b)->size[0]); i++)                  \
    for (uint64_t j = (column); j < weft_least ((column) + (b)->block, (b)->size[1]); j++)

void
weft_blocks_reference (const struct weft_blocks *b, const double *x,
                       const struct weft_operand *codes, double *scales)
{
  double *y = codes->data, largest = (double) weft_fp8_most (codes->dtype == WEFT_E5M2);

  for (uint64_t row = 0; row < b->size[0]; row += b->high)
    for (uint64_t column = 0; column < b->size[1]; column += b->block) {
      double most = 0,
             *scale = scales + row / b->high * b->scale[0] + column / b->block * b->scale[1];
      EACH_OF_BLOCK (b, row, column)
      most = fmax (most, fabs (x[i * b->stride[0] + j * b->stride[1]]));
      *scale = most > 0 ? exp2 (fmax (-127, ceil (log2 (most / largest)))) : 0x1p-127;
      EACH_OF_BLOCK (b, row, column)
      y[i * b->to[0] + j * b->to[1]] =
          nearest (x[i * b->stride[0] + j * b->stride[1]] / *scale, codes->dtype);
    }
}

void
weft_ref_quantise_blocks (const struct weft_kernel *k)
{
  const struct weft_operand *o = k->operand;
  struct weft_blocks rows = blocks_of (k, FALSE), columns = blocks_of (k, TRUE);

  if (o[B_Y].data)
    weft_blocks_reference (&rows, o[B_X].data, &o[B_Y], o[B_SCALE].data);
  if (o[B_YT].data)
    weft_blocks_reference (&columns, o[B_X].data, &o[B_YT], o[B_SCALE_T].data);
}

/* -------------------------------------------------------------------- transpose */

/* Side of the squares that are transposed one by one: input and output fit into the L1 cache. */
#define SIDE 64

uint64_t
weft_extent_transpose (const struct weft_kernel *k, uint32_t operand)
{
  (void) operand;
  return k->shape.dim[ROWS] * k->shape.dim[COLUMNS];
}

void
weft_cpu_transpose (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  uint64_t rows = k->shape.dim[ROWS], columns = k->shape.dim[COLUMNS];
  struct weft_range range = weft_part (columns, SIDE, part, parts);
  const uint8_t *x = k->operand[0].data;
  uint8_t *y = k->operand[1].data;

  for (uint64_t c = range.begin; c < range.end; c += SIDE)
    for (uint64_t r = 0; r < rows; r += SIDE)
      for (uint64_t j = c; j < weft_least (c + SIDE, range.end); j++)
        for (uint64_t i = r; i < weft_least (r + SIDE, rows); i++)
          y[j * rows + i] = x[i * columns + j];
}

void
weft_ref_transpose (const struct weft_kernel *k)
{
  uint64_t rows = k->shape.dim[ROWS], columns = k->shape.dim[COLUMNS];
  const double *x = k->operand[0].data;
  double *y = k->operand[1].data;

  for (uint64_t i = 0; i < rows; i++)
    for (uint64_t j = 0; j < columns; j++)
      y[j * rows + i] = x[i * columns + j];
}
