/* Unfused attention (layout: kernels/scores.h): a score matrix (sequence, sequence) per head, 0
 * where masked. Fully masked tiles are skipped. */
#include "kernels/cuda/products.cuh"

enum { BATCH, SEQUENCE, HEADS, GROUPS, WIDTH, WINDOW };
enum { ROW_THREADS = 256, MOST_BLOCKS = 1 << 20 };

struct heads {
  uint64_t batch, sequence, heads, groups, width, window;
  uint64_t row;   /* number of elements per token: of queries, of keys and of values */
  uint64_t first; /* number of the first head of the grid, counted over all batch elements */
};

static struct heads
heads_of (const struct weft_cuda_launch *l)
{
  const uint64_t *dim = l->dim;
  struct heads h = { dim[BATCH], dim[SEQUENCE], dim[HEADS], dim[GROUPS], dim[WIDTH],
                     dim[WINDOW] ? dim[WINDOW] : dim[SEQUENCE],
                     (dim[HEADS] + 2 * dim[GROUPS]) * dim[WIDTH], 0 };

  return h;
}

/* Whether a query sees a key. */
static __device__ __forceinline__ bool
sees (const struct heads &h, uint64_t query, uint64_t key)
{
  return key <= query && query - key < h.window;
}

/* ------------------------------------------------------------------------------ products */

/* A matrix of one head, as a factor or as the result: one line per token. */
struct lines {
  struct array x;
  uint64_t at, step;
};

/* The part of an operand that belongs to a head: queries, keys, values, its part of o, or its score
 * matrix. */
enum part { QUERIES, KEYS, VALUES, OUTPUT, SQUARE };

static __device__ __forceinline__ struct lines
lines_of (const struct heads &h, struct array x, enum part part, uint64_t batch, uint64_t head)
{
  uint64_t group = head / (h.heads / h.groups);
  uint64_t slot = part == QUERIES ? head : h.heads + group + (part == VALUES ? h.groups : 0);
  struct lines l = { x, 0, 0 };

  if (part == SQUARE) {
    l.at = (batch * h.heads + head) * h.sequence * h.sequence;
    l.step = h.sequence;
  } else if (part == OUTPUT) {
    l.at = batch * h.sequence * h.heads * h.width + head * h.width;
    l.step = h.heads * h.width;
  } else {
    l.at = batch * h.sequence * h.row + slot * h.width;
    l.step = h.row;
  }
  return l;
}

/* to = scale * a b for each head; for OF_KEYS, summed over the heads of a group. */
struct products {
  struct heads h;
  struct array a, b, to;
  enum part a_part, b_part, to_part;
  float scale;
};

/* INTO_SQUARE: a (queries, width) times b (keys, width); OF_QUERIES: a square times b (keys,
 * width); OF_KEYS: a transposed square times b (queries, width). */
enum way { INTO_SQUARE, OF_QUERIES, OF_KEYS };

/* The tile of a block, and the range of its terms that are not masked. */
template <enum way WAY>
static __device__ __forceinline__ struct tile_of_product
tile_here (const struct heads &h, uint64_t size)
{
  uint64_t row = blockIdx.y * size, after = row + size;
  struct tile_of_product t = { row, blockIdx.x * size, 0, h.width };

  if (WAY == OF_QUERIES) {
    t.end = after < h.sequence ? after : h.sequence;
    t.first = row + 1 > h.window ? (row + 1 - h.window) / SLICE * SLICE : 0;
  } else if (WAY == OF_KEYS) {
    t.first = row;
    t.end = after + h.window < h.sequence ? after + h.window : h.sequence;
  } else if (t.column >= after || t.column + size + h.window <= row) {
    t.end = 0; /* fully masked */
  }
  return t;
}

/* Stores a tile; masked elements of a score matrix become 0. */
template <enum way WAY> struct leave_head {
  const struct products &p;
  struct lines to;
  const struct tile_of_product &t;

  __device__ void
  operator() (unsigned row, unsigned column, float value) const
  {
    uint64_t r = t.row + row, c = t.column + column;
    if (r >= p.h.sequence || c >= (WAY == INTO_SQUARE ? p.h.sequence : p.h.width))
      return;
    put (to.x, to.at + r * to.step + c,
         WAY == INTO_SQUARE && !sees (p.h, r, c) ? 0 : value * p.scale);
  }

  __device__ void
  operator() (unsigned row, unsigned column, float low, float high) const
  {
    (*this) (row, column, low);
    (*this) (row, column + 1, high);
  }
};

/* The head that a thread block computes, in a batch element. For a sum over the heads of a group:
 * the first head of the group. */
struct of_block {
  uint64_t batch, head, n; /* n: number of heads that are summed */
};

template <enum way WAY>
static __device__ __forceinline__ struct of_block
block_head (const struct heads &h)
{
  uint64_t each = WAY == OF_KEYS ? h.groups : h.heads, n = WAY == OF_KEYS ? h.heads / h.groups : 1;
  uint64_t i = h.first + blockIdx.z;
  struct of_block b = { i / each, i % each * n, n };

  return b;
}

