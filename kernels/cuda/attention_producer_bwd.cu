/* Backward of fused causal attention with a producer warp (attention_producer.cu), of whole
 * sequences: five products per pair of tiles, where attention_warpgroup.cu computes seven.
 *
 * A block has 128 keys, 64 for each of two consumer warpgroups, and passes over tiles of 64
 * queries of all heads of the group, last tiles first. A consumer computes the transposed scores
 * and gradients of scores, and adds to the gradients of its keys and values, with the left
 * factor in registers. Both consumers store their gradients of scores in shared memory, where
 * the products for the gradients of queries read all of them; of these products, a consumer
 * computes half of the columns (heads of 128) or every second tile (64). Exponentials of a tile
 * run while the gradients of keys and queries of the tile before are multiplied.
 *
 * Query gradients are summed in fp32 in scratch. A second warp of the producer's warpgroup
 * copies them there by TMA: the first block of a tile stores, the later ones add. Blocks of a
 * tile add in the order of their keys, so the sums have the same bits in every run, with or
 * without deterministic_mode: each block waits for its turn. A block takes a ticket, which
 * assigns the longest remaining work, so a block waits only for blocks that have started. All
 * blocks pass over the queries in the same order, so each runs one tile behind the block for
 * which it waits. A last kernel rounds the sums.
 *
 *   heads of                                  64         128
 *   registers: producer, consumers            24, 240    24, 240
 *   shared memory: keys and values            32,768     65,536
 *     3 tiles of queries, 2 of do             40,960     81,920
 *     2 tiles of gradients of scores          32,768     32,768
 *     query gradients                         16,384     32,768
 *     all, with lse, delta and mbarriers      124,528    214,640
 *   blocks of an SM, warps                    1, 12      1, 12
 *
 * Cycles of an SM for a pair of tiles (128 keys, 64 queries), counted as in
 * attention_producer.cu, with six other fp32 instructions per score:
 *
 *   products                                  1280       2560
 *   shared memory: products, all other        1024, 512  2048, 896
 *   exponentials, other fp32                  512, 384   512, 384
 *
 * So a block reaches 59 and 74 % of the rate of products if they overlap with nothing, and at
 * most 83 and 87 %, where shared memory is the limit. These are bounds, not forecasts: they
 * leave out all waiting. */
#include "kernels/cuda/attention_columns.cuh"
#include "kernels/cuda/attention_producer.cuh"

enum { CONSUMERS = 2, KEYS = 128, QUERIES = 64, THREADS = (CONSUMERS + 1) * GROUP };
enum { Q_STAGES = 3, DO_STAGES = 2 /* queries, with lse and delta; output gradients */ };
enum { PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240 };
enum { SCORES_STORED = 1 /* number of the named barrier of the consumers */ };

/* Elements and bytes of tiles of heads of D. */
template <int D> struct sizes {
  static const int KEY_TILE = KEYS * D, QUERY_TILE = QUERIES * D, SCORE_TILE = KEYS * QUERIES;
  static const int KNOWN_BYTES = QUERIES * sizeof (struct known);
  static const int SUM_BYTES = QUERY_TILE * sizeof (float);
  static const size_t TILES =
      2 * (2 * KEY_TILE + (Q_STAGES + DO_STAGES) * QUERY_TILE + 2 * SCORE_TILE);
  static const size_t BARRIERS = 1 + 2 * (Q_STAGES + DO_STAGES + 1) + 1 /* the ticket */;
  static const size_t BYTES =
      TILES + SUM_BYTES + Q_STAGES * KNOWN_BYTES + BARRIERS * sizeof (uint64_t);
};

/* Arguments of the kernel. */
template <class T> struct produced_backward {
  tensor_map q, dout, k, v;
  backward_of<T> b;
  float *sums; /* for each head and tile of queries, in the order of registers: place_of_sum() */
  uint32_t *turns, *tickets; /* blocks that have added to a tile; blocks that have started */
  uint64_t rows;             /* rows of `known` for each head */
  struct order order;
};

/* One pass over a tile of queries of one head: the last tile of all heads of the group first. */
struct step {
  int number, tile, head;
};

