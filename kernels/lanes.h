/* lanes.h - sums along a row.
 *
 * Element i goes to lane i modulo 16; the lanes are added as a tree, halves first.  A stretch is a
 * multiple of 16, so a row may be summed stretch by stretch, and no vector width changes the bits. */
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

/* The last elements of a row, fewer than there are lanes; the others are 0, as if the row went on. */
static inline void
weft_lanes_tail (weft_lanes *tail, const float *x, uint64_t n)
{
  float l[WEFT_N_LANES] = { 0 };

  memcpy (l, x, n * sizeof *x);
  memcpy (tail, l, sizeof l);
}
