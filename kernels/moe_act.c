/* Activation of experts: the model's activation times the router weight of the token (Megatron-Core
 * moe/experts.py applies weights to activations, so that the outputs of experts are only added). */
#include "core/base/fold.h"
#include "kernels/float.h"
#include "kernels/gemm.h"
#include "kernels/leaves.h"
#include "kernels/moe.h"
#include "kernels/part.h"

enum { U, PROB, COUNTS, Y };
enum { BWD_DY = 3, DU, DPROB };
enum { ROWS, COLUMNS, EXPERTS, STRIDE, WIDE, LEAVES };

uint64_t
weft_extent_moe_act (const struct weft_kernel *k, uint32_t operand)
{
  (void) k;
  (void) operand;
  return 0;
}

uint64_t
weft_extent_moe_act_bwd (const struct weft_kernel *k, uint32_t operand)
{
  return weft_extent_moe_act (k, operand);
}

/* Number of rows that contain a token or padding. */
static uint64_t
rows_in_use (const struct weft_kernel *k)
{
  const struct weft_operand *counts = &k->operand[COUNTS];

  return k->shape.dim[STRIDE] ? k->shape.dim[ROWS] : weft_moe_count (counts->data, 0, counts->n);
}

/* n elements of an operand, from `first` on. `size`: bytes of an element, because elements are
 * doubles in a reference. */
static struct weft_operand
stretch (const struct weft_operand *o, uint64_t first, uint64_t n, uint64_t size)
{
  return (
      struct weft_operand){ .data = (uint8_t *) o->data + first * size, .n = n, .dtype = o->dtype };
}

static struct weft_operand
floats (float *data, uint64_t n)
{
  return (struct weft_operand){ .data = data, .n = n, .dtype = WEFT_FP32 };
}

/* Arguments of an activation kernel for one row, without the router weight of the row. */
static struct weft_kernel
row_kernel (const struct weft_kernel *k, enum weft_op_kind kind)
{
  struct weft_kernel row = { .kind = kind, .model = k->model };

  row.shape = (struct weft_shape){ .dim = { 1, k->shape.dim[COLUMNS] } };
  return row;
}

/* Applies the activation to row r of u, and stores the result as floats that are not rounded to the
 * type of u. */
static void
activate (const struct weft_kernel *k, uint64_t r, float *to)
{
  uint64_t n = k->shape.dim[COLUMNS], wide = n * k->shape.dim[WIDE];
  const struct weft_operand *u = &k->operand[U];
  struct weft_kernel row = row_kernel (k, weft_activation_ops[k->model->activation].forward);

  row.operand[0] = stretch (u, r * wide, wide, weft_dtype_bytes (u->dtype));
  row.operand[1] = floats (to, n);
  weft_kernels[row.kind].cpu (&row, 0, 1);
}

/* Router weight of a row; 1 if the router weight was applied to the expert's input. */
static float
weight_of (const struct weft_kernel *k, uint64_t r)
{
  float room;

  if (!k->operand[PROB].data)
    return 1;
  return *weft_floats (k->operand[PROB].data, k->operand[PROB].dtype, r, 1, &room);
}

void
weft_cpu_moe_act (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  uint64_t n = k->shape.dim[COLUMNS];
  struct weft_range rows = weft_part (rows_in_use (k), 1, part, parts);
  const struct weft_operand *y = &k->operand[Y];
  float *value = weft_scratch ();

  g_assert (n <= WEFT_SCRATCH_FLOATS);
  for (uint64_t r = rows.begin; r < rows.end; r++) {
    float weight = weight_of (k, r);
    activate (k, r, value);
    for (uint64_t i = 0; i < n; i++)
      value[i] *= weight;
    weft_store (y->data, y->dtype, r * n, n, value);
  }
}

#define MOST_DEPTH 33 /* stack entries of a tree sum (core/base/fold.h) of 2^32 leaves */

/* Dot product of two rows. The terms of each leaf are added one after the other; the sums of the
 * leaves are added as a tree (kernels/leaves.h). */
static float
product (const float *a, const float *b, const struct weft_leaves *leaves)
{
  float sum[MOST_DEPTH];
  uint32_t top = 0;

  for (uint32_t l = 0; l < leaves->n; l++) {
    struct weft_range leaf = weft_leaves_segment (leaves, l, 0);
    sum[top] = 0;
    for (uint64_t i = leaf.begin; i < leaf.end; i++)
      sum[top] += a[i] * b[i];
    for (uint32_t merges = weft_fold_merges (l, leaves->n); merges; merges--, top--)
      sum[top - 1] += sum[top];
    top++;
  }
  return sum[0];
}

