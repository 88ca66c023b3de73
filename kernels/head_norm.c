/* Norms of query and key heads. A row of qkv is [query heads | key heads | value heads], with one
 * key and one value head per group. Queries and keys each have a weight of their own; `raw` holds
 * the query and key heads before the norm.
 *
 * Each head is normalised separately, with one weight for all heads; or (dimension `together`) the
 * query heads of a token are normalised as one row, its key heads as another, with a weight per
 * element. A strip is a set of elements that is normalised as one row. */
#include "kernels/float.h"
#include "kernels/part.h"
#include "kernels/row.h"
#include "kernels/sums.h"
#include <math.h>

/* Size in floats of the scratch for the weight gradients of queries and keys: enough for the widest
 * head (model.def) and 2^5 sequences. */
#define ROOM 65536

enum { QKV, Q_WEIGHT, K_WEIGHT, RAW };
enum { DQKV, BWD_RAW, BWD_Q_WEIGHT, BWD_K_WEIGHT, DQ_WEIGHT, DK_WEIGHT };
enum { TOGETHER = 2 /* dimension */ };
enum { WGRAD_DQKV, WGRAD_RAW, WGRAD_DQ, WGRAD_DK };

/* Number of heads per token that are normalised: query heads and key heads. */
static uint64_t
token_heads (const struct weft_kernel *k)
{
  return weft_kernel_heads (k) + weft_kernel_groups (k);
}

/* Whether the heads of a token are normalised together, as one row. The ops head_norm_dgrad and
 * head_norm_wgrad, for heads divided among tensor-parallel ranks, do not support this. */
static gboolean
is_whole (const struct weft_kernel *k)
{
  return (k->kind == WEFT_OP_HEAD_NORM || k->kind == WEFT_OP_HEAD_NORM_BWD) &&
         k->shape.dim[TOGETHER] > 0;
}

/* Number of strips of one token. A strip is a set of elements that is normalised as one row: a
 * head, or all query heads or all key heads of the token. */
static uint64_t
token_strips (const struct weft_kernel *k)
{
  return is_whole (k) ? 2 : token_heads (k);
}

/* Number of strips (elements that are normalised as one row) of all tokens. */
static uint64_t
strips (const struct weft_kernel *k)
{
  return k->shape.dim[0] / token_heads (k) * token_strips (k);
}

static uint64_t
tokens_in_qkv (const struct weft_kernel *k, uint64_t tokens)
{
  return tokens * (token_heads (k) + weft_kernel_groups (k)) * k->shape.dim[1];
}

/* A strip: n elements that are normalised as one row. They begin at element `qkv` of the array qkv
 * and at element `raw` of the array raw. key TRUE: the strip uses the weight of keys; FALSE: the
 * weight of queries. */
struct strip {
  uint64_t qkv, raw, n;
  gboolean key;
};

static struct strip
strip_at (const struct weft_kernel *k, uint64_t row)
{
  uint64_t token = row / token_strips (k), i = row % token_strips (k), width = k->shape.dim[1];
  uint64_t heads = weft_kernel_heads (k), first = i;
  struct strip s = { .n = width, .key = i >= heads };

  if (is_whole (k)) {
    first = i * heads;
    s.n = (i ? weft_kernel_groups (k) : heads) * width;
    s.key = i > 0;
  }
  s.qkv = tokens_in_qkv (k, token) + first * width;
  s.raw = (token * token_heads (k) + first) * width;
  return s;
}

/* Number of elements of the weight of keys, or of queries. */
static uint64_t
weight_size (const struct weft_kernel *k, gboolean key)
{
  uint64_t heads = key ? weft_kernel_groups (k) : weft_kernel_heads (k);

  return (is_whole (k) ? heads : 1) * k->shape.dim[1];
}

/* Number of elements of the widest strip (elements that are normalised as one row). */
static uint64_t
most_columns (const struct weft_kernel *k)
{
  return weight_size (k, FALSE);
}

