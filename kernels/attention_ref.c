/* fp64 reference of attention, written as its formulas. */
#include "kernels/kernel.h"
#include "kernels/reference.h"
#include "kernels/traits.h"
#include <math.h>
#include <string.h>

enum { BATCH, SEQUENCE, HEADS, GROUPS, WIDTH, WINDOW, VALUE };
enum { QKV, O, LSE };
enum { BWD_QKV, BWD_O, BWD_LSE, BWD_DO, BWD_DQKV };

struct head {
  const struct weft_kernel *k;
  uint64_t batch, query, group; /* number of the query head; number of its query group */
};

static struct head
head_at (const struct weft_kernel *k, uint64_t batch, uint64_t query)
{
  uint64_t ratio = k->shape.dim[HEADS] / k->shape.dim[GROUPS];

  return (struct head){ k, batch, query, query / ratio };
}

static uint64_t
value_width (const struct weft_kernel *k)
{
  return k->shape.dim[VALUE] ? k->shape.dim[VALUE] : k->shape.dim[WIDTH];
}

/* Index of column `column` of token t in an array whose rows contain queries, keys and values. */
static uint64_t
in_qkv (const struct head *h, uint64_t t, uint64_t column)
{
  const uint64_t *dim = h->k->shape.dim;
  uint64_t row = (dim[HEADS] + dim[GROUPS]) * dim[WIDTH] + dim[GROUPS] * value_width (h->k);

  return (h->batch * dim[SEQUENCE] + t) * row + column;
}

static uint64_t
q_at (const struct head *h, uint64_t t)
{
  return in_qkv (h, t, h->query * h->k->shape.dim[WIDTH]);
}

static uint64_t
k_at (const struct head *h, uint64_t t)
{
  const uint64_t *dim = h->k->shape.dim;

  return in_qkv (h, t, (dim[HEADS] + h->group) * dim[WIDTH]);
}

static uint64_t
v_at (const struct head *h, uint64_t t)
{
  const uint64_t *dim = h->k->shape.dim;

  return in_qkv (h, t, (dim[HEADS] + dim[GROUPS]) * dim[WIDTH] + h->group * value_width (h->k));
}

static uint64_t
o_at (const struct head *h, uint64_t t)
{
  const uint64_t *dim = h->k->shape.dim;

  return ((h->batch * dim[SEQUENCE] + t) * dim[HEADS] + h->query) * value_width (h->k);
}

static uint64_t
lse_at (const struct head *h, uint64_t t)
{
  const uint64_t *dim = h->k->shape.dim;

  return (h->batch * dim[HEADS] + h->query) * dim[SEQUENCE] + t;
}

/* The first key that query i sees. The last key that it sees is key i. */
static uint64_t
first_key (const struct weft_kernel *k, uint64_t i)
{
  uint64_t window = k->shape.dim[WINDOW];

  return window > 0 && i >= window ? i - window + 1 : 0;
}

static double
scale_of (const struct weft_kernel *k)
{
  double scalar = k->model->query_pre_attn_scalar;

  return 1 / sqrt (scalar > 0 ? scalar : (double) k->shape.dim[WIDTH]);
}

/* Attention score of a query and the key `away` tokens before it. `product` is the dot product of
 * query and key. */
static double
score_of (const struct weft_kernel *k, uint64_t head, double product, uint64_t away)
{
  double x = product * scale_of (k), cap = k->model->attn_logit_softcapping;

  return (cap > 0 ? cap * tanh (x / cap) : x) - weft_kernel_slope (k, head) * (double) away;
}

/* Derivative of a score with respect to the product of query and key. */
static double
slope_of (const struct weft_kernel *k, double score)
{
  double cap = k->model->attn_logit_softcapping, at = cap > 0 ? score / cap : 0;

  return (1 - at * at) * scale_of (k);
}

static double
score (const struct head *h, const double *qkv, uint64_t i, uint64_t j)
{
  uint64_t width = h->k->shape.dim[WIDTH];
  double product = weft_double_dot (qkv + q_at (h, i), qkv + k_at (h, j), width);

  return score_of (h->k, h->query, product, i - j);
}

/* ----------------------------------------------------------------------------- forward */