/* One block: its shared memory and its work. */
template <class T, int D> struct backward_block {
  typedef sizes<D> size;

  const produced_backward<T> &p;
  T *k_tile, *v_tile, *q_tile, *do_tile, *ds_tile;
  float *sum_tile;
  struct known *known;
  uint64_t *keys_full;
  ring<Q_STAGES> q;
  ring<DO_STAGES> dout;
  ring<1> sum;
  int number; /* number of the tile of keys */
  struct head h;
  struct tile mine;
  int first, tiles, each; /* number of query tiles that see the keys; query heads of the group */

  __device__ __forceinline__ int steps (void) const
  {
    return tiles * each;
  }

  /* Number of the query tile of a step, counted over all heads of all sequences. */
  __device__ __forceinline__ uint64_t place_of (const struct step &s) const
  {
    return (h.batch * p.b.a.heads + h.query + (unsigned) s.head) * (p.rows / QUERIES) +
           (unsigned) s.tile;
  }

  /* Number of blocks that add to a tile of queries before this block: the blocks of earlier keys
   * which these queries see. */
  __device__ __forceinline__ uint32_t blocks_before (int tile) const
  {
    int64_t from = (int64_t) tile * QUERIES - (int64_t) p.b.a.window + 1;

    return (uint32_t) (number - (from > 0 ? (int) (from / KEYS) : 0));
  }

  /* begin() returns the first step; go_on() changes a step to the next one. */
  __device__ __forceinline__ struct step begin (void) const
  {
    struct step s = { 0, first + tiles - 1, 0 };
    return s;
  }

  __device__ __forceinline__ void go_on (struct step *s) const
  {
    s->number++;
    s->head = s->head + 1 < each ? s->head + 1 : 0;
    s->tile -= s->head == 0;
  }

  __device__ __forceinline__ T *q_stage (unsigned i) const
  {
    return q_tile + i % Q_STAGES * size::QUERY_TILE;
  }

  __device__ __forceinline__ T *do_stage (unsigned i) const
  {
    return do_tile + i % DO_STAGES * size::QUERY_TILE;
  }

  __device__ __forceinline__ struct known *known_stage (unsigned i) const
  {
    return known + i % Q_STAGES * QUERIES;
  }
};

template <class T, int D>
static __device__ __forceinline__ backward_block<T, D>
block_of (const produced_backward<T> &p, T *shared)
{
  typedef sizes<D> size;
  T *v = shared + size::KEY_TILE, *q = v + size::KEY_TILE, *dout = q + Q_STAGES * size::QUERY_TILE,
    *ds = dout + DO_STAGES * size::QUERY_TILE;
  float *sum = (float *) (ds + 2 * size::SCORE_TILE);
  struct known *known = (struct known *) (sum + size::QUERY_TILE);
  uint64_t *b = (uint64_t *) (known + Q_STAGES * QUERIES), *dout_full = b + 1 + 2 * Q_STAGES,
           *sum_full = dout_full + 2 * DO_STAGES;

  return { p,
           shared,
           v,
           q,
           dout,
           ds,
           sum,
           known,
           b,
           { b + 1, b + 1 + Q_STAGES },
           { dout_full, dout_full + DO_STAGES },
           { sum_full, sum_full + 1 },
           0,
           {},
           {},
           0,
           0,
           0 };
}

/* Sets the work of a block with this ticket. */
template <class T, int D>
static __device__ __forceinline__ void
begin_work (backward_block<T, D> *b, uint32_t ticket)
{
  const struct attention &a = b->p.b.a;
  struct turn_of_block turn = turn_of (b->p.order, ticket);
  uint64_t group = turn.head % a.groups;

  b->each = (int) (a.heads / a.groups);
  b->h = { turn.head / a.groups, group * b->each, group };
  b->number = (int) turn.tile;
  b->mine = tile_of<KEYS> (a.keys, turn.tile);
  struct passing pass = queries_passing<KEYS, QUERIES> (a, b->mine);
  b->first = (int) pass.first[0];
  b->tiles = (int) pass.n[0];
}

/* ----------------------------------------------------------------- copies: one thread each */

