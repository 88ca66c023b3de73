/* fp8.h - numbers of one byte.
 *
 * E4M3 is the finite 8-bit float of the OCP "8-bit Floating Point Specification (OFP8)" 1.0: a sign,
 * four bits of exponent with bias 7, three of mantissa; no infinities, 0x7f and 0xff are NaN, the
 * largest number is 448, the smallest 2^-9.  What is larger is stored as 448.
 *
 * E5M2 is the other float of that specification: five bits of exponent with bias 15 as fp16, two of
 * mantissa.  What is larger than 57344, the largest that is finite, is stored as that.
 *
 * E8M0 is the scale of the OCP "Microscaling Formats (MX)" specification 1.0: 2^(code - 127), one for
 * WEFT_MX_BLOCK elements of a row; 255 is NaN.
 *
 * A tensor has one scale, the largest number of its type / its largest magnitude (current scaling of NVIDIA
 * Transformer Engine), or one for each block: the smallest power of two that brings the block to that number
 * or below, for blocks of 32 as E8M0, for others as a float. */
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

/* Exponent and mantissa are those of a float whose exponent has another bias. */
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

/* 2^exponent, of a normal float. */
WEFT_INLINE float
weft_fp8_power (int exponent)
{
  uint32_t bits = (uint32_t) (127 + exponent) << 23;
  float f;

  memcpy (&f, &bits, sizeof f);
  return f;
}

/* To nearest, ties to even, at most `most`, in a type with so many bits of mantissa and that bias. */
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
  memcpy (&small, &steps, sizeof small); /* below the normal numbers codes count the smallest */
  uint32_t even = bits >> dropped & 1;
  uint32_t normal = ((bits + (1u << (dropped - 1)) - 1 + even) >> dropped) -
                    ((uint32_t) (127 - bias) << mantissa);
  return (uint8_t) (sign | (a < weft_fp8_power (1 - bias) ? small & ((2u << mantissa) - 1) : normal));
}

WEFT_INLINE uint8_t
weft_e4m3_round (float f)
{
  return weft_fp8_round (f, 3, 7, WEFT_E4M3_MOST);
}

/* The upper byte of an fp16. */
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

/* The largest number of E4M3, or of E5M2. */
WEFT_INLINE float
weft_fp8_most (int is_e5m2)
{
  return is_e5m2 ? WEFT_E5M2_MOST : WEFT_E4M3_MOST;
}

/* What a tensor is multiplied by before it is rounded to a type whose largest number is `most`; and the
 * codes, to get it back.  Of zeros and of a tensor that overflowed it is one, and where it would be
 * infinite the largest float (NVIDIA Transformer Engine, common/recipe/recipe_common.cuh). */
WEFT_INLINE float
weft_fp8_scale_to (float largest, float most)
{
  float scale = largest > 0 && largest < INFINITY ? most / largest : 1;

  return scale < INFINITY ? scale : WEFT_FLOAT_MOST;
}

/* An element of a tensor with that scale, before it is rounded.  In a tensor that overflowed what is
 * infinite becomes NaN, which checks of the loss and the norm see; Transformer Engine stores the largest
 * number there. */
WEFT_INLINE float
weft_fp8_scaled (float x, float scale, float largest)
{
  return fabsf (x) <= (largest < INFINITY ? INFINITY : WEFT_FLOAT_MOST) ? x * scale : NAN;
}

/* What the next step goes by, of the largest magnitude that was seen and that of the step before: a tensor
 * that had no elements, or none but zeros, keeps its scale, and so does one that overflowed (NVIDIA
 * Transformer Engine, common/recipe/delayed_scaling.cu). */
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

/* The code of the scale of a block with this largest magnitude: rounded up. */
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

/* Blocks of a row of so many elements. */
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
