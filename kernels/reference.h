/* reference.h - sums and fp8 scales in double, for the fp64 references. */
#pragma once
#include <float.h>
#include <math.h>
#include <stdint.h>

/* The function weft_fp8_scale_to() of kernels/fp8.h, computed in double. */
static inline double
weft_double_fp8_scale (double largest, double most)
{
  return largest > 0 && !isinf (largest) ? fmin (most / largest, (double) FLT_MAX) : 1;
}

static inline double
weft_double_dot (const double *x, const double *y, uint64_t n)
{
  double sum = 0;

  for (uint64_t i = 0; i < n; i++)
    sum += x[i] * y[i];
  return sum;
}

/* Adds factor times x to `to`. */
static inline void
weft_double_add (double *to, double factor, const double *x, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++)
    to[i] += factor * x[i];
}
