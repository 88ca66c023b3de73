/* Gradients between backward and update: reductions of flat buffers, gradient norm and clipping,
 * loss scale; flat copies and casts. */
#include "core/base/exact.h"
#include "kernels/elementwise.h"
#include "kernels/float.h"
#include "kernels/part.h"
#include "kernels/scalar.h"
#include <math.h>

/* Added to the gradient norm before dividing by it (torch.nn.utils.clip_grad_norm_). */
#define NORM_EPSILON 1e-6

static uint64_t
all (const struct weft_kernel *k, uint32_t operand)
{
  (void) operand;
  return k->shape.dim[0];
}

uint64_t
weft_extent_grad_add (const struct weft_kernel *k, uint32_t operand)
{
  return all (k, operand);
}

uint64_t
weft_extent_scale (const struct weft_kernel *k, uint32_t operand)
{
  return operand == 0 ? all (k, operand) : 1;
}

uint64_t
weft_extent_cast (const struct weft_kernel *k, uint32_t operand)
{
  return all (k, operand);
}

/* Returns 0: the number of elements is not checked, because in canonical order a scalar consists of
 * several words (core/base/exact.h). */
uint64_t
weft_extent_zero (const struct weft_kernel *k, uint32_t operand)
{
  (void) k;
  (void) operand;
  return 0;
}

uint64_t
weft_extent_grad_norm (const struct weft_kernel *k, uint32_t operand)
{
  return operand == 0 ? k->shape.dim[0] : weft_scalar_extent (&k->operand[1]);
}

uint64_t
weft_extent_bucket_norm (const struct weft_kernel *k, uint32_t operand)
{
  return weft_extent_grad_norm (k, operand);
}

uint64_t
weft_extent_clip (const struct weft_kernel *k, uint32_t operand)
{
  return operand == 0 ? weft_scalar_extent (&k->operand[0]) : 1;
}

uint64_t
weft_extent_scale_loss (const struct weft_kernel *k, uint32_t operand)
{
  return all (k, operand);
}

uint64_t
weft_extent_unscale (const struct weft_kernel *k, uint32_t operand)
{
  return operand == 0 ? all (k, operand) : 1;
}

/* ------------------------------------------------------------------ elementwise */

WEFT_WIDE static void
add (const void *with, float *const *at, uint64_t n)
{
  float *to = at[0];
  const float *term = at[1];

  (void) with;
  WEFT_NO_OVERLAP
  for (uint64_t i = 0; i < n; i++)
    to[i] += term[i];
}

void
weft_cpu_grad_add (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  weft_elementwise_run (k, &(struct weft_elementwise){ "ur", k->shape.dim[0], add, NULL }, part,
                        parts);
}

WEFT_WIDE static void
divide (const void *with, float *const *at, uint64_t n)
{
  float *x = at[0], divisor = *(const float *) with;

  for (uint64_t i = 0; i < n; i++)
    x[i] /= divisor;
}

void
weft_cpu_scale (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const float *count = k->operand[1].data;
  float divisor = count ? fmaxf (*count, 1)
                        : (float) k->shape.dim[2] / (float) MAX (1, k->shape.dim[3]);

  weft_elementwise_run (k, &(struct weft_elementwise){ "u", k->shape.dim[0], divide, &divisor },
                        part, parts);
}

static void
copy (const void *with, float *const *at, uint64_t n)
{
  (void) with;
  memmove (at[1], at[0], n * sizeof *at[0]);
}

WEFT_WIDE static void
quotient (const void *with, float *const *at, uint64_t n)
{
  const float *x = at[0], divisor = *(const float *) with;
  float *y = at[1];

  WEFT_NO_OVERLAP
  for (uint64_t i = 0; i < n; i++)
    y[i] = x[i] / divisor;
}

void
weft_cpu_cast (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  float divisor = (float) k->shape.dim[2];
  struct weft_elementwise flat = { "rw", k->shape.dim[0], divisor > 1 ? quotient : copy, &divisor };

  weft_elementwise_run (k, &flat, part, parts);
}

void
weft_cpu_zero (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const struct weft_operand *x = &k->operand[0];
  struct weft_range range = weft_part (x->n, WEFT_STRETCH, part, parts);
  uint64_t size = weft_dtype_bytes (x->dtype);

  memset ((char *) x->data + range.begin * size, 0, (range.end - range.begin) * size);
}

/* ------------------------------------------------------------------------- norm */

/* The squares are exact in double, because a float has 24 bits. */
WEFT_WIDE static void
square (double *to, const float *x, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++)
    to[i] = (double) x[i] * (double) x[i];
}

/* Adds n terms to eight partial sums. n is a multiple of eight except in the last call. */
WEFT_WIDE static void
add_to_lanes (double lane[8], const double *term, uint64_t n)
{
  typedef double lanes __attribute__ ((vector_size (8 * sizeof (double))));
  lanes sum, some;
  uint64_t i = 0;

  memcpy (&sum, lane, sizeof sum);
  for (; i + 8 <= n; i += 8) {
    memcpy (&some, term + i, sizeof some);
    sum += some;
  }
  memcpy (lane, &sum, sizeof sum);
  for (uint64_t l = 0; i + l < n; l++)
    lane[l] += term[i + l];
}

