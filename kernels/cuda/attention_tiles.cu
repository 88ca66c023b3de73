/* Fused causal attention with tiles of 64 queries and 64 keys on tensor cores (Dao,
 * FlashAttention-2, arXiv 2307.08691): scores stay in registers.
 *
 * Backward has one kernel for the gradients of queries and one for those of keys and values. Scores
 * are computed twice, but no two blocks accumulate into the same memory, so the results are the
 * same bits in every run. */
#include "kernels/cuda/attention_tiles.cuh"

enum { THREADS = 128, ROWS = 64 /* rows of a tile */, PAD = 8 };

/* Copies a tile to shared memory. Elements past the last row or beyond the head become 0. */
template <int D, int N, class T>
static __device__ __forceinline__ void
fetch (T *tile, const strip<T> &from, const struct tile &rows)
{
  const int each = D / 8;

  for (int i = threadIdx.x; i < N * each; i += THREADS) {
    int row = i / each, column = i % each * 8;
    T *to = tile + row * (D + PAD) + column;
    if (rows.first + row < rows.end && (uint64_t) column < from.width)
      WEFT_COPY (to, from.at + (rows.first + row) * from.step + column);
    else
      *(uint4 *) to = uint4{ 0, 0, 0, 0 };
  }
}

/* s (16, 8 N) = a b, summed over D terms. a: 16 rows of a_tile from row a_row on. b: its columns
 * are the rows of b_tile. */
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

/* sum (16, D) += p (16, 8 N) times the rows of a tile. p is rounded to type T first. */
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

/* ---------------------------------------------------------------------------- forward */

/* D: width of query and key heads; V: width of value heads. */
template <class T, int D, int V>
__global__ void
__launch_bounds__ (THREADS) tiles_forward (forward_of<T> f)
{
  WEFT_DYNAMIC_SHARED (T, shared);
  const struct attention &a = f.a;
  const int tile = ROWS * (D + PAD), v_size = ROWS * (V + PAD);
  /* k and v have two buffers each: one is copied while the other is multiplied */
  T *q_tile = shared, *k_tile = shared + tile, *v_tile = shared + 3 * tile;
  struct head h = query_head (a);
  /* blocks start in order of blockIdx.x: the tiles with most keys go first, and short ones fill the
   * end */
  struct tile mine = tile_of<ROWS> (a.queries, gridDim.x - 1 - blockIdx.x);
  struct passing pass = keys_passing<ROWS, ROWS> (a, mine);
  strip<T> q = { f.q + q_at (a, h, 0), a.q_row, a.width },
           k = { f.kv + k_at (a, h, 0), a.kv_row, a.width },
           v = { f.kv + v_at (a, h, 0), a.kv_row, a.value };
  uint64_t n = pass.n[0] + pass.n[1];
  float sum[V / 8][4] = {}, s[ROWS / 8][4], shrink[2];
  struct soft soft = { { -INFINITY, -INFINITY }, { 0, 0 } };

  fetch<D, ROWS> (q_tile, q, mine);
  /* copies tile i to shared memory while tile i - 1 is multiplied */
  for (uint64_t i = 0; i <= n; i++) {
    if (i < n) {
      struct tile next = passing_at<ROWS> (a.keys, pass, i);
      fetch<D, ROWS> (k_tile + i % 2 * tile, k, next);
      fetch<V, ROWS> (v_tile + i % 2 * v_size, v, next);
    }
    WEFT_COPY_COMMIT ();
    if (i == 0)
      continue;
    WEFT_COPY_WAIT (1);
    __syncthreads ();
    multiply_rows<D, ROWS / 8> (s, q_tile, threadIdx.x / 32 * WARP_ROWS,
                                k_tile + (i - 1) % 2 * tile);
    hide<ROWS, ROWS> (s, mine, passing_at<ROWS> (a.keys, pass, i - 1), a.window);
    soften<ROWS> (s, &soft, shrink, a.scale * LOG2_E);
    times<V> (sum, shrink);
    multiply_by<V, ROWS / 8> (sum, s, v_tile + (i - 1) % 2 * v_size);
    __syncthreads (); /* barrier, because the next fetch overwrites this tile */
  }

  leave_softened<V> (f, h, mine, soft, sum);
}

/* --------------------------------------------------------------------------- backward */

/* Computes the log-sum-exp of each query, and delta: the dot product of o and do. `known` has
 * `rows` rows for each head; those behind its tokens are padding. */