template <class T, int D>
static __device__ __forceinline__ void
produce (const backward_block<T, D> &b)
{
  typedef sizes<D> size;
  const produced_backward<T> &p = b.p;
  const struct attention &a = p.b.a;
  const tiles_of_head k = { p.k, a.keys, b.h.batch, b.h.group },
                      v = { p.v, a.keys, b.h.batch, b.h.group };

  map_is_needed (&p.q);
  map_is_needed (&p.dout);
  mbarrier_expect (b.keys_full, 2 * size::KEY_TILE * sizeof (T));
  load_tile<D, KEYS> (b.k_tile, k, b.mine, b.keys_full);
  load_tile<D, KEYS> (b.v_tile, v, b.mine, b.keys_full);
  for (struct step s = b.begin (); s.number < b.steps (); b.go_on (&s)) {
    const uint64_t head = b.h.query + (unsigned) s.head;
    const tiles_of_head q = { p.q, a.queries, b.h.batch, head },
                        dout = { p.dout, a.queries, b.h.batch, head };
    struct tile rows = tile_at<QUERIES> (a.queries.run[0], (uint64_t) s.tile);
    uint64_t *full = b.q.begin (s.number, size::QUERY_TILE * sizeof (T) + size::KNOWN_BYTES);
    load_tile<D, QUERIES> (b.q_stage (s.number), q, rows, full);
    load_bytes (b.known_stage (s.number), p.b.known + b.place_of (s) * QUERIES, size::KNOWN_BYTES,
                full);
    full = b.dout.begin (s.number, size::QUERY_TILE * sizeof (T));
    load_tile<D, QUERIES> (b.do_stage (s.number), dout, rows, full);
  }
}

/* Adds the query gradients of each step to the sums when it is this block's turn for the tile. The
 * turn is passed to the next block while the following step is added. */
template <class T, int D>
static __device__ __forceinline__ void
add_queries (const backward_block<T, D> &b)
{
  typedef sizes<D> size;
  const produced_backward<T> &p = b.p;

  uint32_t *last = NULL; /* turn of the previous step, to be passed on */

  for (struct step s = b.begin (); s.number < b.steps (); b.go_on (&s)) {
    const uint64_t place = b.place_of (s);
    const uint32_t before = b.blocks_before (s.tile);
    float *to = p.sums + place * size::QUERY_TILE;
    b.sum.wait (s.number);
    turn_wait (p.turns + place, before);
    if (before == 0)
      store_bytes (to, b.sum_tile, size::SUM_BYTES);
    else
      add_floats (to, b.sum_tile, size::SUM_BYTES);
    stores_commit ();
    stores_have_read ();
    mbarrier_arrive (b.sum.empty);
    stores_are_done<1> ();
    if (last)
      turn_pass (last);
    last = p.turns + place;
  }
  stores_are_done<0> ();
  turn_pass (last);
}

/* ---------------------------------------------------------------------------- consumers */

