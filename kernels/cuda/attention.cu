/* Causal attention without the score matrix: here for heads of any width and type, a warp for each
 * query, or key in backward; attention_tiles.cu is for the usual ones, and fast. */
#include "kernels/cuda/attention.cuh"

enum { THREADS = 128, WARPS = THREADS / 32, MOST_BLOCKS = 1 << 20 };
enum { MOST_EACH = 16 }; /* elements of a head that a lane holds: heads of up to 512 */
enum { QKV, O, LSE };
enum { BWD_QKV, BWD_O, BWD_LSE, BWD_DO, BWD_DQKV };

/* A lane's elements of a vector of n: lane, lane + 32, ... */
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
store (T *x, uint64_t n, const struct strip &s, float factor)
{
  for (uint64_t i = threadIdx.x % 32, e = 0; i < n; i += 32, e++)
    set (x + i, s.at[e] * factor);
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

/* The query that is the n-th of all heads and batches. */
static __device__ struct head
head_of (const struct attention &a, uint64_t n)
{
  struct head h = { n / a.heads, n % a.heads, n % a.heads / (a.heads / a.groups) };
  return h;
}

/* ---------------------------------------------------------------------------- forward */

template <class T>
__global__ void
attend (struct attention a, const T *qkv, T *o, float *lse)
{
  uint64_t warp = (uint64_t) blockIdx.x * WARPS + threadIdx.x / 32;

  for (; warp < a.batch * a.heads * a.sequence; warp += (uint64_t) gridDim.x * WARPS) {
    struct head h = head_of (a, warp / a.sequence);
    uint64_t i = warp % a.sequence;
    struct strip q = load (qkv + q_at (a, h, i), a.width), sum = {};
    float most = -INFINITY, total = 0;
    for (uint64_t j = first_key (a, i); j <= i; j++) {
      float score = dot (q, load (qkv + k_at (a, h, j), a.width)) * a.scale;
      float larger = fmaxf (most, score), shrink = expf (most - larger);
      float p = expf (score - larger);
      multiply (&sum, shrink);
      add (&sum, p, load (qkv + v_at (a, h, j), a.value));
      total = total * shrink + p;
      most = larger;
    }
    store (o + o_at (a, h, i), a.value, sum, 1 / total);
    if (threadIdx.x % 32 == 0)
      lse[lse_at (a, h, i)] = most + logf (total);
  }
}

template <class T>
static const char *
run (const struct weft_cuda_launch *l)
{
  struct attention a = attention_of (l);

  WEFT_LAUNCH ((attend<T>), blocks_for (a.batch * a.heads * a.sequence, WARPS, MOST_BLOCKS), THREADS,
               0, l->stream, a, (const T *) l->operand[QKV].data, (T *) l->operand[O].data,
               (float *) l->operand[LSE].data);
  return launched ();
}

const char *
weft_cuda_attention (const struct weft_cuda_launch *l)
{
  if (weft_cuda_tiles_take (l))
    return weft_cuda_tiles_forward (l);
  return WEFT_BY_DTYPE (l->operand[QKV].dtype, run, l);
}

/* --------------------------------------------------------------------------- backward */

template <class T> struct backward {
  struct attention a;
  const T *qkv, *o, *dout;
  const float *lse;
  T *dqkv;
};

/* What a query and a key have to do with each other. */
struct meeting {
  float p, ds; /* probability; gradient of the score before it is scaled, times the scale */
};

template <class T> struct one_query {
  struct strip q, dout;
  float lse, delta; /* delta: the product of do and o */
};

template <class T>
static __device__ one_query<T>
query_at (const backward<T> &b, const struct head &h, uint64_t i)
{
  one_query<T> q;

  q.q = load (b.qkv + q_at (b.a, h, i), b.a.width);
  q.dout = load (b.dout + o_at (b.a, h, i), b.a.value);
  q.lse = b.lse[lse_at (b.a, h, i)];
  q.delta = dot (q.dout, load (b.o + o_at (b.a, h, i), b.a.value));
  return q;
}

template <class T>
static __device__ struct meeting
meet (const backward<T> &b, const one_query<T> &q, const struct strip &k,
      const struct strip &v)
{
  struct meeting m;

  m.p = expf (dot (q.q, k) * b.a.scale - q.lse);
  m.ds = m.p * (dot (q.dout, v) - q.delta) * b.a.scale;
  return m;
}

template <class T>
__global__ void
query_gradients (backward<T> b)
{
  const struct attention &a = b.a;
  uint64_t warp = (uint64_t) blockIdx.x * WARPS + threadIdx.x / 32;

  for (; warp < a.batch * a.heads * a.sequence; warp += (uint64_t) gridDim.x * WARPS) {
    struct head h = head_of (a, warp / a.sequence);
    uint64_t i = warp % a.sequence;
    one_query<T> q = query_at (b, h, i);
    struct strip dq = {};
    for (uint64_t j = first_key (a, i); j <= i; j++) {
      struct strip k = load (b.qkv + k_at (a, h, j), a.width);
      add (&dq, meet (b, q, k, load (b.qkv + v_at (a, h, j), a.value)).ds, k);
    }
    store (b.dqkv + q_at (a, h, i), a.width, dq, 1);
  }
}

template <class T>
__global__ void
key_gradients (backward<T> b)
{
  const struct attention &a = b.a;
  uint64_t warp = (uint64_t) blockIdx.x * WARPS + threadIdx.x / 32, each = a.heads / a.groups;

  for (; warp < a.batch * a.groups * a.sequence; warp += (uint64_t) gridDim.x * WARPS) {
    uint64_t j = warp % a.sequence, n = warp / a.sequence;
    struct head h = { n / a.groups, 0, n % a.groups };
    struct strip k = load (b.qkv + k_at (a, h, j), a.width), dk = {};
    struct strip v = load (b.qkv + v_at (a, h, j), a.value), dv = {};
    for (h.query = h.group * each; h.query < (h.group + 1) * each; h.query++)
      for (uint64_t i = j; i < end_of_queries (a, j); i++) {
        one_query<T> q = query_at (b, h, i);
        struct meeting m = meet (b, q, k, v);
        add (&dk, m.ds, q.q);
        add (&dv, m.p, q.dout);
      }
    store (b.dqkv + k_at (a, h, j), a.width, dk, 1);
    store (b.dqkv + v_at (a, h, j), a.value, dv, 1);
  }
}

template <class T>
static const char *
run_bwd (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand;
  struct attention a = attention_of (l);
  backward<T> b = { a,
                           (const T *) o[BWD_QKV].data,
                           (const T *) o[BWD_O].data,
                           (const T *) o[BWD_DO].data,
                           (const float *) o[BWD_LSE].data,
                           (T *) o[BWD_DQKV].data };

  WEFT_LAUNCH ((query_gradients<T>), blocks_for (a.batch * a.heads * a.sequence, WARPS, MOST_BLOCKS),
               THREADS, 0, l->stream, b);
  WEFT_LAUNCH ((key_gradients<T>), blocks_for (a.batch * a.groups * a.sequence, WARPS, MOST_BLOCKS),
               THREADS, 0, l->stream, b);
  return launched ();
}

const char *
weft_cuda_attention_bwd (const struct weft_cuda_launch *l)
{
  if (weft_cuda_tiles_take (l))
    return weft_cuda_tiles_backward (l);
  return WEFT_BY_DTYPE (l->operand[BWD_QKV].dtype, run_bwd, l);
}
