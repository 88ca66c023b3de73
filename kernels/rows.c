/* Adds one row to every row (bias), or to each token the row of its position (position embedding).
 * With tensor parallelism, the op follows the all-reduce of the product or lookup. bias_add also
 * adds the residual. */
#include "kernels/float.h"
#include "kernels/kernel.h"
#include "kernels/part.h"
#include "kernels/sums.h"

enum { X, ADDED, Y };
enum { RESIDUAL = 2, SUM }; /* further operand numbers of bias_add, after X and ADDED */
enum { ROWS, COLUMNS, PARTS };

uint64_t
weft_extent_bias (const struct weft_kernel *k, uint32_t operand)
{
  return (operand == ADDED ? 1 : k->shape.dim[ROWS]) * k->shape.dim[COLUMNS];
}

uint64_t
weft_extent_bias_add (const struct weft_kernel *k, uint32_t operand)
{
  return weft_extent_bias (k, operand);
}

uint64_t
weft_extent_add_positions (const struct weft_kernel *k, uint32_t operand)
{
  uint64_t table =
      (uint64_t) (k->model->max_position_embeddings + k->model->position_offset);
  uint64_t rows = operand == ADDED ? table
                  : operand == Y   ? k->shape.dim[ROWS] / k->shape.dim[PARTS]
                                   : k->shape.dim[ROWS];
  return rows * k->shape.dim[COLUMNS];
}

/* sum = n elements of x from `from` on + n elements of the addend from `added` on. */
static void
add (const struct weft_operand *o, uint64_t from, uint64_t added, uint64_t n, float *sum)
{
  float room[WEFT_STRETCH];

  memmove (sum, weft_floats (o[X].data, o[X].dtype, from, n, sum), n * sizeof *sum);
  weft_sums_add (sum, weft_floats (o[ADDED].data, o[ADDED].dtype, added, n, room), n);
}

/* Row `to` of y = row `from` of x + row `added`. */
static void
add_row (const struct weft_kernel *k, uint64_t from, uint64_t added, uint64_t to)
{
  const struct weft_operand *o = k->operand;
  uint64_t columns = k->shape.dim[COLUMNS];
  float sum[WEFT_STRETCH];

  for (uint64_t c = 0; c < columns; c += WEFT_STRETCH) {
    uint64_t n = weft_least (columns - c, WEFT_STRETCH);
    add (o, from * columns + c, added * columns + c, n, sum);
    weft_store (o[Y].data, o[Y].dtype, to * columns + c, n, sum);
  }
}

void
weft_cpu_bias (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  struct weft_range rows = weft_part (k->shape.dim[ROWS], 1, part, parts);

  for (uint64_t r = rows.begin; r < rows.end; r++)
    add_row (k, r, 0, r);
}

static void
add_residual (const struct weft_kernel *k, uint64_t row)
{
  const struct weft_operand *o = k->operand;
  uint64_t columns = k->shape.dim[COLUMNS];
  float sum[WEFT_STRETCH], room[WEFT_STRETCH];

  for (uint64_t c = 0; c < columns; c += WEFT_STRETCH) {
    uint64_t n = weft_least (columns - c, WEFT_STRETCH), at = row * columns + c;
    add (o, at, c, n, sum);
    weft_round (o[SUM].dtype, n, sum);
    weft_sums_add (sum, weft_floats (o[RESIDUAL].data, o[RESIDUAL].dtype, at, n, room), n);
    weft_store (o[SUM].data, o[SUM].dtype, at, n, sum);
  }
}

void
weft_cpu_bias_add (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  struct weft_range rows = weft_part (k->shape.dim[ROWS], 1, part, parts);

  for (uint64_t r = rows.begin; r < rows.end; r++)
    add_residual (k, r);
}

/* First row of x that is copied to y: 0 or, with sequence parallelism, the first row that belongs
 * to this rank. */
static uint64_t
first_row (const struct weft_kernel *k)
{
  return k->shape.dim[PARTS] > 1 ? k->tp.at * (k->shape.dim[ROWS] / k->shape.dim[PARTS]) : 0;
}

void
weft_cpu_add_positions (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  uint64_t first = first_row (k);
  struct weft_range rows = weft_part (k->shape.dim[ROWS] / k->shape.dim[PARTS], 1, part, parts);

  for (uint64_t r = rows.begin; r < rows.end; r++)
    add_row (k, first + r, weft_kernel_position_row (k, first + r), r);
}

void
weft_ref_bias (const struct weft_kernel *k)
{
  const double *x = k->operand[X].data, *b = k->operand[ADDED].data;
  double *y = k->operand[Y].data;
  uint64_t columns = k->shape.dim[COLUMNS];

  for (uint64_t i = 0; i < k->shape.dim[ROWS] * columns; i++)
    y[i] = x[i] + b[i % columns];
}

/* Reference of bias and residual: the sum with the bias is rounded to the type of y before the
 * residual is added. */
void
weft_ref_bias_add (const struct weft_kernel *k)
{
  const double *x = k->operand[X].data, *b = k->operand[ADDED].data, *a = k->operand[RESIDUAL].data;
  double *y = k->operand[SUM].data;
  uint64_t columns = k->shape.dim[COLUMNS];

  for (uint64_t i = 0; i < k->shape.dim[ROWS] * columns; i++) {
    float biased = (float) (x[i] + b[i % columns]);
    weft_round (k->operand[SUM].dtype, 1, &biased);
    y[i] = a[i] + (double) biased;
  }
}

void
weft_ref_add_positions (const struct weft_kernel *k)
{
  const double *x = k->operand[X].data, *positions = k->operand[ADDED].data;
  double *y = k->operand[Y].data;
  uint64_t columns = k->shape.dim[COLUMNS], first = first_row (k);

  for (uint64_t i = 0; i < k->shape.dim[ROWS] / k->shape.dim[PARTS] * columns; i++)
    y[i] = x[first * columns + i] +
           positions[weft_kernel_position_row (k, first + i / columns) * columns + i % columns];
}