/* One consumer warpgroup: 64 keys. */
template <class T, int D> struct key_consumer {
  typedef sizes<D> size;
  static const int N = QUERIES;

  const backward_block<T, D> &b;
  int group;        /* number of the warpgroup */
  struct step seen; /* step whose probabilities are computed next */
  float dk[D / 8][4], dv[D / 8][4], s[N / 8][4], dp[N / 8][4], dq[PANEL / 8][4];
  uint32_t p[N / TERMS][4], ds[N / TERMS][4];

  /* Whether this warpgroup computes query gradients in a step. */
  __device__ __forceinline__ bool sums (int i) const
  {
    return D > PANEL || i % CONSUMERS == group;
  }

  __device__ __forceinline__ void begin_scores (int i)
  {
    b.q.wait (i);
    products_begin ();
    multiply_rows<T, D, KEYS, N> (s, tile_from (b.k_tile, group * 64),
                                  tile_from (b.q_stage (i), 0));
    products_commit ();
  }

  /* Stores the gradients of scores for the products with all keys of the block. */
  __device__ __forceinline__ void store_scores (T *to) const
  {
    unsigned row = threadIdx.x / 32 * WARP_ROWS + threadIdx.x % 32 / 4, t = threadIdx.x % 4;

    WEFT_UNROLL
    for (int k = 0; k < N / TERMS; k++)
      WEFT_UNROLL
    for (int e = 0; e < 4; e++)
      store_for_products (
          (uint32_t *) (tile_place<KEYS> (to, row + e % 2 * 8, 2 * k + e / 2) + 2 * t), ds[k][e]);
    copies_are_seen ();
  }

  /* Issues the products of a panel of columns of the query gradients: gradients of scores times
   * keys. */
  __device__ __forceinline__ void begin_sum (int i)
  {
    const uint64_t left = tile_turned<KEYS> (b.ds_tile + i % 2 * size::SCORE_TILE),
                   right = tile_turned<KEYS> (b.k_tile + (D > PANEL ? group * KEYS * PANEL : 0));

    products_begin ();
    WEFT_UNROLL
    for (int k = 0; k < KEYS / TERMS; k++)
      multiply_tiles<T, PANEL, true, true> (dq, left + turned_terms_at (k),
                                            right + turned_terms_at (k), k > 0);
  }

  /* Stores the query gradients of this thread in shared memory for the warp that adds them to the
   * result. Consecutive threads store consecutive pieces of sixteen bytes. */
  __device__ __forceinline__ void hand_over (int i) const
  {
    struct alignas (16) four {
      float at[4];
    };
    four *to = (four *) b.sum_tile + (D > PANEL ? group * (PANEL / 8) * GROUP : 0);

    mbarrier_wait (b.sum.empty, i % 2 ^ 1);
    WEFT_UNROLL
    for (int n = 0; n < PANEL / 8; n++)
      store_for_products (to + n * GROUP + threadIdx.x % GROUP,
                          four{ { dq[n][0], dq[n][1], dq[n][2], dq[n][3] } });
    copies_are_seen ();
    __syncwarp ();
    if (threadIdx.x % 32 == 0)
      mbarrier_arrive (b.sum.full);
  }

  /* Adds to the key gradients and begins the query gradients of a step. `ds` has this consumer's
   * gradients of scores; the other consumer must have stored its gradients of scores too. */
  __device__ __forceinline__ void begin_gradients (int i)
  {
    multiply_by<T, D, N> (dk, ds, tile_turned<N> (b.q_stage (i)));
    named_sync (SCORES_STORED, CONSUMERS * GROUP);
    if (sums (i))
      begin_sum (i);
    products_commit ();
  }

  __device__ __forceinline__ void finish_gradients (int i)
  {
    products_wait<0> ();
    hold (dk);
    hold (dq);
    b.q.release (i);
    if (sums (i))
      hand_over (i);
  }

  /* Computes probabilities from scores. The products of the scores have finished. */
  __device__ __forceinline__ void become_probabilities (int i)
  {
    const struct attention &a = b.p.b.a;

    hold (s);
    hide_queries<KEYS, N> (s, seen.tile * QUERIES - b.mine.position, a.window);
    column_probabilities (s, b.known_stage (i), a.scale * LOG2_E);
    b.go_on (&seen);
  }

  /* Computes the gradients of scores, while products add to the value gradients. */
  __device__ __forceinline__ void differentiate (int i)
  {
    round_to<T> (p, s);
    b.dout.wait (i);
    products_begin ();
    multiply_rows<T, D, KEYS, N> (dp, tile_from (b.v_tile, group * 64),
                                  tile_from (b.do_stage (i), 0));
    products_commit ();
    multiply_by<T, D, N> (dv, p, tile_turned<N> (b.do_stage (i)));
    products_commit ();
    products_wait<1> ();
    hold (dp);
    column_gradients<T> (p, dp, b.known_stage (i));
    round_to<T> (ds, dp);
    store_scores (b.ds_tile + i % 2 * size::SCORE_TILE);
    products_wait<0> ();
    hold (dv);
    b.dout.release (i);
  }
};

/* Computes the probabilities of a step while the gradients of the previous one are accumulated.
 * There is at least one step: queries see the keys of their own tokens. */
template <class T, int D>
static __device__ __forceinline__ void
consume (backward_block<T, D> &b, const uint32_t *ticket)
{
  const struct attention &a = b.p.b.a;
  key_consumer<T, D> c = { b, warpgroup_number (), b.begin () };
  const float by[2] = { a.scale, a.scale }, one[2] = { 1, 1 };

  hold (c.dk);
  hold (c.dv);
  mbarrier_wait (b.keys_full, 0);
  c.begin_scores (0);
  products_wait<0> ();
  c.become_probabilities (0);
  c.differentiate (0);
  for (int i = 1; i < b.steps (); i++) {
    c.begin_scores (i);
    c.begin_gradients (i - 1);
    products_wait<1> ();
    c.become_probabilities (i);
    c.finish_gradients (i - 1);
    c.differentiate (i);
  }
  products_begin ();
  c.begin_gradients (b.steps () - 1);
  c.finish_gradients (b.steps () - 1);
  begin_work (&b, *ticket); /* again, because registers do not suffice to keep this in the loop */
  leave<D> (strip<T>{ b.p.b.dkv + k_at (a, b.h, 0), a.kv_row, a.width }, b.mine, c.dk, by,
            b.p.b.adds_kv);
  leave<D> (strip<T>{ b.p.b.dkv + v_at (a, b.h, 0), a.kv_row, a.value }, b.mine, c.dv, one,
            b.p.b.adds_kv);
}

