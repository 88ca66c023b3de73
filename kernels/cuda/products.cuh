/* products.cuh - tiles of matrix products by a thread block: for grouped GEMM and for unfused
 * attention.
 *
 * 16-bit types: tiles of 128 x 128 on tensor cores; 8 warps share a tile, terms come in slices of
 * 32, prefetched two ahead. Other types, and lines that are not at multiples of 16 bytes: tiles of
 * 64 x 64 in plain fp32. */
#pragma once
#include "kernels/cuda/fragments.cuh"

enum { TILE_THREADS = 256, TILE = 128, SLICE = 32, STAGES = 3, TILE_PAD = 8 };
enum { WARP_ROWS = 64, WARP_COLUMNS = 32, STAGE = TILE * (SLICE + TILE_PAD) /* elements */ };

/* Bytes of shared memory that tile_product() uses. */
template <class T>
static size_t
tile_bytes (void)
{
  return (size_t) STAGES * 2 * STAGE * sizeof (T);
}

/* A matrix in memory: lines of `width` contiguous elements, which begin `step` elements apart. */
template <class T> struct sheet {
  const T *at;
  uint64_t lines, width, step;
};

/* Copies LINES lines of WIDTH elements to shared memory. Elements outside the matrix become 0. */
template <int LINES, int WIDTH, class T>
static __device__ __forceinline__ void
fetch_lines (T *tile, const sheet<T> &from, uint64_t line, uint64_t column)
{
  const int each = WIDTH / 8;

  for (int i = threadIdx.x; i < LINES * each; i += TILE_THREADS) {
    int l = i / each, c = i % each * 8;
    T *to = tile + l * (WIDTH + TILE_PAD) + c;
    if (line + l < from.lines && column + c < from.width)
      WEFT_COPY (to, from.at + (line + l) * from.step + column + c);
    else
      *(uint4 *) to = uint4{ 0, 0, 0, 0 };
  }
}

/* Copies a slice of a factor. Lines are rows of a (columns of b) or, if TURNED, terms. */
template <bool TURNED, class T>
static __device__ __forceinline__ void
fetch_factor (T *tile, const sheet<T> &from, uint64_t row, uint64_t term)
{
  if (TURNED)
    fetch_lines<SLICE, TILE> (tile, from, term, row);
  else
    fetch_lines<TILE, SLICE> (tile, from, row, term);
}

