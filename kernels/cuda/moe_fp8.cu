/* fp8 rows of experts: every group of rows is quantised as a tensor of its own. Row counts are
 * known only on the device: a first kernel finds where groups begin (moe_gemm.cu). Each block of
 * the next kernel has a fixed group or searches for its group. */
#include "kernels/cuda/fp8.cuh"
#include "kernels/cuda/moe_gemm.cuh"
#include "kernels/moe_scales.h"

enum { ROWS, COLUMNS, GROUPS, STRIDE, BLOCK, SQUARE };
enum { X, COUNTS, AMAX, Y, SEEN };
enum { B_Y = 2, B_YT = 4 };
enum { MOST_PARTS = 128 };

/* Number of thread blocks that share the rows of a group. */
static unsigned
parts_of (const uint64_t *dim)
{
  return blocks_for (dim[ROWS] * dim[COLUMNS] / dim[GROUPS], THREADS * 16, MOST_PARTS);
}

/* Bytes of scratch: for the first row of each group, and the largest magnitude of each thread
 * block. */
static uint64_t
amax_bytes (const uint64_t *dim)
{
  return weft_cuda_experts_bytes (dim[GROUPS]) + dim[GROUPS] * parts_of (dim) * sizeof (float);
}

WEFT_CUDA_SCRATCH (moe_amax, amax_bytes (s->dim))
WEFT_CUDA_SCRATCH (moe_quantise, amax_bytes (s->dim))
WEFT_CUDA_SCRATCH (moe_quantise_blocks, weft_cuda_experts_bytes (s->dim[GROUPS]))

static struct grouped
find_groups (const struct weft_cuda_launch *l, uint64_t tile)
{
  uint64_t room = l->operand[X].n / l->dim[COLUMNS];
  const struct weft_cuda_rows all = { l->dim[ROWS], room, l->dim[STRIDE], tile };
  struct grouped g = {};

  g.experts = l->dim[GROUPS];
  weft_cuda_find_experts (l, &l->operand[COUNTS], &g, &all);
  return g;
}

/* ----------------------------------------------------------------- one scale per group */

/* Quantises group blockIdx.y unless y is NULL, and stores the largest magnitude that each block has
 * read unless `part` is NULL. */
__global__ void
round_groups (struct array x, const uint64_t *begin, uint64_t columns, const float *amax,
              struct array y, float *part)
{
  __shared__ float room[32];
  unsigned g = blockIdx.y;
  uint64_t first = begin[g] * columns, n = begin[g + 1] * columns - first;
  float largest = y.data ? amax[g] : 0, most = 0;
  float scale = weft_fp8_scale_to (largest, weft_fp8_most (y.dtype == WEFT_E5M2));

  for (WEFT_EACH (i, n)) {
    float value = get (x, first + i);
    most = fmaxf (most, fabsf (value));
    if (y.data)
      ((uint8_t *) y.data)[first + i] =
          code_of (weft_fp8_scaled (value, scale, largest), y.dtype);
  }
  if (!part)
    return;
  most = block_most (most, room);
  if (threadIdx.x == 0)
    part[(uint64_t) g * gridDim.x + blockIdx.x] = most;
}

__global__ void
largest_of_groups (const float *part, unsigned parts, float *amax, bool keeps)
{
  __shared__ float room[32];
  unsigned g = blockIdx.x;
  float most = keeps ? amax[g] : 0;

  for (unsigned i = threadIdx.x; i < parts; i += THREADS)
    most = fmaxf (most, part[(uint64_t) g * parts + i]);
  most = block_most (most, room);
  if (threadIdx.x == 0)
    amax[g] = most;
}

static const char *
round_and_look (const struct weft_cuda_launch *l, struct array y,
                const struct weft_cuda_operand *largest)
{
  const struct weft_cuda_operand *o = l->operand;
  unsigned parts = parts_of (l->dim), groups = (unsigned) l->dim[GROUPS];
  struct grouped g = find_groups (l, 1);
  float *part = (float *) ((uint8_t *) l->scratch + weft_cuda_experts_bytes (groups));
  dim3 grid (parts, groups);

  WEFT_LAUNCH (round_groups, grid, THREADS, 0, l->stream, array_of (&o[X]), g.begin,
               l->dim[COLUMNS], (const float *) o[AMAX].data, y, largest->data ? part : NULL);
  if (largest->data)
    WEFT_LAUNCH (largest_of_groups, groups, THREADS, 0, l->stream, part, parts,
                 (float *) largest->data, (bool) largest->accumulate);
  return launched ();
}

const char *
weft_cuda_moe_amax (const struct weft_cuda_launch *l)
{
  struct array nowhere = {};

  return round_and_look (l, nowhere, &l->operand[AMAX]);
}

