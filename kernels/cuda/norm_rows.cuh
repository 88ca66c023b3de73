/* norm_rows.cuh - norms of rows held in registers as packs of 16 bytes: each element is read once
 * and written once.
 *
 * A team computes a row: a warp, which needs no barrier, or, for rows too wide for a warp, a block.
 * For weight gradients each team adds its rows one after the other. The sums of the teams of a
 * block are added in order; a second kernel adds the sums of the blocks in order. The number of
 * blocks depends on the shape only.
 *
 * Where a block computes a row, backward copies its next row to shared memory meanwhile: between
 * two barriers the block has no other loads in flight. */
#pragma once
#include "kernels/cuda/device.cuh"
#include <type_traits>

enum { TEAM_WARPS = 8, TEAM_BLOCK = 512, WARP_PACKS = 4, BLOCK_PACKS = 2, JOIN_LANES = 32 };
/* Blocks of backward: those that run at once on the 132 multiprocessors of an H100, with at most
 * RESIDENT threads each, or WIDE_RESIDENT with several packs per thread. Other GPUs get the same
 * number, so that they compute the same bits. */
enum { MULTIPROCESSORS = 132, RESIDENT = 1024, WIDE_RESIDENT = 512 };
/* Maximum number of thread blocks in forward: as many as run at once on large GPUs. */
enum { ROW_BLOCKS = 4096 };

struct moments {
  float mean, scale;
};

/* Shape and settings of a norm; rows are contiguous. */
struct row_norm {
  uint64_t rows, columns;
  float epsilon;
  bool centred;
};

/* Operands of a forward norm. The input is x, or the sum of x and a second addend; the sum is
 * stored, too. */
template <class T> struct row_forward {
  const T *x, *addend;
  T *sum, *y;
  struct array weight, bias;
  bool packed; /* TRUE: weights are packs of type T; FALSE: weights are fp32 */
};

/* Backward; NULL outputs are not computed. partial: per block the sums of dweight, then of
 * dbias. */
template <class T> struct row_backward {
  const T *dy, *x, *dresidual;
  T *dx;
  struct array weight;
  float *partial;
  bool packed;
};

/* --------------------------------------------------------------------------------- teams */

template <bool WARP>
static __device__ __forceinline__ unsigned
team_size (void)
{
  return WARP ? 32 : blockDim.x;
}

template <bool WARP>
static __device__ __forceinline__ float
team_sum (float x, float *room)
{
  return WARP ? warp_sum (x) : block_sum (x, room);
}

/* Loads this thread's packs of a row: every team_size-th pack, from the thread's own number on; 0
 * past the end. */
template <class T, int PER, bool WARP>
static __device__ __forceinline__ void
load_row (pack<T> (&to)[PER], const T *row, uint64_t packs)
{
  WEFT_UNROLL
  for (int j = 0; j < PER; j++) {
    uint64_t p = threadIdx.x % team_size<WARP> () + j * team_size<WARP> ();
    to[j] = p < packs ? ((const pack<T> *) row)[p] : pack<T> ();
  }
}

template <class T>
static __device__ __forceinline__ void
load_weights (float (&to)[pack<T>::n], struct array weights, bool packed, uint64_t p)
{
  if (packed) {
    pack<T> some = ((const pack<T> *) weights.data)[p];
    WEFT_UNROLL
    for (int i = 0; i < pack<T>::n; i++)
      to[i] = to_float (some.at[i]);
  } else {
    const float *plain = (const float *) weights.data + p * pack<T>::n;
    WEFT_UNROLL
    for (int i = 0; i < pack<T>::n; i++)
      to[i] = plain[i];
  }
}

