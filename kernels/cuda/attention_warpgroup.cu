/* Fused causal attention on tensor cores of compute capability 9.0: two warpgroups of 64 rows each
 * share the inner tiles (Shah et al., FlashAttention-3, arXiv 2407.08608; of its techniques, this
 * version uses the overlap of exponentials with products, not TMA copies or producer warps).
 *
 * Inner tiles are copied one ahead of their use, with one barrier per tile: the next copy
 * overwrites a tile whose products have finished in all warps. Backward is two kernels, as in
 * attention_tiles.cu, so that no two blocks accumulate into the same memory. */
#include "kernels/cuda/attention_columns.cuh"
#include "kernels/cuda/attention_order.cuh"
#include "kernels/cuda/warpgroup.cuh"

enum { THREADS = 2 * GROUP, ROWS = 128 /* outer tile */ };

/* Copies rows into a tile of N rows. Elements past the last row or beyond the head become 0. */
template <int D, int N, class T>
static __device__ __forceinline__ void
fetch (T *tile, const strip<T> &from, const struct tile &rows)
{
  const unsigned each = D / 8, together = THREADS / each;
  unsigned row = threadIdx.x / each, c = threadIdx.x % each;
  const T *at = from.at + (rows.first + row) * from.step + c * 8;
  int left = c * 8 < from.width ? (int) (rows.end - rows.first) - (int) row : 0;
  T *to = tile_place<N> (tile, row, c);

  static_assert (together % 8 == 0,
                 "places of a column are alike in all rows that a thread copies");
  WEFT_UNROLL
  for (unsigned i = 0; i < N; i += together) {
    WEFT_COPY_OR_ZERO (to + i * PANEL, at, (int) i < left);
    at += together * from.step;
  }
}

/* Descriptor of this warpgroup's 64 rows of an outer tile. */
template <class T>
static __device__ __forceinline__ uint64_t
rows_of_group (const T *tile)
{
  return tile_from (tile, threadIdx.x / GROUP * 64);
}

/* Turns scores into probabilities; queries are rows. */
template <int N>
static __device__ __forceinline__ void
row_probabilities (float (&s)[N][4], const struct known (&of)[2], float scale)
{
  WEFT_UNROLL
  for (int n = 0; n < N; n++)
    WEFT_UNROLL
  for (int e = 0; e < 4; e++)
    s[n][e] = power_of_two (s[n][e] * scale - of[e / 2].lse);
}

/* Turns probabilities into gradients of scores, unscaled; queries are rows. dp: products of do and
 * values. */
template <int N>
static __device__ __forceinline__ void
row_gradients (float (&p)[N][4], const float (&dp)[N][4], const struct known (&of)[2])
{
  WEFT_UNROLL
  for (int n = 0; n < N; n++)
    WEFT_UNROLL
  for (int e = 0; e < 4; e++)
    p[n][e] *= dp[n][e] - of[e / 2].delta;
}

/* ---------------------------------------------------------------------------- forward */

/* Number of rows of an inner tile in forward, and blocks of an SM: for heads of 64, registers
 * and shared memory of half a tile suffice for two blocks, so that one computes exponentials,
 * which take as long as the products, while the other multiplies. */
template <int D> constexpr int INNER = D == 64 ? 64 : 128;
template <int D> constexpr int FORWARD_BLOCKS = D == 64 ? 2 : 1;

template <class T, int D>
static constexpr size_t
forward_bytes (void)
{
  return sizeof (T) * D * (ROWS + 4 * INNER<D>);
}

/* Forward of one block. Issues the score products of a key tile, then the value products of the
 * tile before it, and computes the exponentials of the scores while the value products run. */
