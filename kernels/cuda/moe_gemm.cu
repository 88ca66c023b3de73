/* Linear layers of experts: a product for each of them, over the rows it has.  How many those are only
 * the device knows: a first kernel finds where the rows of each expert, and their tiles, begin; the
 * grid of the second has room for the most tiles there can be, and what is too much ends at once.
 *
 * Of 16 bits products are made by tensor cores, in tiles of 128 x 128 that 8 warps share, with terms
 * in slices of 32 that are fetched two ahead; of all else, and of rows that do not begin at multiples
 * of 16 bytes, in tiles of 64 x 64 by plain fp32.  A weight gradient is one sum over its expert's rows
 * by one block, so that its order is the same in every run. */
#include "kernels/cuda/fragments.cuh"
#include "kernels/cuda/moe.cuh"

enum { X, W, COUNTS, Y }; /* backward: dy w counts dx; dy x counts dw */
enum { M, N, K, EXPERTS, STRIDE };

/* y = a b of each expert: of its rows (columns and terms are dealt as they are), or over its rows. */
struct grouped {
  struct array a, b, y;
  uint64_t rows, columns, terms; /* rows of weight gradients; terms of others */
  uint64_t experts;
  const uint64_t *begin, *tile; /* rows and tiles of rows, by expert */
  bool adds;
};

/* What one block makes: a tile of y, from `row` and `column` on. */
struct share {
  uint64_t a, b, y; /* elements where the expert's begin */
  uint64_t rows, columns, terms, row, column;
};

/* FALSE: nothing. */
template <int SIZE>
static __device__ __forceinline__ bool
by_rows (const struct grouped &g, struct share *s)
{
  if (blockIdx.y >= g.tile[g.experts])
    return false;
  uint64_t e = block_of (g.tile, g.experts, blockIdx.y);
  *s = { g.begin[e] * g.terms, e * g.columns * g.terms, g.begin[e] * g.columns,
         g.begin[e + 1] - g.begin[e], g.columns, g.terms, (blockIdx.y - g.tile[e]) * SIZE,
         (uint64_t) blockIdx.x * SIZE };
  return true;
}

/* Over the rows of expert blockIdx.z. */
template <int SIZE>
static __device__ __forceinline__ bool
by_terms (const struct grouped &g, struct share *s)
{
  uint64_t e = blockIdx.z;

  *s = { g.begin[e] * g.rows, g.begin[e] * g.columns, e * g.rows * g.columns,
         g.rows, g.columns, g.begin[e + 1] - g.begin[e], (uint64_t) blockIdx.y * SIZE,
         (uint64_t) blockIdx.x * SIZE };
  return true;
}

enum way { FORWARD, DGRAD, WGRAD };

template <enum way WAY, int SIZE>
static __device__ __forceinline__ bool
share_of (const struct grouped &g, struct share *s)
{
  return WAY == WGRAD ? by_terms<SIZE> (g, s) : by_rows<SIZE> (g, s);
}

/* ---------------------------------------------------------------------- where experts begin */

struct expert_rows {
  const int64_t *counts;
  uint64_t per, stride, each; /* each: of a stride, all rows of an expert */

  __device__ uint64_t
  operator() (uint64_t e) const
  {
    return stride ? each : count_of (counts + e * per, per);
  }
};

struct expert_tiles {
  const uint64_t *begin;
  uint64_t size;

  __device__ uint64_t
  operator() (uint64_t e) const
  {
    return (begin[e + 1] - begin[e] + size - 1) / size;
  }
};

/* Nobody has rows that there is no room for. */
__global__ void
find_experts (struct expert_rows rows, uint64_t experts, uint64_t room, uint64_t size,
              uint64_t *begin, uint64_t *tile)
{
  struct expert_tiles tiles = { begin, size };

  scan_by_warp (rows, experts, begin);
  __syncwarp ();
  for (uint64_t e = threadIdx.x; e <= experts; e += 32)
    begin[e] = begin[e] < room ? begin[e] : room;
  __syncwarp ();
  scan_by_warp (tiles, experts, tile);
}

