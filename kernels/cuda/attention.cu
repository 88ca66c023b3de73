/* Fused causal attention of whole sequences or context-parallel parts, for heads of any width and
 * type: one warp per query, or per key in backward. attention_tiles.cu has the fast version for the
 * usual shapes. */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/producer.h"

enum { THREADS = 128, WARPS = THREADS / 32, MOST_BLOCKS = 1 << 20 };
enum { EVERYTHING = 1 << 30 /* no window: exceeds any number of keys, and fits an int */ };
enum { MOST_EACH = 16 }; /* elements of a head per lane: heads of up to 512 */
enum { BATCH, SEQUENCE, HEADS, GROUPS, WIDTH, WINDOW, VALUE };
/* numbers of the first two dimensions of attention_part and attention_part_bwd; they take the place
 * of BATCH and SEQUENCE */
enum { TOKENS, KEYS };
enum { QKV, O, LSE };
enum { BWD_QKV, BWD_O, BWD_LSE, BWD_DO, BWD_DQKV };
enum { PART_Q, PART_KV, PART_O, PART_LSE, PART_DO, PART_DQ, PART_DKV };

/* ------------------------------------------------------------------------------ operands */

static struct side
side_of (struct weft_cuda_spot spot, uint64_t tokens)
{
  uint64_t half = tokens / 2;
  struct side s = { tokens, 1, { { 0, tokens, 0 } } };

  if (spot.of <= 1)
    return s;
  s.n = 2;
  s.run[0] = { 0, half, position_of (spot, tokens, 0) };
  s.run[1] = { half, half, position_of (spot, tokens, half) };
  return s;
}

/* Sets the fields that all kinds of attention ops share: all sizes except the numbers of queries
 * and keys. */
static struct attention
attention_of (const struct weft_cuda_launch *l)
{
  const uint64_t *dim = l->dim;
  struct attention a = {};

  a.heads = dim[HEADS];
  a.groups = dim[GROUPS];
  a.width = dim[WIDTH];
  a.value = dim[VALUE] ? dim[VALUE] : dim[WIDTH];
  a.window = dim[WINDOW] && dim[WINDOW] < EVERYTHING ? dim[WINDOW] : (uint64_t) EVERYTHING;
  a.scale = l->model.attention_scale;
  a.cap = l->model.attention_cap;
  a.slope_heads = l->model.slope_heads;
  a.first_head = l->model.first_head;
  a.q_row = (a.heads + a.groups) * a.width + a.groups * a.value;
  return a;
}

static struct attention_call
whole (const struct weft_cuda_launch *l, bool backward)
{
  const struct weft_cuda_operand *o = l->operand;
  const struct weft_cuda_spot alone = { 0, 1 };
  struct attention_call c = {};

  c.a = attention_of (l);
  c.a.batch = l->dim[BATCH];
  c.a.queries = c.a.keys = side_of (alone, l->dim[SEQUENCE]);
  c.a.kv_row = c.a.q_row;
  c.a.k_column = c.a.heads * c.a.width;
  c.a.v_column = c.a.k_column + c.a.groups * c.a.width;
  c.dtype = o[QKV].dtype;
  c.q = c.kv = o[QKV].data;
  c.o = o[O].data;
  c.lse = (float *) o[LSE].data;
  c.dout = backward ? o[BWD_DO].data : NULL;
  c.dq = c.dkv = backward ? o[BWD_DQKV].data : NULL;
  return c;
}

/* Describes a context-parallel call: queries of this rank; keys and values of the whole sequence,
 * or of the rank `before` places earlier. */