template <class T, int D>
static __device__ __forceinline__ void
pass_keys (const forward_of<T> &f)
{
  WEFT_TILES_SHARED (T, shared);
  const struct attention &a = f.a;
  enum { KEYS = INNER<D> };
  const int tile = KEYS * D;
  T *k_tile = shared + ROWS * D, *v_tile = k_tile + 2 * tile;
  struct head h = query_head (a);
  /* blocks start in order of blockIdx.x: the tiles with most keys go first, and short ones fill the
   * end */
  struct tile mine = tile_of<ROWS> (a.queries, gridDim.x - 1 - blockIdx.x);
  struct passing pass = keys_passing<ROWS, KEYS> (a, mine);
  strip<T> q = { f.q + q_at (a, h, 0), a.q_row, a.width },
           k = { f.kv + k_at (a, h, 0), a.kv_row, a.width },
           v = { f.kv + v_at (a, h, 0), a.kv_row, a.value };
  int n = (int) (pass.n[0] + pass.n[1]);
  uint64_t rows = rows_of_group (shared);
  float sum[D / 8][4] = {}, s[KEYS / 8][4], shrink[2];
  uint32_t p[KEYS / TERMS][4];
  struct soft soft = { { -INFINITY, -INFINITY }, { 0, 0 } };

  hold (sum);
  fetch<D, ROWS> (shared, q, mine);
  if (n > 0) {
    struct tile keys = passing_at<KEYS> (a.keys, pass, 0);
    fetch<D, KEYS> (k_tile, k, keys);
    WEFT_COPY_COMMIT ();
    tiles_arrive ();
    products_begin ();
    multiply_rows<T, D, ROWS, KEYS> (s, rows, tile_from (k_tile, 0));
    products_commit ();
    fetch<D, KEYS> (v_tile, v, keys);
    if (n > 1)
      fetch<D, KEYS> (k_tile + tile, k, passing_at<KEYS> (a.keys, pass, 1));
    WEFT_COPY_COMMIT ();
    products_wait<0> ();
    hold (s);
    hide<ROWS, KEYS> (s, mine, keys, a.window);
    soften<KEYS> (s, &soft, shrink, a.scale * LOG2_E);
    round_to<T> (p, s);
    for (int i = 1; i < n; i++) {
      keys = passing_at<KEYS> (a.keys, pass, i);
      tiles_arrive ();
      products_begin ();
      multiply_rows<T, D, ROWS, KEYS> (s, rows, tile_from (k_tile + i % 2 * tile, 0));
      products_commit ();
      multiply_by<T, D, KEYS> (sum, p, tile_turned<KEYS> (v_tile + (i - 1) % 2 * tile));
      products_commit ();
      fetch<D, KEYS> (v_tile + i % 2 * tile, v, keys);
      if (i + 1 < n)
        fetch<D, KEYS> (k_tile + (i + 1) % 2 * tile, k, passing_at<KEYS> (a.keys, pass, i + 1));
      WEFT_COPY_COMMIT ();
      products_wait<1> ();
      hold (s);
      hide<ROWS, KEYS> (s, mine, keys, a.window);
      soften<KEYS> (s, &soft, shrink, a.scale * LOG2_E);
      products_wait<0> ();
      hold (sum);
      times<D> (sum, shrink);
      hold (sum);
      round_to<T> (p, s);
    }
    tiles_arrive ();
    products_begin ();
    multiply_by<T, D, KEYS> (sum, p, tile_turned<KEYS> (v_tile + (n - 1) % 2 * tile));
    products_commit ();
    products_wait<0> ();
    hold (sum);
  }
  leave_softened<D> (f, h, mine, soft, sum);
}

template <class T, int D>
__global__ void
__launch_bounds__ (THREADS, FORWARD_BLOCKS<D>) warpgroup_forward (forward_of<T> f)
{
  if constexpr (WEFT_HAS_WARPGROUPS)
    pass_keys<T, D> (f);
  else
    no_warpgroups ();
}

/* --------------------------------------------------------------------------- backward */

enum {
  STAGES = 3 /* buffers of inner tiles: one being copied, one in use, one with products in flight */
};

/* Number of rows of an inner tile in backward. */
template <int D> constexpr int NARROW = 64;

