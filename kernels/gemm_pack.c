/* Packs factors into panels: for each term, the elements of a few rows side by side, as floats. */
#include "kernels/float.h"
#include "kernels/fp8.h"
#include "kernels/gemm.h"

/* Declares a function that the compiler inlines, so that each vector width and each data type gets
 * a compiled copy. */
#define INLINE static inline __attribute__ ((always_inline))

typedef float float4 __attribute__ ((vector_size (16)));
typedef float float8 __attribute__ ((vector_size (32)));
typedef uint32_t word8 __attribute__ ((vector_size (32)));
typedef uint16_t half8 __attribute__ ((vector_size (16)));
typedef uint32_t word4 __attribute__ ((vector_size (16)));
typedef uint16_t half4 __attribute__ ((vector_size (8)));

/* Converts four fp16 codes to floats, as weft_fp16_float() does for one. */
INLINE float4
widen_fp16 (word4 half)
{
  word4 bits = (half & 0x7fff) << 13, infinite = (word4) ((half & 0x7c00) == 0x7c00);
  float4 four;

  memcpy (&four, &bits, sizeof four);
  four *= 0x1p112f;
  memcpy (&bits, &four, sizeof bits);
  bits |= (half & 0x8000) << 16 | (infinite & 0x7f800000);
  memcpy (&four, &bits, sizeof four);
  return four;
}

INLINE float4
load_four (const void *data, uint64_t at, enum weft_dtype dtype)
{
  float4 four;
  half4 half;

  if (dtype == WEFT_FP32) {
    memcpy (&four, (const float *) data + at, sizeof four);
    return four;
  }
  memcpy (&half, (const uint16_t *) data + at, sizeof half);
  word4 words = __builtin_convertvector(half, word4);
  if (dtype == WEFT_FP16)
    return widen_fp16 (words);
  words <<= 16;
  memcpy (&four, &words, sizeof four);
  return four;
}

INLINE float
load_one (const void *data, uint64_t at, enum weft_dtype dtype)
{
  return dtype == WEFT_FP32   ? ((const float *) data)[at]
         : dtype == WEFT_FP16 ? weft_fp16_float (((const uint16_t *) data)[at])
                              : weft_bf16_float (((const uint16_t *) data)[at]);
}

/* Reads four terms of each of four rows; writes the four rows' elements of each term side by
 * side. */
INLINE void
turn_four (const void *data, uint64_t at, uint64_t along, enum weft_dtype dtype, uint32_t width,
           float *to)
{
  float4 a = load_four (data, at, dtype), b = load_four (data, at + along, dtype);
  float4 c = load_four (data, at + 2 * along, dtype), d = load_four (data, at + 3 * along, dtype);
  float4 ab_low = __builtin_shufflevector (a, b, 0, 4, 1, 5);
  float4 ab_high = __builtin_shufflevector (a, b, 2, 6, 3, 7);
  float4 cd_low = __builtin_shufflevector (c, d, 0, 4, 1, 5);
  float4 cd_high = __builtin_shufflevector (c, d, 2, 6, 3, 7);
  const float4 turned[4] = {
    __builtin_shufflevector (ab_low, cd_low, 0, 1, 4, 5),
    __builtin_shufflevector (ab_low, cd_low, 2, 3, 6, 7),
    __builtin_shufflevector (ab_high, cd_high, 0, 1, 4, 5),
    __builtin_shufflevector (ab_high, cd_high, 2, 3, 6, 7),
  };

  for (unsigned t = 0; t < 4; t++)
    memcpy (to + t * width, &turned[t], sizeof turned[t]);
}

/* Loads four terms of two rows as the halves of a vector; 16-bit types are widened together.
 * Returns through a pointer: not every machine can return such a vector in registers. */
INLINE void
load_two (const void *data, uint64_t at, uint64_t then, enum weft_dtype dtype, float8 *two)
{
  half4 low, high;

  if (dtype != WEFT_BF16) {
    *two = __builtin_shufflevector (load_four (data, at, dtype), load_four (data, then, dtype), 0,
                                    1, 2, 3, 4, 5, 6, 7);
    return;
  }
  memcpy (&low, (const uint16_t *) data + at, sizeof low);
  memcpy (&high, (const uint16_t *) data + then, sizeof high);
  half8 both = __builtin_shufflevector (low, high, 0, 1, 2, 3, 4, 5, 6, 7);
  word8 words = __builtin_convertvector(both, word8) << 16;
  memcpy (two, &words, sizeof *two);
}