static uint64_t
qkv_size (const struct weft_kernel *k)
{
  return tokens_in_qkv (k, k->shape.dim[0] / token_heads (k));
}

uint64_t
weft_extent_head_norm (const struct weft_kernel *k, uint32_t operand)
{
  uint64_t all = k->shape.dim[0] * k->shape.dim[1];

  return operand == QKV ? qkv_size (k)
         : operand == RAW ? all
                          : weight_size (k, operand == K_WEIGHT);
}

uint64_t
weft_extent_head_norm_bwd (const struct weft_kernel *k, uint32_t operand)
{
  uint64_t all = k->shape.dim[0] * k->shape.dim[1];

  return operand == DQKV ? qkv_size (k)
         : operand == BWD_RAW
             ? all
             : weight_size (k, operand == BWD_K_WEIGHT || operand == DK_WEIGHT);
}

uint64_t
weft_extent_head_norm_dgrad (const struct weft_kernel *k, uint32_t operand)
{
  return weft_extent_head_norm_bwd (k, operand);
}

uint64_t
weft_extent_head_norm_wgrad (const struct weft_kernel *k, uint32_t operand)
{
  return operand <= WGRAD_RAW ? k->shape.dim[2] * weft_extent_head_norm_bwd (k, operand)
                              : weight_size (k, operand == WGRAD_DK);
}

static struct weft_row_norm
norm_of (const struct weft_kernel *k, const struct strip *s)
{
  return (struct weft_row_norm){ s->n, (float) k->model->norm_epsilon, FALSE };
}

static void
copy (struct weft_row to, struct weft_row from, uint64_t n)
{
  float room[WEFT_STRETCH];

  for (uint64_t c = 0; c < n; c += WEFT_STRETCH) {
    uint64_t some = weft_least (n - c, WEFT_STRETCH);
    weft_store (to.operand->data, to.operand->dtype, to.first + c, some,
                weft_floats (from.operand->data, from.operand->dtype, from.first + c, some, room));
  }
}

void
weft_cpu_head_norm (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  struct weft_range rows = weft_part (strips (k), 1, part, parts);
  const struct weft_operand *o = k->operand;

  for (uint64_t r = rows.begin; r < rows.end; r++) {
    struct strip s = strip_at (k, r);
    struct weft_row_norm norm = norm_of (k, &s);
    struct weft_row head = { &o[QKV], s.qkv }, raw = { &o[RAW], s.raw };
    copy (raw, head, norm.n);
    weft_row_forward (&norm, raw, &o[s.key ? K_WEIGHT : Q_WEIGHT], NULL, head);
  }
}

/* Operands for the gradient of one strip (elements that are normalised as one row). The strip may
 * be in the arrays of another rank. */
static struct weft_row_gradient
strip_gradient (const struct weft_kernel *k, const struct strip *s)
{
  struct weft_row_norm norm = norm_of (k, s);
  const struct weft_operand *o = k->operand;
  struct weft_row head = { &o[DQKV], s->qkv };
  struct weft_row_gradient g = { .dy = head,
                                 .x = { &o[BWD_RAW], s->raw },
                                 .dx = head,
                                 .weight = &o[s->key ? BWD_K_WEIGHT : BWD_Q_WEIGHT] };

  g.moments = weft_row_moments (&norm, g.x);
  return g;
}

/* Sums of weight gradients over tokens and over the heads of a token. The arrays of several ranks,
 * which are stored one after the other, contain the terms. `alike` consecutive ranks hold the same
 * heads, so only the array of the first of them is added. */
struct heads {
  const struct weft_kernel *k; /* a call with the operand numbers of head_norm_bwd */
  uint64_t ranks, alike;
  gboolean inputs; /* TRUE: also compute the input gradients; only if there is one rank */
};

/* Index of a strip (elements that are normalised as one row) in arrays that hold the strips of all
 * tokens of all ranks, rank by rank. */
