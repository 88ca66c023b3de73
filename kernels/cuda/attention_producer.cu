/* Forward of fused causal attention with a producer warp, for compute capability 9.0 (Shah et
 * al., FlashAttention-3, arXiv 2407.08608, sections 3.1 and 3.2). It stands beside
 * attention_warpgroup.cu until a GPU has shown which one is faster; attention_backend = auto
 * measures both.
 *
 * A block has 64 queries per consumer warpgroup, and one producer warp, which copies tiles of
 * 128 keys and of values by TMA into a ring. A consumer issues the scores of a key tile and the
 * value products of the tile before, then computes the exponentials of the scores while the
 * value products run. Named barriers make the consumers issue in turn (ping-pong), so that one
 * computes exponentials while the products of another run.
 *
 *   heads of                                64              128
 *   consumers, queries of a block           3, 192          2, 128
 *   registers of a thread at the start      128             168
 *     after setmaxnreg: producer, consumer  32, 160         24, 240
 *   of a consumer: sums, scores, fragments  32, 64, 32      64, 64, 32
 *   shared memory: queries                  24,576          32,768
 *     a stage of keys and values, stages    32,768, 3       65,536, 2
 *     all, with mbarriers                   122,984         163,912
 *   blocks of an SM, warps                  1, 16           1, 12
 *
 * Cycles of an SM for one key tile of a block, at 2048 16-bit multiply-adds, 128 bytes of shared
 * memory, 16 exponentials and 128 other fp32 instructions (four per score) per cycle:
 *
 *   products                                1536            2048
 *   shared memory: products, copies         960, 256        1280, 512
 *   exponentials, other fp32                1536, 768       1024, 512
 *
 * So a block reaches 40 and 57 % of the rate of products (990 TFLOP/s on an H200) if nothing
 * overlaps, and all of it if everything does. These are bounds, not forecasts: no GPU has run
 * it. Causal tiles that a warpgroup does not see are skipped, so that a block of 192 queries
 * issues no more products than one of 128. */
#include "kernels/cuda/attention_producer.cuh"

enum { KEYS = 128 };

/* Sizes for heads of D. */
template <int D> struct sizes {
  static const int CONSUMERS = D == 64 ? 3 : 2, ROWS = 64 * CONSUMERS;
  static const int THREADS = (CONSUMERS + 1) * GROUP;
  static const int STAGES = D == 64 ? 3 : 2;
  static const int PRODUCER_REGISTERS = D == 64 ? 32 : 24;
  static const int CONSUMER_REGISTERS = D == 64 ? 160 : 240;
  static const int TILE = KEYS * D; /* elements */
  static const size_t BARRIERS = 1 + 4 * STAGES;
  static const size_t BYTES = 2 * (ROWS * D + 2 * STAGES * TILE) + BARRIERS * sizeof (uint64_t);
};

/* Arguments of the kernel. */
template <class T> struct produced_forward {
  tensor_map q, k, v;
  forward_of<T> f;
  struct order order;
};

/* One block: its shared memory and its work. */
template <class T, int D> struct forward_block {
  typedef sizes<D> size;

  const produced_forward<T> &p;
  T *q_tile, *k_tile, *v_tile;
  uint64_t *q_full;
  ring<size::STAGES> k, v;
  struct head h;
  struct tile mine;
  struct passing pass;
  int n; /* key tiles */

  __device__ __forceinline__ struct tile keys_at (int i) const
  {
    return passing_at<KEYS> (p.f.a.keys, pass, (uint64_t) i);
  }

  __device__ __forceinline__ T *k_stage (unsigned i) const
  {
    return k_tile + i % size::STAGES * size::TILE;
  }

  __device__ __forceinline__ T *v_stage (unsigned i) const
  {
    return v_tile + i % size::STAGES * size::TILE;
  }
};

template <class T, int D>
static __device__ __forceinline__ forward_block<T, D>
block_of (const produced_forward<T> &p, T *shared)
{
  typedef sizes<D> size;
  const struct attention &a = p.f.a;
  struct turn_of_block turn = turn_of (p.order, blockIdx.x);
  uint64_t n = turn.head % a.heads;
  T *k_tile = shared + size::ROWS * D, *v_tile = k_tile + size::STAGES * size::TILE;
  uint64_t *b = (uint64_t *) (v_tile + size::STAGES * size::TILE);
  struct tile mine = tile_of<size::ROWS> (a.queries, p.order.tiles - 1 - turn.tile);
  struct passing pass = keys_passing<size::ROWS, KEYS> (a, mine);

  return { p,
           shared,
           k_tile,
           v_tile,
           b,
           { b + 1, b + 1 + size::STAGES },
           { b + 1 + 2 * size::STAGES, b + 1 + 3 * size::STAGES },
           { turn.head / a.heads, n, n / (a.heads / a.groups) },
           mine,
           pass,
           (int) (pass.n[0] + pass.n[1]) };
}