static struct attention_call
part (const struct weft_cuda_launch *l, bool backward)
{
  const struct weft_cuda_operand *o = l->operand;
  uint64_t tokens = l->model.sequence;
  struct weft_cuda_spot here = { l->cp.at, l->cp.of ? l->cp.of : 1 }, from = here;
  struct attention_call c = {};

  from.at = (here.at + here.of - l->before) % here.of;
  if (l->dim[KEYS] == tokens * here.of)
    from = { 0, 1 };
  c.a = attention_of (l);
  c.a.batch = l->dim[TOKENS] / tokens;
  c.a.queries = side_of (here, tokens);
  c.a.keys = side_of (from, l->dim[KEYS]);
  c.a.v_column = c.a.groups * c.a.width;
  c.a.kv_row = c.a.v_column + c.a.groups * c.a.value;
  c.dtype = o[PART_Q].dtype;
  c.q = o[PART_Q].data;
  c.kv = o[PART_KV].data;
  c.o = o[PART_O].data;
  c.lse = (float *) o[PART_LSE].data;
  c.dout = backward ? o[PART_DO].data : NULL;
  c.dq = backward ? o[PART_DQ].data : NULL;
  c.dkv = backward ? o[PART_DKV].data : NULL;
  c.adds_q = backward && o[PART_DQ].accumulate;
  c.adds_kv = backward && o[PART_DKV].accumulate;
  return c;
}

/* -------------------------------------------------------------------------- head vectors */

/* The elements of a head vector that one lane of a warp holds: number lane, lane + 32, ... */
struct strip {
  float at[MOST_EACH];
};

template <class T>
static __device__ struct strip
load (const T *x, uint64_t n)
{
  struct strip s = {};

  for (uint64_t i = threadIdx.x % 32, e = 0; i < n; i += 32, e++)
    s.at[e] = to_float (x[i]);
  return s;
}

template <class T>
static __device__ void
store (T *x, uint64_t n, const struct strip &s, float factor, bool adds)
{
  for (uint64_t i = threadIdx.x % 32, e = 0; i < n; i += 32, e++)
    set (x + i, s.at[e] * factor + (adds ? to_float (x[i]) : 0));
}

static __device__ float
dot (const struct strip &a, const struct strip &b)
{
  float sum = 0;

  for (int e = 0; e < MOST_EACH; e++)
    sum += a.at[e] * b.at[e];
  return warp_sum (sum);
}

static __device__ void
add (struct strip *to, float factor, const struct strip &x)
{
  for (int e = 0; e < MOST_EACH; e++)
    to->at[e] += factor * x.at[e];
}

static __device__ void
multiply (struct strip *to, float factor)
{
  for (int e = 0; e < MOST_EACH; e++)
    to->at[e] *= factor;
}

/* The query head that is n-th when the heads of all batch elements are counted. */
static __device__ struct head
head_of (const struct attention &a, uint64_t n)
{
  struct head h = { n / a.heads, n % a.heads, n % a.heads / (a.heads / a.groups) };
  return h;
}

/* ------------------------------------------------------------------------------ scores */

/* ALiBi slope of a head (kernels/traits.h); 0 without ALiBi. */
static __device__ float
slope_of (const struct attention &a, const struct head &h)
{
  uint64_t head = a.first_head + h.query, p = 1;

  if (a.slope_heads == 0)
    return 0;
  while (2 * p <= a.slope_heads)
    p *= 2;
  return head < p ? exp2f (-8 * (float) (head + 1) / (float) p)
                  : exp2f (-4 * (float) (2 * (head - p) + 1) / (float) p);
}

/* A score after soft-capping and ALiBi, and its derivative with respect to the product of query and
 * key. */
struct score {
  float value, slope;
};

static __device__ __forceinline__ struct score
score_of (const struct attention &a, float product, float fall)
{
  struct score s = { product * a.scale, a.scale };

  if (a.cap != 0) {
    float at = tanhf (s.value / a.cap);
    s.value = a.cap * at;
    s.slope = a.scale * (1 - at * at);
  }
  s.value -= fall;
  return s;
}

/* ---------------------------------------------------------------------------- forward */

