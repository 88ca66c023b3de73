/* codes_of_warpgroups.cuh - fp8 products of 64 x 32 by 32 x 128 by the tensor cores of compute
 * capability 9.0 (PTX ISA, "Asynchronous warpgroup level matrix instructions": m64n128k32). The
 * protocol is that of warpgroup.cuh.
 *
 * A tile in shared memory has 128 rows of 128 bytes, the terms of a slice, in the swizzled layout
 * of warpgroup.cuh. It begins at a multiple of 1024 bytes. */
#pragma once
#include "kernels/cuda/warpgroup.cuh"
#include "kernels/fp8.h"

enum { SIDE_OF_TILE = 128, THREADS_OF_TILE = 2 * GROUP, TERMS_OF_CODES = 32 /* of a product */ };

#ifdef WEFT_CUDA_EMULATOR
template <bool WIDE>
static inline void
multiply_codes (float (&sum)[SIDE_OF_TILE / 8][4], uint64_t a, uint64_t b, bool adds)
{
  emulated_product p = { sum[0], SIDE_OF_TILE, NULL, a, b, false, false, adds, NULL };

  p.left_code = WIDE ? weft_e5m2_float : weft_e4m3_float;
  p.right_code = weft_e4m3_float;
  emulated_multiply (p);
}
#else
/* sum = a b, or sum += a b. WIDE: a is E5M2; b is always E4M3. */
template <bool WIDE>
static __device__ __forceinline__ void
multiply_codes (float (&sum)[SIDE_OF_TILE / 8][4], uint64_t a, uint64_t b, bool adds)
{
#define CODES(TYPE)                                                                                \
  asm volatile ("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                                       \
                "wgmma.mma_async.sync.aligned.m64n128k32.f32." TYPE ".e4m3 {" REGISTERS_64         \
                "}, %64, %65, p, 1, 1;\n}"                                                         \
                : SUMS_64 (sum, 0)                                                                 \
                : "l"(a), "l"(b), "r"((int) adds))
  if constexpr (WIDE)
    CODES ("e5m2");
  else
    CODES ("e4m3");
#undef CODES
}
#endif

/* Address of the sixteen codes from column 16 c on of a row. */
static __device__ __forceinline__ uint8_t *
code_place (uint8_t *tile, unsigned row, unsigned c)
{
  return tile + row * ROW + (c ^ row % 8) * WORD;
}

/* Transposes 4 x 4 bytes: byte j of word i becomes byte i of word j. */
static __device__ __forceinline__ void
turn_bytes (uint32_t (&out)[4], const uint32_t *in)
{
  uint32_t low[2], high[2];

  WEFT_UNROLL
  for (int i = 0; i < 2; i++) {
    low[i] = __byte_perm (in[2 * i], in[2 * i + 1], 0x5140);
    high[i] = __byte_perm (in[2 * i], in[2 * i + 1], 0x7362);
  }
  out[0] = __byte_perm (low[0], low[1], 0x5410);
  out[1] = __byte_perm (low[0], low[1], 0x7632);
  out[2] = __byte_perm (high[0], high[1], 0x5410);
  out[3] = __byte_perm (high[0], high[1], 0x7632);
}

/* Rotates an array of four elements: afterwards, element i is the old element (i + by) modulo 4. */
static __device__ __forceinline__ void
rotate (uint4 (&x)[4], unsigned by)
{
  for (unsigned step = 1; step <= 2; step *= 2) {
    uint4 from[4] = { x[0], x[1], x[2], x[3] };
    WEFT_UNROLL
    for (unsigned i = 0; i < 4; i++)
      x[i] = by & step ? from[(i + step) % 4] : from[i];
  }
}

/* Stores 16 words of 4 codes, of consecutive terms, transposed into four rows of a tile: warp w
 * holds the terms from 16 w on, lane l the rows from 4 l on. Eight lanes that store together have
 * eight different rows mod 8, so there are no bank conflicts. */
static __device__ __forceinline__ void
store_turned (uint8_t *tile, const uint32_t (&word)[16])
{
  unsigned lane = threadIdx.x % 32, c = threadIdx.x / 32, by = lane / 2 % 4;
  uint32_t turned[4][4];
  uint4 row[4];

  WEFT_UNROLL
  for (int i = 0; i < 4; i++)
    turn_bytes (turned[i], word + 4 * i);
  WEFT_UNROLL
  for (int i = 0; i < 4; i++)
    row[i] = uint4{ turned[0][i], turned[1][i], turned[2][i], turned[3][i] };
  rotate (row, by);
  WEFT_UNROLL
  for (unsigned i = 0; i < 4; i++)
    *(uint4 *) code_place (tile, lane * 4 + (i + by) % 4, c) = row[i];
}