/* The producer: one thread. */
template <class T, int D>
static __device__ __forceinline__ void
produce (const forward_block<T, D> &b)
{
  typedef sizes<D> size;
  const struct attention &a = b.p.f.a;
  const tiles_of_head q = { b.p.q, a.queries, b.h.batch, b.h.query },
                      k = { b.p.k, a.keys, b.h.batch, b.h.group },
                      v = { b.p.v, a.keys, b.h.batch, b.h.group };

  if (b.n == 0)
    return;
  map_is_needed (&b.p.q);
  map_is_needed (&b.p.k);
  map_is_needed (&b.p.v);
  mbarrier_expect (b.q_full, size::ROWS * D * sizeof (T));
  load_tile<D, size::ROWS> (b.q_tile, q, b.mine, b.q_full);
  for (int i = 0; i < b.n; i++) {
    const struct tile keys = b.keys_at (i);
    load_tile<D, KEYS> (b.k_stage (i), k, keys, b.k.begin (i, size::TILE * sizeof (T)));
    load_tile<D, KEYS> (b.v_stage (i), v, keys, b.v.begin (i, size::TILE * sizeof (T)));
  }
}

/* One consumer warpgroup: 64 queries. */
template <class T, int D> struct consumer {
  typedef sizes<D> size;
  enum { TOGETHER = 2 * GROUP /* threads at the barrier of a turn */ };

  const forward_block<T, D> &b;
  int group;     /* number of the warpgroup */
  int low, high; /* range of the block's key tiles that this warpgroup's queries see */

  /* Waits for the turn of this warpgroup to issue products. */
  __device__ __forceinline__ void take (void) const
  {
    named_sync (1 + group, TOGETHER);
  }

  /* Passes the turn to the next warpgroup. The last warpgroup keeps its last turn. */
  __device__ __forceinline__ void pass (int i) const
  {
    if (group < size::CONSUMERS - 1 || i + 1 < b.n)
      named_arrive (1 + (group + 1) % size::CONSUMERS, TOGETHER);
  }

  __device__ __forceinline__ void skip (int i) const
  {
    take ();
    pass (i);
    b.k.wait (i);
    b.k.release (i);
    b.v.wait (i);
    b.v.release (i);
  }
};

template <class T, int D>
static __device__ __forceinline__ consumer<T, D>
consumer_of (const forward_block<T, D> &b)
{
  int group = warpgroup_number ();
  struct tile rows = { b.mine.first + group * 64, b.mine.end, b.mine.position + group * 64 };
  struct passing own = keys_passing<64, KEYS> (b.p.f.a, rows);
  int behind = (int) b.pass.n[0], at[2], n[2] = { (int) own.n[0], (int) own.n[1] };
  consumer<T, D> c = { b, group, b.n, b.n };

  at[0] = (int) (own.first[0] - b.pass.first[0]);
  at[1] = behind + (int) (own.first[1] - b.pass.first[1]);
  if (rows.first < rows.end && n[0] + n[1] > 0) {
    c.low = n[0] > 0 ? at[0] : at[1];
    c.high = n[1] > 0 ? at[1] + n[1] : at[0] + n[0];
  }
  return c;
}

template <class T, int D>
static __device__ __forceinline__ void
consume (const forward_block<T, D> &b)
{
  typedef sizes<D> size;
  const struct attention &a = b.p.f.a;
  const consumer<T, D> c = consumer_of (b);
  const uint64_t q = tile_from (b.q_tile, c.group * 64);
  float sum[D / 8][4] = {}, s[KEYS / 8][4], shrink[2];
  uint32_t p[KEYS / TERMS][4];
  struct soft soft = { { -INFINITY, -INFINITY }, { 0, 0 } };

  hold (sum);
  if (b.n > 0) {
    if (c.group == size::CONSUMERS - 1)
      named_arrive (1, c.TOGETHER);
    mbarrier_wait (b.q_full, 0);
  }
  for (int i = 0; i < c.low; i++)
    c.skip (i);
  if (c.low < c.high) {
    b.k.wait (c.low);
    c.take ();
    products_begin ();
    multiply_rows<T, D, size::ROWS, KEYS> (s, q, tile_from (b.k_stage (c.low), 0));
    products_commit ();
    c.pass (c.low);
    products_wait<0> ();
    hold (s);
    b.k.release (c.low);
    hide<size::ROWS, KEYS> (s, b.mine, b.keys_at (c.low), a.window);
    soften<KEYS> (s, &soft, shrink, a.scale * LOG2_E);
    round_to<T> (p, s);
    for (int i = c.low + 1; i < c.high; i++) {
      b.k.wait (i);
      b.v.wait (i - 1);
      c.take ();
      products_begin ();
      multiply_rows<T, D, size::ROWS, KEYS> (s, q, tile_from (b.k_stage (i), 0));
      products_commit ();
      multiply_by<T, D, KEYS> (sum, p, tile_turned<KEYS> (b.v_stage (i - 1)));
      products_commit ();
      c.pass (i);
      products_wait<1> ();
      hold (s);
      b.k.release (i);
      hide<size::ROWS, KEYS> (s, b.mine, b.keys_at (i), a.window);
      soften<KEYS> (s, &soft, shrink, a.scale * LOG2_E);
      products_wait<0> ();
      hold (sum);
      b.v.release (i - 1);
      times<D> (sum, shrink);
      hold (sum);
      round_to<T> (p, s);
    }
    b.v.wait (c.high - 1);
    products_begin ();
    multiply_by<T, D, KEYS> (sum, p, tile_turned<KEYS> (b.v_stage (c.high - 1)));
    products_commit ();
    products_wait<0> ();
    hold (sum);
    b.v.release (c.high - 1);
  }
  for (int i = c.high; i < b.n; i++)
    c.skip (i);
  leave_softened<D> (b.p.f, b.h, b.mine, soft, sum);
}