template <class T, int D>
static constexpr size_t
stage_bytes (void)
{
  return sizeof (T) * D * 2 * NARROW<D>;
}

/* Shared memory of query gradients. Outer tiles: queries; inner tiles: keys and values. */
template <class T, int D>
static constexpr size_t
queries_bytes (void)
{
  return sizeof (T) * D * 2 * ROWS + STAGES * stage_bytes<T, D> ();
}

template <class T, int D> struct query_gradients {
  static const int N = NARROW<D>;
  const backward_of<T> &b;
  T *q_tile, *do_tile, *stages;
  struct head h;
  struct tile mine;
  struct passing pass;
  struct known of[2];
  float sum[D / 8][4], s[N / 8][4], dp[N / 8][4];
  uint32_t ds[N / TERMS][4];

  __device__ __forceinline__ T *stage (int i) const
  {
    return stages + i % STAGES * 2 * N * D;
  }

  __device__ __forceinline__ void copy (int i) const
  {
    const struct attention &a = b.a;
    struct tile keys = passing_at<N> (a.keys, pass, i);

    fetch<D, N> (stage (i), strip<T>{ b.kv + k_at (a, h, 0), a.kv_row, a.width }, keys);
    fetch<D, N> (stage (i) + N * D, strip<T>{ b.kv + v_at (a, h, 0), a.kv_row, a.value }, keys);
  }

  /* Issues the products of queries and keys, and those of do and values, as two groups. */
  __device__ __forceinline__ void begin_scores (int i)
  {
    multiply_rows<T, D, ROWS, N> (s, rows_of_group (q_tile), tile_from (stage (i), 0));
    products_commit ();
    multiply_rows<T, D, ROWS, N> (dp, rows_of_group (do_tile), tile_from (stage (i) + N * D, 0));
    products_commit ();
  }

  __device__ __forceinline__ void begin_sum (int i)
  {
    multiply_by<T, D, N> (sum, ds, tile_turned<N> (stage (i)));
    products_commit ();
  }

  /* Computes the score gradients of tile i while OPEN groups issued after the scores are in
   * flight. */
  template <int OPEN> __device__ __forceinline__ void differentiate (int i)
  {
    products_wait<OPEN + 1> ();
    hold (s);
    hide<ROWS, N> (s, mine, passing_at<N> (b.a.keys, pass, i), b.a.window);
    row_probabilities (s, of, b.a.scale * LOG2_E);
    products_wait<OPEN> ();
    hold (dp);
    row_gradients (s, dp, of);
  }
};

/* Computes the score gradients of a tile while the sums of the previous tile are accumulated. */
template <class T, int D>
static __device__ __forceinline__ void
differentiate_queries (const backward_of<T> &b)
{
  WEFT_TILES_SHARED (T, shared);
  const struct attention &a = b.a;
  struct head h = query_head (a);
  struct tile mine = tile_of<ROWS> (a.queries, gridDim.x - 1 - blockIdx.x);
  struct passing pass = keys_passing<ROWS, NARROW<D>> (a, mine);
  uint64_t row = mine.first + threadIdx.x / 32 * WARP_ROWS + threadIdx.x % 32 / 4;
  query_gradients<T, D> g = { b,
                              shared,
                              shared + ROWS * D,
                              shared + 2 * ROWS * D,
                              h,
                              mine,
                              pass,
                              { known_of (b, h, row, mine.end),
                                known_of (b, h, row + 8, mine.end) } };
  int n = (int) (pass.n[0] + pass.n[1]);

  hold (g.sum);
  fetch<D, ROWS> (g.q_tile, strip<T>{ b.q + q_at (a, h, 0), a.q_row, a.width }, mine);
  fetch<D, ROWS> (g.do_tile, strip<T>{ b.dout + o_at (a, h, 0), a.heads * a.value, a.value }, mine);
  if (n > 0) {
    g.copy (0);
    WEFT_COPY_COMMIT ();
    tiles_arrive ();
    products_begin ();
    g.begin_scores (0);
    if (n > 1)
      g.copy (1);
    WEFT_COPY_COMMIT ();
    g.template differentiate<0> (0);
    round_to<T> (g.ds, g.s);
    for (int i = 1; i < n; i++) {
      tiles_arrive ();
      products_begin ();
      g.begin_scores (i);
      g.begin_sum (i - 1);
      if (i + 1 < n)
        g.copy (i + 1);
      WEFT_COPY_COMMIT ();
      g.template differentiate<1> (i);
      products_wait<0> ();
      hold (g.sum);
      round_to<T> (g.ds, g.s);
    }
    products_begin ();
    g.begin_sum (n - 1);
    products_wait<0> ();
    hold (g.sum);
  }
  const float by[2] = { a.scale, a.scale };
  leave<D> (strip<T>{ b.dq + q_at (a, h, 0), a.q_row, a.width }, mine, g.sum, by, b.adds_q);
}

