/* Causal attention by tiles of 64 queries and 64 keys, on tensor cores (Dao, FlashAttention-2, arXiv
 * 2307.08691): a warp has 16 rows of a tile; scores never leave the registers.
 *
 * Backward has one kernel for the gradients of queries and one for those of keys and values: scores are
 * made twice, and nobody adds to memory that another block adds to, so that the bits are the same in
 * every run. */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/fragments.cuh"

enum { THREADS = 128, ROWS = 64 /* of a tile */, PAD = 8, WARP_ROWS = 16 };
enum { QKV, O, LSE };
enum { BWD_QKV, BWD_O, BWD_LSE, BWD_DO, BWD_DQKV };

#define LOG2_E 1.4426950408889634f

/* Rows of one head in memory: row t begins t * step elements after the first. */
template <class T> struct strip {
  const T *at;
  uint64_t step, rows;
};

/* Rows [first, first + N) into shared memory, zeros past the end. */
template <int D, int N, class T>
static __device__ __forceinline__ void
fetch (T *tile, const strip<T> &from, uint64_t first)
{
  const int each = D / 8;

  for (int i = threadIdx.x; i < N * each; i += THREADS) {
    int row = i / each, column = i % each * 8;
    T *to = tile + row * (D + PAD) + column;
    if (first + row < from.rows)
      WEFT_COPY (to, from.at + (first + row) * from.step + column);
    else
      *(uint4 *) to = uint4{ 0, 0, 0, 0 };
  }
}

/* s (16, 8 n) = rows of a times columns of b, D terms; both tiles have a row for each of them. */
template <int D, int N, class T>
static __device__ __forceinline__ void
multiply_rows (float (*s)[4], const T *a_tile, unsigned a_row, const T *b_tile)
{
  for (int n = 0; n < N; n++)
    for (int e = 0; e < 4; e++)
      s[n][e] = 0;
  WEFT_UNROLL
  for (int term = 0; term < D; term += 16) {
    uint32_t a[4], b[4];
    load_a (a, a_tile, D + PAD, a_row, term);
    WEFT_UNROLL
    for (int n = 0; n < N; n += 2) {
      load_b (b, b_tile, D + PAD, n * 8, term);
      multiply<T> (s[n], a, b[0], b[1]);
      multiply<T> (s[n + 1], a, b[2], b[3]);
    }
  }
}

/* sum (16, D) += p (16, 8 N) times the rows of a tile; p is rounded to its type. */
template <int D, int N, class T>
static __device__ __forceinline__ void
multiply_by (float (*sum)[4], const float (*p)[4], const T *tile)
{
  WEFT_UNROLL
  for (int k = 0; k < N; k += 2) {
    uint32_t b[4], a[4] = { two<T> (p[k][0], p[k][1]), two<T> (p[k][2], p[k][3]),
                            two<T> (p[k + 1][0], p[k + 1][1]), two<T> (p[k + 1][2], p[k + 1][3]) };
    WEFT_UNROLL
    for (int d = 0; d < D; d += 16) {
      load_b_turned (b, tile, D + PAD, d, k * 8);
      multiply<T> (sum[d / 8], a, b[0], b[1]);
      multiply<T> (sum[d / 8 + 1], a, b[2], b[3]);
    }
  }
}

