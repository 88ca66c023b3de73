#include "kernels/normals.h"
#include "core/base/mix.h"
#include "kernels/float.h"
#include <math.h>

/* Number of pairs that are drawn in separate arrays before they are stored interleaved. */
#define PAIRS 64

static inline uint64_t
double_bits (double d)
{
  uint64_t bits;
  memcpy (&bits, &d, sizeof bits);
  return bits;
}

static inline double
bits_double (uint64_t bits)
{
  double d;
  memcpy (&d, &bits, sizeof d);
  return d;
}

/* Random numbers that are uniform in (0, 1]: 53 random bits plus 1, divided by 2^53. Vectors of
 * 64-bit integers have no direct conversion to double: 21 and 32 bits are placed below the
 * exponents of 2^84 and 2^52, which are then subtracted. */
static inline double
uniform (uint64_t key, uint64_t counter)
{
  uint64_t bits = weft_mix_bits (key + counter * WEFT_MIX_STEP) >> 11;
  double high = bits_double (bits >> 32 | double_bits (0x1p84)) - 0x1p84;
  double low = bits_double ((bits & 0xffffffffu) | double_bits (0x1p52)) - 0x1p52;

  return (high + low + 1) * 0x1p-53;
}

/* u = 2^n f with f in [sqrt(1/2), sqrt(2)); log f = 2 atanh((f - 1) / (f + 1)) with a first omitted
 * term below 2^-55. ln 2 is split in two, the first part short enough that n times it is exact. */
static inline double
log_of (double u)
{
  const uint64_t half = UINT64_C (0x3fe6a09e667f3bcd); /* sqrt(1/2) */
  /* n + 64, for n >= -53 */
  uint64_t above = (double_bits (u) - half + (UINT64_C (64) << 52)) >> 52;
  double n = bits_double (above | double_bits (0x1p52)) - (0x1p52 + 64);
  double f = bits_double (double_bits (u) - ((above - 64) << 52));
  double s = (f - 1) / (f + 1), z = s * s;
  double q = 1.0 / 19 + z * (1.0 / 21);
  q = 1.0 / 17 + z * q;
  q = 1.0 / 15 + z * q;
  q = 1.0 / 13 + z * q;
  q = 1.0 / 11 + z * q;
  q = 1.0 / 9 + z * q;
  q = 1.0 / 7 + z * q;
  q = 1.0 / 5 + z * q;
  q = 1.0 / 3 + z * q;
  return n * 0x1.62e42fefa38p-1 + (2 * (s + s * z * q) + n * 0x1.ef35793c7673p-45);
}

/* sin and cos of 2 pi v: removes quarter turns exactly, then Taylor series for at most pi / 4 with
 * a first omitted term below 2^-53. */
static inline void
turn_to (double v, double *cosine, double *sine)
{
  double shifted = 4 * v + 0x1.8p52;
  double x = (v - (shifted - 0x1.8p52) * 0.25) * 0x1.921fb54442d18p2, z = x * x;
  uint64_t quarters = double_bits (shifted);
  double s = 1.0 / 6227020800 + z * (-1.0 / 1307674368000);
  s = -1.0 / 39916800 + z * s;
  s = 1.0 / 362880 + z * s;
  s = -1.0 / 5040 + z * s;
  s = 1.0 / 120 + z * s;
  s = -1.0 / 6 + z * s;
  s = x + x * z * s;
  double c = -1.0 / 87178291200 + z * (1.0 / 20922789888000);
  c = 1.0 / 479001600 + z * c;
  c = -1.0 / 3628800 + z * c;
  c = 1.0 / 40320 + z * c;
  c = -1.0 / 720 + z * c;
  c = 1.0 / 24 + z * c;
  c = (1 - 0.5 * z) + z * z * c;
  double across = quarters & 1 ? s : c, along = quarters & 1 ? c : s;
  *cosine = bits_double (double_bits (across) ^ ((quarters + 1) & 2) << 62);
  *sine = bits_double (double_bits (along) ^ (quarters & 2) << 62);
}

WEFT_WIDE static void
draw_pairs (const struct weft_normals *draw, uint64_t first, float *even, float *odd)
{
  uint64_t key = draw->key;
  double deviation = draw->deviation;

  for (uint64_t i = 0; i < PAIRS; i++) {
    double radius = sqrt (-2 * log_of (uniform (key, first + 2 * i))), cosine, sine;
    turn_to (uniform (key, first + 2 * i + 1), &cosine, &sine);
    even[i] = (float) (deviation * (radius * cosine));
    odd[i] = (float) (deviation * (radius * sine));
  }
}

void
weft_draw_normals (const struct weft_normals *draw, float *out)
{
  float side[2][PAIRS];

  for (uint64_t first = 0; first < draw->n; first += 2 * PAIRS) {
    uint64_t n = draw->n - first < 2 * PAIRS ? draw->n - first : 2 * PAIRS;
    draw_pairs (draw, draw->first + first, side[0], side[1]);
    for (uint64_t i = 0; i < n; i++)
      out[first + i] = side[i % 2][i / 2];
  }
}