template <class T>
__global__ void
know (forward_of<T> f, const T *dout, struct known *known, uint64_t rows)
{
  const struct attention &a = f.a;
  uint64_t warp = ((uint64_t) blockIdx.x * THREADS + threadIdx.x) / 32, row = warp % rows;
  unsigned lane = threadIdx.x % 32;
  struct head h = { warp / rows / a.heads, warp / rows % a.heads, 0 };

  if (warp >= a.batch * a.heads * rows)
    return;
  if (row >= a.queries.tokens) {
    known[warp] = { INFINITY, 0 };
    return;
  }
  uint64_t at = o_at (a, h, row);
  const T *o = f.o;
  float sum = 0;
  for (uint64_t i = lane; i < a.value; i += 32)
    sum += to_float (o[at + i]) * to_float (dout[at + i]);
  sum = warp_sum (sum);
  float lse = f.lse[lse_at (a, h, row)];
  if (lane == 0)
    known[warp] = { lse == -INFINITY ? INFINITY : lse * LOG2_E, sum };
}

/* For a visible pair of query and key: the score becomes its probability, and the dot product of do
 * and the value becomes the gradient of the score. */
static __device__ __forceinline__ void
differentiate (float *s, float *dp, const struct known &query, float scale)
{
  *s = power_of_two (*s * scale * LOG2_E - query.lse);
  *dp = *s * (*dp - query.delta) * scale;
}

template <class T, int D, int V>
__global__ void
__launch_bounds__ (THREADS) tiles_queries (backward_of<T> b)
{
  WEFT_DYNAMIC_SHARED (T, shared);
  const struct attention &a = b.a;
  const int tile = ROWS * (D + PAD), v_size = ROWS * (V + PAD);
  T *q_tile = shared, *k_tile = shared + tile, *do_tile = shared + 2 * tile,
    *v_tile = shared + 2 * tile + v_size;
  struct head h = query_head (a);
  struct tile mine = tile_of<ROWS> (a.queries, gridDim.x - 1 - blockIdx.x);
  struct passing pass = keys_passing<ROWS, ROWS> (a, mine);
  strip<T> q = { b.q + q_at (a, h, 0), a.q_row, a.width },
           k = { b.kv + k_at (a, h, 0), a.kv_row, a.width },
           v = { b.kv + v_at (a, h, 0), a.kv_row, a.value },
           dq = { b.dq + q_at (a, h, 0), a.q_row, a.width },
           dout = { b.dout + o_at (a, h, 0), a.heads * a.value, a.value };
  unsigned row = threadIdx.x / 32 * WARP_ROWS, g = threadIdx.x % 32 / 4;
  float sum[D / 8][4] = {}, s[ROWS / 8][4], dp[ROWS / 8][4];
  const struct known of[2] = { known_of (b, h, mine.first + row + g, mine.end),
                               known_of (b, h, mine.first + row + g + 8, mine.end) };
  const float one[2] = { 1, 1 };

  fetch<D, ROWS> (q_tile, q, mine);
  fetch<V, ROWS> (do_tile, dout, mine);
  for (uint64_t i = 0; i < pass.n[0] + pass.n[1]; i++) {
    struct tile keys = passing_at<ROWS> (a.keys, pass, i);
    fetch<D, ROWS> (k_tile, k, keys);
    fetch<V, ROWS> (v_tile, v, keys);
    WEFT_COPY_COMMIT ();
    WEFT_COPY_WAIT (0);
    __syncthreads ();
    multiply_rows<D, ROWS / 8> (s, q_tile, row, k_tile);
    multiply_rows<V, ROWS / 8> (dp, do_tile, row, v_tile);
    hide<ROWS, ROWS> (s, mine, keys, a.window);
    for (unsigned n = 0; n < ROWS / 8; n++)
      for (unsigned e = 0; e < 4; e++)
        differentiate (&s[n][e], &dp[n][e], of[e / 2], a.scale);
    multiply_by<D, ROWS / 8> (sum, dp, k_tile);
    __syncthreads ();
  }
  leave<D> (dq, mine, sum, one, b.adds_q);
}

/* Like differentiate(), for a tile whose rows are keys and whose N columns are queries; masks the
 * scores first. */
template <int N>
static __device__ __forceinline__ void
differentiate_keys (float (*s)[4], float (*dp)[4], const struct known *of, int ahead,
                    const struct attention &a)
{
  unsigned warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;

  for (unsigned n = 0; n < N / 8; n++)
    for (unsigned e = 0; e < 4; e++) {
      int query = n * 8 + 2 * t + e % 2;
      int before = query + ahead - (int) (warp * WARP_ROWS + g + e / 2 * 8);
      if (before < 0 || before >= (int) a.window)
        s[n][e] = -INFINITY; /* masked */
      differentiate (&s[n][e], &dp[n][e], of[query], a.scale);
    }
}