template <class T, int D>
static __device__ __forceinline__ void
differentiate (const produced_backward<T> &p)
{
  WEFT_TILES_SHARED (T, shared);
  backward_block<T, D> b = block_of<T, D> (p, shared);
  uint32_t *ticket = (uint32_t *) (b.sum.empty + 1);

  if (threadIdx.x == 0) {
    mbarrier_init (b.keys_full, 1);
    b.q.open (CONSUMERS * 4);
    b.dout.open (CONSUMERS * 4);
    mbarrier_init (b.sum.full, D > PANEL ? CONSUMERS * 4 : 4);
    mbarrier_init (b.sum.empty, 1);
    mbarriers_are_seen ();
    *ticket = next_ticket (p.tickets);
  }
  __syncthreads ();
  begin_work (&b, *ticket);
  if (warpgroup_number () == CONSUMERS) {
    registers_give<PRODUCER_REGISTERS> ();
    if (threadIdx.x == CONSUMERS * GROUP)
      produce (b);
    if (threadIdx.x == CONSUMERS * GROUP + 32)
      add_queries (b);
  } else {
    registers_take<CONSUMER_REGISTERS> ();
    consume (b, ticket);
  }
}

template <class T, int D>
__global__ void
__launch_bounds__ (THREADS, 1) producer_backward (const __grid_constant__ produced_backward<T> p)
{
  if constexpr (WEFT_HAS_WARPGROUPS)
    differentiate<T, D> (p);
  else
    no_warpgroups ();
}

/* --------------------------------------------------------------- before and after the kernel */

__global__ void
clear_turns (uint32_t *turns, uint64_t n)
{
  for (WEFT_EACH (i, n))
    turns[i] = 0;
}

/* Rounds the sums of query gradients: a block has a tile of 64 queries and 64 columns. */
template <class T, int D>
__global__ void
__launch_bounds__ (GROUP) round_queries (backward_of<T> b, const float *sums)
{
  const struct attention &a = b.a;
  const unsigned panels = D / PANEL, panel = blockIdx.x % panels;
  struct head h = query_head (a);
  struct tile mine = tile_of<QUERIES> (a.queries, blockIdx.x / panels);
  struct alignas (16) four {
    float at[4];
  };
  const four *from = (const four *) sums +
                     ((uint64_t) blockIdx.y * gridDim.x + blockIdx.x) * (PANEL / 8) * GROUP +
                     threadIdx.x;
  float sum[PANEL / 8][4];
  const float by[2] = { a.scale, a.scale };
  uint64_t width = a.width > panel * PANEL ? a.width - panel * PANEL : 0;

  WEFT_UNROLL
  for (int n = 0; n < PANEL / 8; n++) {
    const four x = from[n * GROUP];
    WEFT_UNROLL
    for (int e = 0; e < 4; e++)
      sum[n][e] = x.at[e];
  }
  leave<PANEL> (strip<T>{ b.dq + q_at (a, h, 0) + panel * PANEL, a.q_row, width }, mine, sum, by,
                b.adds_q);
}

/* --------------------------------------------------------------------------- launches */

/* The scratch of a call: lse and delta, sums of query gradients, turns, tickets. */
struct room {
  /* rows: rows of a head; sums, turns: begins of these parts; bytes: the end */
  uint64_t rows, sums, turns, bytes;
};

static struct room
room_of (uint64_t heads, uint64_t tokens, uint64_t width)
{
  uint64_t tiles = (tokens + QUERIES - 1) / QUERIES;
  struct room r = {};

  r.rows = tiles * QUERIES;

  r.sums = heads * r.rows * sizeof (struct known);
  r.turns = r.sums + heads * r.rows * (width > PANEL ? 2 * PANEL : PANEL) * sizeof (float);
  r.bytes = r.turns + (heads * tiles + 1) * sizeof (uint32_t);
  return r;
}

