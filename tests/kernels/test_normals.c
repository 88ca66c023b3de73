/* Normally distributed numbers: equal to the formula (Box-Muller) computed with libm, for ranges
 * that begin anywhere and for extreme uniform numbers. */
#include "kernels/normals.h"
#include "core/base/mix.h"
#include "tests/runner/runner.h"
#include <glib.h>
#include <math.h>
#include <string.h>

#define N 4096
#define DEVIATION 0.02

static double
uniform (uint64_t bits)
{
  return (double) ((bits >> 11) + 1) * 0x1p-53;
}

static float
from_libm (uint64_t key, uint64_t element)
{
  uint64_t pair = element & ~UINT64_C (1);
  double u = uniform (weft_mix_bits (key + pair * WEFT_MIX_STEP)),
         v = uniform (weft_mix_bits (key + (pair + 1) * WEFT_MIX_STEP));
  double radius = sqrt (-2 * log (u)), turn = 2 * G_PI * v;

  return (float) (DEVIATION * (radius * (element & 1 ? sin (turn) : cos (turn))));
}

/* The tolerance is one unit in the last place of `b`, plus 1e-16. The 1e-16 is for angles close to
 * a multiple of pi / 2 at which the sine or cosine is almost 0: there the rounding error of pi
 * exceeds one unit in the last place. */
static void
assert_is_near (float a, float b)
{
  if (!(fabsf (a - b) <= 1.2e-7f * fabsf (b) + 1e-16f))
    fail_msg ("%a, wanted %a", a, b);
}

static void
they_are_those_of_libm_on_any_stretch (void **state)
{
  static const uint64_t firsts[] = { 0, 2, 126, 1 << 20, UINT64_C (1) << 40 },
                        sizes[] = { 1, 2, 127, 128, 129, N };
  float out[N + 1];

  (void) state;
  for (unsigned f = 0; f < G_N_ELEMENTS (firsts); f++)
    for (unsigned s = 0; s < G_N_ELEMENTS (sizes); s++) {
      uint64_t key = weft_mix (f), n = sizes[s];
      out[n] = 7;
      weft_draw_normals (&(struct weft_normals){ key, firsts[f], n, DEVIATION }, out);
      for (uint64_t i = 0; i < n; i++)
        assert_is_near (out[i], from_libm (key, firsts[f] + i));
      assert_true (out[n] == 7);
    }
}

/* Returns the number x for which x ^ (x >> by) is z. */
static uint64_t
unshift (uint64_t z, unsigned by)
{
  uint64_t x = z;

  for (unsigned i = by; i < 64; i += by)
    x = z ^ x >> by;
  return x;
}

/* Returns the inverse of an odd number modulo 2^64 (Newton's iteration). */
static uint64_t
inverse (uint64_t odd)
{
  uint64_t x = odd;

  for (int i = 0; i < 6; i++)
    x *= 2 - odd * x;
  return x;
}

/* The inverse function of weft_mix_bits(). */
static uint64_t
unmix (uint64_t bits)
{
  uint64_t z = unshift (bits, 31) * inverse (0x94d049bb133111ebu);

  z = unshift (z, 27) * inverse (0xbf58476d1ce4e5b9u);
  return unshift (z, 30);
}

/* Box-Muller at the ends of its ranges: u is the smallest number above 0, or 1; v is one of the
 * eighths of a full turn, or one of the four nearest numbers. */
static void
ends_and_quarters_are_those_of_libm (void **state)
{
  (void) state;
  for (unsigned eighth = 0; eighth < 8; eighth++)
    for (int beside = -2; beside <= 2; beside++) {
      uint64_t bits = ((uint64_t) eighth << 61) + ((uint64_t) (int64_t) beside << 11);
      assert_true (weft_mix_bits (unmix (bits)) == bits);
      for (uint64_t counter = 0; counter < 2; counter++) {
        uint64_t key = unmix (bits) - counter * WEFT_MIX_STEP;
        float out[2];
        weft_draw_normals (&(struct weft_normals){ key, 0, 2, DEVIATION }, out);
        for (unsigned i = 0; i < 2; i++)
          assert_is_near (out[i], from_libm (key, i));
      }
    }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (they_are_those_of_libm_on_any_stretch),
  cmocka_unit_test (ends_and_quarters_are_those_of_libm),
};

WEFT_TESTS (tests)