/* Shared memory of key gradients. Outer tiles: keys and values; inner tiles: queries of all heads
 * of the group. */
template <class T, int D>
static constexpr size_t
keys_bytes (void)
{
  return sizeof (T) * D * 2 * ROWS +
         STAGES * (stage_bytes<T, D> () + NARROW<D> * sizeof (struct known));
}

template <class T, int D> struct key_gradients {
  static const int N = NARROW<D>;
  const struct attention &a;
  strip<T> q, dout; /* queries and output gradients of the first head of the group */
  /* lse and delta of the queries, from the first query of the head group's first head on */
  const struct known *known;
  T *k_tile, *v_tile, *stages;
  struct known *of; /* lse and delta of the queries in all buffers, in shared memory */
  struct passing pass;
  int position; /* position in the sequence of the first key */
  int tiles;    /* number of inner tiles for each query head */
  int head, at; /* number of the head (in the group) and of the tile that are copied next */
  int seen;     /* the tile whose scores are turned into probabilities next */
  float dk[D / 8][4], dv[D / 8][4], s[N / 8][4], dp[N / 8][4];
  uint32_t p[N / TERMS][4], ds[N / TERMS][4];

  __device__ __forceinline__ T *stage (int i) const
  {
    return stages + i % STAGES * 2 * N * D;
  }

  __device__ __forceinline__ struct known *known_at (int i) const
  {
    return of + i % STAGES * N;
  }

  __device__ __forceinline__ void copy (int i)
  {
    struct tile queries = passing_at<N> (a.queries, pass, at);
    uint64_t row = queries.first + threadIdx.x;

    fetch<D, N> (stage (i), strip<T>{ q.at + head * a.width, q.step, a.width }, queries);
    fetch<D, N> (stage (i) + N * D, strip<T>{ dout.at + head * a.value, dout.step, a.value },
                 queries);
    if (threadIdx.x < N)
      WEFT_COPY_8_OR_ZERO (known_at (i) + threadIdx.x, known + head * a.queries.tokens + row,
                           row < queries.end);
    at = at + 1 < tiles ? at + 1 : 0;
    head += at == 0;
  }

  __device__ __forceinline__ void begin_scores (int i)
  {
    multiply_rows<T, D, ROWS, N> (s, rows_of_group (k_tile), tile_from (stage (i), 0));
    products_commit ();
  }

  __device__ __forceinline__ void begin_products (int i)
  {
    multiply_rows<T, D, ROWS, N> (dp, rows_of_group (v_tile), tile_from (stage (i) + N * D, 0));
    products_commit ();
  }

  __device__ __forceinline__ void begin_keys (int i)
  {
    multiply_by<T, D, N> (dk, ds, tile_turned<N> (stage (i)));
    products_commit ();
  }

  /* Turns scores, whose products have finished, into probabilities. */
  __device__ __forceinline__ void become_probabilities (int i)
  {
    struct tile queries = passing_at<N> (a.queries, pass, seen);

    hold (s);
    hide_queries<ROWS, N> (s, queries.position - position, a.window);
    seen = seen + 1 < tiles ? seen + 1 : 0;
    column_probabilities (s, known_at (i), a.scale * LOG2_E);
  }

  /* Adds the value gradients of tile i, and computes its score gradients meanwhile. */
  __device__ __forceinline__ void finish (int i)
  {
    round_to<T> (p, s);
    products_begin ();
    multiply_by<T, D, N> (dv, p, tile_turned<N> (stage (i) + N * D));
    products_commit ();
    products_wait<1> ();
    hold (dp);
    column_gradients<T> (p, dp, known_at (i));
    round_to<T> (ds, dp);
    products_wait<0> ();
    hold (dv);
  }
};