template <class T, int PER, bool WARP>
static __device__ __forceinline__ struct moments
row_moments (const struct row_norm &c, const pack<T> (&x)[PER], float *room)
{
  const uint64_t packs = c.columns / pack<T>::n;
  struct moments m = {};
  float sum = 0;

  WEFT_UNROLL
  for (int j = 0; j < PER && c.centred; j++)
    WEFT_UNROLL
    for (int i = 0; i < pack<T>::n; i++)
      sum += to_float (x[j].at[i]);
  m.mean = c.centred ? team_sum<WARP> (sum, room) / (float) c.columns : 0;
  sum = 0;
  WEFT_UNROLL
  for (int j = 0; j < PER; j++)
    WEFT_UNROLL
    for (int i = 0; i < pack<T>::n; i++) {
      float off = to_float (x[j].at[i]) - m.mean;
      sum += threadIdx.x % team_size<WARP> () + j * team_size<WARP> () < packs ? off * off : 0;
    }
  m.scale = 1 / sqrtf (team_sum<WARP> (sum, room) / (float) c.columns + c.epsilon);
  return m;
}

/* ------------------------------------------------------------------------------- forward */

/* x += addend, rounded and stored: the norm is computed from the stored sum. */
template <class T, int PER, bool WARP>
static __device__ __forceinline__ void
add_row (pack<T> (&x)[PER], const struct row_forward<T> &o, uint64_t at, uint64_t packs)
{
  pack<T> addend[PER];

  load_row<T, PER, WARP> (addend, o.addend + at, packs);
  WEFT_UNROLL
  for (int j = 0; j < PER; j++) {
    uint64_t p = threadIdx.x % team_size<WARP> () + j * team_size<WARP> ();
    WEFT_UNROLL
    for (int i = 0; i < pack<T>::n; i++)
      set (&x[j].at[i], to_float (x[j].at[i]) + to_float (addend[j].at[i]));
    if (p < packs)
      ((pack<T> *) (o.sum + at))[p] = x[j];
  }
}

template <class T, int PER, bool WARP>
__global__ void
__launch_bounds__ (WARP ? 32 * TEAM_WARPS : TEAM_BLOCK)
forward_rows (const struct row_norm c, const struct row_forward<T> o)
{
  __shared__ float room[32];
  const uint64_t packs = c.columns / pack<T>::n, teams = blockDim.x / team_size<WARP> ();
  pack<T> x[PER];

  for (uint64_t row = blockIdx.x * teams + threadIdx.x / team_size<WARP> (); row < c.rows;
       row += gridDim.x * teams) {
    uint64_t at = row * c.columns;
    load_row<T, PER, WARP> (x, o.x + at, packs);
    if (o.addend)
      add_row<T, PER, WARP> (x, o, at, packs);
    struct moments m = row_moments<T, PER, WARP> (c, x, room);
    WEFT_UNROLL
    for (int j = 0; j < PER; j++) {
      uint64_t p = threadIdx.x % team_size<WARP> () + j * team_size<WARP> ();
      float weight[pack<T>::n], bias[pack<T>::n] = {};
      if (p >= packs)
        continue;
      load_weights<T> (weight, o.weight, o.packed, p);
      if (o.bias.data)
        load_weights<T> (bias, o.bias, o.packed, p);
      WEFT_UNROLL
      for (int i = 0; i < pack<T>::n; i++)
        set (&x[j].at[i], (to_float (x[j].at[i]) - m.mean) * m.scale * weight[i] + bias[i]);
      ((pack<T> *) (o.y + at))[p] = x[j];
    }
  }
}

/* ------------------------------------------------------------------------------ backward */

/* Where the operands of a row are: in global or in shared memory. */
template <class T> struct row_at {
  const T *x, *dy, *dresidual;
  T *dx;
};

