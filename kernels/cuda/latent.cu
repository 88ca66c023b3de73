/* Multi-latent attention between projections and attention (layout: kernels/latent.c). */
#include "kernels/cuda/turn.cuh"

enum { THREADS = 256, MOST_BLOCKS = 8192 };

/* --------------------------------------------------------------------------- split */

enum { TOKENS, RANK, SPLIT_ROPE, SPLIT_PARTS };

struct split {
  struct array whole, latent, position; /* rows [latent | position], and both parts separately */
  uint64_t tokens, rank, rope, before;  /* before: tokens of sequence-parallel ranks before this
                                         * one */
};

/* A thread copies one element of a latent or rotates one pair. */
__global__ void
split_rows (struct split s, const __grid_constant__ struct turning turning, bool joins)
{
  uint64_t pairs = s.rope / 2, each = s.rank + pairs, row = s.rank + s.rope;

  for (WEFT_EACH (i, s.tokens * each)) {
    uint64_t token = i / each, c = i % each, pair = c - s.rank;
    uint64_t wide = token * row + c, narrow = token * s.rope + pair;
    struct array from = joins ? s.position : s.whole, to = joins ? s.whole : s.position;
    if (c < s.rank) {
      if (joins)
        put (s.whole, wide, get (s.latent, token * s.rank + c));
      else
        put (s.latent, token * s.rank + c, get (s.whole, wide));
      continue;
    }
    uint64_t out = joins ? narrow : wide, in = joins ? wide : narrow;
    struct two_floats x =
        turned (turning, s.before + token, pair, get (from, out), get (from, out + pairs));
    put (to, in, x.low);
    put (to, in + pairs, x.high);
  }
}

static const char *
run_split (const struct weft_cuda_launch *l, const struct weft_cuda_operand *const o[3], bool joins)
{
  const uint64_t *dim = l->dim;
  uint64_t before = dim[SPLIT_PARTS] > 1 ? l->tp.at * dim[TOKENS] : 0;
  struct split s = { array_of (o[0]), array_of (o[1]), array_of (o[2]), dim[TOKENS],
                     dim[RANK],       dim[SPLIT_ROPE], before };

  WEFT_LAUNCH (split_rows,
               blocks_for (s.tokens * (s.rank + s.rope / 2), THREADS, MOST_BLOCKS), THREADS, 0,
               l->stream, s, turning_of (l, joins ? -1 : 1), joins);
  return launched ();
}

const char *
weft_cuda_latent_split (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand, *const of[3] = { &o[0], &o[1], &o[2] };
  return run_split (l, of, false);
}

const char *
weft_cuda_latent_split_bwd (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand, *const of[3] = { &o[2], &o[0], &o[1] };
  return run_split (l, of, true);
}

/* ---------------------------------------------------------------------------- join */

enum { HEADS = 1, NOPE, ROPE, VALUE };
enum { Q, KV, POSITION, QKV };
enum { DQKV, DQ, DKV, DPOSITION };

struct join {
  struct array q, kv, position, qkv;
  uint64_t tokens, heads, nope, rope, value;
};

/* Offsets of one head in the rows of a token: in the queries q, in the keys and values kv, and in
 * the query, key and value parts of the joined row. */
struct places {
  uint64_t q, kv, query, key, value;
};

static __device__ __forceinline__ struct places
places_of (const struct join &j, uint64_t token, uint64_t head)
{
  uint64_t d = j.nope + j.rope, start = token * j.heads * (2 * d + j.value);
  struct places p = { (token * j.heads + head) * d, (token * j.heads + head) * (j.nope + j.value),
                      start + head * d, start + (j.heads + head) * d,
                      start + 2 * j.heads * d + head * j.value };

  return p;
}

static __device__ __forceinline__ void
copy (struct array from, uint64_t at, struct array to, uint64_t place)
{
  put (to, place, get (from, at));
}

/* A thread copies one element or rotates one pair. The threads of a head, in order: query elements
 * without position, query pairs, key elements, key pairs (already rotated), value elements. */
