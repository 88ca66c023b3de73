/* A row of qkv is [query heads | key heads | value heads], one key and one value head for each
 * group.  Queries and keys have each their own weight; raw has their heads alone. */
#include "kernels/float.h"
#include "kernels/part.h"
#include "kernels/row.h"
#include "kernels/sums.h"
#include <math.h>

/* Floats of scratch for both sums: the widest head (model.def) fits for 2^5 sequences. */
#define ROOM 65536

enum { QKV, Q_WEIGHT, K_WEIGHT, RAW };
enum { DQKV, BWD_RAW, BWD_Q_WEIGHT, BWD_K_WEIGHT, DQ_WEIGHT, DK_WEIGHT };

/* Heads that are normalised, of one token. */
static uint64_t
token_heads (const struct weft_kernel *k)
{
  return (uint64_t) (k->model->num_attention_heads + k->model->num_query_groups);
}

static gboolean
is_key (const struct weft_kernel *k, uint64_t row)
{
  return row % token_heads (k) >= (uint64_t) k->model->num_attention_heads;
}

/* Where a row, a head of a token, begins in qkv. */
static uint64_t
place (const struct weft_kernel *k, uint64_t row)
{
  uint64_t token = row / token_heads (k);
  return (row + token * (uint64_t) k->model->num_query_groups) * k->shape.dim[1];
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

/* The gradients of one head, and some columns of what it adds to its weight's. */
static void
head_backward (const struct weft_kernel *k, uint64_t row, struct weft_range columns,
               float *const dweight[2])
{
  struct weft_row_norm norm = head_norm (k);
  const struct weft_operand *o = k->operand;
  gboolean key = is_key (k, row);
  struct weft_row head = { &o[DQKV], place (k, row) };
  struct weft_row_gradient g = { .dy = head,
                                 .x = { &o[BWD_RAW], row * norm.n },
                                 .dx = head,
                                 .weight = &o[key ? BWD_K_WEIGHT : BWD_Q_WEIGHT] };

  g.moments = weft_row_moments (&norm, g.x);
  weft_row_weights (&g, columns, dweight[key], NULL);
  if (columns.end == norm.n)
    weft_row_backward (&norm, &g);
}

static void
sum_columns (const struct weft_kernel *k, struct weft_range columns, struct weft_sums sums[2])
{
  uint64_t heads = token_heads (k);
  struct weft_leaves leaves = weft_sums_leaves (k, k->shape.dim[0] / heads);

  for (uint32_t i = 0; i < leaves.n; i++) {
    struct weft_range leaf = weft_sums_tokens (&leaves, i);
    float *const dweight[2] = { weft_sums_leaf (&sums[0]), weft_sums_leaf (&sums[1]) };
    for (uint64_t r = leaf.begin * heads; r < leaf.end * heads; r++)
      head_backward (k, r, columns, dweight);
    weft_sums_close (&sums[0]);
    weft_sums_close (&sums[1]);
  }
  weft_sums_store (&sums[0], columns.begin);
  weft_sums_store (&sums[1], columns.begin);
}

void
weft_cpu_head_norm_bwd (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  uint32_t n_leaf = weft_sums_leaves (k, k->shape.dim[0] / token_heads (k)).n;
  uint64_t all = k->shape.dim[1], width = ROOM / 2 / weft_sums_depth (n_leaf);
  float room[ROOM];

  (void) part;
  (void) parts;
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
    sum_columns (k, columns, sums);
  }
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

void
weft_ref_head_norm_bwd (const struct weft_kernel *k)
{
  uint64_t n = k->shape.dim[1];

  for (uint32_t o = DQ_WEIGHT; o <= DK_WEIGHT; o++)
    if (!k->operand[o].accumulate)
      memset (k->operand[o].data, 0, n * sizeof (double));
  for (uint64_t r = 0; r < k->shape.dim[0]; r++) {
    gboolean key = is_key (k, r);
    double *d = (double *) k->operand[DQKV].data + place (k, r), of_gx = 0;
    const double *x = (double *) k->operand[BWD_RAW].data + r * n;
    const double *weight = k->operand[key ? BWD_K_WEIGHT : BWD_Q_WEIGHT].data;
    double *dweight = k->operand[key ? DK_WEIGHT : DQ_WEIGHT].data, scale = scale_of (k, x);
    for (uint64_t i = 0; i < n; i++) {
      of_gx += d[i] * weight[i] * x[i] * scale / (double) n;
      dweight[i] += d[i] * x[i] * scale;
    }
    for (uint64_t i = 0; i < n; i++)
      d[i] = (d[i] * weight[i] - x[i] * scale * of_gx) * scale;
  }
}
