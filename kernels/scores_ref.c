/* fp64 reference of unfused attention, written as its formulas. */
#include "kernels/reference.h"
#include "kernels/scores.h"
#include <math.h>
#include <string.h>

struct place {
  const struct weft_kernel *k;
  const uint64_t *dim;
  uint64_t batch, head, query, key;
};

/* Calls `pair` for every query and each key that the query sees. */
static void
each_pair (const struct weft_kernel *k, void (*pair) (const struct place *at))
{
  const uint64_t *dim = k->shape.dim;

  for (uint64_t b = 0; b < dim[WEFT_BATCH]; b++)
    for (uint64_t h = 0; h < dim[WEFT_HEADS]; h++)
      for (uint64_t q = 0; q < dim[WEFT_SEQUENCE]; q++)
        for (uint64_t key = weft_first_key (k, q); key <= q; key++)
          pair (&(struct place){ k, dim, b, h, q, key });
}

static double *
data (const struct place *at, uint32_t operand)
{
  return at->k->operand[operand].data;
}

static uint64_t
cell (const struct place *at)
{
  return weft_square_at (at->dim, at->batch, at->head, at->query) + at->key;
}

static uint64_t
query_slot (const struct place *at)
{
  return weft_qkv_at (at->dim, at->batch, at->query, at->head);
}

static uint64_t
key_slot (const struct place *at)
{
  return weft_qkv_at (at->dim, at->batch, at->key, weft_key_slot (at->dim, at->head));
}

static uint64_t
value_slot (const struct place *at)
{
  return weft_qkv_at (at->dim, at->batch, at->key, weft_value_slot (at->dim, at->head));
}

static uint64_t
out_slot (const struct place *at)
{
  return weft_o_at (at->dim, at->batch, at->query, at->head);
}

static void
clear (const struct weft_kernel *k, uint32_t operand)
{
  memset (k->operand[operand].data, 0, k->operand[operand].n * sizeof (double));
}

static double
root (const struct place *at)
{
  double scalar = at->k->model->query_pre_attn_scalar;

  return sqrt (scalar > 0 ? scalar : (double) at->dim[WEFT_HEAD_WIDTH]);
}

static void
score (const struct place *at)
{
  const double *qkv = data (at, 0);
  data (at, 1)[cell (at)] =
      weft_double_dot (qkv + query_slot (at), qkv + key_slot (at), at->dim[WEFT_HEAD_WIDTH]) /
      root (at);
}

void
weft_ref_scores (const struct weft_kernel *k)
{
  clear (k, 1);
  each_pair (k, score);
}

static void
softmax (const struct place *at)
{
  const double *x = data (at, 0) + cell (at) - at->key;
  double peak = -INFINITY, total = 0;

  for (uint64_t key = weft_first_key (at->k, at->query); key <= at->query; key++)
    peak = fmax (peak, x[key]);
  for (uint64_t key = weft_first_key (at->k, at->query); key <= at->query; key++)
    total += exp (x[key] - peak);
  data (at, 1)[cell (at)] = exp (x[at->key] - peak) / total;
}

void
weft_ref_softmax (const struct weft_kernel *k)
{
  clear (k, 1);
  each_pair (k, softmax);
}

static void
weigh (const struct place *at)
{
  weft_double_add (data (at, 2) + out_slot (at), data (at, 0)[cell (at)],
                   data (at, 1) + value_slot (at), at->dim[WEFT_HEAD_WIDTH]);
}

void
weft_ref_context (const struct weft_kernel *k)
{
  clear (k, 2);
  each_pair (k, weigh);
}

static void
weigh_backward (const struct place *at)
{
  data (at, 2)[cell (at)] = weft_double_dot (
      data (at, 0) + out_slot (at), data (at, 1) + value_slot (at), at->dim[WEFT_HEAD_WIDTH]);
}

void
weft_ref_context_bwd (const struct weft_kernel *k)
{
  clear (k, 2);
  each_pair (k, weigh_backward);
}

void
weft_ref_softmax_bwd (const struct weft_kernel *k)
{
  uint64_t n = k->shape.dim[WEFT_SEQUENCE];
  uint64_t rows = k->shape.dim[WEFT_BATCH] * k->shape.dim[WEFT_HEADS] * n;
  double *d = k->operand[0].data;
  const double *p = k->operand[1].data;

  for (uint64_t row = 0; row < rows; row++) {
    double mean = weft_double_dot (d + row * n, p + row * n, n);
    for (uint64_t i = row * n; i < (row + 1) * n; i++)
      d[i] = p[i] * (d[i] - mean);
  }
}

static void
score_backward (const struct place *at)
{
  uint64_t n = at->dim[WEFT_HEAD_WIDTH];
  double ds = data (at, 0)[cell (at)] / root (at), p = data (at, 1)[cell (at)];
  const double *d_o = data (at, 2), *qkv = data (at, 3);
  double *dqkv = data (at, 4);

  weft_double_add (dqkv + query_slot (at), ds, qkv + key_slot (at), n);
  weft_double_add (dqkv + key_slot (at), ds, qkv + query_slot (at), n);
  weft_double_add (dqkv + value_slot (at), p, d_o + out_slot (at), n);
}

void
weft_ref_scores_bwd (const struct weft_kernel *k)
{
  clear (k, 4);
  each_pair (k, score_backward);
}

/* ----------------------------------------------------------------------------- extents */

enum extent { HEADS_IN, HEADS_OUT, SQUARE };

static uint64_t
extent_of (const struct weft_kernel *k, enum extent what)
{
  const uint64_t *dim = k->shape.dim;
  uint64_t tokens = dim[WEFT_BATCH] * dim[WEFT_SEQUENCE];
  const uint64_t extent[] = {
    [HEADS_IN] = tokens * (dim[WEFT_HEADS] + 2 * dim[WEFT_GROUPS]) * dim[WEFT_HEAD_WIDTH],
    [HEADS_OUT] = tokens * dim[WEFT_HEADS] * dim[WEFT_HEAD_WIDTH],
    [SQUARE] = tokens * dim[WEFT_HEADS] * dim[WEFT_SEQUENCE],
  };

  return extent[what];
}

#define EXTENT(name, ...)                                                                          \
  uint64_t weft_extent_##name (const struct weft_kernel *k, uint32_t operand)                      \
  {                                                                                                \
    static const enum extent like[] = { __VA_ARGS__ };                                             \
    return extent_of (k, like[operand]);                                                           \
  }
EXTENT (scores, HEADS_IN, SQUARE)
EXTENT (softmax, SQUARE, SQUARE)
EXTENT (context, SQUARE, HEADS_IN, HEADS_OUT)
EXTENT (context_bwd, HEADS_OUT, HEADS_IN, SQUARE)
EXTENT (softmax_bwd, SQUARE, SQUARE)
EXTENT (scores_bwd, SQUARE, SQUARE, HEADS_OUT, HEADS_IN, HEADS_IN)