__global__ void
join_heads (struct join j, const __grid_constant__ struct turning turning)
{
  uint64_t pairs = j.rope / 2, each = 2 * j.nope + pairs + j.rope + j.value;

  for (WEFT_EACH (i, j.tokens * j.heads * each)) {
    uint64_t c = i % each, token = i / each / j.heads;
    struct places at = places_of (j, token, i / each % j.heads);
    if (c < j.nope) {
      copy (j.q, at.q + c, j.qkv, at.query + c);
    } else if ((c -= j.nope) < pairs) {
      uint64_t from = at.q + j.nope + c, to = at.query + j.nope + c;
      struct two_floats x = turned (turning, token, c, get (j.q, from), get (j.q, from + pairs));
      put (j.qkv, to, x.low);
      put (j.qkv, to + pairs, x.high);
    } else if ((c -= pairs) < j.nope) {
      copy (j.kv, at.kv + c, j.qkv, at.key + c);
    } else if ((c -= j.nope) < j.rope) {
      copy (j.position, token * j.rope + c, j.qkv, at.key + j.nope + c);
    } else {
      c -= j.rope;
      copy (j.kv, at.kv + j.nope + c, j.qkv, at.value + c);
    }
  }
}

/* The threads of join_heads() except those of key pairs, which all heads share. */
__global__ void
join_heads_bwd (struct join j, const __grid_constant__ struct turning turning)
{
  uint64_t pairs = j.rope / 2, each = 2 * j.nope + pairs + j.value;

  for (WEFT_EACH (i, j.tokens * j.heads * each)) {
    uint64_t c = i % each, token = i / each / j.heads;
    struct places at = places_of (j, token, i / each % j.heads);
    if (c < j.nope) {
      copy (j.qkv, at.query + c, j.q, at.q + c);
    } else if ((c -= j.nope) < pairs) {
      uint64_t from = at.query + j.nope + c, to = at.q + j.nope + c;
      struct two_floats x =
          turned (turning, token, c, get (j.qkv, from), get (j.qkv, from + pairs));
      put (j.q, to, x.low);
      put (j.q, to + pairs, x.high);
    } else if ((c -= pairs) < j.nope) {
      copy (j.qkv, at.key + c, j.kv, at.kv + c);
    } else {
      c -= j.nope;
      copy (j.qkv, at.value + c, j.kv, at.kv + j.nope + c);
    }
  }
}

/* Sums the gradient of the shared key position over heads. */
__global__ void
add_positions (struct join j)
{
  for (WEFT_EACH (i, j.tokens * j.rope)) {
    uint64_t token = i / j.rope, c = i % j.rope;
    float sum = 0;
    for (uint64_t head = 0; head < j.heads; head++)
      sum += get (j.qkv, places_of (j, token, head).key + j.nope + c);
    put (j.position, i, sum);
  }
}

static struct join
join_of (const struct weft_cuda_launch *l, const struct weft_cuda_operand *const o[4])
{
  const uint64_t *dim = l->dim;
  struct join j = { array_of (o[0]), array_of (o[1]), array_of (o[2]), array_of (o[3]), dim[TOKENS],
                    dim[HEADS],      dim[NOPE],       dim[ROPE],       dim[VALUE] };

  return j;
}

const char *
weft_cuda_latent_join (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand,
                                 *const of[4] = { &o[Q], &o[KV], &o[POSITION], &o[QKV] };
  struct join j = join_of (l, of);
  uint64_t n = j.tokens * j.heads * (2 * j.nope + j.rope / 2 + j.rope + j.value);

  WEFT_LAUNCH (join_heads, blocks_for (n, THREADS, MOST_BLOCKS), THREADS, 0, l->stream, j,
               turning_of (l, 1));
  return launched ();
}

const char *
weft_cuda_latent_join_bwd (const struct weft_cuda_launch *l)
{
  const struct weft_cuda_operand *o = l->operand,
                                 *const of[4] = { &o[DQ], &o[DKV], &o[DPOSITION], &o[DQKV] };
  struct join j = join_of (l, of);
  uint64_t n = j.tokens * j.heads * (2 * j.nope + j.rope / 2 + j.value);

  WEFT_LAUNCH (join_heads_bwd, blocks_for (n, THREADS, MOST_BLOCKS), THREADS, 0, l->stream, j,
               turning_of (l, -1));
  WEFT_LAUNCH (add_positions, blocks_for (j.tokens * j.rope, THREADS, MOST_BLOCKS), THREADS, 0,
               l->stream, j);
  return launched ();
}