/* Reads four terms of each of eight rows; writes the eight rows' elements of each term side by
 * side. */
INLINE void
turn_eight (const void *data, uint64_t at, uint64_t along, enum weft_dtype dtype, uint32_t width,
            float *to)
{
  float8 a, b, c, d;

  load_two (data, at, at + 4 * along, dtype, &a);
  load_two (data, at + along, at + 5 * along, dtype, &b);
  load_two (data, at + 2 * along, at + 6 * along, dtype, &c);
  load_two (data, at + 3 * along, at + 7 * along, dtype, &d);
  float8 ab_low = __builtin_shufflevector (a, b, 0, 8, 1, 9, 4, 12, 5, 13);
  float8 ab_high = __builtin_shufflevector (a, b, 2, 10, 3, 11, 6, 14, 7, 15);
  float8 cd_low = __builtin_shufflevector (c, d, 0, 8, 1, 9, 4, 12, 5, 13);
  float8 cd_high = __builtin_shufflevector (c, d, 2, 10, 3, 11, 6, 14, 7, 15);
  const float8 turned[4] = {
    __builtin_shufflevector (ab_low, cd_low, 0, 1, 8, 9, 4, 5, 12, 13),
    __builtin_shufflevector (ab_low, cd_low, 2, 3, 10, 11, 6, 7, 14, 15),
    __builtin_shufflevector (ab_high, cd_high, 0, 1, 8, 9, 4, 5, 12, 13),
    __builtin_shufflevector (ab_high, cd_high, 2, 3, 10, 11, 6, 7, 14, 15),
  };

  for (unsigned t = 0; t < 4; t++)
    memcpy (to + t * width, &turned[t], sizeof turned[t]);
}

struct panel {
  const struct weft_factor *from;
  uint64_t at; /* index in the factor's array of the first term of the first row */
  uint64_t row, term;
  uint64_t rows, terms;
  uint32_t width;
  float *to;
};

/* Packs a factor in which the terms of one row are contiguous in memory: transposes blocks of eight
 * or four rows and four terms, and copies the remaining elements one by one. */
INLINE void
turn_rows (const struct panel *p, enum weft_dtype dtype, uint32_t width)
{
  const void *data = p->from->data;
  uint64_t along = p->from->along, rows = p->rows & ~3ull, terms = p->terms & ~3ull, i = 0;
  float *to = p->to;

  for (; i + 8 <= rows; i += 8)
    for (uint64_t t = 0, at = p->at + i * along; t < terms; t += 4)
      turn_eight (data, at + t, along, dtype, width, to + t * width + i);
  for (; i < rows; i += 4)
    for (uint64_t t = 0, at = p->at + i * along; t < terms; t += 4)
      turn_four (data, at + t, along, dtype, width, to + t * width + i);
  for (uint64_t t = 0; t < p->terms; t++)
    for (i = t < terms ? rows : 0; i < p->rows; i++)
      to[t * width + i] = load_one (data, p->at + i * along + t, dtype);
}

/* Calls the packing function with the usual panel widths as constants, so that the compiler unrolls
 * its loops. */
INLINE void
pack_turned (const struct panel *p, enum weft_dtype dtype)
{
  if (p->width == 32)
    turn_rows (p, dtype, 32);
  else if (p->width == 8)
    turn_rows (p, dtype, 8);
  else
    turn_rows (p, dtype, p->width);
}

/* Packs a factor in which the rows of one term are contiguous in memory: converts the elements
 * without transposing. */
INLINE void
copy_rows (const struct panel *p, enum weft_dtype dtype, uint64_t rows)
{
  uint64_t at = p->at;
  float *to = p->to;

  for (uint64_t t = 0; t < p->terms; t++, at += p->from->sum, to += p->width) {
    WEFT_NO_OVERLAP
    for (uint64_t i = 0; i < rows; i++)
      to[i] = load_one (p->from->data, at + i, dtype);
  }
}

/* Calls the packing function with the usual numbers of rows as constants, so that the compiler uses
 * whole vectors. */
INLINE void
pack_copied (const struct panel *p, enum weft_dtype dtype)
{
  if (p->rows == 32)
    copy_rows (p, dtype, 32);
  else if (p->rows == 8)
    copy_rows (p, dtype, 8);
  else
    copy_rows (p, dtype, p->rows);
}