static double
log_of_sum (const struct head *h, const double *qkv, uint64_t i)
{
  double largest = -INFINITY, sum = 0;

  for (uint64_t j = first_key (h->k, i); j <= i; j++)
    largest = fmax (largest, score (h, qkv, i, j));
  for (uint64_t j = first_key (h->k, i); j <= i; j++)
    sum += exp (score (h, qkv, i, j) - largest);
  return largest + log (sum);
}

static void
attend (const struct head *h, uint64_t i)
{
  const double *qkv = h->k->operand[QKV].data;
  double *o = (double *) h->k->operand[O].data + o_at (h, i);
  double lse = log_of_sum (h, qkv, i);
  uint64_t width = value_width (h->k);

  ((double *) h->k->operand[LSE].data)[lse_at (h, i)] = lse;
  for (uint64_t w = 0; w < width; w++)
    o[w] = 0;
  for (uint64_t j = first_key (h->k, i); j <= i; j++)
    weft_double_add (o, exp (score (h, qkv, i, j) - lse), qkv + v_at (h, j), width);
}

static void
each_row (const struct weft_kernel *k, void (*row) (const struct head *h, uint64_t i))
{
  const uint64_t *dim = k->shape.dim;

  for (uint64_t b = 0; b < dim[BATCH]; b++)
    for (uint64_t q = 0; q < dim[HEADS]; q++) {
      const struct head h = head_at (k, b, q);
      for (uint64_t i = 0; i < dim[SEQUENCE]; i++)
        row (&h, i);
    }
}

void
weft_ref_attention (const struct weft_kernel *k)
{
  each_row (k, attend);
}

/* ---------------------------------------------------------------------------- backward */

/* With p the probabilities of query i and g = do . v their gradients: the gradient of a score is p
 * (g - sum of p g), and that sum is do . o. */
static void
attend_backward (const struct head *h, uint64_t i)
{
  const struct weft_operand *operand = h->k->operand;
  const double *qkv = operand[BWD_QKV].data, *lse = operand[BWD_LSE].data;
  const double *o = (const double *) operand[BWD_O].data + o_at (h, i);
  const double *d = (const double *) operand[BWD_DO].data + o_at (h, i);
  double *dqkv = operand[BWD_DQKV].data;
  uint64_t width = h->k->shape.dim[WIDTH], value = value_width (h->k);
  double delta = weft_double_dot (o, d, value);

  for (uint64_t j = first_key (h->k, i); j <= i; j++) {
    double x = score (h, qkv, i, j), scale = slope_of (h->k, x);
    double p = exp (x - lse[lse_at (h, i)]);
    double ds = p * (weft_double_dot (d, qkv + v_at (h, j), value) - delta);
    weft_double_add (dqkv + v_at (h, j), p, d, value);
    weft_double_add (dqkv + q_at (h, i), ds * scale, qkv + k_at (h, j), width);
    weft_double_add (dqkv + k_at (h, j), ds * scale, qkv + q_at (h, i), width);
  }
}

void
weft_ref_attention_bwd (const struct weft_kernel *k)
{
  double *dqkv = k->operand[BWD_DQKV].data;

  for (uint64_t i = 0; i < weft_extent_attention_bwd (k, BWD_DQKV); i++)
    dqkv[i] = 0;
  each_row (k, attend_backward);
}

/* ----------------------------------------------------------------------------- extents */

static uint64_t
tokens (const struct weft_kernel *k)
{
  return k->shape.dim[BATCH] * k->shape.dim[SEQUENCE];
}

uint64_t
weft_extent_attention (const struct weft_kernel *k, uint32_t operand)
{
  const uint64_t *dim = k->shape.dim;
  const uint64_t extent[] = {
    [QKV] = tokens (k) * ((dim[HEADS] + dim[GROUPS]) * dim[WIDTH] + dim[GROUPS] * value_width (k)),
    [O] = tokens (k) * dim[HEADS] * value_width (k),
    [LSE] = tokens (k) * dim[HEADS],
  };

  return extent[operand];
}