static uint64_t
row_of (const struct heads *h, uint64_t token, uint64_t rank, uint64_t strip)
{
  uint64_t tokens = h->k->shape.dim[0] / token_heads (h->k);
  return (rank * tokens + token) * token_strips (h->k) + strip;
}

/* Adds the contributions of the heads of one token to the weight gradients of queries (dweight[0])
 * and keys (dweight[1]). */
static void
sum_token (const struct heads *h, uint64_t token, struct weft_range columns,
           float *const dweight[2])
{
  for (uint64_t rank = 0; rank < h->ranks; rank += h->alike)
    for (uint64_t i = 0; i < token_strips (h->k); i++) {
      struct strip s = strip_at (h->k, row_of (h, token, rank, i));
      struct weft_row_norm norm = norm_of (h->k, &s);
      struct weft_row_gradient g = strip_gradient (h->k, &s);
      struct weft_range some = { columns.begin, weft_least (columns.end, s.n) };
      if (some.begin < some.end)
        weft_row_weights (&g, some, dweight[s.key], NULL);
      if (h->inputs && columns.end == most_columns (h->k))
        weft_row_backward (&norm, &g);
    }
}

static void
sum_columns (const struct heads *h, struct weft_range columns, struct weft_sums sums[2])
{
  struct weft_leaves leaves = weft_sums_leaves (h->k, h->k->shape.dim[0] / token_heads (h->k));

  for (uint32_t i = 0; i < leaves.n; i++) {
    struct weft_range leaf = weft_sums_tokens (&leaves, i);
    float *const dweight[2] = { weft_sums_leaf (&sums[0]), weft_sums_leaf (&sums[1]) };
    for (uint64_t t = leaf.begin; t < leaf.end; t++)
      sum_token (h, t, columns, dweight);
    weft_sums_close (&sums[0]);
    weft_sums_close (&sums[1]);
  }
  for (int i = 0; i < 2; i++)
    if (sums[i].n > 0)
      weft_sums_store (&sums[i], columns.begin);
}

/* Number of columns of a range that are below `size`, the number of elements of a weight. */
static uint64_t
within (struct weft_range columns, uint64_t size)
{
  return size > columns.begin ? weft_least (columns.end, size) - columns.begin : 0;
}

static void
backward (const struct heads *h)
{
  const struct weft_kernel *k = h->k;
  uint32_t n_leaf = weft_sums_leaves (k, k->shape.dim[0] / token_heads (k)).n;
  uint64_t all = most_columns (k), width = ROOM / 2 / weft_sums_depth (n_leaf);
  float room[ROOM];

  for (uint64_t c = 0; c < all; c += width) {
    struct weft_range columns = { c, weft_least (c + width, all) };
    struct weft_sums sums[2] = { { .output = &k->operand[DQ_WEIGHT],
                                   .room = room,
                                   .n = columns.end - c,
                                   .n_leaf = n_leaf,
                                   .rounds = k->canonical } };
    sums[1] = sums[0];
    sums[1].output = &k->operand[DK_WEIGHT];
    sums[1].n = within (columns, weight_size (k, TRUE));
    sums[1].room += ROOM / 2;
    sum_columns (h, columns, sums);
  }
}

void
weft_cpu_head_norm_bwd (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  (void) part;
  (void) parts;
  backward (&(struct heads){ k, 1, 1, TRUE });
}

void
weft_cpu_head_norm_dgrad (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  struct weft_range rows = weft_part (strips (k), 1, part, parts);

  for (uint64_t r = rows.begin; r < rows.end; r++) {
    struct strip s = strip_at (k, r);
    struct weft_row_norm norm = norm_of (k, &s);
    struct weft_row_gradient g = strip_gradient (k, &s);
    weft_row_backward (&norm, &g);
  }
}

