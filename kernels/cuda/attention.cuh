/* attention.cuh - where queries, keys and values lie in rows of tokens, and which key a query sees, for
 * the kernels of attention.cu and attention_tiles.cu.
 *
 * Queries and keys are those of whole sequences in rows [queries | keys | values], or a rank has a part of
 * them: queries in such rows, keys and values of the sequence or of another rank in rows of their own.
 * Tokens stand together in runs, one or, where a rank has two pieces of each sequence, two
 * (core/base/zigzag.h).  Positions alone say what sees what. */
#pragma once
#include "kernels/cuda/place.cuh"

/* Tokens that stand together: rows of each sequence, and the position of the first. */
struct piece {
  uint64_t first, n, position;
};

struct side {
  uint64_t tokens; /* of a sequence */
  unsigned n;
  struct piece run[2];
};

struct attention {
  struct side queries, keys;
  uint64_t batch, heads, groups;
  uint64_t width, value; /* of heads of queries and keys, and of values */
  uint64_t window;       /* keys that a query sees, itself included */
  uint64_t q_row, kv_row, k_column, v_column; /* elements */
  float scale;                      /* of scores: 1 / root width */
  float cap;                        /* scores x become cap tanh (x / cap); 0: they do not */
  uint64_t slope_heads, first_head; /* ALiBi: heads of the model, or 0, and this rank's first */
};

/* One of the heads: of a batch's query heads, or of its groups. */
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

/* Rows [first, end). */
struct stretch {
  uint64_t first, end;
};

/* Of a run those whose positions are at least `from` and less than `to`. */
static __device__ __forceinline__ struct stretch
rows_between (const struct piece &r, uint64_t from, uint64_t to)
{
  uint64_t skip = from > r.position ? from - r.position : 0;
  uint64_t end = to > r.position ? to - r.position : 0;
  struct stretch s = { r.first + skip, r.first + (end < r.n ? end : r.n) };

  return s;
}

/* Where row t of a side stands. */
static __device__ __forceinline__ uint64_t
position_in (const struct side &s, uint64_t t)
{
  const struct piece &r = s.run[s.n > 1 && t >= s.run[1].first];

  return r.position + t - r.first;
}

/* Keys of a run that a query sees; queries of a run that see a key. */
static __device__ __forceinline__ struct stretch
keys_of (const struct attention &a, const struct piece &keys, uint64_t query)
{
  return rows_between (keys, query + 1 > a.window ? query + 1 - a.window : 0, query + 1);
}

static __device__ __forceinline__ struct stretch
queries_of (const struct attention &a, const struct piece &queries, uint64_t key)
{
  return rows_between (queries, key, key + a.window);
}

/* ----------------------------------------------------------------------------- a call */

/* Arrays of a forward or a backward; of whole sequences q and kv, dq and dkv are one. */
struct attention_call {
  struct attention a;
  uint32_t dtype;
  const void *q, *kv, *dout;
  void *o, *dq, *dkv;
  float *lse;
  bool adds_q, adds_kv;
};

/* With tiles of tensor cores: heads of 16 bits, 40 to 128 wide or those of latent attention, in
 * multiples of 8, which begin at multiples of 16 bytes, and scores that nothing bends.  FALSE: not
 * these. */
bool weft_cuda_tiles_take (const struct attention_call *c);
const char *weft_cuda_tiles_forward (const struct weft_cuda_launch *l, const struct attention_call *c);
const char *weft_cuda_tiles_backward (const struct weft_cuda_launch *l, const struct attention_call *c);
