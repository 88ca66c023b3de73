/* Multi-latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): data movement between the
 * down projection, the up projection and attention.
 *
 *   split   divides a token's [latent | key position]: the latent is the input of a norm and the up
 *           projection; the key position gets rotary embedding and is shared by all key heads
 *   join    builds heads of queries, heads of keys (each with the shared rotary part) and heads of
 *           values from queries [no position | position] and the up projection's keys and values
 *
 * Rotary embedding rotates dimension i with i + half (core/job/rotary.h).
 *
 * The gradient of the shared part is the sum over heads. The heads are divided into leaves (fixed
 * groups of heads). The heads of a leaf are added one after the other in fp32, and the sums of the
 * leaves are added as a tree (core/base/fold.h), so that tensor-parallel ranks get the same
 * bits. */
#include "core/base/fold.h"
#include "core/job/rotary.h"
#include "kernels/float.h"
#include "kernels/kernel.h"
#include "kernels/part.h"
#include <math.h>

#define MOST_WIDTH 4096 /* limit of the head width in model.def */
#define MOST_DEPTH 4    /* stack entries of a tree sum (core/base/fold.h) of eight leaves */

enum { TOKENS, RANK, SPLIT_ROPE, SPLIT_PARTS };
enum { JOIN_HEADS = 1, NOPE, ROPE, VALUE, LEAVES };
enum { X, LATENT, POSITION };
enum { DLATENT, DPOSITION, DX };
enum { Q, KV, PE, QKV };
enum { DQKV, DQ, DKV, DPE };

uint64_t
weft_extent_latent_split (const struct weft_kernel *k, uint32_t operand)
{
  const uint64_t *dim = k->shape.dim;
  const uint64_t columns[] = { dim[RANK] + dim[SPLIT_ROPE], dim[RANK], dim[SPLIT_ROPE] };

  return dim[TOKENS] * columns[operand];
}

uint64_t
weft_extent_latent_split_bwd (const struct weft_kernel *k, uint32_t operand)
{
  return weft_extent_latent_split (k, (operand + 1) % 3);
}

uint64_t
weft_extent_latent_join (const struct weft_kernel *k, uint32_t operand)
{
  const uint64_t *dim = k->shape.dim;
  uint64_t heads = dim[JOIN_HEADS], q = heads * (dim[NOPE] + dim[ROPE]);
  const uint64_t columns[] = { q, heads * (dim[NOPE] + dim[VALUE]), dim[ROPE],
                               2 * q + heads * dim[VALUE] };

  return dim[TOKENS] * columns[operand];
}

uint64_t
weft_extent_latent_join_bwd (const struct weft_kernel *k, uint32_t operand)
{
  return weft_extent_latent_join (k, (operand + 3) % 4);
}

/* ------------------------------------------------------------------------ elements */

/* An operand of a kernel, whose elements have the stored type, or of a reference, whose elements
 * are doubles. */
struct cells {
  const struct weft_operand *of;
  gboolean doubles;
};

static void
take (struct cells c, uint64_t at, uint64_t n, double *to)
{
  float room;

  for (uint64_t i = 0; i < n; i++)
    to[i] = c.doubles ? ((const double *) c.of->data)[at + i]
                      : (double) *weft_floats (c.of->data, c.of->dtype, at + i, 1, &room);
}

static void
put (struct cells c, uint64_t at, uint64_t n, const double *from)
{
  for (uint64_t i = 0; i < n; i++) {
    float value = (float) from[i];
    if (c.doubles)
      ((double *) c.of->data)[at + i] = from[i];
    else
      weft_store (c.of->data, c.of->dtype, at + i, 1, &value);
  }
}

static void
copy (struct cells from, uint64_t at, struct cells to, uint64_t place, uint64_t n)
{
  double room[MOST_WIDTH];

  for (uint64_t i = 0; i < n; i += MOST_WIDTH) {
    uint64_t few = weft_least (n - i, MOST_WIDTH);
    take (from, at + i, few, room);
    put (to, place + i, few, room);
  }
}

/* Rotary embedding of n elements by a token's position; `direction`: 1, or -1 for the inverse.
 * Computed in fp32, or in double for the reference. */
