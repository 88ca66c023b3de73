/* fragments.cuh - products of 16 x 16 by 16 x 8 16-bit elements on tensor cores with fp32 sums:
 * mma.sync of PTX, from compute capability 8.0 on (PTX ISA, "Matrix multiply-accumulate operation
 * using mma instruction", shape m16n8k16; "ldmatrix").
 *
 * Elements held by a lane of a warp, with g = lane / 4 and t = lane % 4:
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
/* Only in the CPU emulator: the operands that one lane of a warp contributes to a product of the
 * whole warp. */
struct product_share {
  float *c;
  const uint32_t *a;
  uint32_t b[2];
};

template <class T>
static void
multiply_together (void *const *lane)
{
  float a[16][16], b[16][8], c[16][8];

  for (unsigned l = 0; l < 32; l++) {
    const product_share *p = (const product_share *) lane[l];
    unsigned g = l / 4, t = l % 4;
    for (unsigned e = 0; e < 8; e++)
      a[g + e / 2 % 2 * 8][2 * t + e % 2 + e / 4 * 8] = element<T> (p->a[e / 2], e % 2);
    for (unsigned e = 0; e < 4; e++) {
      b[2 * t + e % 2 + e / 2 * 8][g] = element<T> (p->b[e / 2], e % 2);
      c[g + e / 2 * 8][2 * t + e % 2] = p->c[e];
    }
  }
  for (unsigned row = 0; row < 16; row++)
    for (unsigned k = 0; k < 16; k++)
      for (unsigned column = 0; column < 8; column++)
        c[row][column] += a[row][k] * b[k][column];
  for (unsigned l = 0; l < 32; l++)
    for (unsigned e = 0; e < 4; e++)
      ((const product_share *) lane[l])->c[e] = c[l / 4 + e / 2 * 8][2 * (l % 4) + e % 2];
}

/* c += a b */
template <class T>
static inline void
multiply (float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, int line = __builtin_LINE ())
{
  product_share mine = { c, a, { b0, b1 } };

  emulated_meet (&mine, multiply_together<T>, line);
}

/* Only in the CPU emulator: the row addresses that one lane of a warp passes, and where the lane
 * stores its elements. */
template <class T> struct matrices_share {
  const T *row;
  uint32_t *out;
};

template <class T, bool TURNED>
static void
load_together (void *const *lane)
{
  for (unsigned l = 0; l < 32; l++)
    for (unsigned j = 0; j < 4; j++) {
      uint32_t bits[2];
      for (unsigned e = 0; e < 2; e++) {
        unsigned r = TURNED ? l % 4 * 2 + e : l / 4, c = TURNED ? l / 4 : l % 4 * 2 + e;
        bits[e] = ((const matrices_share<T> *) lane[8 * j + r])->row[c].bits;
      }
      ((const matrices_share<T> *) lane[l])->out[j] = bits[0] | bits[1] << 16;
    }
}

/* ldmatrix: four matrices of 8 x 8 in shared memory; lane l passes the address of row l % 8 of
 * matrix l / 8. Each lane gets elements 2t and 2t + 1 of row g of each matrix; of column g if
 * transposed. */
template <class T>
static inline void
load_matrices (uint32_t out[4], const T *row, bool turned, int line = __builtin_LINE ())
{
  matrices_share<T> mine = { row, out };

  emulated_read_shared (row, 16);
  emulated_meet (&mine, turned ? load_together<T, true> : load_together<T, false>, line);
}
#else
template <class T>
__device__ void multiply (float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1);

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

/* The following functions load from a tile in shared memory, `stride` elements from row to row.
 * Eight elements of padding put the rows of a matrix into different banks. */

/* Loads fragment a: 16 rows from `row` on, 16 columns from `column` on. */
template <class T>
static __device__ __forceinline__ void
load_a (uint32_t a[4], const T *tile, unsigned stride, unsigned row, unsigned column)
{
  unsigned lane = threadIdx.x % 32;

  load_matrices (a, tile + (row + lane % 16) * stride + column + lane / 16 * 8, false);
}

/* Loads fragments b of two adjacent products, b[0..1] and b[2..3]: 16 terms from `term` on. The
 * tile has one row for each column of b. */
template <class T>
static __device__ __forceinline__ void
load_b (uint32_t b[4], const T *tile, unsigned stride, unsigned column, unsigned term)
{
  unsigned lane = threadIdx.x % 32;

  load_matrices (b, tile + (column + lane / 16 * 8 + lane % 8) * stride + term + lane / 8 % 2 * 8,
                 false);
}

/* Like load_b(), for a tile with one row per term. */
template <class T>
static __device__ __forceinline__ void
load_b_turned (uint32_t b[4], const T *tile, unsigned stride, unsigned column, unsigned term)
{
  unsigned lane = threadIdx.x % 32;

  load_matrices (b, tile + (term + lane % 16) * stride + column + lane / 16 * 8, true);
}

/* Like load_a(), for a tile with one row per term. */
template <class T>
static __device__ __forceinline__ void
load_a_turned (uint32_t a[4], const T *tile, unsigned stride, unsigned row, unsigned term)
{
  unsigned lane = threadIdx.x % 32;

  load_matrices (a, tile + (term + lane / 16 * 8 + lane % 8) * stride + row + lane / 8 % 2 * 8,
                 true);
}
