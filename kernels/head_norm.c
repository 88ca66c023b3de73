/* Norms of query and key heads. A row of qkv is [query heads | key heads | value heads], with one
 * key and one value head per group. Queries and keys each have a weight of their own; `raw` holds
 * the query and key heads only. */
#include "kernels/float.h"
#include "kernels/part.h"
#include "kernels/row.h"
#include "kernels/sums.h"
#include <math.h>

/* Floats of scratch for both sums: the widest head (model.def) fits for 2^5 sequences. */
#define ROOM 65536

enum { QKV, Q_WEIGHT, K_WEIGHT, RAW };
enum { DQKV, BWD_RAW, BWD_Q_WEIGHT, BWD_K_WEIGHT, DQ_WEIGHT, DK_WEIGHT };
enum { WGRAD_DQKV, WGRAD_RAW, WGRAD_DQ, WGRAD_DK };

/* Heads per token that are normalised. */
static uint64_t
token_heads (const struct weft_kernel *k)
{
  return weft_kernel_heads (k) + weft_kernel_groups (k);
}

static gboolean
is_key (const struct weft_kernel *k, uint64_t row)
{
  return row % token_heads (k) >= weft_kernel_heads (k);
}

/* First element in qkv of a row, which is one head of one token. */
static uint64_t
place (const struct weft_kernel *k, uint64_t row)
{
  uint64_t token = row / token_heads (k);
  return (row + token * weft_kernel_groups (k)) * k->shape.dim[1];
}

uint64_t
weft_extent_head_norm (const struct weft_kernel *k, uint32_t operand)
{
  uint64_t all = k->shape.dim[0] * k->shape.dim[1];

  return operand == QKV ? place (k, k->shape.dim[0]) : operand == RAW ? all : k->shape.dim[1];
}

uint64_t
weft_extent_head_norm_bwd (const struct weft_kernel *k, uint32_t operand)
{
  uint64_t all = k->shape.dim[0] * k->shape.dim[1];

  return operand == DQKV ? place (k, k->shape.dim[0]) : operand == BWD_RAW ? all : k->shape.dim[1];
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
                              : k->shape.dim[1];
}

static struct weft_row_norm
head_norm (const struct weft_kernel *k)
{
  return (struct weft_row_norm){ k->shape.dim[1], (float) k->model->norm_epsilon, FALSE };
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
  struct weft_row_norm norm = head_norm (k);
  struct weft_range rows = weft_part (k->shape.dim[0], 1, part, parts);
  const struct weft_operand *o = k->operand;

  for (uint64_t r = rows.begin; r < rows.end; r++) {
    struct weft_row head = { &o[QKV], place (k, r) }, raw = { &o[RAW], r * norm.n };
    copy (raw, head, norm.n);
    weft_row_forward (&norm, raw, &o[is_key (k, r) ? K_WEIGHT : Q_WEIGHT], NULL, head);
  }
}

/* Operands of the gradient of one head of one token; gradient and input may be in the arrays of
 * another rank. */
static struct weft_row_gradient
head_gradient (const struct weft_kernel *k, uint64_t row)
{
  struct weft_row_norm norm = head_norm (k);
  const struct weft_operand *o = k->operand;
  struct weft_row head = { &o[DQKV], place (k, row) };
  struct weft_row_gradient g = { .dy = head,
                                 .x = { &o[BWD_RAW], row * norm.n },
                                 .dx = head,
                                 .weight = &o[is_key (k, row) ? BWD_K_WEIGHT : BWD_Q_WEIGHT] };

  g.moments = weft_row_moments (&norm, g.x);
  return g;
}

/* How weight gradients are summed: over tokens and over the heads of a token, from the arrays of
 * several ranks, which lie one after the other; some of the ranks hold replicas. */
struct heads {
  const struct weft_kernel *k; /* head_norm_bwd */
  uint64_t ranks, alike;
  gboolean inputs; /* also compute gradients of the heads, those of one rank */
};

/* Row, in the arrays of all ranks, of a head of a token on a rank. */
static uint64_t
row_of (const struct heads *h, uint64_t token, uint64_t rank, uint64_t head)
{
  uint64_t tokens = h->k->shape.dim[0] / token_heads (h->k);
  return (rank * tokens + token) * token_heads (h->k) + head;
}

