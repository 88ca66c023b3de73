/* fp8.h - 8-bit floating-point formats.
 *
 * E4M3 is the finite format of the OCP "8-bit Floating Point Specification (OFP8)" 1.0: a sign,
 * four exponent bits with bias 7, three mantissa bits; no infinities; 0x7f and 0xff are NaN; the
 * largest number is 448, the smallest 2^-9. Larger values saturate to 448.
 *
 * E5M2 is the other format of that specification: five exponent bits with bias 15 like fp16, two
 * mantissa bits. Values above 57344, the largest finite number, saturate to 57344.
 *
 * E8M0 is the scale format of the OCP "Microscaling Formats (MX)" specification 1.0: 2^(code -
 * 127), one for WEFT_MX_BLOCK elements of a row; 255 is NaN.
 *
 * A tensor has either one scale, the largest number of the format / the largest magnitude in the
 * tensor (current scaling of NVIDIA Transformer Engine), or one scale per block: a power of two
 * that brings the block's largest magnitude to the format's largest number or below, stored as E8M0
 * for blocks of 32 and as a float for other blocks. */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define WEFT_INLINE static __host__ __device__ inline
#else
#define WEFT_INLINE static inline
#endif

#define WEFT_E4M3_MOST 448.0f
#define WEFT_E5M2_MOST 57344.0f
#define WEFT_FLOAT_MOST 0x1.fffffep127f
#define WEFT_MX_BLOCK 32

/* Converts an E4M3 code to float: moves exponent and mantissa into place and corrects the exponent
 * bias. */
WEFT_INLINE float
weft_e4m3_float (uint8_t code)
{
  uint32_t bits = (uint32_t) (code & 0x7f) << 20, sign = (uint32_t) (code & 0x80) << 24;
  float f;

  memcpy (&f, &bits, sizeof f);
  f *= 0x1p120f;
  memcpy (&bits, &f, sizeof bits);
  bits = (code & 0x7f) == 0x7f ? 0x7fc00000u | sign : bits | sign;
  memcpy (&f, &bits, sizeof f);
  return f;
}

/* Returns 2^exponent as a float. The exponent must be that of a normal float. */
WEFT_INLINE float
weft_fp8_power (int exponent)
{
  uint32_t bits = (uint32_t) (127 + exponent) << 23;
  float f;

  memcpy (&f, &bits, sizeof f);
  return f;
}

/* Rounds a float to an fp8 format with `mantissa` mantissa bits and exponent bias `bias`: to
 * nearest, ties to even. Values above `most` become `most`. */
WEFT_INLINE uint8_t
weft_fp8_round (float f, int mantissa, int bias, float most)
{
  const int dropped = 23 - mantissa;
  uint32_t bits, sign, small;

  memcpy (&bits, &f, sizeof bits);
  sign = bits >> 24 & 0x80;
  bits &= 0x7fffffff;
  if (bits > 0x7f800000u)
    return (uint8_t) (sign | 0x7f);
  float a = fminf (fabsf (f), most);
  float steps = a * weft_fp8_power (bias - 1 + mantissa) + 0x1p23f;
  memcpy (&bits, &a, sizeof bits);
  /* for a subnormal number, the code is a multiple of the smallest number */
  memcpy (&small, &steps, sizeof small);
  uint32_t even = bits >> dropped & 1;
  uint32_t normal = ((bits + (1u << (dropped - 1)) - 1 + even) >> dropped) -
                    ((uint32_t) (127 - bias) << mantissa);
  return (uint8_t) (sign |
                    (a < weft_fp8_power (1 - bias) ? small & ((2u << mantissa) - 1) : normal));
}

WEFT_INLINE uint8_t
weft_e4m3_round (float f)
{
  return weft_fp8_round (f, 3, 7, WEFT_E4M3_MOST);
}

