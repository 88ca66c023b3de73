/* fp8.cuh - fp8 quantisation on the device (kernels/fp8.h), with one scale or block scales. */
#pragma once
#include "kernels/cuda/device.cuh"
#include "kernels/fp8.h"

static __device__ __forceinline__ uint8_t
code_of (float value, uint32_t dtype)
{
  return dtype == WEFT_E5M2 ? weft_e5m2_round (value) : weft_e4m3_round (value);
}

/* SIDE: number of threads that share a row or a column. */
enum { THREADS = 256, SIDE = 32, LINES = THREADS / SIDE };

struct matrix {
  uint64_t rows, columns;
};

/* Where codes and scales (bytes or floats) are stored; code NULL: not stored. */
struct rounded {
  uint8_t *code;
  void *scale;
  uint32_t dtype, scale_dtype;
};

static __device__ __forceinline__ void
put_scale (struct rounded to, uint64_t at, uint8_t code)
{
  if (to.scale_dtype == WEFT_E8M0)
    ((uint8_t *) to.scale)[at] = code;
  else
    ((float *) to.scale)[at] = weft_e8m0_float (code);
}

/* Quantises a block of which each lane of a warp has N elements, SIDE apart, and returns its scale.
 * Codes are stored from `at` on; `left`: number of elements up to the end of the line. `all` >= 0:
 * the largest magnitude of the square that contains the block. */
template <int N>
static __device__ __forceinline__ uint8_t
round_line (const float value[N], struct rounded to, uint64_t at, uint64_t left, float all)
{
  unsigned lane = threadIdx.x % SIDE;
  float most = 0;

  WEFT_UNROLL
  for (int i = 0; i < N; i++)
    most = fmaxf (most, fabsf (value[i]));
  most = all < 0 ? warp_most (most) : all;
  uint8_t scale = weft_e8m0_scale_to (most, weft_fp8_most (to.dtype == WEFT_E5M2));
  float up = weft_e8m0_float ((uint8_t) (254 - scale));
  WEFT_UNROLL
  for (int i = 0; i < N; i++)
    if (lane + i * SIDE < left)
      to.code[at + lane + i * SIDE] = code_of (value[i] * up, to.dtype);
  return scale;
}

static __device__ __forceinline__ float
element (struct array x, struct matrix m, uint64_t row, uint64_t column)
{
  return row < m.rows && column < m.columns ? get (x, row * m.columns + column) : 0;
}

/* First row and column of a square, and its line of squares. */
struct corner {
  uint64_t row, column, line;
};

/* Largest magnitude of the SIZE x SIZE square that begins at `at`. */
template <int SIZE>
static __device__ __forceinline__ float
largest_of_square (struct array x, struct matrix m, struct corner at, float *room)
{
  unsigned lane = threadIdx.x % SIDE, first = threadIdx.x / SIDE;
  float most = 0;

  for (unsigned line = first; line < SIZE; line += LINES)
    for (unsigned c = lane; c < SIZE; c += SIDE)
      most = fmaxf (most, fabsf (element (x, m, at.row + line, at.column + c)));
  return block_most (most, room);
}

/* Quantises each row of the square that begins at `at`, with one scale per row or, if `all` >= 0,
 * one scale for the square. */
template <int SIZE>
static __device__ __forceinline__ void
round_rows (struct array x, struct matrix m, struct corner at, struct rounded y, float all)
{
  enum { N = SIZE / SIDE };
  uint64_t row = at.row, column = at.column, blocks = weft_fp8_blocks (m.columns, SIZE);
  unsigned lane = threadIdx.x % SIDE, first = threadIdx.x / SIDE;
  float value[N];

  for (unsigned line = first; y.code && line < SIZE; line += LINES) {
    WEFT_UNROLL
    for (int i = 0; i < N; i++)
      value[i] = element (x, m, row + line, column + lane + i * SIDE);
    if (row + line >= m.rows)
      continue;
    uint8_t scale =
        round_line<N> (value, y, (row + line) * m.columns + column, m.columns - column, all);
    if (lane == 0 && (all < 0 || line == 0))
      put_scale (y, (all < 0 ? row + line : at.line) * blocks + column / SIZE, scale);
  }
}

static inline struct rounded
rounded_of (const struct weft_cuda_operand *o)
{
  struct rounded r = { (uint8_t *) o[0].data, o[1].data, o[0].dtype, o[1].dtype };

  return r;
}