/* Computes the probabilities of a tile while the key gradients of the previous one are
 * accumulated. */
template <class T, int D>
static __device__ __forceinline__ void
differentiate_keys (const backward_of<T> &b, const struct order &order)
{
  WEFT_TILES_SHARED (T, shared);
  const struct attention &a = b.a;
  uint64_t each = a.heads / a.groups;
  const struct turn_of_block turn = turn_of (order, blockIdx.x);
  uint64_t group = turn.head % a.groups;
  struct head h = { turn.head / a.groups, group * each, group };
  struct tile mine = tile_of<ROWS> (a.keys, turn.tile);
  struct passing pass = queries_passing<ROWS, NARROW<D>> (a, mine);
  T *stages = shared + 2 * ROWS * D;
  key_gradients<T, D> g = { a,
                            { b.q + q_at (a, h, 0), a.q_row, a.width },
                            { b.dout + o_at (a, h, 0), a.heads * a.value, a.value },
                            b.known + lse_at (a, h, 0),
                            shared,
                            shared + ROWS * D,
                            stages,
                            (struct known *) (stages + STAGES * 2 * NARROW<D> * D),
                            pass,
                            mine.position,
                            (int) (pass.n[0] + pass.n[1]) };
  int all = g.tiles * (int) each;

  hold (g.dk);
  hold (g.dv);
  fetch<D, ROWS> (g.k_tile, strip<T>{ b.kv + k_at (a, h, 0), a.kv_row, a.width }, mine);
  fetch<D, ROWS> (g.v_tile, strip<T>{ b.kv + v_at (a, h, 0), a.kv_row, a.value }, mine);
  if (all > 0) {
    g.copy (0);
    WEFT_COPY_COMMIT ();
    tiles_arrive ();
    products_begin ();
    g.begin_scores (0);
    g.begin_products (0);
    if (all > 1)
      g.copy (1);
    WEFT_COPY_COMMIT ();
    products_wait<1> ();
    g.become_probabilities (0);
    g.finish (0);
    for (int i = 1; i < all; i++) {
      tiles_arrive ();
      products_begin ();
      g.begin_scores (i);
      g.begin_keys (i - 1);
      if (i + 1 < all)
        g.copy (i + 1);
      WEFT_COPY_COMMIT ();
      products_begin ();
      g.begin_products (i);
      products_wait<2> ();
      g.become_probabilities (i);
      /* waits, because p is about to be rounded into the registers of ds, which the products of the
       * previous tile read */
      products_wait<1> ();
      hold (g.dk);
      g.finish (i);
    }
    products_begin ();
    g.begin_keys (all - 1);
    products_wait<0> ();
    hold (g.dk);
  }
  const float by[2] = { a.scale, a.scale }, one[2] = { 1, 1 };
  mine = tile_of<ROWS> (a.keys, turn.tile);
  leave<D> (strip<T>{ b.dkv + k_at (a, h, 0), a.kv_row, a.width }, mine, g.dk, by, b.adds_kv);
  leave<D> (strip<T>{ b.dkv + v_at (a, h, 0), a.kv_row, a.value }, mine, g.dv, one, b.adds_kv);
}