template <enum way WAY, class T>
__global__ void
__launch_bounds__ (TILE_THREADS) head_tiles (struct products p)
{
  const bool A_TURNED = WAY == OF_KEYS, B_TURNED = WAY != INTO_SQUARE;
  WEFT_DYNAMIC_SHARED (T, shared);
  const struct heads &h = p.h;
  struct of_block b = block_head<WAY> (h);
  struct tile_of_product t = tile_here<WAY> (h, TILE);
  float sum[WARP_ROWS / 16][WARP_COLUMNS / 8][4] = {};

  for (uint64_t i = 0; i < b.n; i++) {
    struct lines x = lines_of (h, p.a, p.a_part, b.batch, b.head + i),
                 y = lines_of (h, p.b, p.b_part, b.batch, b.head + i);
    sheet<T> left = { (const T *) x.x.data + x.at, h.sequence,
                      WAY == INTO_SQUARE ? h.width : h.sequence, x.step },
             right = { (const T *) y.x.data + y.at, h.sequence, h.width, y.step };
    tile_product<A_TURNED, B_TURNED> (shared, left, right, t, sum);
  }
  leave_head<WAY> leave = { p, lines_of (h, p.to, p.to_part, b.batch, b.head), t };
  WEFT_DYNAMIC_SHARED (float, room);
  leave_tile (sum, room, leave);
}

template <enum way WAY>
__global__ void
__launch_bounds__ (TILE_THREADS) plain_heads (struct products p)
{
  const struct heads &h = p.h;
  struct of_block b = block_head<WAY> (h);
  struct tile_of_product t = tile_here<WAY> (h, PLAIN_TILE);
  float sum[EACH][EACH] = {};

  for (uint64_t i = 0; i < b.n; i++) {
    struct lines x = lines_of (h, p.a, p.a_part, b.batch, b.head + i),
                 y = lines_of (h, p.b, p.b_part, b.batch, b.head + i);
    struct plain_factor left = { x.x, x.at, h.sequence, WAY == OF_KEYS ? 1 : x.step,
                                 WAY == OF_KEYS ? x.step : 1 },
                        right = { y.x, y.at, WAY == INTO_SQUARE ? h.sequence : h.width,
                                  WAY == INTO_SQUARE ? y.step : 1,
                                  WAY == INTO_SQUARE ? 1 : y.step };
    plain_product (left, right, t, sum);
  }
  leave_head<WAY> leave = { p, lines_of (h, p.to, p.to_part, b.batch, b.head), t };
  each_one (sum, leave);
}

/* Whether tile_product() supports these factors: one 16-bit type, and rows in memory that begin at
 * multiples of 16 bytes. */
static bool
tiles_take (const struct products &p)
{
  uintptr_t at = (uintptr_t) p.a.data | (uintptr_t) p.b.data;

  return p.a.dtype == p.b.dtype && (p.a.dtype == WEFT_BF16 || p.a.dtype == WEFT_FP16) &&
         at % 16 == 0 && p.h.width % 8 == 0 && (p.h.sequence % 8 == 0 || p.a_part != SQUARE);
}

template <enum way WAY>
static uint64_t
heads_of_all (const struct heads &h)
{
  return h.batch * (WAY == OF_KEYS ? h.groups : h.heads);
}

/* A grid whose z dimension counts the heads from h.first on, as many heads as a grid can have. */
template <enum way WAY>
static dim3
grid_of (const struct heads &h, uint64_t size)
{
  uint64_t columns = WAY == INTO_SQUARE ? h.sequence : h.width;
  dim3 grid (blocks_for (columns, size, ~0u), blocks_for (h.sequence, size, ~0u),
             blocks_for (heads_of_all<WAY> (h) - h.first, 1, MOST_IN_Y));

  return grid;
}

template <enum way WAY, class T>
static const char *
run_tiles (const struct weft_cuda_launch *l, const struct products &p)
{
  const char *error = allow (head_tiles<WAY, T>, tile_bytes<T> ());

  if (error)
    return error;
  WEFT_LAUNCH ((head_tiles<WAY, T>), grid_of<WAY> (p.h, TILE), TILE_THREADS, tile_bytes<T> (),
               l->stream, p);
  return launched ();
}

template <enum way WAY>
static const char *
run_some (const struct weft_cuda_launch *l, const struct products &p)
{
  if (tiles_take (p))
    return p.a.dtype == WEFT_BF16 ? run_tiles<WAY, bf16> (l, p) : run_tiles<WAY, fp16> (l, p);
  WEFT_LAUNCH (plain_heads<WAY>, grid_of<WAY> (p.h, PLAIN_TILE), TILE_THREADS, 0, l->stream, p);
  return launched ();
}

template <enum way WAY>
static const char *
run (const struct weft_cuda_launch *l, struct products p)
{
  const char *error = NULL;

  for (; !error && p.h.first < heads_of_all<WAY> (p.h); p.h.first += MOST_IN_Y)
    error = run_some<WAY> (l, p);
  return error;
}