static void
turn (const struct weft_kernel *k, uint64_t token, double direction, gboolean doubles, double *x,
      uint64_t n)
{
  uint64_t half = n / 2, position = weft_kernel_position (k, token);

  for (uint64_t i = 0; i < half; i++) {
    double frequency = weft_rotary_frequency (k->model, (uint32_t) i, (uint32_t) n, FALSE);
    double angle = (double) position * frequency;
    double c = cos (angle), s = sin (angle) * direction, a = x[i], b = x[half + i];
    if (doubles) {
      x[i] = a * c - b * s;
      x[half + i] = b * c + a * s;
    } else {
      float fc = (float) c, fs = (float) s, fa = (float) a, fb = (float) b;
      float low = fa * fc - fb * fs, high = fb * fc + fa * fs;
      x[i] = (double) low;
      x[half + i] = (double) high;
    }
  }
}

static struct cells
cells_of (const struct weft_kernel *k, uint32_t operand, gboolean doubles)
{
  return (struct cells){ &k->operand[operand], doubles };
}

/* --------------------------------------------------------------------------- split */

/* Number of tokens that the sequence-parallel ranks before this rank hold; 0 without sequence
 * parallelism. */
static uint64_t
tokens_before (const struct weft_kernel *k)
{
  return k->shape.dim[SPLIT_PARTS] > 1 ? k->tp.at * k->shape.dim[TOKENS] : 0;
}

static void
split (const struct weft_kernel *k, struct weft_range tokens, gboolean doubles)
{
  const uint64_t *dim = k->shape.dim;
  uint64_t rank = dim[RANK], rope = dim[SPLIT_ROPE];
  double part[MOST_WIDTH];

  for (uint64_t t = tokens.begin; t < tokens.end; t++) {
    copy (cells_of (k, X, doubles), t * (rank + rope), cells_of (k, LATENT, doubles), t * rank,
          rank);
    take (cells_of (k, X, doubles), t * (rank + rope) + rank, rope, part);
    turn (k, tokens_before (k) + t, 1, doubles, part, rope);
    put (cells_of (k, POSITION, doubles), t * rope, rope, part);
  }
}

static void
split_bwd (const struct weft_kernel *k, struct weft_range tokens, gboolean doubles)
{
  const uint64_t *dim = k->shape.dim;
  uint64_t rank = dim[RANK], rope = dim[SPLIT_ROPE];
  double part[MOST_WIDTH];

  for (uint64_t t = tokens.begin; t < tokens.end; t++) {
    copy (cells_of (k, DLATENT, doubles), t * rank, cells_of (k, DX, doubles), t * (rank + rope),
          rank);
    take (cells_of (k, DPOSITION, doubles), t * rope, rope, part);
    turn (k, tokens_before (k) + t, -1, doubles, part, rope);
    put (cells_of (k, DX, doubles), t * (rank + rope) + rank, rope, part);
  }
}

/* ---------------------------------------------------------------------------- join */

/* Index of the first element of each part of a head, for one token. */
struct places {
  uint64_t q, kv, query, key, value;
};

static struct places
places_of (const struct weft_kernel *k, uint64_t t, uint64_t head)
{
  const uint64_t *dim = k->shape.dim;
  uint64_t heads = dim[JOIN_HEADS], d = dim[NOPE] + dim[ROPE], row = heads * (2 * d + dim[VALUE]);

  return (struct places){ .q = (t * heads + head) * d,
                          .kv = (t * heads + head) * (dim[NOPE] + dim[VALUE]),
                          .query = t * row + head * d,
                          .key = t * row + (heads + head) * d,
                          .value = t * row + 2 * heads * d + head * dim[VALUE] };
}

