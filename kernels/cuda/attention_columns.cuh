/* attention_columns.cuh - tiles of scores whose rows are keys and whose columns are queries, in the
 * registers of warpgroups: for gradients of keys and values. */
#pragma once
#include "kernels/cuda/attention_tiles.cuh"

/* Masks a tile of ROWS keys and N queries: causal and sliding window. `ahead`: position of the
 * first query less that of the first key. */
template <int ROWS, int N>
static __device__ __forceinline__ void
hide_queries (float (&s)[N / 8][4], int ahead, uint64_t window)
{
  int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

  if (ahead >= ROWS - 1 && ahead + N <= (int) window)
    return;
  WEFT_UNROLL
  for (int n = 0; n < N / 8; n++)
    WEFT_UNROLL
  for (int e = 0; e < 4; e++) {
    int before = n * 8 + 2 * t + e % 2 + ahead - (warp * WARP_ROWS + g + e / 2 * 8);
    if (before < 0 || before >= (int) window)
      s[n][e] = -INFINITY;
  }
}

/* lse and delta of two neighbouring queries, which are columns. */
struct alignas (16) two_known {
  struct known at[2];
};

/* Turns scores into probabilities; queries are columns. `of`: lse and delta of all queries of the
 * tile, in shared memory. */
template <int N>
static __device__ __forceinline__ void
column_probabilities (float (&s)[N][4], const struct known *of, float scale)
{
  WEFT_UNROLL
  for (int n = 0; n < N; n++) {
    const struct two_known q = ((const struct two_known *) of)[n * 4 + threadIdx.x % 4];
    WEFT_UNROLL
    for (int e = 0; e < 4; e++)
      s[n][e] = power_of_two (s[n][e] * scale - q.at[e % 2].lse);
  }
}

/* Turns products of do and values into gradients of scores, unscaled; queries are columns. Reads
 * the rounded probabilities of the value product: registers do not suffice for a second copy. */
template <class T, int N>
static __device__ __forceinline__ void
column_gradients (const uint32_t (&p)[N / 2][4], float (&dp)[N][4], const struct known *of)
{
  WEFT_UNROLL
  for (int n = 0; n < N; n++) {
    const struct two_known q = ((const struct two_known *) of)[n * 4 + threadIdx.x % 4];
    WEFT_UNROLL
    for (int e = 0; e < 4; e++)
      dp[n][e] = element<T> (p[n / 2][n % 2 * 2 + e / 2], e % 2) * (dp[n][e] - q.at[e % 2].delta);
  }
}
