/* float.h - stored types and fp32.  Kernels compute in fp32: they view a stretch of an operand as
 * floats and put floats back.
 *
 * A stretch is at most WEFT_STRETCH elements, so that its floats stay in the first-level cache. */
#pragma once
#include "core/base/sanitize.h"
#include "core/base/words.h"
#include <stdint.h>
#include <string.h>

#define WEFT_STRETCH 1024

/* A function compiled for several vector widths; the machine's widest is taken when the program
 * starts.  Nothing is contracted (-ffp-contract=off) and sums name their lanes, so that the bits are
 * the same.  Sanitizers are not ready yet when that choice is made, and clang 14 lets clones of two
 * static functions of one name collide. */
#if defined(__x86_64__) && !defined(__clang__) && !WEFT_ADDRESS_SANITIZER && !WEFT_THREAD_SANITIZER
#define WEFT_WIDE __attribute__ ((target_clones ("avx512f", "avx2", "default")))
#else
#define WEFT_WIDE
#endif

/* Before a loop whose iterations do not meet in memory, which pointers do not say. */
#ifdef __clang__
#define WEFT_NO_OVERLAP _Pragma ("clang loop vectorize(assume_safety)")
#else
#define WEFT_NO_OVERLAP _Pragma ("GCC ivdep")
#endif

static inline float
weft_bf16_float (uint16_t h)
{
  uint32_t bits = (uint32_t) h << 16;
  float f;
  memcpy (&f, &bits, sizeof f);
  return f;
}

/* To nearest, ties to even; a NaN stays one.  Codes of 16 bits in words of 32: a loop over them takes
 * whole vectors, where half words would be widened and narrowed at every step. */
static inline uint32_t
weft_bf16_code (float f)
{
  uint32_t bits;
  memcpy (&bits, &f, sizeof bits);
  uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1);
  return ((bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded) >> 16;
}

static inline uint16_t
weft_bf16_round (float f)
{
  return (uint16_t) weft_bf16_code (f);
}

/* IEEE half: exponent and mantissa are those of a float whose exponent has another bias, which one
 * multiplication puts right, subnormal numbers too. */
static inline float
weft_fp16_float (uint16_t h)
{
  uint32_t bits = (uint32_t) (h & 0x7fff) << 13, sign = (uint32_t) (h & 0x8000) << 16;
  float f;
  memcpy (&f, &bits, sizeof f);
  f *= 0x1p112f;
  memcpy (&bits, &f, sizeof bits);
  bits |= sign | ((h & 0x7c00) == 0x7c00 ? 0x7f800000u : 0);
  memcpy (&f, &bits, sizeof f);
  return f;
}

/* To nearest, ties to even; 65520 and more become infinity, a NaN stays one.  Below the normal numbers
 * codes count steps of 2^-24, which the addition of 0.5 rounds to. */
static inline uint32_t
weft_fp16_code (float f)
{
  uint32_t bits, small;
  memcpy (&bits, &f, sizeof bits);
  uint32_t sign = bits >> 16 & 0x8000;
  bits &= 0x7fffffffu;
  float steps;
  memcpy (&steps, &bits, sizeof steps);
  steps += 0.5f;
  memcpy (&small, &steps, sizeof small);
  uint32_t normal = ((bits + 0xfffu + (bits >> 13 & 1)) >> 13) - (112u << 10);
  uint32_t code = bits < 0x38800000u ? small - 0x3f000000u : normal;
  code = bits >= 0x477ff000u ? 0x7c00 : code;
  return sign | (bits > 0x7f800000u ? 0x7e00 : code);
}

static inline uint16_t
weft_fp16_round (float f)
{
  return (uint16_t) weft_fp16_code (f);
}

/* What weft_fp16_float() makes of the code, without it. */
static inline float
weft_fp16_rounded (float f)
{
  uint32_t bits, small;
  memcpy (&bits, &f, sizeof bits);
  uint32_t sign = bits & 0x80000000u;
  bits ^= sign;
  float steps;
  memcpy (&steps, &bits, sizeof steps);
  steps = (steps + 0.5f) - 0.5f;
  memcpy (&small, &steps, sizeof small);
  uint32_t normal = (bits + 0xfffu + (bits >> 13 & 1)) & ~0x1fffu;
  uint32_t rounded = bits < 0x38800000u ? small : normal;
  rounded = bits >= 0x477ff000u ? 0x7f800000u : rounded;
  rounded = sign | (bits > 0x7f800000u ? 0x7fc00000u : rounded);
  memcpy (&f, &rounded, sizeof f);
  return f;
}

/* Elements [first, first + n) of an array as floats: the array itself when it holds floats, else
 * `room`, which has space for n. */
const float *weft_floats (const void *data, enum weft_dtype dtype, uint64_t first, uint64_t n,
                          float *room);

/* Where floats for weft_store may be prepared: the array itself when it holds floats, else `room`. */
static inline float *
weft_target (void *data, enum weft_dtype dtype, uint64_t first, float *room)
{
  return dtype == WEFT_FP32 ? (float *) data + first : room;
}

/* Stores n floats from element `first` on, rounded to the type; nothing moves that is there. */
void weft_store (void *data, enum weft_dtype dtype, uint64_t first, uint64_t n, const float *value);

/* What storing and reading again makes of n floats: the rounding of a canonical node. */
void weft_round (enum weft_dtype dtype, uint64_t n, float *value);
