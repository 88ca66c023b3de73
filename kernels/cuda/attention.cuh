/* attention.cuh - layout of queries, keys and values in token rows, and the causal mask, for
 * attention.cu and attention_tiles.cu.
 *
 * Queries and keys are either those of whole sequences in rows [queries | keys | values], or
 * context-parallel parts: queries in rows of this layout, and the keys and values of the whole
 * sequence or of another rank in separate rows [keys | values]. Tokens form contiguous runs: one,
 * or two with zigzag context parallelism (core/base/zigzag.h). The mask follows from positions
 * alone. */
#pragma once
#include "kernels/cuda/place.cuh"

/* A contiguous run of tokens: its first row, the number of rows, and the position of its first
 * token in the sequence. */
struct piece {
  uint64_t first, n, position;
};

struct side {
  uint64_t tokens; /* number of rows of each sequence */
  unsigned n;
  struct piece run[2];
};

struct attention {
  struct side queries, keys;
  uint64_t batch, heads, groups;
  uint64_t width, value; /* width of query and key heads; width of value heads */
  /* number of keys that a query sees, including the key of the query's own token */
  uint64_t window;
  uint64_t q_row, kv_row, k_column, v_column; /* in elements */
  float scale;                                /* factor of scores: 1 / sqrt (width) */
  float cap;                                  /* soft cap of scores: cap tanh (x / cap); 0: none */
  uint64_t slope_heads, first_head; /* ALiBi: heads of the model, or 0; first head of this rank */
};

/* A query head, or a key and value head, of a batch element. */
struct head {
  uint64_t batch, query, group;
};

static __device__ __forceinline__ uint64_t
q_at (const struct attention &a, const struct head &h, uint64_t t)
{
  return (h.batch * a.queries.tokens + t) * a.q_row + h.query * a.width;
}

static __device__ __forceinline__ uint64_t
k_at (const struct attention &a, const struct head &h, uint64_t t)
{
  return (h.batch * a.keys.tokens + t) * a.kv_row + a.k_column + h.group * a.width;
}

static __device__ __forceinline__ uint64_t
v_at (const struct attention &a, const struct head &h, uint64_t t)
{
  return (h.batch * a.keys.tokens + t) * a.kv_row + a.v_column + h.group * a.value;
}

static __device__ __forceinline__ uint64_t
o_at (const struct attention &a, const struct head &h, uint64_t t)
{
  return ((h.batch * a.queries.tokens + t) * a.heads + h.query) * a.value;
}

static __device__ __forceinline__ uint64_t
lse_at (const struct attention &a, const struct head &h, uint64_t t)
{
  return (h.batch * a.heads + h.query) * a.queries.tokens + t;
}

/* A range of rows: [first, end). */
struct stretch {
  uint64_t first, end;
};

/* The rows of a run of tokens whose positions are in [from, to). */
static __device__ __forceinline__ struct stretch
rows_between (const struct piece &r, uint64_t from, uint64_t to)
{
  uint64_t skip = from > r.position ? from - r.position : 0;
  uint64_t end = to > r.position ? to - r.position : 0;
  struct stretch s = { r.first + skip, r.first + (end < r.n ? end : r.n) };

  return s;
}

/* Position of row t of a side. */
static __device__ __forceinline__ uint64_t
position_in (const struct side &s, uint64_t t)
{
  const struct piece &r = s.run[s.n > 1 && t >= s.run[1].first];

  return r.position + t - r.first;
}

/* The keys of a run of tokens that a query sees. */
static __device__ __forceinline__ struct stretch
keys_of (const struct attention &a, const struct piece &keys, uint64_t query)
{
  return rows_between (keys, query + 1 > a.window ? query + 1 - a.window : 0, query + 1);
}

/* The queries of a run of tokens that see a key. */
static __device__ __forceinline__ struct stretch
queries_of (const struct attention &a, const struct piece &queries, uint64_t key)
{
  return rows_between (queries, key, key + a.window);
}

/* ----------------------------------------------------------------------------- a call */

/* Operands of forward or backward. For whole sequences q and kv are one array, and so are dq and
 * dkv. */
struct attention_call {
  struct attention a;
  uint32_t dtype;
  const void *q, *kv, *dout;
  void *o, *dq, *dkv;
  float *lse;
  bool adds_q, adds_kv;
};

/* Whether the tensor-core version supports a call: 16-bit heads of width 40 to 128, or those of
 * latent attention, in multiples of 8, aligned to 16 bytes, without soft cap or ALiBi. */
bool weft_cuda_tiles_take (const struct attention_call *c);
const char *
weft_cuda_tiles_forward (const struct weft_cuda_launch *l, const struct attention_call *c);
const char *
weft_cuda_tiles_backward (const struct weft_cuda_launch *l, const struct attention_call *c);

/* Whether the version with a producer warp runs a call that the tensor-core version supports.
 * Its backward takes whole sequences only: `rows` is the number of rows of scratch for each
 * head, or 0 if it does not take the call. */
bool weft_cuda_producer_takes (const struct weft_cuda_launch *l, const struct attention_call *c);
uint64_t weft_cuda_producer_rows (const struct weft_cuda_launch *l, const struct attention_call *c);