/* A query without visible keys in a part gets output 0 and a log-sum-exp of -infinity. */
template <class T>
__global__ void
attend (struct attention a, const T *q, const T *kv, T *o, float *lse)
{
  uint64_t warp = (uint64_t) blockIdx.x * WARPS + threadIdx.x / 32;

  for (; warp < a.batch * a.heads * a.queries.tokens; warp += (uint64_t) gridDim.x * WARPS) {
    struct head h = head_of (a, warp / a.queries.tokens);
    uint64_t i = warp % a.queries.tokens, position = position_in (a.queries, i);
    float slope = slope_of (a, h);
    struct strip query = load (q + q_at (a, h, i), a.width), sum = {};
    float most = -INFINITY, total = 0;
    for (unsigned run = 0; run < a.keys.n; run++) {
      struct stretch seen = keys_of (a, a.keys.run[run], position);
      for (uint64_t j = seen.first; j < seen.end; j++) {
        float product = dot (query, load (kv + k_at (a, h, j), a.width));
        float fall = slope * (float) (position - position_in (a.keys, j));
        float score = score_of (a, product, fall).value;
        float larger = fmaxf (most, score), shrink = expf (most - larger);
        float p = expf (score - larger);
        multiply (&sum, shrink);
        add (&sum, p, load (kv + v_at (a, h, j), a.value));
        total = total * shrink + p;
        most = larger;
      }
    }
    store (o + o_at (a, h, i), a.value, sum, total > 0 ? 1 / total : 0, false);
    if (threadIdx.x % 32 == 0)
      lse[lse_at (a, h, i)] = total > 0 ? most + logf (total) : -INFINITY;
  }
}

template <class T>
static const char *
run (const struct weft_cuda_launch *l, const struct attention_call &c)
{
  const struct attention &a = c.a;

  WEFT_LAUNCH ((attend<T>), blocks_for (a.batch * a.heads * a.queries.tokens, WARPS, MOST_BLOCKS),
               THREADS, 0, l->stream, a, (const T *) c.q, (const T *) c.kv, (T *) c.o, c.lse);
  return launched ();
}

static const char *
forward (const struct weft_cuda_launch *l, const struct attention_call &c)
{
  if (weft_cuda_tiles_take (&c))
    return weft_cuda_tiles_forward (l, &c);
  return WEFT_BY_DTYPE (c.dtype, run, l, c);
}

const char *
weft_cuda_attention (const struct weft_cuda_launch *l)
{
  return forward (l, whole (l, false));
}

const char *
weft_cuda_attention_part (const struct weft_cuda_launch *l)
{
  return forward (l, part (l, false));
}

/* --------------------------------------------------------------------------- backward */

template <class T> struct backward_of {
  struct attention a;
  const T *q, *kv, *o, *dout;
  const float *lse;
  T *dq, *dkv;
  bool adds_q, adds_kv;
};

/* Intermediate results of a pair of query and key. */
struct meeting {
  float p, ds; /* probability; gradient of the unscaled score, times the scale */
};

struct one_query {
  struct strip q, dout;
  float lse, delta; /* delta: dot product of do and o */
  uint64_t position;
};

template <class T>
static __device__ struct one_query
query_at (const backward_of<T> &b, const struct head &h, uint64_t i)
{
  struct one_query q;

  q.q = load (b.q + q_at (b.a, h, i), b.a.width);
  q.dout = load (b.dout + o_at (b.a, h, i), b.a.value);
  q.lse = b.lse[lse_at (b.a, h, i)];
  q.delta = dot (q.dout, load (b.o + o_at (b.a, h, i), b.a.value));
  q.position = position_in (b.a.queries, i);
  return q;
}

/* Computes the probability and the score gradient of query q and key j. `slope`: ALiBi slope of the
 * head. */
static __device__ struct meeting
meet (const struct attention &a, const struct one_query &q, const struct strip &k,
      const struct strip &v, float slope, uint64_t j)
{
  float fall = slope * (float) (q.position - position_in (a.keys, j));
  struct score s = score_of (a, dot (q.q, k), fall);
  struct meeting m;

  m.p = expf (s.value - q.lse);
  m.ds = m.p * (dot (q.dout, v) - q.delta) * s.slope;
  return m;
}

