/* attention_tiles.cuh - tiled attention, common to the tensor-core versions: attention_tiles.cu
 * (mma.sync) and attention_warpgroup.cu (wgmma).
 *
 * A warp holds 16 rows of a tile; a lane holds, of rows g and g + 8, two of each eight columns: the
 * sums of fragments.cuh. A tile does not span two pieces of a sequence. Fully masked tiles are
 * skipped. */
#pragma once
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/fragments.cuh"

enum { WARP_ROWS = 16 };

#define LOG2_E 1.4426950408889634f

/* Rows of one head in memory: row t begins t * step elements after the first. `width`, a multiple
 * of 8, may be less than the tile's width; the rest of the tile is zeros. */
template <class T> struct strip {
  const T *at;
  uint64_t step, width;
};

/* Whether tiles of width D and V suit these heads: wide enough, and at most half of the query-key
 * products on zeros. */
template <int D, int V>
static bool
holds (const struct attention &a)
{
  return a.width % 8 == 0 && a.value % 8 == 0 && a.width <= D && 2 * a.width > D && a.value <= V;
}

/* The rows of an inner or outer tile, up to the end of its run of tokens. */
struct tile {
  uint64_t first, end;
  int position; /* position in the sequence of the first row */
};

/* Stores a lane's sums, multiplied by by[0] in row g and by[1] in row g + 8: elements 2t and 2t + 1
 * of each eight. Rows past the end are skipped. */
template <int D, class T>
static __device__ __forceinline__ void
leave (const strip<T> &to, const struct tile &rows, const float (*sum)[4], const float by[2],
       bool adds)
{
  unsigned warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

  WEFT_UNROLL
  for (unsigned half = 0; half < 2; half++) {
    uint64_t row = rows.first + warp * WARP_ROWS + g + half * 8;
    T *at = (T *) to.at + row * to.step + 2 * t;
    WEFT_UNROLL
    for (int d = 0; d < D / 8; d++) {
      float low = sum[d][half * 2] * by[half], high = sum[d][half * 2 + 1] * by[half];
      if (row >= rows.end || (unsigned) d * 8 >= to.width)
        continue;
      if (adds) {
        low += to_float (at[d * 8]);
        high += to_float (at[d * 8 + 1]);
      }
      *(uint32_t *) (at + d * 8) = two<T> (low, high);
    }
  }
}

static __device__ __forceinline__ float
quad_sum (float x)
{
  x += __shfl_xor_sync (~0u, x, 1);
  return x + __shfl_xor_sync (~0u, x, 2);
}

static __device__ __forceinline__ float
quad_most (float x)
{
  x = fmaxf (x, __shfl_xor_sync (~0u, x, 1));
  return fmaxf (x, __shfl_xor_sync (~0u, x, 2));
}

