/* reference.h - sums that references in double are written with. */
#pragma once
#include <stdint.h>

static inline double
weft_double_dot (const double *x, const double *y, uint64_t n)
{
  double sum = 0;

  for (uint64_t i = 0; i < n; i++)
    sum += x[i] * y[i];
  return sum;
}

/* to += factor x */
static inline void
weft_double_add (double *to, double factor, const double *x, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++)
    to[i] += factor * x[i];
}