template <class T>
__global__ void
query_gradients (backward_of<T> b)
{
  const struct attention &a = b.a;
  uint64_t warp = (uint64_t) blockIdx.x * WARPS + threadIdx.x / 32;

  for (; warp < a.batch * a.heads * a.queries.tokens; warp += (uint64_t) gridDim.x * WARPS) {
    struct head h = head_of (a, warp / a.queries.tokens);
    uint64_t i = warp % a.queries.tokens, position = position_in (a.queries, i);
    struct one_query q = query_at (b, h, i);
    float slope = slope_of (a, h);
    struct strip dq = {};
    for (unsigned run = 0; run < a.keys.n; run++) {
      struct stretch seen = keys_of (a, a.keys.run[run], position);
      for (uint64_t j = seen.first; j < seen.end; j++) {
        struct strip k = load (b.kv + k_at (a, h, j), a.width);
        struct strip v = load (b.kv + v_at (a, h, j), a.value);
        add (&dq, meet (a, q, k, v, slope, j).ds, k);
      }
    }
    store (b.dq + q_at (a, h, i), a.width, dq, 1, b.adds_q);
  }
}

/* Adds the contributions of a run's queries to the gradients of key j and its value. */
struct key_gradient {
  struct strip k, v, dk, dv;
};

template <class T>
static __device__ void
add_queries (const backward_of<T> &b, const struct head &h, const struct stretch &seeing,
             uint64_t j, struct key_gradient *g)
{
  float slope = slope_of (b.a, h);

  for (uint64_t i = seeing.first; i < seeing.end; i++) {
    struct one_query q = query_at (b, h, i);
    struct meeting m = meet (b.a, q, g->k, g->v, slope, j);
    add (&g->dk, m.ds, q.q);
    add (&g->dv, m.p, q.dout);
  }
}

template <class T>
__global__ void
key_gradients (backward_of<T> b)
{
  const struct attention &a = b.a;
  uint64_t warp = (uint64_t) blockIdx.x * WARPS + threadIdx.x / 32, each = a.heads / a.groups;

  for (; warp < a.batch * a.groups * a.keys.tokens; warp += (uint64_t) gridDim.x * WARPS) {
    uint64_t j = warp % a.keys.tokens, n = warp / a.keys.tokens;
    struct head h = { n / a.groups, 0, n % a.groups };
    struct key_gradient g = {
      load (b.kv + k_at (a, h, j), a.width), load (b.kv + v_at (a, h, j), a.value), {}, {}
    };
    for (h.query = h.group * each; h.query < (h.group + 1) * each; h.query++)
      for (unsigned run = 0; run < a.queries.n; run++)
        add_queries (b, h, queries_of (a, a.queries.run[run], position_in (a.keys, j)), j, &g);
    store (b.dkv + k_at (a, h, j), a.width, g.dk, 1, b.adds_kv);
    store (b.dkv + v_at (a, h, j), a.value, g.dv, 1, b.adds_kv);
  }
}

template <class T>
static const char *
run_bwd (const struct weft_cuda_launch *l, const struct attention_call &c)
{
  const struct attention &a = c.a;
  backward_of<T> b = {
    a,     (const T *) c.q, (const T *) c.kv, (const T *) c.o, (const T *) c.dout,
    c.lse, (T *) c.dq,      (T *) c.dkv,      c.adds_q,        c.adds_kv
  };

  WEFT_LAUNCH ((query_gradients<T>),
               blocks_for (a.batch * a.heads * a.queries.tokens, WARPS, MOST_BLOCKS), THREADS, 0,
               l->stream, b);
  WEFT_LAUNCH ((key_gradients<T>),
               blocks_for (a.batch * a.groups * a.keys.tokens, WARPS, MOST_BLOCKS), THREADS, 0,
               l->stream, b);
  return launched ();
}

static const char *
backward (const struct weft_cuda_launch *l, const struct attention_call &c)
{
  if (weft_cuda_tiles_take (&c))
    return weft_cuda_tiles_backward (l, &c);
  return WEFT_BY_DTYPE (c.dtype, run_bwd, l, c);
}

const char *
weft_cuda_attention_bwd (const struct weft_cuda_launch *l)
{
  return backward (l, whole (l, true));
}

int
weft_cuda_producer_runs (const struct weft_cuda_launch *l, int backward)
{
  const struct attention_call c = whole (l, backward);

  return weft_cuda_tiles_take (&c) &&
         (backward ? weft_cuda_producer_rows (l, &c) > 0 : weft_cuda_producer_takes (l, &c));
}

const char *
weft_cuda_attention_part_bwd (const struct weft_cuda_launch *l)
{
  return backward (l, part (l, true));
}