/* Gradients of keys and values. The rows of a tile are keys; its N columns are queries. */
template <class T, int D, int V, int N>
__global__ void
__launch_bounds__ (THREADS) tiles_keys (backward_of<T> b)
{
  WEFT_DYNAMIC_SHARED (T, shared);
  __shared__ struct known of[ROWS];
  const struct attention &a = b.a;
  const int tile = ROWS * (D + PAD), v_size = ROWS * (V + PAD);
  T *k_tile = shared, *q_tile = shared + tile, *v_tile = shared + 2 * tile,
    *do_tile = shared + 2 * tile + v_size;
  uint64_t each = a.heads / a.groups;
  struct head h = { blockIdx.y / a.groups, 0, blockIdx.y % a.groups };
  struct tile mine = tile_of<ROWS> (a.keys, blockIdx.x);
  struct passing pass = queries_passing<ROWS, N> (a, mine);
  strip<T> k = { b.kv + k_at (a, h, 0), a.kv_row, a.width },
           v = { b.kv + v_at (a, h, 0), a.kv_row, a.value };
  unsigned row = threadIdx.x / 32 * WARP_ROWS;
  float dk[D / 8][4] = {}, dv[V / 8][4] = {}, s[N / 8][4], dp[N / 8][4];

  fetch<D, ROWS> (k_tile, k, mine);
  fetch<V, ROWS> (v_tile, v, mine);
  for (h.query = h.group * each; h.query < (h.group + 1) * each; h.query++) {
    strip<T> q = { b.q + q_at (a, h, 0), a.q_row, a.width },
             dout = { b.dout + o_at (a, h, 0), a.heads * a.value, a.value };
    for (uint64_t i = 0; i < pass.n[0] + pass.n[1]; i++) {
      struct tile queries = passing_at<N> (a.queries, pass, i);
      fetch<D, N> (q_tile, q, queries);
      fetch<V, N> (do_tile, dout, queries);
      WEFT_COPY_COMMIT ();
      for (unsigned n = threadIdx.x; n < N; n += THREADS)
        of[n] = known_of (b, h, queries.first + n, queries.end);
      WEFT_COPY_WAIT (0);
      __syncthreads ();
      multiply_rows<D, N / 8> (s, k_tile, row, q_tile);
      multiply_rows<V, N / 8> (dp, v_tile, row, do_tile);
      differentiate_keys<N> (s, dp, of, queries.position - mine.position, a);
      multiply_by<V, N / 8> (dv, s, do_tile);
      multiply_by<D, N / 8> (dk, dp, q_tile);
      __syncthreads ();
    }
  }
  const float one[2] = { 1, 1 };
  strip<T> to_k = { b.dkv + k_at (a, h, 0), a.kv_row, a.width },
           to_v = { b.dkv + v_at (a, h, 0), a.kv_row, a.value };
  leave<D> (to_k, mine, dk, one, b.adds_kv);
  leave<V> (to_v, mine, dv, one, b.adds_kv);
}

/* --------------------------------------------------------------------------- launches */

/* Supported widths of query and key heads, and of value heads: the usual ones and those of latent
 * attention. */
#define WIDTHS(X) X (64, 64) X (128, 128) X (192, 128)

template <int D, int V>
static size_t
tiles_bytes (unsigned keys, unsigned values)
{
  return (size_t) ROWS * (keys * (D + PAD) + values * (V + PAD)) * 2;
}

/* Whether forward supports a call; forward has more requirements than backward. */
bool
weft_cuda_tiles_take (const struct attention_call *c)
{
  uintptr_t at = (uintptr_t) c->q | (uintptr_t) c->kv | (uintptr_t) c->o | (uintptr_t) c->dout |
                 (uintptr_t) c->dq | (uintptr_t) c->dkv;

  if (c->a.cap != 0 || c->a.slope_heads != 0)
    return false;
  if ((c->dtype != WEFT_BF16 && c->dtype != WEFT_FP16) || at % 16 != 0 ||
      c->a.batch * c->a.heads > MOST_IN_Y)
    return false;
#define IS(d, v)                                                                                   \
  if (holds<d, v> (c->a))                                                                          \
    return tiles_bytes<d, v> (3, 2) <= most_shared ();
  WIDTHS (IS)
#undef IS
  return false;
}