/* Gradient of a row whose dy and x are in registers. */
template <class T, int PER, bool WARP>
static __device__ __forceinline__ void
row_gradient (const struct row_norm &c, const struct row_backward<T> &o,
              const struct row_at<T> &row,
              const pack<T> (&x)[PER], const pack<T> (&dy)[PER], const struct moments &m,
              float *room)
{
  const uint64_t packs = c.columns / pack<T>::n;
  float of_g = 0, of_gx = 0, weight[pack<T>::n];

  WEFT_UNROLL
  for (int j = 0; j < PER; j++) {
    uint64_t p = threadIdx.x % team_size<WARP> () + j * team_size<WARP> ();
    if (p >= packs)
      continue;
    load_weights<T> (weight, o.weight, o.packed, p);
    WEFT_UNROLL
    for (int i = 0; i < pack<T>::n; i++) {
      float one = to_float (dy[j].at[i]) * weight[i];
      of_g += one;
      of_gx += one * ((to_float (x[j].at[i]) - m.mean) * m.scale);
    }
  }
  of_g = c.centred ? team_sum<WARP> (of_g, room) / (float) c.columns : 0;
  of_gx = team_sum<WARP> (of_gx, room) / (float) c.columns;
  WEFT_UNROLL
  for (int j = 0; j < PER; j++) {
    uint64_t p = threadIdx.x % team_size<WARP> () + j * team_size<WARP> ();
    pack<T> to = {};
    if (p >= packs)
      continue;
    if (o.dresidual)
      to = ((const pack<T> *) row.dresidual)[p];
    load_weights<T> (weight, o.weight, o.packed, p);
    WEFT_UNROLL
    for (int i = 0; i < pack<T>::n; i++) {
      float xhat = (to_float (x[j].at[i]) - m.mean) * m.scale;
      float dx = (to_float (dy[j].at[i]) * weight[i] - of_g - xhat * of_gx) * m.scale;
      set (&to.at[i], o.dresidual ? dx + to_float (to.at[i]) : dx);
    }
    ((pack<T> *) row.dx)[p] = to;
  }
}

template <class T>
static __device__ __forceinline__ struct row_at<T>
global_row (const struct row_backward<T> &o, uint64_t at)
{
  struct row_at<T> row = { o.x + at, o.dy + at, o.dresidual + at, o.dx + at };
  return row;
}

/* Rows that a block has copied, and copies now, to shared memory: two of each operand. Each thread
 * copies and reads its own packs only, so no barrier is needed. */
template <class T, int PER> struct copied_rows {
  pack<T> *at;

  __device__ __forceinline__ pack<T> *
  slot (unsigned which, unsigned operand) const
  {
    return at + (which * 3 + operand) * PER * blockDim.x;
  }
};

template <class T, int PER>
static __device__ __forceinline__ void
copy_packs (pack<T> *to, const T *row, uint64_t packs)
{
  WEFT_UNROLL
  for (int j = 0; j < PER; j++) {
    unsigned p = threadIdx.x + j * blockDim.x;
    WEFT_COPY_OR_ZERO (to + p, (const pack<T> *) row + (p < packs ? p : 0), p < packs);
  }
}

/* Starts the copy of a row to one of the two places. */
template <class T, int PER>
static __device__ __forceinline__ void
copy_row (const struct copied_rows<T, PER> &to, unsigned which, const struct row_backward<T> &o,
          uint64_t at, uint64_t packs)
{
  copy_packs<T, PER> (to.slot (which, 0), o.x + at, packs);
  copy_packs<T, PER> (to.slot (which, 1), o.dy + at, packs);
  if (o.dx && o.dresidual)
    copy_packs<T, PER> (to.slot (which, 2), o.dresidual + at, packs);
}

template <class T, int PER>
static __device__ __forceinline__ struct row_at<T>
shared_row (const struct copied_rows<T, PER> &from, unsigned which, const struct row_backward<T> &o,
            uint64_t at)
{
  struct row_at<T> row = { from.slot (which, 0)->at, from.slot (which, 1)->at,
                           from.slot (which, 2)->at, o.dx + at };
  return row;
}

/* Adds the sums of the teams of a block: in shared memory, team by team. If there is one team,
 * stores its sums directly. */
