#include "core/exact.h"
#include "kernels/float.h"
#include "kernels/kernel.h"
#include "kernels/lanes.h"
#include "kernels/math.h"
#include "kernels/part.h"
#include "kernels/scalar.h"
#include <math.h>

/* Losses that are added at a time. */
#define MOST_ROWS 256

enum { LOGITS, TARGETS, LSE, COUNT, LOSS };

/* The last operand of the backward. */
enum { GRADIENT = 3 };

static uint64_t
extent (const struct weft_kernel *k, uint32_t operand)
{
  return operand == LOGITS  ? k->shape.dim[0] * k->shape.dim[1]
         : operand == LOSS  ? weft_scalar_extent (&k->operand[LOSS])
         : operand == COUNT ? 1
                            : k->shape.dim[0];
}

uint64_t
weft_extent_xent (const struct weft_kernel *k, uint32_t operand)
{
  return extent (k, operand);
}

uint64_t
weft_extent_xent_bwd (const struct weft_kernel *k, uint32_t operand)
{
  return operand == GRADIENT ? 1 : extent (k, operand);
}

/* The larger of each lane; a NaN is left to the sum. */
static inline __attribute__ ((always_inline)) void
keep_larger (weft_lanes *most, const weft_lanes *x)
{
  typedef int32_t mask __attribute__ ((vector_size (sizeof (weft_lanes))));
  mask above = *x > *most;
  *most = (weft_lanes) (((mask) *x & above) | ((mask) *most & ~above));
}

/* The largest element, at least `least`; a stretch at most. */
WEFT_WIDE static float
largest (const float *x, uint64_t n, float least)
{
  weft_lanes most = least - (weft_lanes){ 0 }, some;
  float lane[WEFT_N_LANES];
  uint64_t i = 0;

  for (; i + WEFT_N_LANES <= n; i += WEFT_N_LANES) {
    memcpy (&some, x + i, sizeof some);
    keep_larger (&most, &some);
  }
  for (; i < n; i++)
    least = x[i] > least ? x[i] : least;
  memcpy (lane, &most, sizeof lane);
  for (i = 0; i < WEFT_N_LANES; i++)
    least = lane[i] > least ? lane[i] : least;
  return least;
}

/* sum of exp (x - shift); a stretch at most. */
WEFT_WIDE static float
sum_of_exponentials (const float *x, uint64_t n, float shift)
{
  float e[WEFT_STRETCH + WEFT_N_LANES];
  weft_lanes lanes = { 0 }, some;

  for (uint64_t i = 0; i < n; i++)
    e[i] = weft_expf (x[i] - shift);
  memset (e + n, 0, WEFT_N_LANES * sizeof *e); /* up to a whole number of lanes */
  for (uint64_t i = 0; i < n; i += WEFT_N_LANES) {
    memcpy (&some, e + i, sizeof some);
    lanes += some;
  }
  return weft_lanes_sum (&lanes);
}

/* log of the sum of exponentials of a row. */
static double
log_sum (const struct weft_operand *logits, uint64_t at, uint64_t columns)
{
  float room[WEFT_STRETCH], most = -INFINITY;
  double sum = 0;

  for (uint64_t c = 0; c < columns; c += WEFT_STRETCH) {
    uint64_t n = weft_least (columns - c, WEFT_STRETCH);
    most = largest (weft_floats (logits->data, logits->dtype, at + c, n, room), n, most);
  }
  for (uint64_t c = 0; c < columns; c += WEFT_STRETCH) {
    uint64_t n = weft_least (columns - c, WEFT_STRETCH);
    const float *x = weft_floats (logits->data, logits->dtype, at + c, n, room);
    sum += (double) sum_of_exponentials (x, n, most);
  }
  return (double) most + log (sum);
}

/* The cross entropy of a row. */
static float
row_loss (const struct weft_kernel *k, uint64_t row)
{
  const struct weft_operand *logits = &k->operand[LOGITS];
  uint64_t columns = k->shape.dim[1], at = row * columns;
  uint64_t target = (uint64_t) ((const int32_t *) k->operand[TARGETS].data)[row];
  double total = log_sum (logits, at, columns);
  float room;

  ((float *) k->operand[LSE].data)[row] = (float) total;
  return (float) (total -
                  (double) *weft_floats (logits->data, logits->dtype, at + target, 1, &room));
}

