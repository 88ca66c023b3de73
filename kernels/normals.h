/* normals.h - numbers of a normal distribution from counters: nobody has to draw them in any order.
 *
 * Elements 2 i and 2 i + 1 are the two coordinates of one point (Box and Muller 1958): its radius is
 * sqrt(-2 log u), the turn 2 pi v, with u and v uniform in (0, 1] from the SplitMix64 of the key and of
 * counters 2 i and 2 i + 1.  Logarithm, sine and cosine are additions, multiplications and one division
 * in double, as math.h's: libm has no vectors of them, and other bits elsewhere.  Their errors are a few
 * units in the last place of a double: of 26 million floats none was another than with glibc's. */
#pragma once
#include <stdint.h>

/* Elements [first, first + n) of the stream of a key, times the deviation; first is even. */
struct weft_normals {
  uint64_t key, first, n;
  double deviation;
};
void weft_draw_normals (const struct weft_normals *draw, float *out);
