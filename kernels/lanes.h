/* lanes.h - sums along a row.
 *
 * Element i is added to lane i mod 16. Then the upper half of the lanes is added to the lower half,
 * until one lane is left. Stretches are multiples of 16 elements, so a row may be summed stretch by
 * stretch, and the result does not depend on the vector width. */
#pragma once
#include <stdint.h>
#include <string.h>

#define WEFT_N_LANES 16
typedef float weft_lanes __attribute__ ((vector_size (WEFT_N_LANES * sizeof (float))));

static inline float
weft_lanes_sum (const weft_lanes *lanes)
{
  float l[WEFT_N_LANES];

  memcpy (l, lanes, sizeof l);
  for (int half = WEFT_N_LANES / 2; half; half /= 2)
    for (int i = 0; i < half; i++)
      l[i] += l[i + half];
  return l[0];
}

/* Loads the last elements of a row, fewer than 16; the missing ones are 0. */
static inline void
weft_lanes_tail (weft_lanes *tail, const float *x, uint64_t n)
{
  float l[WEFT_N_LANES] = { 0 };

  memcpy (l, x, n * sizeof *x);
  memcpy (tail, l, sizeof l);
}