uint64_t
weft_extent_attention_bwd (const struct weft_kernel *k, uint32_t operand)
{
  static const uint32_t like[] = {
    [BWD_QKV] = QKV, [BWD_O] = O, [BWD_LSE] = LSE, [BWD_DO] = O, [BWD_DQKV] = QKV
  };

  return weft_extent_attention (k, like[operand]);
}

/* ------------------------------------------ context parallelism: queries of one rank */

enum { TOKENS, KEYS };
enum { PART_Q, PART_KV, PART_O, PART_LSE };
enum { PART_BWD_Q, PART_BWD_KV, PART_BWD_O, PART_BWD_LSE, PART_BWD_DO, PART_DQ, PART_DKV };

/* A query: batch element, head and row. */
struct query {
  const struct weft_kernel *k;
  uint64_t batch, head, row;
};

static uint64_t
part_tokens (const struct weft_kernel *k)
{
  return weft_kernel_sequence (k);
}

/* Place in the context-parallel group of the rank whose keys attention uses. { 0, 1 }: the keys are
 * those of the whole sequence. */
static struct weft_place
key_place (const struct weft_kernel *k)
{
  uint32_t size = MAX (1, k->cp.of);

  if (k->shape.dim[KEYS] == part_tokens (k) * size)
    return (struct weft_place){ 0, 1 };
  return (struct weft_place){ (k->cp.at + size - k->before) % size, size };
}

static uint64_t
query_position (const struct query *q)
{
  return weft_position (q->k->cp, part_tokens (q->k), q->row);
}

static uint64_t
key_position (const struct query *q, uint64_t key)
{
  return weft_position (key_place (q->k), q->k->shape.dim[KEYS], key);
}

static gboolean
sees (const struct query *q, uint64_t key)
{
  uint64_t i = query_position (q), j = key_position (q, key);

  return j <= i && j >= first_key (q->k, i);
}

/* Number of elements in a row of keys and values. */
static uint64_t
kv_row (const struct weft_kernel *k)
{
  return k->shape.dim[GROUPS] * (k->shape.dim[WIDTH] + value_width (k));
}

static uint64_t
query_at (const struct query *q, gboolean in_qkv_rows)
{
  const uint64_t *dim = q->k->shape.dim;
  uint64_t width = in_qkv_rows ? dim[WIDTH] : value_width (q->k);
  uint64_t row = dim[HEADS] * width + (in_qkv_rows ? kv_row (q->k) : 0);

  return (q->batch * part_tokens (q->k) + q->row) * row + q->head * width;
}

static uint64_t
part_lse_at (const struct query *q)
{
  return (q->batch * q->k->shape.dim[HEADS] + q->head) * part_tokens (q->k) + q->row;
}

static uint64_t
key_at (const struct query *q, uint64_t key, gboolean value)
{
  const uint64_t *dim = q->k->shape.dim;
  uint64_t group = q->head / (dim[HEADS] / dim[GROUPS]);
  uint64_t column =
      value ? dim[GROUPS] * dim[WIDTH] + group * value_width (q->k) : group * dim[WIDTH];

  return (q->batch * dim[KEYS] + key) * kv_row (q->k) + column;
}

static double
part_score (const struct query *q, uint64_t key)
{
  const double *queries = q->k->operand[PART_Q].data, *kv = q->k->operand[PART_KV].data;
  uint64_t width = q->k->shape.dim[WIDTH];

  return score_of (
      q->k, q->head,
      weft_double_dot (queries + query_at (q, TRUE), kv + key_at (q, key, FALSE), width),
      query_position (q) - key_position (q, key));
}

static void
attend_part (const struct query *q)
{
  const double *kv = q->k->operand[PART_KV].data;
  double *o = (double *) q->k->operand[PART_O].data + query_at (q, FALSE), most = -INFINITY;
  double *lse = (double *) q->k->operand[PART_LSE].data + part_lse_at (q), sum = 0;
  uint64_t width = value_width (q->k), keys = q->k->shape.dim[KEYS];

  for (uint64_t j = 0; j < keys; j++)
    most = sees (q, j) ? fmax (most, part_score (q, j)) : most;
  for (uint64_t j = 0; j < keys; j++)
    sum += sees (q, j) ? exp (part_score (q, j) - most) : 0;
  *lse = sum > 0 ? most + log (sum) : -INFINITY;
  for (uint64_t w = 0; w < width; w++)
    o[w] = 0;
  for (uint64_t j = 0; j < keys; j++)
    if (sees (q, j))
      weft_double_add (o, exp (part_score (q, j) - *lse), kv + key_at (q, j, TRUE), width);
}