/* Scratch: where the rows and the tiles of experts begin. */
uint64_t
weft_cuda_scratch_moe_matmul (uint64_t experts)
{
  return 2 * (experts + 1) * sizeof (uint64_t);
}

/* -------------------------------------------------------------------------- tensor cores */

enum { THREADS = 256, TILE = 128, SLICE = 32, STAGES = 3, PAD = 8 };
enum { WARP_ROWS = 64, WARP_COLUMNS = 32, STAGE = TILE * (SLICE + PAD) }; /* elements of a stage */

/* A matrix in memory: lines of `width` elements. */
template <class T> struct sheet {
  const T *at;
  uint64_t lines, width;
};

/* LINES lines of WIDTH elements into shared memory, zeros past the ends. */
template <int LINES, int WIDTH, class T>
static __device__ __forceinline__ void
fetch (T *tile, const sheet<T> &from, uint64_t line, uint64_t column)
{
  const int each = WIDTH / 8;

  for (int i = threadIdx.x; i < LINES * each; i += THREADS) {
    int l = i / each, c = i % each * 8;
    T *to = tile + l * (WIDTH + PAD) + c;
    if (line + l < from.lines && column + c < from.width)
      WEFT_COPY (to, from.at + (line + l) * from.width + column + c);
    else
      *(uint4 *) to = uint4{ 0, 0, 0, 0 };
  }
}

/* A tile of a factor: its lines are rows (of b: columns), or, turned, terms. */
template <bool TURNED, class T>
static __device__ __forceinline__ void
fetch_factor (T *tile, const sheet<T> &from, uint64_t row, uint64_t term)
{
  if (TURNED)
    fetch<SLICE, TILE> (tile, from, term, row);
  else
    fetch<TILE, SLICE> (tile, from, row, term);
}