/* An E5M2 code is the upper byte of an fp16. */
WEFT_INLINE float
weft_e5m2_float (uint8_t code)
{
  uint32_t bits = (uint32_t) (code & 0x7f) << 21, sign = (uint32_t) (code & 0x80) << 24;
  float f;

  memcpy (&f, &bits, sizeof f);
  f *= 0x1p112f;
  memcpy (&bits, &f, sizeof bits);
  bits |= sign | ((code & 0x7c) == 0x7c ? 0x7f800000u : 0);
  memcpy (&f, &bits, sizeof f);
  return f;
}

WEFT_INLINE uint8_t
weft_e5m2_round (float f)
{
  return weft_fp8_round (f, 2, 15, WEFT_E5M2_MOST);
}

/* The largest finite number of an fp8 format: of E5M2 if is_e5m2 is set, else of E4M3. */
WEFT_INLINE float
weft_fp8_most (int is_e5m2)
{
  return is_e5m2 ? WEFT_E5M2_MOST : WEFT_E4M3_MOST;
}

/* Scale of a tensor for a format whose largest number is `most`: elements are multiplied by it
 * before rounding, and codes are divided by it. The scale is 1 for a tensor of zeros and for a
 * tensor that overflowed, and the largest float if most / largest is infinite (NVIDIA Transformer
 * Engine, common/recipe/recipe_common.cuh). */
WEFT_INLINE float
weft_fp8_scale_to (float largest, float most)
{
  float scale = largest > 0 && largest < INFINITY ? most / largest : 1;

  return scale < INFINITY ? scale : WEFT_FLOAT_MOST;
}

/* Scales an element before rounding. In a tensor that overflowed, an infinite element becomes NaN,
 * which the checks of loss and gradient norm detect; Transformer Engine stores the largest number
 * instead. */
WEFT_INLINE float
weft_fp8_scaled (float x, float scale, float largest)
{
  return fabsf (x) <= (largest < INFINITY ? INFINITY : WEFT_FLOAT_MOST) ? x * scale : NAN;
}

/* The largest magnitude (amax) that delayed scaling uses in the next step: `seen`, measured in this
 * step, or `before` if the tensor was empty, all zeros, or overflowed (NVIDIA Transformer Engine,
 * common/recipe/delayed_scaling.cu). */
WEFT_INLINE float
weft_fp8_next_amax (float seen, float before)
{
  return seen > 0 && seen < INFINITY ? seen : before;
}

WEFT_INLINE float
weft_fp8_scale (float largest)
{
  return weft_fp8_scale_to (largest, WEFT_E4M3_MOST);
}

WEFT_INLINE float
weft_fp8_unscale (float largest)
{
  return 1 / weft_fp8_scale (largest);
}

WEFT_INLINE float
weft_e8m0_float (uint8_t code)
{
  uint32_t bits = code == 0xff ? 0x7fc00000u : code ? (uint32_t) code << 23 : 0x00400000u;
  float f;

  memcpy (&f, &bits, sizeof f);
  return f;
}

/* E8M0 code of the scale of a block whose largest magnitude is `largest`, rounded up. */
WEFT_INLINE uint8_t
weft_e8m0_scale_to (float largest, float most)
{
  float least = largest / most;
  uint32_t bits;

  memcpy (&bits, &least, sizeof bits);
  uint32_t code = bits >> 23, rest = bits & 0x7fffff;
  return (uint8_t) (code + (code == 0 ? rest > 0x400000 : rest > 0));
}

WEFT_INLINE uint8_t
weft_e8m0_scale (float largest)
{
  return weft_e8m0_scale_to (largest, WEFT_E4M3_MOST);
}

/* Number of blocks with a scale of their own in a row. */
WEFT_INLINE uint64_t
weft_fp8_blocks (uint64_t columns, uint64_t block)
{
  return (columns + block - 1) / block;
}

WEFT_INLINE uint64_t
weft_mx_blocks (uint64_t columns)
{
  return weft_fp8_blocks (columns, WEFT_MX_BLOCK);
}