static void
attend_part_backward (const struct query *q)
{
  const struct weft_operand *of = q->k->operand;
  const double *queries = of[PART_BWD_Q].data, *kv = of[PART_BWD_KV].data;
  const double *o = (const double *) of[PART_BWD_O].data + query_at (q, FALSE);
  const double *d = (const double *) of[PART_BWD_DO].data + query_at (q, FALSE);
  const double *lse = (const double *) of[PART_BWD_LSE].data + part_lse_at (q);
  double *dq = of[PART_DQ].data, *dkv = of[PART_DKV].data;
  uint64_t width = q->k->shape.dim[WIDTH], value = value_width (q->k);
  double delta = weft_double_dot (o, d, value);

  for (uint64_t j = 0; j < q->k->shape.dim[KEYS]; j++) {
    if (!sees (q, j))
      continue;
    double x = part_score (q, j), scale = slope_of (q->k, x), p = exp (x - *lse);
    double ds = p * (weft_double_dot (d, kv + key_at (q, j, TRUE), value) - delta) * scale;
    weft_double_add (dkv + key_at (q, j, TRUE), p, d, value);
    weft_double_add (dq + query_at (q, TRUE), ds, kv + key_at (q, j, FALSE), width);
    weft_double_add (dkv + key_at (q, j, FALSE), ds, queries + query_at (q, TRUE), width);
  }
}

static void
each_query (const struct weft_kernel *k, void (*row) (const struct query *q))
{
  for (uint64_t b = 0; b < k->shape.dim[TOKENS] / part_tokens (k); b++)
    for (uint64_t head = 0; head < k->shape.dim[HEADS]; head++)
      for (uint64_t i = 0; i < part_tokens (k); i++)
        row (&(struct query){ k, b, head, i });
}

void
weft_ref_attention_part (const struct weft_kernel *k)
{
  each_query (k, attend_part);
}

/* Sets the gradients that do not accumulate to 0. In rows of dqkv, sets only the columns of
 * queries. */
static void
clear_part (const struct weft_kernel *k)
{
  double *dq = k->operand[PART_DQ].data;
  uint64_t q = k->shape.dim[HEADS] * k->shape.dim[WIDTH];
  uint64_t row = q + kv_row (k);

  for (uint64_t i = 0; i < k->shape.dim[TOKENS] && !k->operand[PART_DQ].accumulate; i++)
    memset (dq + i * row, 0, q * sizeof *dq);
  if (!k->operand[PART_DKV].accumulate)
    memset (k->operand[PART_DKV].data, 0,
            weft_extent_attention_part_bwd (k, PART_DKV) * sizeof (double));
}

void
weft_ref_attention_part_bwd (const struct weft_kernel *k)
{
  clear_part (k);
  each_query (k, attend_part_backward);
}

uint64_t
weft_extent_attention_part (const struct weft_kernel *k, uint32_t operand)
{
  const uint64_t *dim = k->shape.dim;
  const uint64_t extent[] = {
    [PART_Q] = dim[TOKENS] * (dim[HEADS] * dim[WIDTH] + kv_row (k)),
    [PART_KV] = dim[TOKENS] / part_tokens (k) * dim[KEYS] * kv_row (k),
    [PART_O] = dim[TOKENS] * dim[HEADS] * value_width (k),
    [PART_LSE] = dim[TOKENS] * dim[HEADS],
  };

  return extent[operand];
}

uint64_t
weft_extent_attention_part_bwd (const struct weft_kernel *k, uint32_t operand)
{
  static const uint32_t like[] = {
    [PART_BWD_Q] = PART_Q,     [PART_BWD_KV] = PART_KV, [PART_BWD_O] = PART_O,
    [PART_BWD_LSE] = PART_LSE, [PART_BWD_DO] = PART_O,  [PART_DQ] = PART_Q,
    [PART_DKV] = PART_KV
  };

  return weft_extent_attention_part (k, like[operand]);
}