/* A warp's 64 x 32 products of one slice. */
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
        load_b_turned (b[j], b_tile, TILE + PAD, column + j * 16, term);
      else
        load_b (b[j], b_tile, SLICE + PAD, column + j * 16, term);
    WEFT_UNROLL
    for (int i = 0; i < WARP_ROWS / 16; i++) {
      if (A_TURNED)
        load_a_turned (a, a_tile, TILE + PAD, row + i * 16, term);
      else
        load_a (a, a_tile, SLICE + PAD, row + i * 16, term);
      WEFT_UNROLL
      for (int j = 0; j < WARP_COLUMNS / 8; j++)
        multiply<T> (sum[i][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }
}

/* Two neighbours of a row, of which both are there. */
template <class T>
static __device__ __forceinline__ void
leave_two (const struct grouped &g, uint64_t at, float low, float high)
{
  if (g.adds) {
    low += get (g.y, at);
    high += get (g.y, at + 1);
  }
  if (g.y.dtype == WEFT_FP32) {
    put (g.y, at, low);
    put (g.y, at + 1, high);
  } else {
    *(uint32_t *) ((T *) g.y.data + at) = two<T> (low, high);
  }
}

template <class T>
static __device__ __forceinline__ void
leave_tile (const struct grouped &g, const struct share &s, const float (*sum)[4][4])
{
  unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint64_t row = s.row + warp % 2 * WARP_ROWS + lane / 4;
  uint64_t column = s.column + warp / 2 * WARP_COLUMNS + lane % 4 * 2;

  WEFT_UNROLL
  for (int i = 0; i < WARP_ROWS / 16; i++)
    WEFT_UNROLL
    for (int j = 0; j < WARP_COLUMNS / 8; j++)
      WEFT_UNROLL
      for (int half = 0; half < 2; half++) {
        uint64_t r = row + i * 16 + half * 8, c = column + j * 8;
        if (r < s.rows && c < s.columns)
          leave_two<T> (g, s.y + r * s.columns + c, sum[i][j][half * 2], sum[i][j][half * 2 + 1]);
      }
}

/* Forward has rows of x and of weights; dgrad weights whose lines are terms; wgrad two such. */
template <enum way WAY, class T>
__global__ void
__launch_bounds__ (THREADS) tiles (struct grouped g)
{
  const bool A_TURNED = WAY == WGRAD, B_TURNED = WAY != FORWARD;
  WEFT_DYNAMIC_SHARED (T, shared);
  struct share s;
  float sum[WARP_ROWS / 16][WARP_COLUMNS / 8][4] = {};

  if (!share_of<WAY, TILE> (g, &s))
    return;
  sheet<T> a = { (const T *) g.a.data + s.a, A_TURNED ? s.terms : s.rows,
                 A_TURNED ? s.rows : s.terms },
           b = { (const T *) g.b.data + s.b, B_TURNED ? s.terms : s.columns,
                 B_TURNED ? s.columns : s.terms };
  uint64_t n = (s.terms + SLICE - 1) / SLICE;
  for (uint64_t i = 0; i < n + STAGES - 1; i++) { /* slice i is fetched, i - 2 multiplied */
    if (i + 1 >= STAGES) {
      WEFT_COPY_WAIT (STAGES - 2);
      __syncthreads ();
    }
    if (i < n) {
      T *stage = shared + i % STAGES * 2 * STAGE;
      fetch_factor<A_TURNED> (stage, a, s.row, i * SLICE);
      fetch_factor<B_TURNED> (stage + STAGE, b, s.column, i * SLICE);
    }
    WEFT_COPY_COMMIT ();
    if (i + 1 >= STAGES) {
      const T *stage = shared + (i + 1 - STAGES) % STAGES * 2 * STAGE;
      multiply_slice<A_TURNED, B_TURNED> (sum, stage, stage + STAGE);
    }
  }
  leave_tile<T> (g, s, sum);
}

/* --------------------------------------------------------------------------------- plain */

enum { PLAIN_TILE = 64, PLAIN_SLICE = 16, EACH = 4 /* rows and columns of a thread */ };

/* Element (row, term) of a factor of `rows` rows (of b: columns). */
static __device__ __forceinline__ float
factor_at (struct array x, uint64_t at, bool turned, uint64_t row, uint64_t rows, uint64_t term,
           uint64_t terms)
{
  if (row >= rows || term >= terms)
    return 0;
  return get (x, at + (turned ? term * rows + row : row * terms + term));
}

template <enum way WAY>
__global__ void
__launch_bounds__ (THREADS) plain (struct grouped g)
{
  __shared__ float a[PLAIN_SLICE][PLAIN_TILE + 1], b[PLAIN_SLICE][PLAIN_TILE + 1];
  unsigned row = threadIdx.x / 16 * EACH, column = threadIdx.x % 16 * EACH;
  float sum[EACH][EACH] = {};
  struct share s;

  if (!share_of<WAY, PLAIN_TILE> (g, &s))
    return;
  for (uint64_t term = 0; term < s.terms; term += PLAIN_SLICE) {
    for (unsigned i = threadIdx.x; i < PLAIN_TILE * PLAIN_SLICE; i += THREADS) {
      unsigned t = WAY == FORWARD ? i % PLAIN_SLICE : i / PLAIN_TILE;
      unsigned at = WAY == FORWARD ? i / PLAIN_SLICE : i % PLAIN_TILE;
      a[t][at] = factor_at (g.a, s.a, WAY == WGRAD, s.row + at, s.rows, term + t, s.terms);
      b[t][at] = factor_at (g.b, s.b, WAY != FORWARD, s.column + at, s.columns, term + t, s.terms);
    }
    __syncthreads ();
    for (unsigned t = 0; t < PLAIN_SLICE; t++)
      WEFT_UNROLL
      for (unsigned i = 0; i < EACH; i++)
        WEFT_UNROLL
        for (unsigned j = 0; j < EACH; j++)
          sum[i][j] += a[t][row + i] * b[t][column + j];
    __syncthreads ();
  }
  for (unsigned i = 0; i < EACH * EACH; i++) {
    uint64_t r = s.row + row + i / EACH, c = s.column + column + i % EACH;
    uint64_t at = s.y + r * s.columns + c;
    if (r < s.rows && c < s.columns)
      put (g.y, at, sum[i / EACH][i % EACH] + (g.adds ? get (g.y, at) : 0));
  }
}

/* ------------------------------------------------------------------------------ launches */

/* Lines of matrices begin at multiples of 16 bytes. */
static bool
tiles_take (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  uintptr_t at = (uintptr_t) o[0].data | (uintptr_t) o[1].data | (uintptr_t) o[3].data;

  return o[0].dtype != WEFT_FP32 && o[1].dtype == o[0].dtype && o[3].dtype <= WEFT_FP16 &&
         (o[3].dtype == WEFT_FP32 || o[3].dtype == o[0].dtype) && at % 16 == 0 &&
         l->dim[N] % 8 == 0 && l->dim[K] % 8 == 0;
}

/* Tiles of y, the rows of experts the most there can be. */
template <enum way WAY>
static dim3
grid_of (const struct grouped &g, uint64_t room, uint64_t size)
{
  dim3 grid ((unsigned) ((g.columns + size - 1) / size));

  grid.y = (unsigned) (WAY == WGRAD ? (g.rows + size - 1) / size : room / size + g.experts);
  grid.z = WAY == WGRAD ? (unsigned) g.experts : 1;
  return grid;
}

template <enum way WAY, class T>
static const char *
run_tiles (const struct weft_cuda_launch *l, const struct grouped &g, uint64_t room)
{
  const size_t bytes = (size_t) STAGES * 2 * STAGE * sizeof (T);
  const char *error = allow (tiles<WAY, T>, bytes);

  if (error)
    return error;
  WEFT_LAUNCH ((tiles<WAY, T>), grid_of<WAY> (g, room, TILE), THREADS, bytes, l->stream, g);
  return launched ();
}

template <enum way WAY>
static const char *
run (const struct weft_cuda_launch *l, struct grouped g)
{
  const struct weft_cuda_operand *o = l->operand;
  uint64_t experts = l->dim[EXPERTS], wide = WAY == FORWARD ? l->dim[K] : l->dim[N];
  const bool tensor_cores = tiles_take (l);
  uint64_t room = o[0].n / wide, size = tensor_cores ? (unsigned) TILE : (unsigned) PLAIN_TILE;
  uint64_t *begin = (uint64_t *) l->scratch, *tile = begin + experts + 1;
  struct expert_rows rows = { (const int64_t *) o[COUNTS].data, o[COUNTS].n / experts,
                              l->dim[STRIDE], l->dim[M] / experts };

  g.a = array_of (&o[0]);
  g.b = array_of (&o[1]);
  g.y = array_of (&o[Y]);
  g.experts = experts;
  g.begin = begin;
  g.tile = tile;
  WEFT_LAUNCH (find_experts, 1, 32, 0, l->stream, rows, experts, room, size, begin, tile);
  if (!tensor_cores)
    WEFT_LAUNCH (plain<WAY>, grid_of<WAY> (g, room, size), THREADS, 0, l->stream, g);
  else
    return o[0].dtype == WEFT_BF16 ? run_tiles<WAY, bf16> (l, g, room)
                                   : run_tiles<WAY, fp16> (l, g, room);
  return launched ();
}

const char *
weft_cuda_moe_matmul (const struct weft_cuda_launch *l)
{
  struct grouped g = {};

  g.columns = l->dim[N];
  g.terms = l->dim[K];
  return run<FORWARD> (l, g);
}

const char *
weft_cuda_moe_matmul_dgrad (const struct weft_cuda_launch *l)
{
  struct grouped g = {};

  g.columns = l->dim[K];
  g.terms = l->dim[N];
  return run<DGRAD> (l, g);
}

const char *
weft_cuda_moe_matmul_wgrad (const struct weft_cuda_launch *l)
{
  struct grouped g = {};

  g.rows = l->dim[N];
  g.columns = l->dim[K];
  g.adds = l->operand[Y].accumulate;
  return run<WGRAD> (l, g);
}
