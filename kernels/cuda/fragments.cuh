/* fragments.cuh - products of 16 x 16 by 16 x 8 elements of 16 bits by the tensor cores, with sums in
 * fp32: mma.sync of PTX, from compute capability 8.0 on (PTX ISA, "Matrix multiply-accumulate operation
 * using mma instruction", shape m16n8k16; "ldmatrix").
 *
 * What a lane of a warp holds of each matrix, g = lane / 4 and t = lane % 4:
 *
 *   a[4]  rows g, g + 8, g, g + 8; columns 2t, 2t + 1, the last two + 8
 *   b[2]  rows 2t, 2t + 1, the second + 8; column g
 *   c[4]  rows g, g, g + 8, g + 8; columns 2t, 2t + 1, 2t, 2t + 1 */
#pragma once
#include "kernels/cuda/device.cuh"

/* Two elements in a word, the first in its low half. */
#ifdef WEFT_CUDA_EMULATOR
template <class T>
static inline uint32_t
two (float low, float high)
{
  T a, b;

  set (&a, low);
  set (&b, high);
  return (uint32_t) a.bits | (uint32_t) b.bits << 16;
}
#else
template <class T> __device__ uint32_t two (float low, float high);

template <>
__device__ __forceinline__ uint32_t
two<bf16> (float low, float high)
{
  uint32_t word;

  asm ("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

template <>
__device__ __forceinline__ uint32_t
two<fp16> (float low, float high)
{
  uint32_t word;

  asm ("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
#endif

template <class T>
static __device__ __forceinline__ float
element (uint32_t word, unsigned which)
{
  T x;

  x.bits = (uint16_t) (word >> 16 * which);
  return to_float (x);
}

#ifdef WEFT_CUDA_EMULATOR
/* c += a b */
template <class T>
static inline void
multiply (float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
  uint32_t mine[6] = { a[0], a[1], a[2], a[3], b0, b1 }, all[32 * 6];
  unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

  emulated_gather (mine, 6, all);
  for (unsigned e = 0; e < 4; e++)
    for (unsigned k = 0; k < 16; k++) {
      unsigned row = g + e / 2 * 8, column = 2 * t + e % 2;
      const uint32_t *left = all + (row % 8 * 4 + k % 8 / 2) * 6;
      const uint32_t *right = all + (column * 4 + k % 8 / 2) * 6 + 4;
      c[e] += element<T> (left[row / 8 + k / 8 * 2], k % 2) * element<T> (right[k / 8], k % 2);
    }
}

/* Four matrices of 8 x 8 in shared memory: lane l says where row l % 8 of matrix l / 8 is.  Each lane
 * gets of matrix j the elements 2t and 2t + 1 of row g; turned, of column g. */
template <class T>
static inline void
load_matrices (uint32_t out[4], const T *row, bool turned)
{
  uint32_t mine[2], all[64];
  uintptr_t at = (uintptr_t) row;
  unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

  emulated_check_shared (row, 16);
  memcpy (mine, &at, sizeof mine);
  emulated_gather (mine, 2, all);
  for (unsigned j = 0; j < 4; j++) {
    uint16_t half[2];
    for (unsigned e = 0; e < 2; e++) {
      unsigned r = turned ? 2 * t + e : g, c = turned ? g : 2 * t + e;
      memcpy (&at, all + (8 * j + r) * 2, sizeof at);
      half[e] = ((const T *) at)[c].bits;
    }
    out[j] = (uint32_t) half[0] | (uint32_t) half[1] << 16;
  }
}
#else
template <class T> __device__ void multiply (float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1);

template <>
__device__ __forceinline__ void
multiply<bf16> (float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
  asm volatile ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                "{%8,%9}, {%0,%1,%2,%3};"
                : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void
multiply<fp16> (float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
  asm volatile ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                "{%8,%9}, {%0,%1,%2,%3};"
                : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <class T>
static __device__ __forceinline__ void
load_matrices (uint32_t out[4], const T *row, bool turned)
{
  uint32_t at = (uint32_t) __cvta_generic_to_shared (row);

  if (turned)
    asm volatile ("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                  : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                  : "r"(at));
  else
    asm volatile ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                  : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                  : "r"(at));
}
#endif

/* A tile in shared memory, `stride` elements from row to row.  Eight elements more than are used keep
 * the rows of a matrix in different banks. */

/* a: 16 rows from `row` on, 16 columns from `column` on. */
template <class T>
static __device__ __forceinline__ void
load_a (uint32_t a[4], const T *tile, unsigned stride, unsigned row, unsigned column)
{
  unsigned lane = threadIdx.x % 32;

  load_matrices (a, tile + (row + lane % 16) * stride + column + lane / 16 * 8, false);
}

/* b of two products side by side, b[0..1] and b[2..3]: 16 terms from `term` on, columns from `column`
 * on; the tile has a row for each column. */
template <class T>
static __device__ __forceinline__ void
load_b (uint32_t b[4], const T *tile, unsigned stride, unsigned column, unsigned term)
{
  unsigned lane = threadIdx.x % 32;

  load_matrices (b, tile + (column + lane / 16 * 8 + lane % 8) * stride + term + lane / 8 % 2 * 8,
                 false);
}

/* The same of a tile that has a row for each term. */
template <class T>
static __device__ __forceinline__ void
load_b_turned (uint32_t b[4], const T *tile, unsigned stride, unsigned column, unsigned term)
{
  unsigned lane = threadIdx.x % 32;

  load_matrices (b, tile + (term + lane % 16) * stride + column + lane / 16 * 8, true);
}

/* a of a tile that has a row for each term. */
template <class T>
static __device__ __forceinline__ void
load_a_turned (uint32_t a[4], const T *tile, unsigned stride, unsigned row, unsigned term)
{
  unsigned lane = threadIdx.x % 32;

  load_matrices (a, tile + (term + lane / 16 * 8 + lane % 8) * stride + row + lane / 8 % 2 * 8,
                 true);
}