const char *
weft_cuda_moe_quantise (const struct weft_cuda_launch *l)
{
  return round_and_look (l, array_of (&l->operand[Y]), &l->operand[SEEN]);
}

/* --------------------------------------------------------------------- block scales */

/* Lines of blocks of all groups, one group after the other (kernels/moe_scales.h). */
struct lines {
  const uint64_t *begin;
  uint64_t groups, columns;
};

/* Finds the rows of a line: from `row` on, up to `end`, the end of the group. FALSE: the line has
 * no rows, because it lies in the gap after a group. */
template <int SIZE>
static __device__ __forceinline__ bool
rows_of_line (const struct lines &l, uint64_t line, uint64_t *row, uint64_t *end)
{
  uint64_t low = 0, high = l.groups;

  while (high - low > 1) {
    uint64_t middle = (low + high) / 2;
    if (weft_moe_line (l.begin[middle], middle, SIZE) <= line)
      low = middle;
    else
      high = middle;
  }
  *row = l.begin[low] + (line - weft_moe_line (l.begin[low], low, SIZE)) * SIZE;
  *end = l.begin[low + 1];
  return *row < *end;
}

/* Largest magnitude of each column of a tile, one of SIDE columns per lane. */
template <int SIZE>
static __device__ __forceinline__ float
largest_of_columns (const float (*tile)[SIDE + 1], float (*room)[SIDE])
{
  unsigned lane = threadIdx.x % SIDE, first = threadIdx.x / SIDE;
  float most = 0;

  for (unsigned line = first; line < SIZE; line += LINES)
    most = fmaxf (most, fabsf (tile[line][lane]));
  room[first][lane] = most;
  __syncthreads ();
  for (unsigned i = 0; i < LINES; i++)
    most = fmaxf (most, room[i][lane]);
  return most;
}

/* Quantises SIZE rows and columns: each row as a block, or all as one square; then each column as a
 * block, in strips of SIDE columns. Codes have the layout of the elements. The grid has lines in x,
 * because there may be more of them than the 65535 blocks that a grid can have in y. */
template <int SIZE>
__global__ void
round_lines (struct array x, struct lines of, struct rounded y, struct rounded down, bool square)
{
  __shared__ float tile[SIZE][SIDE + 1], room[LINES][SIDE], squares[32];
  unsigned lane = threadIdx.x % SIDE, first = threadIdx.x / SIDE;
  uint64_t row, end, column = (uint64_t) blockIdx.y * SIZE;
  float all = -1;

  if (!rows_of_line<SIZE> (of, blockIdx.x, &row, &end))
    return;
  struct matrix m = { end, of.columns };
  const struct corner at = { row, column, blockIdx.x };
  if (square)
    all = largest_of_square<SIZE> (x, m, at, squares);
  round_rows<SIZE> (x, m, at, y, all);
  for (unsigned strip = 0; down.code && strip < SIZE; strip += SIDE) {
    uint64_t c = column + strip + lane;
    for (unsigned line = first; line < SIZE; line += LINES)
      tile[line][lane] = element (x, m, row + line, c);
    __syncthreads ();
    uint8_t scale = weft_e8m0_scale_to (largest_of_columns<SIZE> (tile, room),
                                        weft_fp8_most (down.dtype == WEFT_E5M2));
    float up = weft_e8m0_float ((uint8_t) (254 - scale));
    for (unsigned line = first; c < m.columns && line < SIZE && row + line < end; line += LINES)
      down.code[(row + line) * m.columns + c] = code_of (tile[line][lane] * up, down.dtype);
    if (first == 0 && c < m.columns)
      put_scale (down, blockIdx.x * m.columns + c, scale);
    __syncthreads ();
  }
}

template <int SIZE>
static const char *
run_lines (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  struct lines of = { find_groups (l, SIZE).begin, l->dim[GROUPS], l->dim[COLUMNS] };
  uint64_t room = o[X].n / of.columns;
  dim3 grid ((unsigned) weft_moe_lines (room, of.groups, SIZE),
             blocks_for (of.columns, SIZE, ~0u));

  WEFT_LAUNCH (round_lines<SIZE>, grid, THREADS, 0, l->stream, array_of (&o[X]), of,
               rounded_of (&o[B_Y]), rounded_of (&o[B_YT]), l->dim[SQUARE] != 0);
  return launched ();
}

const char *
weft_cuda_moe_quantise_blocks (const struct weft_cuda_launch *l)
{
  if (l->dim[BLOCK] == WEFT_MX_BLOCK)
    return run_lines<WEFT_MX_BLOCK> (l);
  return l->dim[BLOCK] == 128 ? run_lines<128> (l) : "blocks of other than 32 or 128 elements";
}