static void
count_rows (const struct weft_operand *count, uint64_t rows)
{
  if (count->data)
    *(float *) count->data = (count->accumulate ? *(float *) count->data : 0) + (float) rows;
}

void
weft_cpu_xent (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const struct weft_operand *loss = &k->operand[LOSS];
  uint64_t rows = k->shape.dim[0];
  double term[MOST_ROWS];
  float sum = 0;

  (void) part;
  (void) parts;
  weft_scalar_begin (loss);
  for (uint64_t first = 0; first < rows; first += MOST_ROWS) {
    uint64_t n = weft_least (rows - first, MOST_ROWS);
    for (uint64_t i = 0; i < n; i++) {
      float one = row_loss (k, first + i);
      sum += one;
      term[i] = (double) one;
    }
    if (weft_scalar_is_exact (loss))
      weft_exact_add (loss->data, term, n);
  }
  if (!weft_scalar_is_exact (loss))
    *(float *) loss->data += sum;
  count_rows (&k->operand[COUNT], rows);
}

WEFT_WIDE static void
probabilities (float *p, const float *logit, float lse, float share, uint64_t n)
{
  WEFT_NO_OVERLAP
  for (uint64_t i = 0; i < n; i++)
    p[i] = weft_expf (logit[i] - lse) * share;
}

void
weft_cpu_xent_bwd (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const struct weft_operand *logits = &k->operand[LOGITS];
  const int32_t *target = k->operand[TARGETS].data;
  const float *lse = k->operand[LSE].data;
  uint64_t columns = k->shape.dim[1];
  struct weft_range rows = weft_part (k->shape.dim[0], 1, part, parts);
  const float *gradient = k->operand[GRADIENT].data;
  float share = 1 / (float) k->shape.dim[2] * (gradient ? *gradient : 1), room[WEFT_STRETCH];

  for (uint64_t r = rows.begin; r < rows.end; r++)
    for (uint64_t c = 0; c < columns; c += WEFT_STRETCH) {
      uint64_t n = weft_least (columns - c, WEFT_STRETCH), at = r * columns + c;
      uint64_t hit = (uint64_t) target[r] - c;
      float *x = (float *) weft_floats (logits->data, logits->dtype, at, n, room);
      float logit = hit < n ? x[hit] : 0;
      probabilities (x, x, lse[r], share, n);
      if (hit < n)
        x[hit] = (weft_expf (logit - lse[r]) - 1) * share;
      weft_store (logits->data, logits->dtype, at, n, x);
    }
}

/* -------------------------------------------------------------------- reference */

void
weft_ref_xent (const struct weft_kernel *k)
{
  const int32_t *target = k->operand[TARGETS].data;
  double *lse = k->operand[LSE].data, *loss = k->operand[LOSS].data;
  uint64_t columns = k->shape.dim[1];

  if (!k->operand[LOSS].accumulate)
    *loss = 0;
  for (uint64_t r = 0; r < k->shape.dim[0]; r++) {
    const double *x = (double *) k->operand[LOGITS].data + r * columns;
    double most = x[0], sum = 0;
    for (uint64_t i = 0; i < columns; i++)
      most = fmax (most, x[i]);
    for (uint64_t i = 0; i < columns; i++)
      sum += exp (x[i] - most);
    lse[r] = most + log (sum);
    *loss += lse[r] - x[target[r]];
  }
  if (k->operand[COUNT].data) {
    double *count = k->operand[COUNT].data;
    *count = (k->operand[COUNT].accumulate ? *count : 0) + (double) k->shape.dim[0];
  }
}

void
weft_ref_xent_bwd (const struct weft_kernel *k)
{
  const int32_t *target = k->operand[TARGETS].data;
  const double *lse = k->operand[LSE].data, *gradient = k->operand[GRADIENT].data;
  double share = (gradient ? *gradient : 1) / (double) k->shape.dim[2];
  uint64_t columns = k->shape.dim[1];

  for (uint64_t r = 0; r < k->shape.dim[0]; r++)
    for (uint64_t i = 0; i < columns; i++) {
      double *x = (double *) k->operand[LOGITS].data + r * columns + i;
      double one = i == (uint64_t) target[r];
      *x = (exp (*x - lse[r]) - one) * share;
    }
}