/* The 64 x 32 products of one warp for one slice. */
template <bool A_TURNED, bool B_TURNED, class T>
static __device__ __forceinline__ void
multiply_slice (float (*sum)[4][4], const T *a_tile, const T *b_tile)
{
  unsigned warp = threadIdx.x / 32, row = warp % 2 * WARP_ROWS, column = warp / 2 * WARP_COLUMNS;

  WEFT_UNROLL
  for (int term = 0; term < SLICE; term += 16) {
    uint32_t a[4], b[WARP_COLUMNS / 16][4];
    WEFT_UNROLL
    for (int j = 0; j < WARP_COLUMNS / 16; j++)
      if (B_TURNED)
        load_b_turned (b[j], b_tile, TILE + TILE_PAD, column + j * 16, term);
      else
        load_b (b[j], b_tile, SLICE + TILE_PAD, column + j * 16, term);
    WEFT_UNROLL
    for (int i = 0; i < WARP_ROWS / 16; i++) {
      if (A_TURNED)
        load_a_turned (a, a_tile, TILE + TILE_PAD, row + i * 16, term);
      else
        load_a (a, a_tile, SLICE + TILE_PAD, row + i * 16, term);
      WEFT_UNROLL
      for (int j = 0; j < WARP_COLUMNS / 8; j++)
        multiply<T> (sum[i][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }
}

/* Inputs of a tile: rows from `row`, columns from `column`, terms [first, end). */
struct tile_of_product {
  uint64_t row, column, first, end;
};

/* sum += the products of a tile. All threads of a block call this function. */
template <bool A_TURNED, bool B_TURNED, class T>
static __device__ __forceinline__ void
tile_product (T *shared, const sheet<T> &a, const sheet<T> &b, const struct tile_of_product &t,
              float (*sum)[4][4])
{
  uint64_t n = t.first < t.end ? (t.end - t.first + SLICE - 1) / SLICE : 0;

  for (uint64_t i = 0; i < n + STAGES - 1; i++) { /* fetches slice i and multiplies slice i - 2 */
    if (i + 1 >= STAGES) {
      WEFT_COPY_WAIT (STAGES - 2);
      __syncthreads ();
    }
    if (i < n) {
      T *stage = shared + i % STAGES * 2 * STAGE;
      fetch_factor<A_TURNED> (stage, a, t.row, t.first + i * SLICE);
      fetch_factor<B_TURNED> (stage + STAGE, b, t.column, t.first + i * SLICE);
    }
    WEFT_COPY_COMMIT ();
    if (i + 1 >= STAGES) {
      const T *stage = shared + (i + 1 - STAGES) % STAGES * 2 * STAGE;
      multiply_slice<A_TURNED, B_TURNED> (sum, stage, stage + STAGE);
    }
  }
  __syncthreads (); /* barrier, because the caller may overwrite the shared memory */
}

/* Calls leave (row, column, low, high) for each pair of neighbouring results that a thread holds.
 * low and high are the results; row and column count inside the tile. */
template <class F>
static __device__ __forceinline__ void
each_two (const float (*sum)[4][4], const F &leave)
{
  unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  unsigned row = warp % 2 * WARP_ROWS + lane / 4, column = warp / 2 * WARP_COLUMNS + lane % 4 * 2;

  WEFT_UNROLL
  for (int i = 0; i < WARP_ROWS / 16; i++)
    WEFT_UNROLL
    for (int j = 0; j < WARP_COLUMNS / 8; j++)
      WEFT_UNROLL
      for (int half = 0; half < 2; half++)
        leave (row + i * 16 + half * 8, column + j * 8, sum[i][j][half * 2],
               sum[i][j][half * 2 + 1]);
}

/* SUMS_ROW: floats per row, more than the tile has columns, so that the rows of a fragment lie in
 * different memory banks. */
enum { SUMS_ROW = TILE + 8 };
const size_t SUMS_BYTES = WARP_ROWS * SUMS_ROW * sizeof (float);
static_assert (TILE == 2 * WARP_ROWS, "every other warp has the same rows");

/* each_two() through SUMS_BYTES of shared memory, for a `leave` with much code: one loop handles
 * all pairs, and neighbouring threads store neighbouring elements. Processes half of the rows at a
 * time. */
template <class F>
static __device__ __forceinline__ void
leave_tile (const float (*sum)[4][4], float *room, const F &leave)
{
  unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float *mine = room + lane / 4 * SUMS_ROW + warp / 2 * WARP_COLUMNS + lane % 4 * 2;

  for (unsigned half = 0; half < 2; half++) {
    __syncthreads ();
    if (warp % 2 == half)
      WEFT_UNROLL
    for (int i = 0; i < WARP_ROWS / 16; i++)
      WEFT_UNROLL
    for (int j = 0; j < WARP_COLUMNS / 8; j++)
      WEFT_UNROLL
    for (int e = 0; e < 4; e++)
      mine[(i * 16 + e / 2 * 8) * SUMS_ROW + j * 8 + e % 2] = sum[i][j][e];
    __syncthreads ();
    for (unsigned i = threadIdx.x; i < WARP_ROWS * TILE / 2; i += TILE_THREADS) {
      unsigned row = i / (TILE / 2), column = i % (TILE / 2) * 2;
      const float *two = room + row * SUMS_ROW + column;
      leave (half * WARP_ROWS + row, column, two[0], two[1]);
    }
  }
}

/* ---------------------------------------------------------------------------- plain fp32 */

/* EACH: number of rows and of columns that a thread computes. */
enum { PLAIN_TILE = 64, PLAIN_SLICE = 16, EACH = 4 };

/* Element (row, term) lies at `at` + row * along + term * sum. */
struct plain_factor {
  struct array x;
  uint64_t at, rows, along, sum;
};

static __device__ __forceinline__ float
factor_at (const struct plain_factor &f, uint64_t row, uint64_t term, uint64_t end)
{
  return row < f.rows && term < end ? get (f.x, f.at + row * f.along + term * f.sum) : 0;
}

/* Neighbouring threads read neighbouring elements: along terms or along rows. */
static __device__ __forceinline__ void
fetch_plain (float (*tile)[PLAIN_TILE + 1], const struct plain_factor &f, uint64_t row,
             uint64_t term, uint64_t end)
{
  bool by_term = f.sum == 1;

  for (unsigned i = threadIdx.x; i < PLAIN_TILE * PLAIN_SLICE; i += TILE_THREADS) {
    unsigned t = by_term ? i % PLAIN_SLICE : i / PLAIN_TILE;
    unsigned r = by_term ? i / PLAIN_SLICE : i % PLAIN_TILE;
    tile[t][r] = factor_at (f, row + r, term + t, end);
  }
}

/* sum += the products of a tile. */
static __device__ __forceinline__ void
plain_product (const struct plain_factor &a, const struct plain_factor &b,
               const struct tile_of_product &p, float (*sum)[EACH])
{
  __shared__ float a_tile[PLAIN_SLICE][PLAIN_TILE + 1], b_tile[PLAIN_SLICE][PLAIN_TILE + 1];
  unsigned row = threadIdx.x / 16 * EACH, column = threadIdx.x % 16 * EACH;

  for (uint64_t term = p.first; term < p.end; term += PLAIN_SLICE) {
    fetch_plain (a_tile, a, p.row, term, p.end);
    fetch_plain (b_tile, b, p.column, term, p.end);
    __syncthreads ();
    for (unsigned t = 0; t < PLAIN_SLICE; t++)
      WEFT_UNROLL
      for (unsigned i = 0; i < EACH; i++)
        WEFT_UNROLL
        for (unsigned j = 0; j < EACH; j++)
          sum[i][j] += a_tile[t][row + i] * b_tile[t][column + j];
    __syncthreads ();
  }
}

/* Calls leave (row, column, value) for each result that a thread holds. row and column count inside
 * the tile. */
template <class F>
static __device__ __forceinline__ void
each_one (const float (*sum)[EACH], const F &leave)
{
  unsigned row = threadIdx.x / 16 * EACH, column = threadIdx.x % 16 * EACH;

  WEFT_UNROLL
  for (unsigned i = 0; i < EACH; i++)
    WEFT_UNROLL
    for (unsigned j = 0; j < EACH; j++)
      leave (row + i, column + j, sum[i][j]);
}