template <class T, int PER, bool WARP>
static __device__ __forceinline__ void
leave_sums (const float (&sum)[2][PER][pack<T>::n], uint64_t columns, float *partial, float *shared)
{
  const unsigned size = team_size<WARP> (), teams = blockDim.x / size, team = threadIdx.x / size;
  float *block = partial + (uint64_t) blockIdx.x * 2 * columns, *to = WARP ? shared : block;

  for (unsigned turn = 0; turn < teams; turn++) {
    WEFT_UNROLL
    for (int which = 0; which < 2; which++)
      WEFT_UNROLL
      for (int j = 0; j < PER; j++)
        WEFT_UNROLL
        for (int i = 0; i < pack<T>::n; i++) {
          uint64_t column = (threadIdx.x % size + j * size) * pack<T>::n + i;
          float *at = to + which * columns + column;
          if (turn == team && column < columns)
            *at = turn ? *at + sum[which][j][i] : sum[which][j][i];
        }
    __syncthreads ();
  }
  for (uint64_t i = threadIdx.x; WARP && i < 2 * columns; i += blockDim.x)
    block[i] = shared[i];
}

/* Blocks on a multiprocessor that the compiler must leave registers for: with one warp per row,
 * two, because one has too few loads in flight; with a block per row, RESIDENT or WIDE_RESIDENT
 * threads in all. */
template <int PER, bool WARP>
static constexpr int
resident_blocks (void)
{
  return WARP ? 2 : (PER == 1 ? RESIDENT : WIDE_RESIDENT) / TEAM_BLOCK;
}

/* Dynamic shared memory: for the sums of the teams of a block, or for the rows that a block copies.
 */
template <class T, int PER, bool WARP>
__global__ void
__launch_bounds__ (WARP ? 32 * TEAM_WARPS : TEAM_BLOCK, (resident_blocks<PER, WARP> ()))
backward_rows (const struct row_norm c, const struct row_backward<T> o)
{
  WEFT_DYNAMIC_SHARED (float, shared);
  __shared__ float room[32];
  const uint64_t packs = c.columns / pack<T>::n, teams = blockDim.x / team_size<WARP> (),
                 step = gridDim.x * teams;
  const struct copied_rows<T, PER> copied = { (pack<T> *) shared };
  float sum[2][PER][pack<T>::n] = {};
  unsigned which = 0;
  pack<T> x[PER], dy[PER];
  uint64_t row = blockIdx.x * teams + threadIdx.x / team_size<WARP> ();

  if (!WARP && row < c.rows)
    copy_row (copied, 0, o, row * c.columns, packs);
  if (!WARP)
    WEFT_COPY_COMMIT ();
  for (; row < c.rows; row += step, which ^= 1) {
    if (!WARP && row + step < c.rows)
      copy_row (copied, which ^ 1, o, (row + step) * c.columns, packs);
    if (!WARP) {
      WEFT_COPY_COMMIT ();
      WEFT_COPY_WAIT (1);
    }
    const struct row_at<T> at = WARP ? global_row (o, row * c.columns)
                                     : shared_row (copied, which, o, row * c.columns);
    load_row<T, PER, WARP> (x, at.x, packs);
    load_row<T, PER, WARP> (dy, at.dy, packs);
    struct moments m = row_moments<T, PER, WARP> (c, x, room);
    WEFT_UNROLL
    for (int j = 0; j < PER; j++)
      WEFT_UNROLL
      for (int i = 0; i < pack<T>::n; i++) {
        float d = to_float (dy[j].at[i]);
        sum[0][j][i] += d * ((to_float (x[j].at[i]) - m.mean) * m.scale);
        sum[1][j][i] += d;
      }
    if (o.dx)
      row_gradient<T, PER, WARP> (c, o, at, x, dy, m, room);
  }
  if (o.partial)
    leave_sums<T, PER, WARP> (sum, c.columns, o.partial, shared);
}

/* to[which] += the sums of all blocks, or = if it does not accumulate; NULL: not stored. */
struct row_sums {
  struct array to[2];
  bool adds[2];
};

__global__ void
join_rows (const float *partial, unsigned blocks, uint64_t columns, const struct row_sums sums)
{
  __shared__ float room[JOIN_LANES][32];
  uint64_t column = (uint64_t) blockIdx.x * 32 + threadIdx.x;
  unsigned which = blockIdx.y;
  float sum = 0;

  WEFT_UNROLL_4
  for (unsigned block = threadIdx.y; block < blocks && column < columns; block += JOIN_LANES)
    sum += partial[(uint64_t) (2 * block + which) * columns + column];
  room[threadIdx.y][threadIdx.x] = sum;
  __syncthreads ();
  if (threadIdx.y != 0 || column >= columns || !sums.to[which].data)
    return;
  for (int lane = 1; lane < JOIN_LANES; lane++)
    sum += room[lane][threadIdx.x];
  put (sums.to[which], column, sums.adds[which] ? get (sums.to[which], column) + sum : sum);
}