/* Adds the heads of one token that share a weight (queries or keys). */
static void
sum_token (const struct heads *h, uint64_t token, struct weft_range columns,
           float *const dweight[2])
{
  struct weft_row_norm norm = head_norm (h->k);

  for (uint64_t rank = 0; rank < h->ranks; rank += h->alike)
    for (uint64_t head = 0; head < token_heads (h->k); head++) {
      uint64_t row = row_of (h, token, rank, head);
      struct weft_row_gradient g = head_gradient (h->k, row);
      weft_row_weights (&g, columns, dweight[is_key (h->k, row)], NULL);
      if (h->inputs && columns.end == norm.n)
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
  weft_sums_store (&sums[0], columns.begin);
  weft_sums_store (&sums[1], columns.begin);
}

static void
backward (const struct heads *h)
{
  const struct weft_kernel *k = h->k;
  uint32_t n_leaf = weft_sums_leaves (k, k->shape.dim[0] / token_heads (k)).n;
  uint64_t all = k->shape.dim[1], width = ROOM / 2 / weft_sums_depth (n_leaf);
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
  struct weft_row_norm norm = head_norm (k);
  struct weft_range rows = weft_part (k->shape.dim[0], 1, part, parts);

  for (uint64_t r = rows.begin; r < rows.end; r++) {
    struct weft_row_gradient g = head_gradient (k, r);
    weft_row_backward (&norm, &g);
  }
}

/* The same op with weight gradients only. */
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
scale_of (const struct weft_kernel *k, const double *x)
{
  uint64_t n = k->shape.dim[1];
  double squares = 0;

  for (uint64_t i = 0; i < n; i++)
    squares += x[i] * x[i];
  return 1 / sqrt (squares / (double) n + k->model->norm_epsilon);
}

void
weft_ref_head_norm (const struct weft_kernel *k)
{
  uint64_t n = k->shape.dim[1];

  for (uint64_t r = 0; r < k->shape.dim[0]; r++) {
    double *x = (double *) k->operand[QKV].data + place (k, r);
    double *raw = (double *) k->operand[RAW].data + r * n, scale = scale_of (k, x);
    const double *weight = k->operand[is_key (k, r) ? K_WEIGHT : Q_WEIGHT].data;
    for (uint64_t i = 0; i < n; i++) {
      raw[i] = x[i];
      x[i] *= scale * weight[i];
    }
  }
}

/* One head; unwanted outputs are NULL. */
static void
ref_head (const struct weft_kernel *k, uint64_t r, const double *weight, double *dweight)
{
  uint64_t n = k->shape.dim[1];
  double *d = (double *) k->operand[DQKV].data + place (k, r), of_gx = 0;
  const double *x = (double *) k->operand[BWD_RAW].data + r * n;
  double scale = scale_of (k, x);

  for (uint64_t i = 0; i < n; i++) {
    of_gx += weight ? d[i] * weight[i] * x[i] * scale / (double) n : 0;
    if (dweight)
      dweight[i] += d[i] * x[i] * scale;
  }
  for (uint64_t i = 0; i < n && weight; i++)
    d[i] = (d[i] * weight[i] - x[i] * scale * of_gx) * scale;
}

static void
ref_backward (const struct weft_kernel *k, uint64_t rows, gboolean inputs, gboolean weights)
{
  for (uint32_t o = DQ_WEIGHT; o <= DK_WEIGHT && weights; o++)
    if (!k->operand[o].accumulate)
      memset (k->operand[o].data, 0, k->shape.dim[1] * sizeof (double));
  for (uint64_t r = 0; r < rows; r++) {
    gboolean key = is_key (k, r);
    ref_head (k, r, inputs ? k->operand[key ? BWD_K_WEIGHT : BWD_Q_WEIGHT].data : NULL,
              weights ? k->operand[key ? DK_WEIGHT : DQ_WEIGHT].data : NULL);
  }
}

void
weft_ref_head_norm_bwd (const struct weft_kernel *k)
{
  ref_backward (k, k->shape.dim[0], TRUE, TRUE);
}

void
weft_ref_head_norm_dgrad (const struct weft_kernel *k)
{
  ref_backward (k, k->shape.dim[0], TRUE, FALSE);
}

void
weft_ref_head_norm_wgrad (const struct weft_kernel *k)
{
  struct weft_kernel all = weights_alone (k);

  g_assert (k->shape.dim[3] <= 1);
  ref_backward (&all, k->shape.dim[0] * k->shape.dim[2], FALSE, TRUE);
}