template <class T, int D>
__global__ void
__launch_bounds__ (THREADS, 1) warpgroup_queries (backward_of<T> b)
{
  if constexpr (WEFT_HAS_WARPGROUPS)
    differentiate_queries<T, D> (b);
  else
    no_warpgroups ();
}

template <class T, int D>
__global__ void
__launch_bounds__ (THREADS, 1) warpgroup_keys (backward_of<T> b, struct order order)
{
  if constexpr (WEFT_HAS_WARPGROUPS)
    differentiate_keys<T, D> (b, order);
  else
    no_warpgroups ();
}

/* --------------------------------------------------------------------------- launches */

#define WIDTHS(X) X (64) X (128)

bool
weft_cuda_warpgroups_take (const struct weft_cuda_launch *l, const struct attention_call *c)
{
#define IS(d)                                                                                      \
  if (holds<d, d> (c->a))                                                                          \
    return l->warpgroups;
  WIDTHS (IS)
#undef IS
  return false;
}

template <class T, int D>
static const char *
run (const struct weft_cuda_launch *l, const struct attention_call *c)
{
  const struct attention &a = c->a;
  dim3 grid (tiles_of<ROWS> (a.queries), (unsigned) (a.batch * a.heads));
  const size_t bytes = forward_bytes<T, D> ();
  const char *error = allow (warpgroup_forward<T, D>, bytes);
  forward_of<T> f = { a, (const T *) c->q, (const T *) c->kv, (T *) c->o, c->lse };

  if (error)
    return error;
  WEFT_LAUNCH ((warpgroup_forward<T, D>), grid, THREADS, bytes, l->stream, f);
  return launched ();
}

const char *
weft_cuda_warpgroups_forward (const struct weft_cuda_launch *l, const struct attention_call *c)
{
#define RUN(d)                                                                                     \
  if (holds<d, d> (c->a))                                                                          \
    return c->dtype == WEFT_BF16 ? run<bf16, d> (l, c) : run<fp16, d> (l, c);
  WIDTHS (RUN)
#undef RUN
  return "no warpgroups of attention for heads of this width";
}

template <class T, int D>
static const char *
run_bwd (const struct weft_cuda_launch *l, const struct attention_call *c,
         const struct known *known)
{
  const struct attention &a = c->a;
  backward_of<T> b = { a,           (const T *) c->q, (const T *) c->kv, (const T *) c->dout, known,
                       (T *) c->dq, (T *) c->dkv,     c->adds_q,         c->adds_kv };
  dim3 by_query (tiles_of<ROWS> (a.queries), (unsigned) (a.batch * a.heads));
  /* a block reads the queries and output gradients of all heads of its group */
  const uint64_t group_bytes =
      a.heads / a.groups * a.queries.tokens * (a.width + a.value) * sizeof (T);
  struct order order = order_of (a.batch * a.groups, group_bytes, tiles_of<ROWS> (a.keys));
  const size_t q_bytes = queries_bytes<T, D> (), k_bytes = keys_bytes<T, D> ();
  const char *error = allow (warpgroup_queries<T, D>, q_bytes);

  error = error ? error : allow (warpgroup_keys<T, D>, k_bytes);
  if (error)
    return error;
  WEFT_LAUNCH ((warpgroup_queries<T, D>), by_query, THREADS, q_bytes, l->stream, b);
  WEFT_LAUNCH ((warpgroup_keys<T, D>), order.heads * order.tiles, THREADS, k_bytes, l->stream, b,
               order);
  return launched ();
}

const char *
weft_cuda_warpgroups_backward (const struct weft_cuda_launch *l, const struct attention_call *c,
                               const struct known *known)
{
#define RUN(d)                                                                                     \
  if (holds<d, d> (c->a))                                                                          \
    return c->dtype == WEFT_BF16 ? run_bwd<bf16, d> (l, c, known) : run_bwd<fp16, d> (l, c, known);
  WIDTHS (RUN)
#undef RUN
  return "no warpgroups of attention for heads of this width";
}
