/* moe_fp8.cuh - grouped GEMM with fp8 factors: location of codes and scales, for the mma.sync
 * kernels (moe_fp8_gemm.cu) and the wgmma kernels (moe_fp8_warpgroup.cu). */
#pragma once
#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/moe_gemm.cuh"
#include "kernels/moe_scales.h"

enum { EIGHT = 8 /* codes that are fetched together */ };

/* A factor of one expert: rows of codes, and the location of their scales. */
struct codes {
  const uint8_t *at;
  uint64_t lines, width;
  bool wide, packed; /* wide: E5M2; packed: every row begins at a multiple of EIGHT */
  float whole;       /* scale of all codes, if block is 0 */
  const void *scale; /* the scales, if block is not 0 */
  bool bytes, square;
  uint64_t along, sum; /* strides of the scales: along, from row (or row of squares) to row;
                        * sum, from block of terms to block */
};

static __device__ __forceinline__ float
scale_of (const struct codes &f, uint64_t row, uint64_t rows, uint64_t block, uint64_t size)
{
  uint64_t at = (f.square ? row / size : row) * f.along + block * f.sum;

  if (row >= rows)
    return 0;
  if (size == 0)
    return f.whole;
  return f.bytes ? weft_e8m0_float (((const uint8_t *) f.scale)[at])
                 : ((const float *) f.scale)[at];
}

/* Codes of a kernel's two factors, and their scales. */
struct factors {
  struct array a_scale, b_scale;
  uint32_t a_dtype, b_dtype;
  uint64_t block;
  uint64_t line; /* number of rows of an expert's weights */
};

/* The scale of all codes of expert e. */
static __device__ __forceinline__ float
whole_scale (struct array amax, uint64_t e, uint32_t dtype)
{
  return 1 / weft_fp8_scale_to (((const float *) amax.data)[e], weft_fp8_most (dtype == WEFT_E5M2));
}

/* Scales of the rows from `first` on of expert e. */
static __device__ __forceinline__ void
set_scales (struct codes *f, struct array scale, enum weft_moe_scales lie, bool turned,
            uint64_t first, uint64_t e, uint64_t block)
{
  uint64_t across = weft_fp8_blocks (f->width, block);
  uint64_t step = lie == WEFT_MOE_DOWN ? f->width : across;
  uint64_t at = (lie == WEFT_MOE_ALONG ? first : weft_moe_line (first, e, block)) * step;

  f->bytes = scale.dtype == WEFT_E8M0;
  f->scale = (const uint8_t *) scale.data + at * (f->bytes ? 1 : sizeof (float));
  f->square = lie == WEFT_MOE_SQUARES;
  f->along = turned ? 1 : step;
  f->sum = turned ? step : 1;
}

template <enum way WAY>
static __device__ __forceinline__ void
factors_of (const struct grouped &g, const struct factors &of, const struct share &s, uint64_t e,
            struct codes *a, struct codes *b)
{
  const bool A_TURNED = WAY == WGRAD, B_TURNED = WAY != FORWARD;
  bool large = of.block > WEFT_MX_BLOCK;

  *a = {};
  *b = {};
  a->at = (const uint8_t *) g.a.data + s.a;
  a->lines = A_TURNED ? s.terms : s.rows;
  a->width = A_TURNED ? s.rows : s.terms;
  a->wide = of.a_dtype == WEFT_E5M2;
  a->packed = ((uintptr_t) g.a.data | a->width) % EIGHT == 0;
  b->at = (const uint8_t *) g.b.data + s.b;
  b->lines = B_TURNED ? s.terms : s.columns;
  b->width = B_TURNED ? s.columns : s.terms;
  b->wide = of.b_dtype == WEFT_E5M2;
  b->packed = ((uintptr_t) g.b.data | b->width) % EIGHT == 0;
  if (of.block == 0) {
    a->whole = whole_scale (of.a_scale, e, of.a_dtype);
    b->whole = whole_scale (of.b_scale, e, of.b_dtype);
    return;
  }
  set_scales (a, of.a_scale, A_TURNED ? WEFT_MOE_DOWN : WEFT_MOE_ALONG, A_TURNED, g.begin[e], e,
              of.block);
  set_scales (b, of.b_scale,
              WAY == WGRAD   ? WEFT_MOE_DOWN
              : large        ? WEFT_MOE_SQUARES
              : WAY == DGRAD ? WEFT_MOE_DOWN
                             : WEFT_MOE_ALONG,
              B_TURNED, WAY == WGRAD ? g.begin[e] : e * of.line, e, of.block);
}

/* The tile of this thread block and its factors; false if there is none. */
template <enum way WAY, int ROWS, int COLUMNS>
static __device__ __forceinline__ bool
tile_here (const struct grouped &g, const struct factors &of, struct share *s, struct codes *a,
           struct codes *b)
{
  if (!share_of<WAY, ROWS, COLUMNS> (g, s))
    return false;
  uint64_t e = WAY == WGRAD ? blockIdx.z : block_of (g.tile, g.experts, block_of_many ());
  factors_of<WAY> (g, of, *s, e, a, b);
  return true;
}

/* Stores, or accumulates into y, two neighbouring elements: as one word of 16-bit elements if all
 * pairs are aligned, else one by one. The type is a run-time branch: one kernel per type would be
 * too many. */
struct leave_pair {
  const struct grouped &g;
  const struct share &s;
  bool words;

  __device__ leave_pair (const struct grouped &of, const struct share &tile) : g (of), s (tile)
  {
    words = g.y.dtype != WEFT_FP32 && s.columns % 2 == 0 && (uintptr_t) g.y.data % 4 == 0;
  }

  __device__ void
  operator() (unsigned row, unsigned column, float low, float high) const
  {
    uint64_t r = s.row + row, c = s.column + column, at = s.y + r * s.columns + c;
    bool two_of_them = c + 1 < s.columns;

    if (r >= s.rows || c >= s.columns)
      return;
    if (g.adds) {
      low += get (g.y, at);
      high += two_of_them ? get (g.y, at + 1) : 0;
    }
    if (words) {
      ((uint32_t *) g.y.data)[at / 2] =
          g.y.dtype == WEFT_FP16 ? two<fp16> (low, high) : two<bf16> (low, high);
      return;
    }
    put (g.y, at, low);
    if (two_of_them)
      put (g.y, at + 1, high);
  }
};

/* wgmma version with tiles of 128 x 128, which multiplies fp8 codes directly; for scales per tensor
 * or per 128 elements, and arrays whose rows begin at multiples of 16 bytes. */
const char *weft_cuda_moe_fp8_warpgroups (const struct weft_cuda_launch *l, const struct grouped *g,
                                          const struct factors *of, enum way way, uint64_t room);