static void
join_head (const struct weft_kernel *k, uint64_t t, uint64_t head, gboolean doubles)
{
  const uint64_t *dim = k->shape.dim;
  struct places at = places_of (k, t, head);
  struct cells q = cells_of (k, Q, doubles), kv = cells_of (k, KV, doubles),
               to = cells_of (k, QKV, doubles);
  double part[MOST_WIDTH];

  copy (q, at.q, to, at.query, dim[NOPE]);
  take (q, at.q + dim[NOPE], dim[ROPE], part);
  turn (k, t, 1, doubles, part, dim[ROPE]);
  put (to, at.query + dim[NOPE], dim[ROPE], part);
  copy (kv, at.kv, to, at.key, dim[NOPE]);
  copy (cells_of (k, PE, doubles), t * dim[ROPE], to, at.key + dim[NOPE], dim[ROPE]);
  copy (kv, at.kv + dim[NOPE], to, at.value, dim[VALUE]);
}

static void
join (const struct weft_kernel *k, struct weft_range tokens, gboolean doubles)
{
  for (uint64_t t = tokens.begin; t < tokens.end; t++)
    for (uint64_t head = 0; head < k->shape.dim[JOIN_HEADS]; head++)
      join_head (k, t, head, doubles);
}

static double
sum_of (double a, double b, gboolean doubles)
{
  return doubles ? a + b : (double) ((float) a + (float) b);
}

/* Gradients of one head. The gradient of the shared rotary part is added to `shared`. */
static void
join_head_bwd (const struct weft_kernel *k, uint64_t t, uint64_t head, gboolean doubles,
               double *shared)
{
  const uint64_t *dim = k->shape.dim;
  struct places at = places_of (k, t, head);
  struct cells from = cells_of (k, DQKV, doubles), dq = cells_of (k, DQ, doubles),
               dkv = cells_of (k, DKV, doubles);
  double part[MOST_WIDTH];

  copy (from, at.query, dq, at.q, dim[NOPE]);
  take (from, at.query + dim[NOPE], dim[ROPE], part);
  turn (k, t, -1, doubles, part, dim[ROPE]);
  put (dq, at.q + dim[NOPE], dim[ROPE], part);
  copy (from, at.key, dkv, at.kv, dim[NOPE]);
  copy (from, at.value, dkv, at.kv + dim[NOPE], dim[VALUE]);
  take (from, at.key + dim[NOPE], dim[ROPE], part);
  for (uint64_t i = 0; i < dim[ROPE]; i++)
    shared[i] = sum_of (shared[i], part[i], doubles);
}

static void
join_bwd (const struct weft_kernel *k, struct weft_range tokens, gboolean doubles)
{
  const uint64_t *dim = k->shape.dim;
  double stack[MOST_DEPTH][MOST_WIDTH];
  uint32_t leaves = (uint32_t) MAX (1, dim[LEAVES]);

  g_assert (leaves <= 1u << (MOST_DEPTH - 1));
  for (uint64_t t = tokens.begin; t < tokens.end; t++) {
    uint32_t top = 0;
    for (uint32_t leaf = 0; leaf < leaves; leaf++) {
      double *shared = memset (stack[top++], 0, dim[ROPE] * sizeof **stack);
      for (uint64_t head = dim[JOIN_HEADS] * leaf / leaves;
           head < dim[JOIN_HEADS] * (leaf + 1) / leaves; head++)
        join_head_bwd (k, t, head, doubles, shared);
      for (uint32_t merges = weft_fold_merges (leaf, leaves); merges; merges--, top--)
        for (uint64_t i = 0; i < dim[ROPE]; i++)
          stack[top - 2][i] = sum_of (stack[top - 2][i], stack[top - 1][i], doubles);
    }
    put (cells_of (k, DPE, doubles), t * dim[ROPE], dim[ROPE], stack[0]);
  }
}

#define LATENT_KERNEL(name)                                                                        \
  void weft_cpu_latent_##name (const struct weft_kernel *k, uint32_t part, uint32_t parts)         \
  {                                                                                                \
    name (k, weft_part (k->shape.dim[TOKENS], 16, part, parts), FALSE);                            \
  }                                                                                                \
  void weft_ref_latent_##name (const struct weft_kernel *k)                                        \
  {                                                                                                \
    name (k, (struct weft_range){ 0, k->shape.dim[TOKENS] }, TRUE);                                \
  }
LATENT_KERNEL (split)
LATENT_KERNEL (split_bwd)
LATENT_KERNEL (join)
LATENT_KERNEL (join_bwd)