uint64_t
weft_cuda_producer_scratch (const struct weft_cuda_shape *s)
{
  return room_of (s->dim[0] * s->dim[2], s->dim[1], s->dim[4]).bytes;
}

uint64_t
weft_cuda_producer_rows (const struct weft_cuda_launch *l, const struct attention_call *c)
{
  const struct attention &a = c->a;
  struct room r = room_of (a.batch * a.heads, a.queries.tokens, a.width);
  bool whole = c->q == c->kv && a.queries.n == 1 && a.keys.n == 1;

  return whole && weft_cuda_producer_takes (l, c) && l->scratch_bytes >= r.bytes ? r.rows : 0;
}

template <class T, int D>
static const char *
map_operands (produced_backward<T> *p)
{
  const backward_of<T> &b = p->b;
  const struct attention &a = b.a;
  const heads_in_rows q = { b.q, a.q_row, a.heads, a.width },
                      dout = { b.dout, a.heads * a.value, a.heads, a.value },
                      k = { b.kv + a.k_column, a.kv_row, a.groups, a.width },
                      v = { b.kv + a.v_column, a.kv_row, a.groups, a.value };
  const char *error = map_heads (&p->q, q, a.queries, a.batch, QUERIES);

  error = error ? error : map_heads (&p->dout, dout, a.queries, a.batch, QUERIES);
  error = error ? error : map_heads (&p->k, k, a.keys, a.batch, KEYS);
  return error ? error : map_heads (&p->v, v, a.keys, a.batch, KEYS);
}

template <class T, int D>
static const char *
run_bwd (const struct weft_cuda_launch *l, const struct attention_call *c,
         const struct known *known)
{
  typedef sizes<D> size;
  const struct attention &a = c->a;
  const uint64_t heads = a.batch * a.heads, groups = a.batch * a.groups;
  /* queries and output gradients are read in 16 bits; sums are read and written in fp32 */
  const uint64_t bytes = a.heads / a.groups * a.queries.tokens *
                         ((a.width + a.value) * sizeof (T) + 2 * D * sizeof (float));
  struct room r = room_of (heads, a.queries.tokens, a.width);
  uint8_t *scratch = (uint8_t *) l->scratch;
  uint32_t *turns = (uint32_t *) (scratch + r.turns);
  const uint64_t n_turns = heads * (r.rows / QUERIES);
  produced_backward<T> p = { {},     {},
                             {},     {},
                             {},     (float *) (scratch + r.sums),
                             turns,  turns + n_turns,
                             r.rows, order_of (groups, bytes, tiles_of<KEYS> (a.keys)) };

  p.b = { a,           (const T *) c->q, (const T *) c->kv, (const T *) c->dout, known,
          (T *) c->dq, (T *) c->dkv,     c->adds_q,         c->adds_kv };
  const char *error = map_operands<T, D> (&p);
  error = error ? error : allow (producer_backward<T, D>, size::BYTES);
  if (error)
    return error;
  dim3 tiles ((unsigned) (r.rows / QUERIES * (D / PANEL)), (unsigned) heads);
  WEFT_LAUNCH ((clear_turns), blocks_for (n_turns + 1, THREADS, 1024), THREADS, 0, l->stream, turns,
               n_turns + 1);
  WEFT_LAUNCH ((producer_backward<T, D>), (unsigned) (groups * p.order.tiles), THREADS, size::BYTES,
               l->stream, p);
  WEFT_LAUNCH ((round_queries<T, D>), tiles, GROUP, 0, l->stream, p.b, p.sums);
  return launched ();
}

const char *
weft_cuda_producer_backward (const struct weft_cuda_launch *l, const struct attention_call *c,
                             const struct known *known)
{
#define RUN(d)                                                                                     \
  if (holds<d, d> (c->a))                                                                          \
    return c->dtype == WEFT_BF16 ? run_bwd<bf16, d> (l, c, known) : run_bwd<fp16, d> (l, c, known);
  WEFT_PRODUCER_WIDTHS (RUN)
#undef RUN
  return "no producer warp of attention for heads of this width";
}