static __device__ __forceinline__ float
power_of_two (float x)
{
#ifdef WEFT_CUDA_EMULATOR
  return exp2f (x);
#else
  float y;
  asm ("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

/* The head of a thread block: blockIdx.y counts the heads of all batch elements. */
static __device__ __forceinline__ struct head
query_head (const struct attention &a)
{
  uint64_t n = blockIdx.y % a.heads;
  struct head h = { blockIdx.y / a.heads, n, n / (a.heads / a.groups) };
  return h;
}

/* ---------------------------------------------------------------------------- inner tiles */

/* Tile i of a run of contiguous tokens, with N rows per tile. */
template <int N>
static __device__ __forceinline__ struct tile
tile_at (const struct piece &run, uint64_t i)
{
  struct tile t = { run.first + i * N, run.first + run.n, (int) (run.position + i * N) };

  return t;
}

/* Tile i of the queries or keys of this rank; the tiles of the second run of tokens follow those of
 * the first. */
template <int N>
static __device__ __forceinline__ struct tile
tile_of (const struct side &side, uint64_t i)
{
  uint64_t each = (side.run[0].n + N - 1) / N;

  return i < each ? tile_at<N> (side.run[0], i) : tile_at<N> (side.run[1], i - each);
}

/* Number of tiles of the queries or keys; both runs of tokens have the same length. */
template <int N>
static unsigned
tiles_of (const struct side &side)
{
  return side.n * blocks_for (side.run[0].n, N, ~0u);
}

/* For each run of tokens on one side (queries or keys): the range of tiles that are not fully
 * masked for a tile of the other side. */
struct passing {
  uint32_t first[2], n[2];
};

template <int N>
static __device__ __forceinline__ struct tile
passing_at (const struct side &side, const struct passing &p, uint64_t i)
{
  return i < p.n[0] ? tile_at<N> (side.run[0], p.first[0] + i)
                    : tile_at<N> (side.run[1], p.first[1] + i - p.n[0]);
}

/* Tiles of N rows with positions from `from` to `to` inclusive. */
template <int N>
static __device__ __forceinline__ struct passing
tiles_between (const struct side &side, int64_t from, int64_t to)
{
  struct passing p = {};

  WEFT_UNROLL
  for (unsigned which = 0; which < 2; which++) {
    const struct piece &run = side.run[which];
    int64_t low = from - (int64_t) run.position, high = to - (int64_t) run.position;
    int64_t last = (int64_t) run.n - 1;
    low = low > 0 ? low / N : 0;
    high = high < last ? high : last;
    p.first[which] = (uint32_t) low;
    p.n[which] = which < side.n && high >= low * N ? (uint32_t) (high / N - low + 1) : 0;
  }
  return p;
}

/* The range of tiles of N keys that are visible to the queries of a tile of QUERIES rows. */
template <int QUERIES, int N>
static __device__ __forceinline__ struct passing
keys_passing (const struct attention &a, const struct tile &queries)
{
  return tiles_between<N> (a.keys, queries.position - (int64_t) a.window + 1,
                           queries.position + QUERIES - 1);
}

/* The range of tiles of N queries that see keys of a tile of KEYS rows. */
template <int KEYS, int N>
static __device__ __forceinline__ struct passing
queries_passing (const struct attention &a, const struct tile &keys)
{
  return tiles_between<N> (a.queries, keys.position,
                           keys.position + KEYS - 1 + (int64_t) a.window - 1);
}

/* Masks scores of a tile: causal mask, sliding window, and the end of the keys. Does nothing for a
 * tile without masked scores. */
template <int QUERIES, int KEYS>
static __device__ __forceinline__ void
hide (float (*s)[4], const struct tile &queries, const struct tile &keys, uint64_t window)
{
  int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  int ahead = queries.position - keys.position, n_keys = (int) (keys.end - keys.first);

  if (ahead >= KEYS - 1 && ahead + QUERIES <= (int) window && n_keys >= KEYS)
    return;
  WEFT_UNROLL
  for (int n = 0; n < KEYS / 8; n++)
    WEFT_UNROLL
    for (int e = 0; e < 4; e++) {
      int key = n * 8 + 2 * t + e % 2, before = warp * WARP_ROWS + g + e / 2 * 8 + ahead - key;
      if (before < 0 || before >= (int) window || key >= n_keys)
        s[n][e] = -INFINITY;
    }
}

/* ----------------------------------------------------------------------------- softmax */

/* Online softmax of a lane's two rows: largest score so far, and sum of exponentials relative to
 * it. */
struct soft {
  float most[2], sum[2];
};

/* Scores become probabilities relative to the largest score so far; earlier sums are rescaled. */
template <int KEYS>
static __device__ __forceinline__ void
soften (float (*s)[4], struct soft *soft, float shrink[2], float scale)
{
  WEFT_UNROLL
  for (int half = 0; half < 2; half++) {
    float most = soft->most[half], total = 0;
    WEFT_UNROLL
    for (int n = 0; n < KEYS / 8; n++)
      most = fmaxf (most, fmaxf (s[n][half * 2], s[n][half * 2 + 1]));
    most = quad_most (most);
    float against = most == -INFINITY ? 0 : most * scale;
    shrink[half] = power_of_two (soft->most[half] * scale - against);
    WEFT_UNROLL
    for (int n = 0; n < KEYS / 8; n++)
      WEFT_UNROLL
      for (int e = half * 2; e < half * 2 + 2; e++) {
        s[n][e] = power_of_two (s[n][e] * scale - against);
        total += s[n][e];
      }
    soft->sum[half] = soft->sum[half] * shrink[half] + total;
    soft->most[half] = most;
  }
}

/* Multiplies each row of a lane by a number. */
template <int D>
static __device__ __forceinline__ void
times (float (*sum)[4], const float by[2])
{
  WEFT_UNROLL
  for (int d = 0; d < D / 8; d++)
    WEFT_UNROLL
    for (int e = 0; e < 4; e++)
      sum[d][e] *= by[e / 2];
}

template <class T> struct forward_of {
  struct attention a;
  const T *q, *kv;
  T *o;
  float *lse;
};

/* After the last key tile: divides the outputs by the sums of exponentials, and stores outputs and
 * log-sum-exp. */
template <int V, class T>
static __device__ __forceinline__ void
leave_softened (const forward_of<T> &f, const struct head &h, const struct tile &mine,
                const struct soft &soft, const float (*sum)[4])
{
  const struct attention &a = f.a;
  strip<T> o = { f.o + o_at (a, h, 0), a.heads * a.value, a.value };
  float by[2];

  for (unsigned half = 0; half < 2; half++) {
    uint64_t row = mine.first + threadIdx.x / 32 * WARP_ROWS + threadIdx.x % 32 / 4 + half * 8;
    float total = quad_sum (soft.sum[half]);
    by[half] = total > 0 ? 1 / total : 0; /* total 0: the query has no visible key */
    if (threadIdx.x % 4 == 0 && row < mine.end)
      f.lse[lse_at (a, h, row)] = soft.most[half] * a.scale + logf (total);
  }
  leave<V> (o, mine, sum, by, false);
}

/* --------------------------------------------------------------------------- backward */

/* Per query: log-sum-exp to base 2, and the dot product of o and its gradient. For padding, and for
 * a query without visible keys, the values make all probabilities 0. */
struct known {
  float lse, delta;
};

template <class T> struct backward_of {
  struct attention a;
  const T *q, *kv, *dout;
  const struct known *known;
  T *dq, *dkv;
  bool adds_q, adds_kv;
};

template <class T>
static __device__ __forceinline__ struct known
known_of (const backward_of<T> &b, const struct head &h, uint64_t row, uint64_t end)
{
  struct known nobody = { INFINITY, 0 };

  return row < end ? b.known[lse_at (b.a, h, row)] : nobody;
}

/* Whether the wgmma version supports a call: heads of width up to 128, on devices with wgmma. */
bool weft_cuda_warpgroups_take (const struct weft_cuda_launch *l, const struct attention_call *c);
const char *weft_cuda_warpgroups_forward (const struct weft_cuda_launch *l,
                                          const struct attention_call *c);
/* known: log-sum-exp and delta of every query. */
const char *weft_cuda_warpgroups_backward (const struct weft_cuda_launch *l,
                                           const struct attention_call *c,
                                           const struct known *known);

/* The same for the version with a producer warp. */
const char *weft_cuda_producer_forward (const struct weft_cuda_launch *l,
                                        const struct attention_call *c);
const char *weft_cuda_producer_backward (const struct weft_cuda_launch *l,
                                         const struct attention_call *c, const struct known *known);