/* The arguments of head_norm_wgrad, with the outputs at the operand numbers that they have in
 * head_norm_bwd, because backward() uses these numbers. */
static struct weft_kernel
weights_alone (const struct weft_kernel *k)
{
  struct weft_kernel all = *k;

  all.operand[DQ_WEIGHT] = k->operand[WGRAD_DQ];
  all.operand[DK_WEIGHT] = k->operand[WGRAD_DK];
  return all;
}

void
weft_cpu_head_norm_wgrad (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  struct weft_kernel all = weights_alone (k);

  (void) part;
  (void) parts;
  backward (&(struct heads){ &all, k->shape.dim[2], MAX (1, k->shape.dim[3]), FALSE });
}

/* -------------------------------------------------------------------- reference */

static double
scale_of (const struct weft_kernel *k, const double *x, uint64_t n)
{
  double squares = 0;

  for (uint64_t i = 0; i < n; i++)
    squares += x[i] * x[i];
  return 1 / sqrt (squares / (double) n + k->model->norm_epsilon);
}

void
weft_ref_head_norm (const struct weft_kernel *k)
{
  for (uint64_t r = 0; r < strips (k); r++) {
    struct strip s = strip_at (k, r);
    double *x = (double *) k->operand[QKV].data + s.qkv;
    double *raw = (double *) k->operand[RAW].data + s.raw, scale = scale_of (k, x, s.n);
    const double *weight = k->operand[s.key ? K_WEIGHT : Q_WEIGHT].data;
    for (uint64_t i = 0; i < s.n; i++) {
      raw[i] = x[i];
      x[i] *= scale * weight[i];
    }
  }
}

/* Reference gradients of one strip (elements that are normalised as one row). weight NULL: no input
 * gradient; dweight NULL: no weight gradient. */
static void
ref_strip (const struct weft_kernel *k, const struct strip *s, const double *weight,
           double *dweight)
{
  double *d = (double *) k->operand[DQKV].data + s->qkv, of_gx = 0;
  const double *x = (double *) k->operand[BWD_RAW].data + s->raw;
  double scale = scale_of (k, x, s->n), n = (double) s->n;

  for (uint64_t i = 0; i < s->n; i++) {
    of_gx += weight ? d[i] * weight[i] * x[i] * scale / n : 0;
    if (dweight)
      dweight[i] += d[i] * x[i] * scale;
  }
  for (uint64_t i = 0; i < s->n && weight; i++)
    d[i] = (d[i] * weight[i] - x[i] * scale * of_gx) * scale;
}

/* Reference: computes gradients from the arrays of `ranks` ranks, which are stored one after the
 * other. */
static void
ref_backward (const struct weft_kernel *k, uint64_t ranks, gboolean inputs, gboolean weights)
{
  for (uint32_t o = DQ_WEIGHT; o <= DK_WEIGHT && weights; o++)
    if (!k->operand[o].accumulate)
      memset (k->operand[o].data, 0, weight_size (k, o == DK_WEIGHT) * sizeof (double));
  for (uint64_t r = 0; r < ranks * strips (k); r++) {
    struct strip s = strip_at (k, r);
    ref_strip (k, &s, inputs ? k->operand[s.key ? BWD_K_WEIGHT : BWD_Q_WEIGHT].data : NULL,
               weights ? k->operand[s.key ? DK_WEIGHT : DQ_WEIGHT].data : NULL);
  }
}

void
weft_ref_head_norm_bwd (const struct weft_kernel *k)
{
  ref_backward (k, 1, TRUE, TRUE);
}

void
weft_ref_head_norm_dgrad (const struct weft_kernel *k)
{
  ref_backward (k, 1, TRUE, FALSE);
}

void
weft_ref_head_norm_wgrad (const struct weft_kernel *k)
{
  struct weft_kernel all = weights_alone (k);

  g_assert (k->shape.dim[3] <= 1);
  ref_backward (&all, k->shape.dim[2], FALSE, TRUE);
}