static float
score_scale (const struct weft_cuda_launch *l)
{
  return l->model.attention_scale;
}

const char *
weft_cuda_scores (const struct weft_cuda_launch *l)
{
  struct array qkv = array_of (&l->operand[0]);
  struct products p = { heads_of (l), qkv,  qkv,    array_of (&l->operand[1]),
                        QUERIES,      KEYS, SQUARE, score_scale (l) };

  return run<INTO_SQUARE> (l, p);
}

const char *
weft_cuda_context (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand; /* p qkv o */
  struct products p = { heads_of (l), array_of (&o[0]), array_of (&o[1]), array_of (&o[2]),
                        SQUARE,       VALUES,           OUTPUT,           1 };

  return run<OF_QUERIES> (l, p);
}

const char *
weft_cuda_context_bwd (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand; /* the operands: do, qkv, dp */
  struct products p = { heads_of (l), array_of (&o[0]), array_of (&o[1]), array_of (&o[2]),
                        OUTPUT,       VALUES,           SQUARE,           1 };

  return run<INTO_SQUARE> (l, p);
}

enum { DS, P, DO, QKV, DQKV };

const char *
weft_cuda_scores_bwd (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  struct array ds = array_of (&o[DS]), qkv = array_of (&o[QKV]), to = array_of (&o[DQKV]);
  struct heads h = heads_of (l);
  struct products dq = { h, ds, qkv, to, SQUARE, KEYS, QUERIES, score_scale (l) },
                  dk = { h, ds, qkv, to, SQUARE, QUERIES, KEYS, score_scale (l) },
                  dv = { h, array_of (&o[P]), array_of (&o[DO]), to, SQUARE, OUTPUT, VALUES, 1 };
  const char *error = run<OF_QUERIES> (l, dq);

  error = error ? error : run<OF_KEYS> (l, dk);
  return error ? error : run<OF_KEYS> (l, dv);
}

/* ------------------------------------------------------------------------------- softmax */

/* One block per row of a score matrix. */
template <class T>
__global__ void
softmax (struct heads h, const T *scores, T *p)
{
  __shared__ float room[32];
  uint64_t n = h.sequence;

  for (uint64_t row = blockIdx.x; row < h.batch * h.heads * n; row += gridDim.x) {
    const T *x = scores + row * n;
    uint64_t query = row % n, first = query + 1 > h.window ? query + 1 - h.window : 0;
    float most = -INFINITY, sum = 0;
    for (uint64_t i = first + threadIdx.x; i <= query; i += ROW_THREADS)
      most = fmaxf (most, to_float (x[i]));
    most = block_most (most, room);
    for (uint64_t i = first + threadIdx.x; i <= query; i += ROW_THREADS)
      sum += expf (to_float (x[i]) - most);
    sum = block_sum (sum, room);
    for (uint64_t i = threadIdx.x; i < n; i += ROW_THREADS)
      set (p + row * n + i, sees (h, query, i) ? expf (to_float (x[i]) - most) / sum : 0);
  }
}

/* ds = p (dp - sum of p dp), in place. */
template <class T>
__global__ void
softmax_bwd (struct heads h, T *d, const T *p)
{
  __shared__ float room[32];
  uint64_t n = h.sequence;

  for (uint64_t row = blockIdx.x; row < h.batch * h.heads * n; row += gridDim.x) {
    float mean = 0;
    for (uint64_t i = row * n + threadIdx.x; i < (row + 1) * n; i += ROW_THREADS)
      mean += to_float (d[i]) * to_float (p[i]);
    mean = block_sum (mean, room);
    for (uint64_t i = row * n + threadIdx.x; i < (row + 1) * n; i += ROW_THREADS)
      set (d + i, to_float (p[i]) * (to_float (d[i]) - mean));
  }
}

template <class T>
static const char *
run_softmax (const struct weft_cuda_launch *l)
{
  struct heads h = heads_of (l);

  WEFT_LAUNCH (softmax<T>, blocks_for (h.batch * h.heads * h.sequence, 1, MOST_BLOCKS), ROW_THREADS,
               0, l->stream, h, (const T *) l->operand[0].data, (T *) l->operand[1].data);
  return launched ();
}

template <class T>
static const char *
run_softmax_bwd (const struct weft_cuda_launch *l)
{
  struct heads h = heads_of (l);

  WEFT_LAUNCH (softmax_bwd<T>, blocks_for (h.batch * h.heads * h.sequence, 1, MOST_BLOCKS),
               ROW_THREADS, 0, l->stream, h, (T *) l->operand[0].data,
               (const T *) l->operand[1].data);
  return launched ();
}

const char *
weft_cuda_softmax (const struct weft_cuda_launch *l)
{
  return WEFT_BY_DTYPE (l->operand[0].dtype, run_softmax, l);
}

const char *
weft_cuda_softmax_bwd (const struct weft_cuda_launch *l)
{
  return WEFT_BY_DTYPE (l->operand[0].dtype, run_softmax_bwd, l);
}
