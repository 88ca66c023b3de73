/* Weights of one byte: the largest magnitude of a tensor, rounding, the copy that lies the other way
 * round.  Products read them as their code times its scale (gemm.h). */
#include "kernels/fp8.h"
#include "kernels/flat.h"
#include "kernels/float.h"
#include "kernels/part.h"

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

/* --------------------------------------------------------------------- quantise */

enum { X, AMAX, Y };

uint64_t
weft_extent_quantise (const struct weft_kernel *k, uint32_t operand)
{
  return operand == AMAX ? 1 : k->shape.dim[0];
}

WEFT_WIDE static void
multiply (const void *with, float *const *at, uint64_t n)
{
  float scale = *(const float *) with;
  const float *x = at[X];
  float *y = at[Y];

  WEFT_NO_OVERLAP
  for (uint64_t i = 0; i < n; i++)
    y[i] = x[i] * scale;
}

void
weft_cpu_quantise (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  float scale = weft_fp8_scale (*(const float *) k->operand[AMAX].data);

  weft_flat_run (k, &(struct weft_flat){ "r-w", k->shape.dim[0], multiply, &scale }, part, parts);
}

/* The nearest number of E4M3, by trying all; of two the one with the even code. */
static double
nearest (double x)
{
  uint8_t best = 0;

  for (unsigned code = 0; code < 0x7f; code++) {
    double d = fabs (weft_e4m3_float ((uint8_t) code) - fabs (x)),
           least = fabs (weft_e4m3_float (best) - fabs (x));
    if (d < least || (d == least && code % 2 == 0))
      best = (uint8_t) code;
  }
  return copysign (weft_e4m3_float (best), x);
}

void
weft_ref_quantise (const struct weft_kernel *k)
{
  const double *x = k->operand[X].data;
  double amax = *(const double *) k->operand[AMAX].data, *y = k->operand[Y].data;

  for (uint64_t i = 0; i < k->shape.dim[0]; i++)
    y[i] = nearest (x[i] * (amax > 0 ? WEFT_E4M3_MOST / amax : 1));
}

/* ------------------------------------------------------------------ quantise_mx */

enum { MX_X, MX_Y, MX_SCALE, MX_YT, MX_SCALE_T };
enum { ROWS, COLUMNS };

uint64_t
weft_extent_quantise_mx (const struct weft_kernel *k, uint32_t operand)
{
  uint64_t rows = k->shape.dim[ROWS], columns = k->shape.dim[COLUMNS];

  if (operand == MX_SCALE)
    return rows * weft_mx_blocks (columns);
  return operand == MX_SCALE_T ? columns * weft_mx_blocks (rows) : rows * columns;
}

/* One block of n elements that lie `step` apart. */
static void
round_block (const struct weft_operand *x, uint64_t at, uint64_t step, uint64_t n, uint8_t *y,
             uint8_t *scale)
{
  float value[WEFT_MX_BLOCK], most = 0;

  for (uint64_t i = 0; i < n; i++)
    value[i] = *weft_floats (x->data, x->dtype, at + i * step, 1, &value[i]);
  most = largest (value, n, 0);
  *scale = weft_e8m0_scale (most);
  float up = weft_e8m0_float ((uint8_t) (254 - *scale));
  for (uint64_t i = 0; i < n; i++)
    y[i] = weft_e4m3_round (value[i] * up);
}

/* Rows of a matrix whose elements lie `along` apart from row to row and `step` inside a row. */
static void
round_rows (const struct weft_operand *x, const uint64_t size[2], const uint64_t stride[2],
            uint8_t *y, uint8_t *scale)
{
  for (uint64_t row = 0; row < size[0]; row++)
    for (uint64_t c = 0; c < size[1]; c += WEFT_MX_BLOCK)
      round_block (x, row * stride[0] + c * stride[1], stride[1],
                   weft_least (size[1] - c, WEFT_MX_BLOCK), y + row * size[1] + c, scale++);
}

void
weft_cpu_quantise_mx (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const struct weft_operand *o = k->operand;
  uint64_t rows = k->shape.dim[ROWS], columns = k->shape.dim[COLUMNS];

  (void) part;
  (void) parts;
  round_rows (&o[MX_X], (const uint64_t[]){ rows, columns }, (const uint64_t[]){ columns, 1 },
              o[MX_Y].data, o[MX_SCALE].data);
  round_rows (&o[MX_X], (const uint64_t[]){ columns, rows }, (const uint64_t[]){ 1, columns },
              o[MX_YT].data, o[MX_SCALE_T].data);
}

static void
ref_rows (const double *x, const uint64_t size[2], const uint64_t stride[2], double *y,
          double *scale)
{
  for (uint64_t row = 0; row < size[0]; row++)
    for (uint64_t c = 0; c < size[1]; c += WEFT_MX_BLOCK, scale++) {
      uint64_t n = weft_least (size[1] - c, WEFT_MX_BLOCK);
      double most = 0;
      for (uint64_t i = 0; i < n; i++)
        most = fmax (most, fabs (x[row * stride[0] + (c + i) * stride[1]]));
      *scale = most > 0 ? exp2 (fmax (-127, ceil (log2 (most / WEFT_E4M3_MOST)))) : 0x1p-127;
      for (uint64_t i = 0; i < n; i++)
        y[row * size[1] + c + i] = nearest (x[row * stride[0] + (c + i) * stride[1]] / *scale);
    }
}

void
weft_ref_quantise_mx (const struct weft_kernel *k)
{
  const struct weft_operand *o = k->operand;
  uint64_t rows = k->shape.dim[ROWS], columns = k->shape.dim[COLUMNS];

  ref_rows (o[MX_X].data, (const uint64_t[]){ rows, columns }, (const uint64_t[]){ columns, 1 },
            o[MX_Y].data, o[MX_SCALE].data);
  ref_rows (o[MX_X].data, (const uint64_t[]){ columns, rows }, (const uint64_t[]){ 1, columns },
            o[MX_YT].data, o[MX_SCALE_T].data);
}

/* -------------------------------------------------------------------- transpose */

/* Squares of this side stay in the first-level cache both ways. */
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