static void
row_bwd (const struct weft_kernel *k, uint64_t r, float *value, float *dy)
{
  const struct weft_operand *o = k->operand;
  uint64_t n = k->shape.dim[COLUMNS], wide = n * k->shape.dim[WIDE];
  float weight = weight_of (k, r);
  struct weft_kernel row = row_kernel (k, weft_activation_ops[k->model->activation].backward);

  activate (k, r, value);
  const float *given = weft_floats (o[BWD_DY].data, o[BWD_DY].dtype, r * n, n, dy);
  struct weft_leaves leaves = weft_leaves_dealt (n, (uint32_t) k->shape.dim[LEAVES], 0);
  float dprob = product (given, value, &leaves);
  for (uint64_t i = 0; i < n; i++)
    dy[i] = given[i] * weight;
  if (o[DPROB].data)
    weft_store (o[DPROB].data, o[DPROB].dtype, r, 1, &dprob);
  row.operand[0] = stretch (&o[U], r * wide, wide, weft_dtype_bytes (o[U].dtype));
  row.operand[1] = floats (dy, n);
  row.operand[2] = stretch (&o[DU], r * wide, wide, weft_dtype_bytes (o[DU].dtype));
  weft_kernels[row.kind].cpu (&row, 0, 1);
}

void
weft_cpu_moe_act_bwd (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  uint64_t n = k->shape.dim[COLUMNS];
  struct weft_range rows = weft_part (rows_in_use (k), 16, part, parts);
  float *value = weft_scratch (), *dy = value + n;

  g_assert (2 * n <= WEFT_SCRATCH_FLOATS);
  for (uint64_t r = rows.begin; r < rows.end; r++)
    row_bwd (k, r, value, dy);
}

/* ---------------------------------------------------------------------- reference */

void
weft_ref_moe_act (const struct weft_kernel *k)
{
  uint64_t n = k->shape.dim[COLUMNS], wide = n * k->shape.dim[WIDE];
  const double *prob = k->operand[PROB].data;
  double *y = k->operand[Y].data;

  for (uint64_t r = 0; r < rows_in_use (k); r++) {
    struct weft_kernel row = row_kernel (k, weft_activation_ops[k->model->activation].forward);
    row.operand[0] = stretch (&k->operand[U], r * wide, wide, sizeof (double));
    row.operand[1] = stretch (&k->operand[Y], r * n, n, sizeof (double));
    weft_kernels[row.kind].reference (&row);
    for (uint64_t i = 0; i < n; i++)
      y[r * n + i] *= prob ? prob[r] : 1;
  }
}

static void
ref_row_bwd (const struct weft_kernel *k, uint64_t r, double *value, double *weighted)
{
  const struct weft_operand *o = k->operand;
  uint64_t n = k->shape.dim[COLUMNS], wide = n * k->shape.dim[WIDE];
  const double *dy = (const double *) o[BWD_DY].data + r * n;
  const double *prob = o[PROB].data;
  double dprob = 0;
  struct weft_kernel row = row_kernel (k, weft_activation_ops[k->model->activation].forward);

  row.operand[0] = stretch (&o[U], r * wide, wide, sizeof (double));
  row.operand[1] = (struct weft_operand){ .data = value, .n = n };
  weft_kernels[row.kind].reference (&row);
  for (uint64_t i = 0; i < n; i++) {
    dprob += dy[i] * value[i];
    weighted[i] = dy[i] * (prob ? prob[r] : 1);
  }
  if (o[DPROB].data)
    ((double *) o[DPROB].data)[r] = dprob;
  row.kind = weft_activation_ops[k->model->activation].backward;
  row.operand[1].data = weighted;
  row.operand[2] = stretch (&o[DU], r * wide, wide, sizeof (double));
  weft_kernels[row.kind].reference (&row);
}

void
weft_ref_moe_act_bwd (const struct weft_kernel *k)
{
  g_autofree double *value = g_new (double, k->shape.dim[COLUMNS]);
  g_autofree double *weighted = g_new (double, k->shape.dim[COLUMNS]);

  for (uint64_t r = 0; r < rows_in_use (k); r++)
    ref_row_bwd (k, r, value, weighted);
}