INLINE void
pack_panel (const struct panel *p, enum weft_dtype dtype)
{
  if (p->rows < p->width)
    memset (p->to, 0, p->terms * p->width * sizeof *p->to);
  if (p->from->along == 1)
    pack_copied (p, dtype);
  else
    pack_turned (p, dtype);
}

WEFT_WIDE static void
pack_fp32 (const struct panel *p)
{
  pack_panel (p, WEFT_FP32);
}

WEFT_WIDE static void
pack_bf16 (const struct panel *p)
{
  pack_panel (p, WEFT_BF16);
}

WEFT_WIDE static void
pack_fp16 (const struct panel *p)
{
  pack_panel (p, WEFT_FP16);
}

/* The scale of an element of an fp8 factor that has one scale per block. */
static float
scale_at (const struct weft_factor *f, uint64_t row, uint64_t term)
{
  uint64_t at = (f->square ? row / f->block : row) * f->scale_along +
                (term + f->skip) / f->block * f->scale_sum;

  return f->block == WEFT_MX_BLOCK ? weft_e8m0_float (((const uint8_t *) f->scale)[at])
                                   : ((const float *) f->scale)[at];
}

static float
whole_scale (const struct weft_factor *f)
{
  return 1 / weft_fp8_scale_to (*(const float *) f->scale, weft_fp8_most (f->dtype == WEFT_E5M2));
}

/* Packs terms [t, t + n) of row i of an fp8 factor. All these terms have one scale. */
static void
pack_codes (const struct panel *p, uint64_t i, uint64_t t, uint64_t n, float scale)
{
  const struct weft_factor *f = p->from;
  const uint8_t *code = (const uint8_t *) f->data + p->at + i * f->along + t;
  float *to = p->to + t * p->width + i;

  if (f->dtype == WEFT_E5M2)
    for (uint64_t j = 0; j < n; j++)
      to[j * p->width] = weft_e5m2_float (code[j]) * scale;
  else
    for (uint64_t j = 0; j < n; j++)
      to[j * p->width] = weft_e4m3_float (code[j]) * scale;
}

/* Packs an fp8 factor in which the terms of one row are contiguous in memory. */
static void
pack_rows_of_codes (const struct panel *p, float whole)
{
  const struct weft_factor *f = p->from;

  for (uint64_t i = 0; i < p->rows; i++)
    for (uint64_t t = 0, n; t < p->terms; t += n) {
      n = f->block ? MIN (p->terms - t, f->block - (p->term + t + f->skip) % f->block) : p->terms;
      pack_codes (p, i, t, n, f->block ? scale_at (f, p->row + i, p->term + t) : whole);
    }
}

/* Packs an fp8 factor in which the rows of one term are contiguous in memory. */
static void
pack_lines_of_codes (const struct panel *p, float whole)
{
  const struct weft_factor *f = p->from;

  for (uint64_t t = 0; t < p->terms; t++) {
    const uint8_t *code = (const uint8_t *) f->data + p->at + t * f->sum;
    for (uint64_t i = 0; i < p->rows; i++) {
      float scale = f->block ? scale_at (f, p->row + i, p->term + t) : whole;
      p->to[t * p->width + i] =
          (f->dtype == WEFT_E5M2 ? weft_e5m2_float (code[i]) : weft_e4m3_float (code[i])) * scale;
    }
  }
}

static void
pack_bytes (const struct panel *p)
{
  float whole = p->from->block ? 0 : whole_scale (p->from);

  if (p->rows < p->width)
    memset (p->to, 0, p->terms * p->width * sizeof *p->to);
  (p->from->sum == 1 ? pack_rows_of_codes : pack_lines_of_codes) (p, whole);
}

void
weft_pack (const struct weft_factor *from, const struct weft_pack_range *range, uint32_t width,
           float *to)
{
  for (uint64_t i = 0; i < range->n; i += width) {
    const struct panel panel = {
      .from = from,
      .at = (range->first + i) * from->along + range->term * from->sum,
      .row = range->first + i,
      .term = range->term,
      .rows = MIN (range->n - i, width),
      .terms = range->terms,
      .width = width,
      .to = to + i * range->terms,
    };
    if (from->dtype == WEFT_FP8 || from->dtype == WEFT_E5M2)
      pack_bytes (&panel);
    else if (from->dtype == WEFT_BF16)
      pack_bf16 (&panel);
    else if (from->dtype == WEFT_FP16)
      pack_fp16 (&panel);
    else
      pack_fp32 (&panel);
  }
}
