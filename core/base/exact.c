#include "core/base/exact.h"
#include <math.h>
#include <string.h>

#define N_DIGIT (WEFT_EXACT_WORDS - 1)

/* Propagates carries: afterwards every word but the highest is in [0, 2^32). */
static void
settle (int64_t *sum)
{
  for (int i = 0; i + 1 < N_DIGIT; i++) {
    int64_t carry = sum[i] >> 32;
    sum[i] -= carry * ((int64_t) 1 << 32);
    sum[i + 1] += carry;
  }
}

/* Adds one term.  A double is an integer of 53 bits times a power of two, so it changes at most
 * three words. */
static void
add_one (int64_t *sum, double term)
{
  uint64_t bits;

  memcpy (&bits, &term, sizeof bits);
  int exponent = bits >> 52 & 0x7ff;
  if (exponent == 0x7ff) {
    sum[N_DIGIT]++;
    return;
  }
  /* A double that is zero or subnormal is skipped; the product of two fp32 numbers is never that
   * small. */
  if (exponent == 0)
    return;
  uint64_t mantissa = (bits & 0xfffffffffffffull) | 1ull << 52;
  int place = exponent - 1075 - WEFT_EXACT_LOW;
  unsigned __int128 wide = (unsigned __int128) mantissa << (place & 31);
  int64_t *word = sum + (place >> 5), sign = bits >> 63 ? -1 : 1;

  word[0] += sign * (int64_t) (uint32_t) wide;
  word[1] += sign * (int64_t) (uint32_t) (wide >> 32);
  word[2] += sign * (int64_t) (uint32_t) (wide >> 64);
}

void
weft_exact_add (int64_t sum[WEFT_EXACT_WORDS], const double *term, uint64_t n)
{
  /* number of terms that are added between two carries: the sum of 2^30 terms below 2^32 does not
   * overflow an int64_t */
  const uint64_t most = 1u << 30;

  for (uint64_t first = 0; first < n; first += most) {
    uint64_t end = n - first < most ? n : first + most;
    for (uint64_t i = first; i < end; i++)
      add_one (sum, term[i]);
    settle (sum);
  }
}

double
weft_exact_value (const int64_t sum[WEFT_EXACT_WORDS])
{
  int64_t word[WEFT_EXACT_WORDS];
  double value = 0;

  memcpy (word, sum, sizeof word);
  if (word[N_DIGIT])
    return NAN;
  settle (word);
  gboolean negative = word[N_DIGIT - 1] < 0;
  if (negative) {
    for (int i = 0; i < N_DIGIT; i++)
      word[i] = -word[i];
    settle (word);
  }
  for (int i = N_DIGIT; i-- > 0;)
    value += ldexp ((double) word[i], 32 * i + WEFT_EXACT_LOW);
  return negative ? -value : value;
}
