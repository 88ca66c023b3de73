/* math.h - exp, tanh, erf and log in fp32, written as additions and multiplications that compilers
 * vectorise. libm functions do not vectorise and give different bits on different machines.
 *
 * Errors in units in the last place: weft_expf 1.1, weft_tanhf 2.6, weft_logf 0.51, subnormal
 * results included; weft_erff 1.5e-7 absolute. NaN gives NaN; exp(-inf) = 0, exp(inf) = inf,
 * tanh(+-inf) = +-1, log(0) = -inf, log(inf) = inf, log of a negative number is NaN. */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t
weft_float_bits (float f)
{
  uint32_t bits;
  memcpy (&bits, &f, sizeof bits);
  return bits;
}

static inline float
weft_bits_float (uint32_t bits)
{
  float f;
  memcpy (&f, &bits, sizeof f);
  return f;
}

/* 2^n for -126 <= n <= 127; n is a two's complement number. */
static inline float
weft_power_of_two (uint32_t n)
{
  return weft_bits_float ((n + 127) << 23);
}

/* exp(x) = 2^n (1 + p): returns p, |p| < 0.42, for |x| < 2^21. Adding 1.5 * 2^23 leaves the nearest
 * integer in the low bits of a float. ln 2 is split in two, the first part short enough that n
 * times it is exact. Taylor series; the first omitted term is below 2^-27 for |r| <= ln(2) / 2. */
static inline float
weft_exp_parts (float x, uint32_t *n)
{
  const float shift = 0x1.8p23f;
  float shifted = x * 0x1.715476p0f + shift;
  float whole = shifted - shift;
  float r = (x - whole * 0x1.62e4p-1f) - whole * 0x1.7f7d1cp-20f;
  float q = 1.0f / 720 + r * (1.0f / 5040);
  q = 1.0f / 120 + r * q;
  q = 1.0f / 24 + r * q;
  q = 1.0f / 6 + r * q;
  q = 0.5f + r * q;
  *n = weft_float_bits (shifted) - weft_float_bits (shift);
  return r + r * r * q;
}

/* The power of two is applied in two factors, because it may be 2^128 or below 2^-126. A result of
 * 0 does not pass through subnormals, which are slow. */
static inline float
weft_expf (float x)
{
  /* limits of the argument: exp(89) overflows, exp(-104) rounds to 0 */
  float bounded = x > 89.0f ? 89.0f : x;
  bounded = x < -104.0f ? 0.0f : bounded;
  uint32_t n;
  float p = weft_exp_parts (bounded, &n);
  uint32_t half = (uint32_t) ((int32_t) n >> 1);
  float result = (1.0f + p) * weft_power_of_two (half) * weft_power_of_two (n - half);
  return x < -104.0f ? 0.0f : result;
}

/* tanh(x) = e / (e + 2) with e = exp(2 |x|) - 1: no cancellation near 0. */
static inline float
weft_tanhf (float x)
{
  uint32_t sign = weft_float_bits (x) & 0x80000000u;
  float positive = weft_bits_float (weft_float_bits (x) ^ sign);
  float bounded = positive > 10.0f ? 10.0f : positive; /* 1 - tanh(10) < 2^-25 */
  uint32_t n;
  float p = weft_exp_parts (2 * bounded, &n);
  float power = weft_power_of_two (n);
  float e = power * p + (power - 1);
  return weft_bits_float (weft_float_bits (e / (e + 2)) | sign);
}

/* erf(x): for |x| < 1 x times a polynomial in x^2, else 1 - exp(-q(|x|)). Both polynomials are
 * truncated Chebyshev series of the exact function, q on [1, 4]; beyond 4 erf rounds to 1. */
static inline float
weft_erff (float x)
{
  uint32_t sign = weft_float_bits (x) & 0x80000000u;
  float a = weft_bits_float (weft_float_bits (x) ^ sign), z = x * x;
  float p = 0x1.541636p-8f + z * (-0x1.a46b4p-11f + z * 0x1.4a9dacp-14f);
  p = 0x1.ce2d18p-4f + z * (-0x1.b7fb38p-6f + z * p);
  p = 0x1.20dd74p+0f + z * (-0x1.81273ep-2f + z * p);
  a = a > 4.0f ? 4.0f : a;
  float q = 0x1.36a7bcp-8f + a * (-0x1.36c82ep-11f + a * (0x1.7e711ep-15f + a * -0x1.b14578p-20f));
  q = 0x1.438d42p-1f + a * (0x1.c2788cp-4f + a * (-0x1.aff5a4p-6f + a * q));
  q = -0x1.3df11cp-12f + a * (0x1.21529ap+0f + a * q);
  float far = weft_bits_float (weft_float_bits (1.0f - weft_expf (-q)) | sign);
  return a < 1.0f ? x * p : far;
}

/* x = 2^n f with f in [sqrt(1/2), sqrt(2)); log f = 2 atanh((f - 1) / (f + 1)), in double, where
 * every float is a normal number. */
static inline float
weft_logf (float x)
{
  double d = x, f;
  uint64_t bits, half = UINT64_C (0x3fe6a09e667f3bcd); /* sqrt(1/2) */
  memcpy (&bits, &d, sizeof bits);
  int64_t n = (int64_t) (bits - half) >> 52;
  bits -= (uint64_t) n << 52;
  memcpy (&f, &bits, sizeof f);
  double s = (f - 1) / (f + 1), z = s * s;
  double series = 1 + z * (1.0 / 3 + z * (1.0 / 5 + z * (1.0 / 7 + z * (1.0 / 9 + z / 11))));
  float log = (float) (2 * s * series + (double) (int32_t) n * 0x1.62e42fefa39efp-1);
  log = x == 0 ? -INFINITY : log;
  log = x < 0 ? NAN : log;
  return x < INFINITY ? log : x;
}