/* ------------------------------------------------------------------------------ launches */

/* Whether rows consist of whole packs of 16 bytes and fit into the registers of the threads that
 * share a row. */
template <class T>
static bool
holds_rows (const struct row_norm &c)
{
  return c.columns % pack<T>::n == 0 && c.columns / pack<T>::n <= TEAM_BLOCK * BLOCK_PACKS;
}

static inline bool
are_packs (const void *a, const void *b, const void *c, const void *d)
{
  return (((uintptr_t) a | (uintptr_t) b | (uintptr_t) c | (uintptr_t) d) & 15) == 0;
}

/* Whether weights of this type can be used: packs of the rows' type, or fp32. */
static inline bool
takes_weights (uint32_t dtype, struct array weight, struct array bias, bool *packed)
{
  *packed = weight.dtype == dtype && are_packs (weight.data, bias.data, NULL, NULL);
  return *packed || weight.dtype == WEFT_FP32;
}

/* Packs of a row that a lane of backward holds at most: with more of them the sums of the weight
 * gradients would not fit in the registers of two blocks (an fp16 is converted into a register of
 * its own). */
template <class T>
static constexpr int
warp_packs_of_backward (void)
{
  return std::is_same<T, bf16>::value ? 3 : sizeof (T) == 2 ? 2 : WARP_PACKS;
}

/* Whether a warp computes a row; most: packs per lane of the largest kernel for a warp. */
template <class T>
static bool
fits_warp (const struct row_norm &c, unsigned most)
{
  return c.columns / pack<T>::n <= 32 * most;
}

template <class T>
static unsigned
team_threads (const struct row_norm &c, unsigned most)
{
  uint64_t packs = c.columns / pack<T>::n;

  if (fits_warp<T> (c, most))
    return 32 * TEAM_WARPS;
  if (packs > TEAM_BLOCK)
    return TEAM_BLOCK;
  return (unsigned) (packs + 31) / 32 * 32;
}

template <class T>
static unsigned
blocks_of_backward (const struct row_norm &c)
{
  const unsigned most = warp_packs_of_backward<T> (), threads = team_threads<T> (c, most);
  bool one = std::is_same<T, bf16>::value && c.columns / pack<T>::n <= threads;

  if (fits_warp<T> (c, most))
    return blocks_for (c.rows, TEAM_WARPS, MULTIPROCESSORS * resident_blocks<1, true> ());
  return blocks_for (c.rows, 1, MULTIPROCESSORS * ((one ? RESIDENT : WIDE_RESIDENT) / threads));
}

/* Packs per thread of the kernels that exist: for bf16, the usual training type, every number up to
 * MOST for a warp; for other types only the largest. */
template <class T, bool WARP, int MOST>
static constexpr int
packs_of_kernel (int packs)
{
  return !std::is_same<T, bf16>::value ? (WARP ? MOST : BLOCK_PACKS)
         : WARP && packs > MOST        ? MOST
                                       : packs;
}

/* Shared memory of a block without the request that allow() makes, less static variables. */
enum { UNASKED = 47 * 1024 };

/* Instantiates KERNEL for each number of packs per thread, with one row per warp (of up to MOST
 * packs per lane) or one row per thread block, which keeps `copies` rows in shared memory. Sets
 * `error`, a variable of the caller. */
#define WEFT_TEAM(T, PER, WARP, MOST, KERNEL)                                                      \
  (KERNEL<T, packs_of_kernel<T, WARP, MOST> (PER), WARP>)