/* Elements 2t and 2t + 1 of each eight, of rows g and g + 8, where those rows exist. */
template <int D, class T>
static __device__ __forceinline__ void
leave (T *at, uint64_t step, uint64_t first, uint64_t rows, const float (*sum)[4], const float by[2])
{
  unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

  for (unsigned half = 0; half < 2; half++) {
    uint64_t row = first + g + half * 8;
    for (int d = 0; d < D / 8 && row < rows; d++)
      *(uint32_t *) (at + row * step + d * 8 + 2 * t) =
          two<T> (sum[d][half * 2] * by[half], sum[d][half * 2 + 1] * by[half]);
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

/* The head of a block: blockIdx.y counts heads of all batches. */
static __device__ __forceinline__ struct head
query_head (const struct attention &a)
{
  uint64_t n = blockIdx.y % a.heads;
  struct head h = { blockIdx.y / a.heads, n, n / (a.heads / a.groups) };
  return h;
}

/* ---------------------------------------------------------------------------- forward */

/* Of the two rows of a lane: largest score so far and sum of exponentials against it. */
struct soft {
  float most[2], sum[2];
};

/* Scores become probabilities against the largest so far; what was summed before shrinks. */
template <int D>
static __device__ __forceinline__ void
soften (float (*s)[4], struct soft *soft, float (*sum)[4], float scale)
{
  for (int half = 0; half < 2; half++) {
    float most = soft->most[half], total = 0;
    for (int n = 0; n < ROWS / 8; n++)
      most = fmaxf (most, fmaxf (s[n][half * 2], s[n][half * 2 + 1]));
    most = quad_most (most);
    float against = most == -INFINITY ? 0 : most * scale;
    float shrink = exp2f (soft->most[half] * scale - against);
    for (int n = 0; n < ROWS / 8; n++)
      for (int e = half * 2; e < half * 2 + 2; e++) {
        s[n][e] = exp2f (s[n][e] * scale - against);
        total += s[n][e];
      }
    soft->sum[half] = soft->sum[half] * shrink + total;
    soft->most[half] = most;
    for (int d = 0; d < D / 8; d++) {
      sum[d][half * 2] *= shrink;
      sum[d][half * 2 + 1] *= shrink;
    }
  }
}

/* On the diagonal tile a query does not see the keys after it. */
static __device__ __forceinline__ void
hide (float (*s)[4], unsigned warp)
{
  unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

  for (unsigned n = 0; n < ROWS / 8; n++)
    for (unsigned e = 0; e < 4; e++)
      if (n * 8 + 2 * t + e % 2 > warp * WARP_ROWS + g + e / 2 * 8)
        s[n][e] = -INFINITY;
}

template <class T, int D>
__global__ void
__launch_bounds__ (THREADS) tiles_forward (struct attention a, const T *qkv, T *o, float *lse)
{
  WEFT_DYNAMIC_SHARED (T, shared);
  const int tile = ROWS * (D + PAD);
  T *q_tile = shared, *k_tile = shared + tile, *v_tile = shared + 3 * tile; /* two of each */
  struct head h = query_head (a);
  uint64_t last = gridDim.x - 1 - blockIdx.x, step = row_elements (a); /* long ones first */
  strip<T> q = { qkv + q_at (a, h, 0), step, a.sequence }, k = { qkv + k_at (a, h, 0), step, a.sequence },
           v = { qkv + v_at (a, h, 0), step, a.sequence };
  unsigned warp = threadIdx.x / 32;
  float sum[D / 8][4] = {}, s[ROWS / 8][4];
  struct soft soft = { { -INFINITY, -INFINITY }, { 0, 0 } };

  fetch<D, ROWS> (q_tile, q, last * ROWS);
  fetch<D, ROWS> (k_tile, k, 0);
  fetch<D, ROWS> (v_tile, v, 0);
  WEFT_COPY_COMMIT ();
  for (uint64_t j = 0; j <= last; j++) {
    unsigned now = j % 2, next = 1 - now;
    if (j < last) {
      fetch<D, ROWS> (k_tile + next * tile, k, (j + 1) * ROWS);
      fetch<D, ROWS> (v_tile + next * tile, v, (j + 1) * ROWS);
    }
    WEFT_COPY_COMMIT ();
    WEFT_COPY_WAIT (1);
    __syncthreads ();
    multiply_rows<D, ROWS / 8> (s, q_tile, warp * WARP_ROWS, k_tile + now * tile);
    if (j == last)
      hide (s, warp);
    soften<D> (s, &soft, sum, a.scale * LOG2_E);
    multiply_by<D, ROWS / 8> (sum, s, v_tile + now * tile);
    __syncthreads (); /* the next fetch takes the place of this tile */
  }

  float by[2];
  for (unsigned half = 0; half < 2; half++) {
    uint64_t row = last * ROWS + warp * WARP_ROWS + threadIdx.x % 32 / 4 + half * 8;
    float total = quad_sum (soft.sum[half]);
    by[half] = 1 / total;
    if (threadIdx.x % 4 == 0 && row < a.sequence)
      lse[lse_at (a, h, row)] = soft.most[half] * a.scale + logf (total);
  }
  leave<D> (o + o_at (a, h, 0), a.heads * a.value, last * ROWS + warp * WARP_ROWS, a.sequence, sum,
            by);
}

/* --------------------------------------------------------------------------- backward */

/* delta of each query: the product of o and its gradient. */
template <class T, int D>
__global__ void
deltas (struct attention a, const T *o, const T *dout, float *delta)
{
  uint64_t warp = ((uint64_t) blockIdx.x * THREADS + threadIdx.x) / 32;
  unsigned lane = threadIdx.x % 32;

  if (warp >= a.batch * a.heads * a.sequence)
    return;
  struct head h = { warp / a.sequence / a.heads, warp / a.sequence % a.heads, 0 };
  uint64_t at = o_at (a, h, warp % a.sequence);
  float sum = 0;
  for (int i = lane; i < D; i += 32)
    sum += to_float (o[at + i]) * to_float (dout[at + i]);
  sum = warp_sum (sum);
  if (lane == 0)
    delta[lse_at (a, h, warp % a.sequence)] = sum;
}

template <class T> struct backward {
  struct attention a;
  const T *qkv, *dout;
  const float *lse, *delta;
  T *dqkv;
};

/* Of a query and a key that it sees: the score becomes its probability, and the product of do and
 * value the gradient of the score. */
static __device__ __forceinline__ void
differentiate (float *s, float *dp, float lse, float delta, float scale)
{
  *s = exp2f (*s * scale * LOG2_E - lse * LOG2_E);
  *dp = *s * (*dp - delta) * scale;
}

template <class T, int D>
__global__ void
__launch_bounds__ (THREADS) tiles_queries (backward<T> b)
{
  WEFT_DYNAMIC_SHARED (T, shared);
  const struct attention &a = b.a;
  const int tile = ROWS * (D + PAD);
  T *q_tile = shared, *do_tile = shared + tile, *k_tile = shared + 2 * tile, *v_tile = shared + 3 * tile;
  struct head h = query_head (a);
  uint64_t last = gridDim.x - 1 - blockIdx.x, step = row_elements (a);
  strip<T> q = { b.qkv + q_at (a, h, 0), step, a.sequence },
           k = { b.qkv + k_at (a, h, 0), step, a.sequence },
           v = { b.qkv + v_at (a, h, 0), step, a.sequence },
           dout = { b.dout + o_at (a, h, 0), a.heads * a.value, a.sequence };
  unsigned warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
  uint64_t first = last * ROWS + warp * WARP_ROWS;
  float sum[D / 8][4] = {}, s[ROWS / 8][4], dp[ROWS / 8][4], lse[2], delta[2];

  for (unsigned half = 0; half < 2; half++) {
    uint64_t row = first + g + half * 8;
    lse[half] = row < a.sequence ? b.lse[lse_at (a, h, row)] : INFINITY;
    delta[half] = row < a.sequence ? b.delta[lse_at (a, h, row)] : 0;
  }
  fetch<D, ROWS> (q_tile, q, last * ROWS);
  fetch<D, ROWS> (do_tile, dout, last * ROWS);
  for (uint64_t j = 0; j <= last; j++) {
    fetch<D, ROWS> (k_tile, k, j * ROWS);
    fetch<D, ROWS> (v_tile, v, j * ROWS);
    WEFT_COPY_COMMIT ();
    WEFT_COPY_WAIT (0);
    __syncthreads ();
    multiply_rows<D, ROWS / 8> (s, q_tile, warp * WARP_ROWS, k_tile);
    multiply_rows<D, ROWS / 8> (dp, do_tile, warp * WARP_ROWS, v_tile);
    if (j == last)
      hide (s, warp);
    for (unsigned n = 0; n < ROWS / 8; n++)
      for (unsigned e = 0; e < 4; e++)
        differentiate (&s[n][e], &dp[n][e], lse[e / 2], delta[e / 2], a.scale);
    multiply_by<D, ROWS / 8> (sum, dp, k_tile);
    __syncthreads ();
  }
  const float one[2] = { 1, 1 };
  leave<D> (b.dqkv + q_at (a, h, 0), step, first, a.sequence, sum, one);
}

/* Rows are keys here and columns queries; N queries are taken at a time. */
template <class T, int D, int N>
__global__ void
__launch_bounds__ (THREADS) tiles_keys (backward<T> b)
{
  WEFT_DYNAMIC_SHARED (T, shared);
  __shared__ float lse[ROWS], delta[ROWS];
  const struct attention &a = b.a;
  const int tile = ROWS * (D + PAD);
  T *k_tile = shared, *v_tile = shared + tile, *q_tile = shared + 2 * tile, *do_tile = shared + 3 * tile;
  uint64_t each = a.heads / a.groups, step = row_elements (a), first = (uint64_t) blockIdx.x * ROWS;
  struct head h = { blockIdx.y / a.groups, 0, blockIdx.y % a.groups };
  strip<T> k = { b.qkv + k_at (a, h, 0), step, a.sequence },
           v = { b.qkv + v_at (a, h, 0), step, a.sequence };
  unsigned warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  float dk[D / 8][4] = {}, dv[D / 8][4] = {}, s[N / 8][4], dp[N / 8][4];

  fetch<D, ROWS> (k_tile, k, first);
  fetch<D, ROWS> (v_tile, v, first);
  for (uint64_t of = 0; of < each; of++) {
    h.query = h.group * each + of;
    strip<T> q = { b.qkv + q_at (a, h, 0), step, a.sequence },
             dout = { b.dout + o_at (a, h, 0), a.heads * a.value, a.sequence };
    for (uint64_t i = first; i < a.sequence; i += N) {
      fetch<D, N> (q_tile, q, i);
      fetch<D, N> (do_tile, dout, i);
      WEFT_COPY_COMMIT ();
      for (unsigned n = threadIdx.x; n < N; n += THREADS) {
        bool is = i + n < a.sequence;
        lse[n] = is ? b.lse[lse_at (a, h, i + n)] : INFINITY;
        delta[n] = is ? b.delta[lse_at (a, h, i + n)] : 0;
      }
      WEFT_COPY_WAIT (0);
      __syncthreads ();
      multiply_rows<D, N / 8> (s, k_tile, warp * WARP_ROWS, q_tile);
      multiply_rows<D, N / 8> (dp, v_tile, warp * WARP_ROWS, do_tile);
      for (unsigned n = 0; n < N / 8; n++)
        for (unsigned e = 0; e < 4; e++) {
          unsigned query = n * 8 + 2 * t + e % 2;
          if (first + warp * WARP_ROWS + g + e / 2 * 8 > i + query)
            s[n][e] = -INFINITY; /* not seen */
          differentiate (&s[n][e], &dp[n][e], lse[query], delta[query], a.scale);
        }
      multiply_by<D, N / 8> (dv, s, do_tile);
      multiply_by<D, N / 8> (dk, dp, q_tile);
      __syncthreads ();
    }
  }
  const float one[2] = { 1, 1 };
  leave<D> (b.dqkv + k_at (a, h, 0), step, first + warp * WARP_ROWS, a.sequence, dk, one);
  leave<D> (b.dqkv + v_at (a, h, 0), step, first + warp * WARP_ROWS, a.sequence, dv, one);
}

/* --------------------------------------------------------------------------- launches */

bool
weft_cuda_tiles_take (const struct weft_cuda_launch *l)
{
  struct attention a = attention_of (l);
  uint32_t dtype = l->operand[QKV].dtype;
  uintptr_t at = 0;

  for (unsigned i = 0; i < 5; i++)
    at |= (uintptr_t) l->operand[i].data;
  return (dtype == WEFT_BF16 || dtype == WEFT_FP16) && (a.width == 64 || a.width == 128) &&
         a.value == a.width && a.window == 0 && at % 16 == 0;
}

template <int D>
static size_t
tiles_bytes (unsigned tiles)
{
  return (size_t) tiles * ROWS * (D + PAD) * 2;
}

static unsigned
tiles_of (const struct attention &a)
{
  return blocks_for (a.sequence, ROWS, ~0u);
}

template <class T, int D>
static const char *
run (const struct weft_cuda_launch *l)
{
  struct attention a = attention_of (l);
  dim3 grid (tiles_of (a), (unsigned) (a.batch * a.heads));
  const char *error = allow (tiles_forward<T, D>, tiles_bytes<D> (5));

  if (error)
    return error;
  WEFT_LAUNCH ((tiles_forward<T, D>), grid, THREADS, tiles_bytes<D> (5), l->stream, a,
               (const T *) l->operand[QKV].data, (T *) l->operand[O].data,
               (float *) l->operand[LSE].data);
  return launched ();
}

/* Scratch: delta of each query. */
uint64_t
weft_cuda_scratch_attention (const uint64_t *dim)
{
  return dim[0] * dim[1] * dim[2] * sizeof (float);
}

template <class T, int D>
static const char *
run_bwd (const struct weft_cuda_launch *l)
{
  enum { QUERIES = D == 64 ? 64 : 32 }; /* of a tile, so that nothing leaves the registers */
  const struct weft_cuda_operand *o = l->operand;
  struct attention a = attention_of (l);
  float *delta = (float *) l->scratch;
  backward<T> b = { a,
                    (const T *) o[BWD_QKV].data,
                    (const T *) o[BWD_DO].data,
                    (const float *) o[BWD_LSE].data,
                    delta,
                    (T *) o[BWD_DQKV].data };
  uint64_t queries = a.batch * a.heads * a.sequence;
  dim3 by_query (tiles_of (a), (unsigned) (a.batch * a.heads)),
      by_key (tiles_of (a), (unsigned) (a.batch * a.groups));
  const char *error = allow (tiles_queries<T, D>, tiles_bytes<D> (4));

  error = error ? error : allow (tiles_keys<T, D, QUERIES>, tiles_bytes<D> (4));
  if (error)
    return error;
  WEFT_LAUNCH ((deltas<T, D>), blocks_for (queries, THREADS / 32, ~0u), THREADS, 0, l->stream, a,
               (const T *) o[BWD_O].data, (const T *) o[BWD_DO].data, delta);
  WEFT_LAUNCH ((tiles_queries<T, D>), by_query, THREADS, tiles_bytes<D> (4), l->stream, b);
  WEFT_LAUNCH ((tiles_keys<T, D, QUERIES>), by_key, THREADS, tiles_bytes<D> (4), l->stream, b);
  return launched ();
}

template <class T>
static const char *
by_width (const struct weft_cuda_launch *l, bool backward)
{
  if (l->dim[4] == 64)
    return backward ? run_bwd<T, 64> (l) : run<T, 64> (l);
  return backward ? run_bwd<T, 128> (l) : run<T, 128> (l);
}

static const char *
by_dtype (const struct weft_cuda_launch *l, bool backward)
{
  return l->operand[QKV].dtype == WEFT_BF16 ? by_width<bf16> (l, backward)
                                            : by_width<fp16> (l, backward);
}

const char *
weft_cuda_tiles_forward (const struct weft_cuda_launch *l)
{
  return by_dtype (l, false);
}

const char *
weft_cuda_tiles_backward (const struct weft_cuda_launch *l)
{
  return by_dtype (l, true);
}
