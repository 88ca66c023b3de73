/* columns.cuh - sums over rows, per column: gradients of norm weights and biases.
 *
 * Rows are cut into chunks. A block sums a chunk for 32 columns, eight rows at a time, into
 * scratch; a second kernel adds the chunks in order to the output. The order of additions depends
 * on the shape only. */
#pragma once
#include "kernels/cuda/device.cuh"

enum { COLUMN_LANES = 32, ROW_LANES = 8, MOST_CHUNKS = 128, LEAST_ROWS = 64 };

static inline unsigned
column_chunks (uint64_t rows)
{
  return blocks_for (rows, LEAST_ROWS, MOST_CHUNKS);
}

/* Scratch bytes for `sums` sums per column. */
static inline uint64_t
column_scratch (uint64_t rows, uint64_t columns, unsigned sums)
{
  return column_chunks (rows) * columns * sums * sizeof (float);
}

/* Sums over the rows of each chunk. terms (row, column, term) writes the N terms of a row and
 * column. */
template <int N, class F>
__global__ void
add_rows_of_chunks (F terms, uint64_t rows, uint64_t columns, float *partial)
{
  __shared__ float room[ROW_LANES][N][COLUMN_LANES];
  uint64_t column = (uint64_t) blockIdx.x * COLUMN_LANES + threadIdx.x;
  uint64_t each = (rows + gridDim.y - 1) / gridDim.y, first = blockIdx.y * each;
  uint64_t last = first + each < rows ? first + each : rows;
  float sum[N] = {}, term[N];

  for (uint64_t row = first + threadIdx.y; row < last && column < columns; row += ROW_LANES) {
    terms (row, column, term);
    for (int i = 0; i < N; i++)
      sum[i] += term[i];
  }
  for (int i = 0; i < N; i++)
    room[threadIdx.y][i][threadIdx.x] = sum[i];
  __syncthreads ();
  if (threadIdx.y != 0 || column >= columns)
    return;
  for (int i = 0; i < N; i++) {
    for (int lane = 1; lane < ROW_LANES; lane++)
      sum[i] += room[lane][i][threadIdx.x];
    partial[(blockIdx.y * N + i) * columns + column] = sum[i];
  }
}

/* Adds the sums of the chunks to `to`, or overwrites it. */
template <int N>
__global__ void
add_chunks (const float *partial, unsigned chunks, uint64_t columns, struct array to, bool adds,
            unsigned which)
{
  for (WEFT_EACH (column, columns)) {
    float sum = 0;
    for (unsigned chunk = 0; chunk < chunks; chunk++)
      sum += partial[(chunk * N + which) * columns + column];
    put (to, column, adds ? get (to, column) + sum : sum);
  }
}

struct column_sums {
  void *stream, *scratch;
  uint64_t columns;
};

/* N sums per column; stores the first in operand `first` and the second in `second`. NULL: not
 * stored. */
template <int N, class F>
static const char *
sum_columns (const struct column_sums *s, const F &terms, uint64_t rows,
             const struct weft_cuda_operand *first, const struct weft_cuda_operand *second)
{
  const struct weft_cuda_operand *const to[2] = { first, second };
  unsigned chunks = column_chunks (rows);
  dim3 grid (blocks_for (s->columns, COLUMN_LANES, ~0u), chunks), block (COLUMN_LANES, ROW_LANES);
  float *partial = (float *) s->scratch;

  WEFT_LAUNCH ((add_rows_of_chunks<N, F>), grid, block, 0, s->stream, terms, rows, s->columns,
               partial);
  for (unsigned i = 0; i < 2; i++)
    if (to[i])
      WEFT_LAUNCH ((add_chunks<N>), blocks_for (s->columns, 256, 4096), 256, 0, s->stream, partial,
                   chunks, s->columns, array_of (to[i]), to[i]->accumulate, i);
  return launched ();
}

/* The columns of a row-major matrix, of which a thread reads sixteen bytes at a time. */
template <class P>
__global__ void
add_matrix_of_chunks (const P *x, uint64_t rows, uint64_t packs, float *partial)
{
  __shared__ float room[ROW_LANES][P::n][COLUMN_LANES];
  uint64_t pack = (uint64_t) blockIdx.x * COLUMN_LANES + threadIdx.x;
  uint64_t each = (rows + gridDim.y - 1) / gridDim.y, first = blockIdx.y * each;
  uint64_t last = first + each < rows ? first + each : rows;
  float sum[P::n] = {};

  for (uint64_t row = first + threadIdx.y; row < last && pack < packs; row += ROW_LANES) {
    P term = x[row * packs + pack];
    for (int i = 0; i < P::n; i++)
      sum[i] += to_float (term.at[i]);
  }
  for (int i = 0; i < P::n; i++)
    room[threadIdx.y][i][threadIdx.x] = sum[i];
  __syncthreads ();
  if (threadIdx.y != 0 || pack >= packs)
    return;
  for (int i = 0; i < P::n; i++) {
    for (int lane = 1; lane < ROW_LANES; lane++)
      sum[i] += room[lane][i][threadIdx.x];
    partial[(blockIdx.y * packs + pack) * P::n + i] = sum[i];
  }
}

template <class P>
static const char *
sum_matrix_by (const struct column_sums *s, const struct weft_cuda_operand *x, uint64_t rows,
               const struct weft_cuda_operand *to)
{
  unsigned chunks = column_chunks (rows);
  uint64_t packs = s->columns / P::n;
  dim3 grid (blocks_for (packs, COLUMN_LANES, ~0u), chunks), block (COLUMN_LANES, ROW_LANES);
  float *partial = (float *) s->scratch;

  WEFT_LAUNCH ((add_matrix_of_chunks<P>), grid, block, 0, s->stream, (const P *) x->data, rows,
               packs, partial);
  WEFT_LAUNCH ((add_chunks<1>), blocks_for (s->columns, 256, 4096), 256, 0, s->stream, partial,
               chunks, s->columns, array_of (to), to->accumulate, 0);
  return launched ();
}

/* Writes (or adds) the column sums of x (rows, columns) to `to` (columns). */
template <class T>
static const char *
sum_matrix (const struct column_sums *s, const struct weft_cuda_operand *x, uint64_t rows,
            const struct weft_cuda_operand *to)
{
  bool packed = s->columns % pack<T>::n == 0 && begins_at_pack (x->data);

  return packed ? sum_matrix_by<pack<T>> (s, x, rows, to)
                : sum_matrix_by<single<T>> (s, x, rows, to);
}
