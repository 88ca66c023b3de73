/* moe_gemm.cuh - grouped GEMM: which tile of which expert a thread block computes, and where it
 * stores it; for the mma.sync kernels (moe_gemm.cu) and the wgmma kernels (moe_warpgroup.cu). */
#pragma once
#include "kernels/cuda/fragments.cuh"
#include "kernels/cuda/moe.cuh"

/* y = a b for each expert. The expert's token rows are the rows of y or, in a weight gradient, the
 * terms of the sums. */
struct grouped {
  struct array a, b, y;
  /* rows: only set for weight gradients; terms: only set for the other products */
  uint64_t rows, columns, terms;
  uint64_t experts;
  /* by expert: index of the first row; number of the first tile of rows */
  const uint64_t *begin, *tile;
  bool adds;
};

/* The tile of y that a block computes, from `row` and `column` on. */
struct share {
  uint64_t a, b, y; /* index of the first element of the expert's matrices */
  uint64_t rows, columns, terms, row, column;
};

/* A product over rows: the tile of this thread block. FALSE: the thread block has no tile. */
template <int ROWS, int COLUMNS>
static __device__ __forceinline__ bool
by_rows (const struct grouped &g, struct share *s)
{
  uint64_t tile = block_of_many ();

  if (tile >= g.tile[g.experts])
    return false;
  uint64_t e = block_of (g.tile, g.experts, tile);
  *s = { g.begin[e] * g.terms, e * g.columns * g.terms, g.begin[e] * g.columns,
         g.begin[e + 1] - g.begin[e], g.columns, g.terms, (tile - g.tile[e]) * ROWS,
         (uint64_t) blockIdx.x * COLUMNS };
  return true;
}

/* For a weight gradient: the tile of this thread block, summed over the rows of expert
 * blockIdx.z. */
template <int ROWS, int COLUMNS>
static __device__ __forceinline__ bool
by_terms (const struct grouped &g, struct share *s)
{
  uint64_t e = blockIdx.z;

  *s = { g.begin[e] * g.rows, g.begin[e] * g.columns, e * g.rows * g.columns,
         g.rows, g.columns, g.begin[e + 1] - g.begin[e], (uint64_t) blockIdx.y * ROWS,
         (uint64_t) blockIdx.x * COLUMNS };
  return true;
}

enum way { FORWARD, DGRAD, WGRAD };

template <enum way WAY, int ROWS, int COLUMNS>
static __device__ __forceinline__ bool
share_of (const struct grouped &g, struct share *s)
{
  return WAY == WGRAD ? by_terms<ROWS, COLUMNS> (g, s) : by_rows<ROWS, COLUMNS> (g, s);
}

/* Stores or accumulates two neighbouring elements. */
static __device__ __forceinline__ void
leave_two (float *to, float low, float high, bool adds)
{
  to[0] = adds ? low + to[0] : low;
  to[1] = adds ? high + to[1] : high;
}

template <class T>
static __device__ __forceinline__ void
leave_two (T *to, float low, float high, bool adds)
{
  *(uint32_t *) to =
      adds ? two<T> (low + to_float (to[0]), high + to_float (to[1])) : two<T> (low, high);
}

/* Stores or accumulates the elements of a tile that belong to the expert; y is of type T or
 * fp32. */
template <class T> struct leave_shared {
  const struct grouped &g;
  const struct share &s;

  /* Two neighbouring elements; either both belong to the expert or neither. */
  __device__ void
  operator() (unsigned row, unsigned column, float low, float high) const
  {
    uint64_t r = s.row + row, c = s.column + column, at = s.y + r * s.columns + c;
    if (r >= s.rows || c >= s.columns)
      return;
    if (g.y.dtype == WEFT_FP32)
      leave_two ((float *) g.y.data + at, low, high, g.adds);
    else
      leave_two ((T *) g.y.data + at, low, high, g.adds);
  }

  __device__ void
  operator() (unsigned row, unsigned column, float value) const
  {
    uint64_t r = s.row + row, c = s.column + column, at = s.y + r * s.columns + c;
    if (r < s.rows && c < s.columns)
      put (g.y, at, value + (g.adds ? get (g.y, at) : 0));
  }
};

/* The grid, with room for the largest number of row tiles that all experts together can have. */
template <enum way WAY, int ROWS, int COLUMNS>
static dim3
grid_of (const struct grouped &g, uint64_t room)
{
  unsigned columns = (unsigned) ((g.columns + COLUMNS - 1) / COLUMNS);

  if (WAY == WGRAD)
    return dim3 (columns, (unsigned) ((g.rows + ROWS - 1) / ROWS), (unsigned) g.experts);
  return grid_of_many (columns, room / ROWS + g.experts);
}

/* Rows of all experts: planned number, room, stride of padded experts or 0, and rows per tile. */
struct weft_cuda_rows {
  uint64_t n, room, stride, tile;
};

/* Bytes of scratch that weft_cuda_find_experts() uses. */
uint64_t weft_cuda_experts_bytes (uint64_t experts);

/* Launches the kernel that computes the first row and tile of each expert, and stores them at the
 * start of the scratch. Without counts all experts have the same number of rows. */
void
weft_cuda_find_experts (const struct weft_cuda_launch *l, const struct weft_cuda_operand *counts,
                        struct grouped *g, const struct weft_cuda_rows *all);

/* wgmma version with tiles of 128 rows, on devices with wgmma; 16-bit types, and matrices whose
 * rows begin at multiples of 16 bytes. */
const char *weft_cuda_moe_warpgroups (const struct weft_cuda_launch *l, const struct grouped *g,
                                      enum way way, uint64_t room);