template <class T, int D, int V>
static const char *
run (const struct weft_cuda_launch *l, const struct attention_call *c)
{
  const struct attention &a = c->a;
  dim3 grid (tiles_of<ROWS> (a.queries), (unsigned) (a.batch * a.heads));
  size_t bytes = tiles_bytes<D, V> (3, 2);
  const char *error = allow (tiles_forward<T, D, V>, bytes);
  forward_of<T> f = { a, (const T *) c->q, (const T *) c->kv, (T *) c->o, c->lse };

  if (error)
    return error;
  WEFT_LAUNCH ((tiles_forward<T, D, V>), grid, THREADS, bytes, l->stream, f);
  return launched ();
}

/* Bytes of scratch for backward: log-sum-exp and delta of each query. */
WEFT_CUDA_SCRATCH (attention_bwd, s->dim[0] * s->dim[1] * s->dim[2] * sizeof (struct known))
WEFT_CUDA_SCRATCH (attention_part_bwd, s->dim[0] * s->dim[2] * sizeof (struct known))

template <class T>
static void
run_know (const struct weft_cuda_launch *l, const struct attention_call *c, uint64_t rows)
{
  forward_of<T> f = { c->a, (const T *) c->q, (const T *) c->kv, (T *) c->o, c->lse };

  WEFT_LAUNCH ((know<T>), blocks_for (c->a.batch * c->a.heads * rows, THREADS / 32, ~0u), THREADS,
               0, l->stream, f, (const T *) c->dout, (struct known *) l->scratch, rows);
}

template <class T, int D, int V>
static const char *
run_bwd (const struct weft_cuda_launch *l, const struct attention_call *c)
{
  /* number of queries per tile, which the number of registers limits */
  enum { QUERIES = D == 64 ? 64 : D == 128 ? 32 : 16 };
  const struct attention &a = c->a;
  struct known *known = (struct known *) l->scratch;
  backward_of<T> b = { a,           (const T *) c->q, (const T *) c->kv, (const T *) c->dout, known,
                       (T *) c->dq, (T *) c->dkv,     c->adds_q,         c->adds_kv };
  dim3 by_query (tiles_of<ROWS> (a.queries), (unsigned) (a.batch * a.heads)),
      by_key (tiles_of<ROWS> (a.keys), (unsigned) (a.batch * a.groups));
  size_t bytes = tiles_bytes<D, V> (2, 2);
  const char *error = allow (tiles_queries<T, D, V>, bytes);

  error = error ? error : allow (tiles_keys<T, D, V, QUERIES>, bytes);
  if (error)
    return error;
  WEFT_LAUNCH ((tiles_queries<T, D, V>), by_query, THREADS, bytes, l->stream, b);
  WEFT_LAUNCH ((tiles_keys<T, D, V, QUERIES>), by_key, THREADS, bytes, l->stream, b);
  return launched ();
}

template <class T>
static const char *
by_width (const struct weft_cuda_launch *l, const struct attention_call *c, bool backward)
{
#define RUN(d, v)                                                                                  \
  if (holds<d, v> (c->a))                                                                          \
    return backward ? run_bwd<T, d, v> (l, c) : run<T, d, v> (l, c);
  WIDTHS (RUN)
#undef RUN
  return "no tiles of attention for heads of this width";
}

static const char *
by_dtype (const struct weft_cuda_launch *l, const struct attention_call *c, bool backward)
{
  return c->dtype == WEFT_BF16 ? by_width<bf16> (l, c, backward) : by_width<fp16> (l, c, backward);
}

const char *
weft_cuda_tiles_forward (const struct weft_cuda_launch *l, const struct attention_call *c)
{
  if (weft_cuda_producer_takes (l, c))
    return weft_cuda_producer_forward (l, c);
  if (weft_cuda_warpgroups_take (l, c))
    return weft_cuda_warpgroups_forward (l, c);
  return by_dtype (l, c, false);
}

const char *
weft_cuda_tiles_backward (const struct weft_cuda_launch *l, const struct attention_call *c)
{
  uint64_t rows = weft_cuda_producer_rows (l, c), tokens = c->a.queries.tokens;

  if (c->dtype == WEFT_BF16)
    run_know<bf16> (l, c, rows ? rows : tokens);
  else
    run_know<fp16> (l, c, rows ? rows : tokens);
  if (rows)
    return weft_cuda_producer_backward (l, c, (const struct known *) l->scratch);
  if (weft_cuda_warpgroups_take (l, c))
    return weft_cuda_warpgroups_backward (l, c, (const struct known *) l->scratch);
  return by_dtype (l, c, true);
}
