/* normals.h - normally distributed numbers from a counter-based generator: elements can be drawn in
 * any order.
 *
 * Elements 2 i and 2 i + 1 are the coordinates of one point (Box and Muller 1958) with radius
 * sqrt(-2 log u) and angle 2 pi v; u and v are uniform in (0, 1], from SplitMix64 of the key and of
 * counters 2 i and 2 i + 1. Logarithm, sine and cosine are additions, multiplications and one
 * division in double, as in math.h: libm's do not vectorise and differ between machines. Their
 * errors are a few units in the last place of a double: of 26 million floats none differed from the
 * result with glibc. */
#pragma once
#include <stdint.h>

/* Elements [first, first + n) of the random sequence of a key, times the standard deviation;
 * `first` is even. */
struct weft_normals {
  uint64_t key, first, n;
  double deviation;
};
void weft_draw_normals (const struct weft_normals *draw, float *out);
