/* float.h - conversion between stored types and fp32. Kernels compute in fp32: they load a stretch
 * of an operand as floats and store floats back.
 *
 * A stretch has at most WEFT_STRETCH elements, so that its floats stay in the L1 cache. */
#pragma once
#include "core/base/sanitize.h"
#include "core/base/words.h"
#include <stdint.h>
#include <string.h>

#define WEFT_STRETCH 1024

/* Compiles a function for several vector widths. The loader chooses the widest version that the
 * machine supports. All versions give the same bits, because the compiler does not contract
 * products and sums to FMA (-ffp-contract=off) and every sum has a fixed number of lanes. The
 * attribute is not used under sanitizers, which are not initialised when the loader chooses a
 * version. It is not used with clang either: in clang 14, the versions of two static functions of
 * the same name collide. */
#if defined(__x86_64__) && !defined(__clang__) && !WEFT_ADDRESS_SANITIZER && !WEFT_THREAD_SANITIZER
#define WEFT_WIDE __attribute__ ((target_clones ("avx512f", "avx2", "default")))
#else
#define WEFT_WIDE
#endif

/* Asserts to the compiler that the iterations of the next loop do not alias. */
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

/* Converts a float to a bf16 code, rounded to nearest, ties to even; NaN stays NaN. Returns the
 * 16-bit code in a 32-bit word, because loops over 32-bit words vectorise without widening and
 * narrowing. */
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

/* IEEE half to float: moves exponent and mantissa into place; one multiplication corrects the
 * exponent bias, also for subnormals. */
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

/* Converts a float to an fp16 code, rounded to nearest, ties to even. 65520 and above become
 * infinity; NaN stays NaN. Subnormal results are multiples of 2^-24: adding 0.5, whose last bit is
 * 2^-24, rounds to such a multiple. */
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

/* Rounds a float to fp16. The result is the value of the code weft_fp16_code (f), but is computed
 * without the code. */
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

/* Returns elements [first, first + n) of an array as floats: a pointer into the array if it
 * contains floats, else a converted copy in `room`, which has space for n floats. */
const float *weft_floats (const void *data, enum weft_dtype dtype, uint64_t first, uint64_t n,
                          float *room);

/* Buffer in which to prepare floats for weft_store(): the array itself if it holds floats, else
 * `room`. */
static inline float *
weft_target (void *data, enum weft_dtype dtype, uint64_t first, float *room)
{
  return dtype == WEFT_FP32 ? (float *) data + first : room;
}

/* Stores n floats from element `first` on, rounded to the type; no copy if they are already in
 * place. */
void weft_store (void *data, enum weft_dtype dtype, uint64_t first, uint64_t n, const float *value);

/* Rounds n floats to a type and back, as a canonical sum does with every partial sum. */
void weft_round (enum weft_dtype dtype, uint64_t n, float *value);