void
weft_cpu_grad_norm (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const struct weft_operand *grad = &k->operand[0], *squares = &k->operand[1];
  uint64_t all_terms = k->shape.dim[0];
  double term[WEFT_STRETCH], lane[8] = { 0 };
  float room[WEFT_STRETCH];

  (void) part;
  (void) parts;
  weft_scalar_begin (squares);
  for (uint64_t first = 0; first < all_terms; first += WEFT_STRETCH) {
    uint64_t n = weft_least (all_terms - first, WEFT_STRETCH);
    square (term, weft_floats (grad->data, grad->dtype, first, n, room), n);
    if (weft_scalar_is_exact (squares))
      weft_exact_add (squares->data, term, n);
    else
      add_to_lanes (lane, term, n);
  }
  if (weft_scalar_is_exact (squares))
    return;
  double sum =
      ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
  *(float *) squares->data = (float) ((double) *(float *) squares->data + sum);
}

void
weft_cpu_bucket_norm (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  weft_cpu_grad_norm (k, part, parts);
}

/* ------------------------------------------------------------------- loss scale */

void
weft_cpu_scale_loss (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  float *gradient = k->operand[0].data;

  (void) part;
  (void) parts;
  for (uint64_t i = 0; i < k->shape.dim[0]; i++)
    gradient[i] = weft_control_loss_scale (k->control);
}

struct unscale {
  float inverse;
  float *found;
};

/* As torch._amp_foreach_non_finite_check_and_unscale_: multiplies by the inverse of the loss scale,
 * which is exact for a power of two. x - x is not 0 for a number that is not finite. */
WEFT_WIDE static void
unscale (const void *with, float *const *at, uint64_t n)
{
  const struct unscale *u = with;
  float *x = at[0], inverse = u->inverse;
  uint32_t bad = 0;

  for (uint64_t i = 0; i < n; i++) {
    bad |= !(x[i] - x[i] == 0);
    x[i] *= inverse;
  }
  if (bad)
    *u->found = 1;
}

void
weft_cpu_unscale (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  struct unscale u = { 1 / weft_control_loss_scale (k->control), k->operand[1].data };

  weft_elementwise_run (k, &(struct weft_elementwise){ "u-", k->shape.dim[0], unscale, &u }, part,
                        parts);
}

static double
clip_factor (double squares, double limit)
{
  double norm = sqrt (squares);
  return isfinite (norm) ? fmin (1, limit / (norm + NORM_EPSILON)) : 0;
}

void
weft_cpu_clip (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const struct weft_operand *o = &k->operand[0];
  const float *found = k->operand[1].data;
  double squares = !o->data                   ? 0
                   : weft_scalar_is_exact (o) ? weft_exact_value (o->data)
                                              : (double) *(const float *) o->data;
  double factor = o->data ? clip_factor (squares, k->control->clip_grad) : 1;

  (void) part;
  (void) parts;
  *(float *) k->operand[2].data = found && *found != 0 ? 0 : (float) factor;
}

/* -------------------------------------------------------------------- reference */

void
weft_ref_grad_add (const struct weft_kernel *k)
{
  for (uint64_t i = 0; i < k->shape.dim[0]; i++)
    ((double *) k->operand[0].data)[i] += ((const double *) k->operand[1].data)[i];
}

void
weft_ref_zero (const struct weft_kernel *k)
{
  memset (k->operand[0].data, 0, k->operand[0].n * sizeof (double));
}

void
weft_ref_scale (const struct weft_kernel *k)
{
  const double *count = k->operand[1].data;
  double divisor =
      count ? fmax (*count, 1) : (double) k->shape.dim[2] / (double) MAX (1, k->shape.dim[3]);

  for (uint64_t i = 0; i < k->shape.dim[0]; i++)
    ((double *) k->operand[0].data)[i] /= divisor;
}

void
weft_ref_cast (const struct weft_kernel *k)
{
  const double *x = k->operand[0].data;
  double *y = k->operand[1].data, divisor = k->shape.dim[2] ? (double) k->shape.dim[2] : 1;

  for (uint64_t i = 0; i < k->shape.dim[0]; i++)
    y[i] = x[i] / divisor;
}

void
weft_ref_grad_norm (const struct weft_kernel *k)
{
  const double *grad = k->operand[0].data;
  double *squares = k->operand[1].data;

  if (!k->operand[1].accumulate)
    *squares = 0;
  for (uint64_t i = 0; i < k->shape.dim[0]; i++)
    *squares += grad[i] * grad[i];
}

void
weft_ref_bucket_norm (const struct weft_kernel *k)
{
  weft_ref_grad_norm (k);
}

void
weft_ref_clip (const struct weft_kernel *k)
{
  const double *squares = k->operand[0].data, *found = k->operand[1].data;
  double factor = squares ? clip_factor (*squares, k->control->clip_grad) : 1;

  *(double *) k->operand[2].data = found && *found != 0 ? 0 : factor;
}

void
weft_ref_scale_loss (const struct weft_kernel *k)
{
  for (uint64_t i = 0; i < k->shape.dim[0]; i++)
    ((double *) k->operand[0].data)[i] = (double) weft_control_loss_scale (k->control);
}

void
weft_ref_unscale (const struct weft_kernel *k)
{
  double *grad = k->operand[0].data;

  for (uint64_t i = 0; i < k->shape.dim[0]; i++) {
    if (!isfinite (grad[i]))
      *(double *) k->operand[1].data = 1;
    grad[i] /= (double) weft_control_loss_scale (k->control);
  }
}
