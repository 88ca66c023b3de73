/* moe.cuh - row counts of experts, known only on the device (kernels/moe.h): prefix sums, and the
 * first row of each block. */
#pragma once
#include "kernels/cuda/device.cuh"

static __device__ __forceinline__ uint64_t
count_of (const int64_t *counts, uint64_t n)
{
  uint64_t sum = 0;

  for (uint64_t i = 0; i < n; i++)
    sum += (uint64_t) counts[i];
  return sum;
}

/* Prefix sums by one warp: begin[i] = size (0) + ... + size (i - 1), for i up to n. */
template <class F>
static __device__ void
scan_by_warp (const F &size, uint64_t n, uint64_t *begin)
{
  unsigned lane = threadIdx.x % 32;
  uint64_t before = 0;

  for (uint64_t first = 0; first < n; first += 32) {
    uint64_t mine = first + lane < n ? size (first + lane) : 0, sum = mine;
    for (unsigned step = 1; step < 32; step *= 2) {
      uint64_t other = __shfl_sync (~0u, sum, (lane - step) % 32);
      sum += lane >= step ? other : 0;
    }
    if (first + lane < n)
      begin[first + lane] = before + sum - mine;
    before += __shfl_sync (~0u, sum, 31);
  }
  if (lane == 0)
    begin[n] = before;
}

/* The block that contains item x, which is below begin[n]: the last of n blocks that begins at or
 * before x. */
static __device__ __forceinline__ uint64_t
block_of (const uint64_t *begin, uint64_t n, uint64_t x)
{
  uint64_t low = 0, high = n;

  while (high - low > 1) {
    uint64_t middle = (low + high) / 2;
    if (begin[middle] <= x)
      low = middle;
    else
      high = middle;
  }
  return low;
}