template <class T, int D>
static __device__ __forceinline__ void
attend (const produced_forward<T> &p)
{
  typedef sizes<D> size;
  WEFT_TILES_SHARED (T, shared);
  const forward_block<T, D> b = block_of<T, D> (p, shared);

  if (threadIdx.x == 0) {
    mbarrier_init (b.q_full, 1);
    b.k.open (size::CONSUMERS * 4);
    b.v.open (size::CONSUMERS * 4);
    mbarriers_are_seen ();
  }
  __syncthreads ();
  if (warpgroup_number () == size::CONSUMERS) {
    registers_give<size::PRODUCER_REGISTERS> ();
    if (threadIdx.x == size::CONSUMERS * GROUP)
      produce (b);
  } else {
    registers_take<size::CONSUMER_REGISTERS> ();
    consume (b);
  }
}

template <class T, int D>
__global__ void
__launch_bounds__ (sizes<D>::THREADS, 1)
    producer_forward (const __grid_constant__ produced_forward<T> p)
{
  if constexpr (WEFT_HAS_WARPGROUPS)
    attend<T, D> (p);
  else
    no_warpgroups ();
}

/* --------------------------------------------------------------------------- launches */

template <class T, int D>
static const char *
run (const struct weft_cuda_launch *l, const struct attention_call *c)
{
  typedef sizes<D> size;
  const struct attention &a = c->a;
  const uint64_t heads = a.batch * a.heads,
                 bytes = a.keys.tokens * (a.width + a.value) * sizeof (T);
  produced_forward<T> p = { {},
                            {},
                            {},
                            { a, (const T *) c->q, (const T *) c->kv, (T *) c->o, c->lse },
                            order_of (heads, bytes, tiles_of<size::ROWS> (a.queries)) };
  const heads_in_rows q = { p.f.q, a.q_row, a.heads, a.width },
                      k = { p.f.kv + a.k_column, a.kv_row, a.groups, a.width },
                      v = { p.f.kv + a.v_column, a.kv_row, a.groups, a.value };
  const char *error = allow (producer_forward<T, D>, size::BYTES);

  error = error ? error : map_heads (&p.q, q, a.queries, a.batch, size::ROWS);
  error = error ? error : map_heads (&p.k, k, a.keys, a.batch, KEYS);
  error = error ? error : map_heads (&p.v, v, a.keys, a.batch, KEYS);
  if (error)
    return error;
  WEFT_LAUNCH ((producer_forward<T, D>), (unsigned) (heads * p.order.tiles), size::THREADS,
               size::BYTES, l->stream, p);
  return launched ();
}

bool
weft_cuda_producer_takes (const struct weft_cuda_launch *l, const struct attention_call *c)
{
#define IS(d)                                                                                      \
  if (holds<d, d> (c->a))                                                                          \
    return l->warpgroups == WEFT_WARPGROUPS_PRODUCER && sizes<d>::BYTES <= most_shared ();
  WEFT_PRODUCER_WIDTHS (IS)
#undef IS
  return false;
}

const char *
weft_cuda_producer_forward (const struct weft_cuda_launch *l, const struct attention_call *c)
{
#define RUN(d)                                                                                     \
  if (holds<d, d> (c->a))                                                                          \
    return c->dtype == WEFT_BF16 ? run<bf16, d> (l, c) : run<fp16, d> (l, c);
  WEFT_PRODUCER_WIDTHS (RUN)
#undef RUN
  return "no producer warp of attention for heads of this width";
}