#define WEFT_BLOCK_TEAM(T, PER, MOST, KERNEL, c, blocks, copies, stream, ...)                      \
  do {                                                                                             \
    const size_t kept =                                                                            \
        (copies) * packs_of_kernel<T, false, MOST> (PER) * threads * sizeof (pack<T>);             \
    error = kept > UNASKED ? allow (WEFT_TEAM (T, PER, false, MOST, KERNEL), kept) : NULL;         \
    if (!error)                                                                                    \
      WEFT_LAUNCH (WEFT_TEAM (T, PER, false, MOST, KERNEL), blocks, threads, kept, stream, c,      \
                   __VA_ARGS__);                                                                   \
  } while (0)
#define WEFT_BY_TEAM(T, MOST, KERNEL, c, blocks, shared, copies, stream, ...)                      \
  do {                                                                                             \
    const unsigned threads = team_threads<T> (c, MOST);                                            \
    const uint64_t packs = (c).columns / pack<T>::n;                                               \
    if (!fits_warp<T> (c, MOST) && packs <= threads)                                               \
      WEFT_BLOCK_TEAM (T, 1, MOST, KERNEL, c, blocks, copies, stream, __VA_ARGS__);                \
    else if (!fits_warp<T> (c, MOST))                                                              \
      WEFT_BLOCK_TEAM (T, 2, MOST, KERNEL, c, blocks, copies, stream, __VA_ARGS__);                \
    else if (packs <= 32)                                                                          \
      WEFT_LAUNCH (WEFT_TEAM (T, 1, true, MOST, KERNEL), blocks, threads, shared, stream, c,       \
                   __VA_ARGS__);                                                                   \
    else if (packs <= 64)                                                                          \
      WEFT_LAUNCH (WEFT_TEAM (T, 2, true, MOST, KERNEL), blocks, threads, shared, stream, c,       \
                   __VA_ARGS__);                                                                   \
    else if (packs <= 96)                                                                          \
      WEFT_LAUNCH (WEFT_TEAM (T, 3, true, MOST, KERNEL), blocks, threads, shared, stream, c,       \
                   __VA_ARGS__);                                                                   \
    else                                                                                           \
      WEFT_LAUNCH (WEFT_TEAM (T, 4, true, MOST, KERNEL), blocks, threads, shared, stream, c,       \
                   __VA_ARGS__);                                                                   \
  } while (0)

template <class T>
static const char *
launch_forward_rows (void *stream, const struct row_norm &c, const struct row_forward<T> &o)
{
  unsigned blocks =
      blocks_for (c.rows, fits_warp<T> (c, WARP_PACKS) ? TEAM_WARPS : 1, ROW_BLOCKS);
  const char *error = NULL;

  WEFT_BY_TEAM (T, WARP_PACKS, forward_rows, c, blocks, 0, 0, stream, o);
  return error ? error : launched ();
}

/* Bytes for the sums of all blocks of backward, for elements of any type. */
static inline uint64_t
row_scratch (uint64_t rows, uint64_t columns)
{
  struct row_norm c = { rows, columns, 0, false };
  unsigned wide = blocks_of_backward<float> (c), half = blocks_of_backward<fp16> (c);
  unsigned most = blocks_of_backward<bf16> (c);

  most = most > half ? most : half;
  return (uint64_t) (most > wide ? most : wide) * 2 * columns * sizeof (float);
}

/* Sets o.partial to the address of the scratch. sums NULL: weight gradients are not computed. */
template <class T>
static const char *
launch_backward_rows (const struct weft_cuda_launch *l, const struct row_norm &c,
                      struct row_backward<T> o, const struct row_sums *sums)
{
  unsigned blocks = blocks_of_backward<T> (c);
  dim3 grid (blocks_for (c.columns, 32, ~0u), 2), block (32, JOIN_LANES);
  const char *error = NULL;

  o.partial = sums ? (float *) l->scratch : NULL;
  WEFT_BY_TEAM (T, warp_packs_of_backward<T> (), backward_rows, c, blocks,
                2 * c.columns * sizeof (float), 2 * 3, l->stream, o);
  if (error)
    return error;
  if (sums)
    WEFT_LAUNCH (join_rows, grid, block, 0, l->stream, o.partial, blocks, c.columns, *sums);
  return launched ();
}
