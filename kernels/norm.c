#include "kernels/float.h"
#include "kernels/part.h"
#include "kernels/row.h"
#include "kernels/sums.h"
#include <math.h>

/* Size in floats of the scratch for the gradients of weight and bias: enough for 4,096 columns of
 * 16 sequences. */
#define ROOM 65536

enum { X, WEIGHT, BIAS, Y };
enum { ADD_A, ADD_B, ADD_WEIGHT, ADD_BIAS, ADD_SUM, ADD_Y };
enum { DY, BWD_X, BWD_WEIGHT, DRESIDUAL, DX, DWEIGHT, DBIAS };
enum { WGRAD_DY, WGRAD_X, WGRAD_DWEIGHT, WGRAD_DBIAS };

uint64_t
weft_extent_norm (const struct weft_kernel *k, uint32_t operand)
{
  return operand == WEIGHT || operand == BIAS ? k->shape.dim[1] : k->shape.dim[0] * k->shape.dim[1];
}

uint64_t
weft_extent_add_norm (const struct weft_kernel *k, uint32_t operand)
{
  return operand == ADD_WEIGHT || operand == ADD_BIAS ? k->shape.dim[1]
                                                      : k->shape.dim[0] * k->shape.dim[1];
}

uint64_t
weft_extent_norm_bwd (const struct weft_kernel *k, uint32_t operand)
{
  return operand == BWD_WEIGHT || operand == DWEIGHT || operand == DBIAS
             ? k->shape.dim[1]
             : k->shape.dim[0] * k->shape.dim[1];
}

uint64_t
weft_extent_norm_dgrad (const struct weft_kernel *k, uint32_t operand)
{
  return weft_extent_norm_bwd (k, operand);
}

uint64_t
weft_extent_norm_wgrad (const struct weft_kernel *k, uint32_t operand)
{
  return operand <= WGRAD_X ? k->shape.dim[0] * k->shape.dim[1] : k->shape.dim[1];
}

static struct weft_row_norm
row_norm (const struct weft_kernel *k)
{
  return (struct weft_row_norm){ k->shape.dim[1], (float) k->model->norm_epsilon,
                                 k->model->normalization == WEFT_LAYERNORM };
}

static const struct weft_operand *
present (const struct weft_operand *o)
{
  return o->data ? o : NULL;
}

void
weft_cpu_norm (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  struct weft_row_norm norm = row_norm (k);
  struct weft_range rows = weft_part (k->shape.dim[0], 1, part, parts);
  const struct weft_operand *o = k->operand;

  for (uint64_t r = rows.begin; r < rows.end; r++)
    weft_row_forward (&norm, (struct weft_row){ &o[X], r * norm.n }, &o[WEIGHT], present (&o[BIAS]),
                      (struct weft_row){ &o[Y], r * norm.n });
}

static void
add_row (const struct weft_operand *o, uint64_t at, uint64_t all)
{
  float a[WEFT_STRETCH], b[WEFT_STRETCH], room[WEFT_STRETCH];

  for (uint64_t c = 0; c < all; c += WEFT_STRETCH) {
    uint64_t n = weft_least (all - c, WEFT_STRETCH), first = at + c;
    float *to = weft_target (o[ADD_SUM].data, o[ADD_SUM].dtype, first, room);
    const float *x = weft_floats (o[ADD_A].data, o[ADD_A].dtype, first, n, a);
    memmove (to, x, n * sizeof *to);
    weft_sums_add (to, weft_floats (o[ADD_B].data, o[ADD_B].dtype, first, n, b), n);
    weft_store (o[ADD_SUM].data, o[ADD_SUM].dtype, first, n, to);
  }
}

void
weft_cpu_add_norm (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  struct weft_row_norm norm = row_norm (k);
  struct weft_range rows = weft_part (k->shape.dim[0], 1, part, parts);
  const struct weft_operand *o = k->operand;

  for (uint64_t r = rows.begin; r < rows.end; r++) {
    add_row (o, r * norm.n, norm.n);
    weft_row_forward (&norm, (struct weft_row){ &o[ADD_SUM], r * norm.n }, &o[ADD_WEIGHT],
                      present (&o[ADD_BIAS]), (struct weft_row){ &o[ADD_Y], r * norm.n });
  }
}

static struct weft_row_gradient
row_gradient (const struct weft_kernel *k, const struct weft_row_norm *norm, uint64_t row)
{
  const struct weft_operand *o = k->operand;
  uint64_t at = row * norm->n;
  struct weft_row_gradient g = { { &o[DY], at },
                                 { &o[BWD_X], at },
                                 { present (&o[DRESIDUAL]), at },
                                 { &o[DX], at },
                                 &o[BWD_WEIGHT] };

  g.moments = weft_row_moments (norm, g.x);
  return g;
}

/* Sums the weight gradients over all rows, for a range of columns. The call for the last range of
 * columns also computes the input gradients of all rows. */
static void
sum_columns (const struct weft_kernel *k, struct weft_range columns, struct weft_sums *dweight,
             struct weft_sums *dbias)
{
  struct weft_row_norm norm = row_norm (k);
  struct weft_leaves leaves = weft_sums_leaves (k, k->shape.dim[0]);

  for (uint32_t i = 0; i < leaves.n; i++) {
    struct weft_range leaf = weft_sums_tokens (&leaves, i);
    float *dw = weft_sums_leaf (dweight), *db = dbias ? weft_sums_leaf (dbias) : NULL;
    for (uint64_t r = leaf.begin; r < leaf.end; r++) {
      struct weft_row_gradient g = row_gradient (k, &norm, r);
      weft_row_weights (&g, columns, dw, db);
      if (columns.end == norm.n && g.dx.operand->data)
        weft_row_backward (&norm, &g);
    }
    weft_sums_close (dweight);
    if (dbias)
      weft_sums_close (dbias);
  }
  weft_sums_store (dweight, columns.begin);
  if (dbias)
    weft_sums_store (dbias, columns.begin);
}

static void
backward (const struct weft_kernel *k)
{
  const struct weft_operand *o = k->operand;
  uint32_t n_leaf = weft_sums_leaves (k, k->shape.dim[0]).n;
  uint64_t all = k->shape.dim[1], width = ROOM / 2 / weft_sums_depth (n_leaf);
  float room[ROOM];

  for (uint64_t c = 0; c < all; c += width) {
    struct weft_range columns = { c, weft_least (c + width, all) };
    struct weft_sums dweight = { .output = &o[DWEIGHT],
                                 .room = room,
                                 .n = columns.end - c,
                                 .n_leaf = n_leaf,
                                 .rounds = k->canonical };
    struct weft_sums dbias = dweight;
    dbias.output = &o[DBIAS];
    dbias.room += ROOM / 2;
    sum_columns (k, columns, &dweight, o[DBIAS].data ? &dbias : NULL);
  }
}

void
weft_cpu_norm_bwd (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  (void) part;
  (void) parts;
  backward (k);
}

void
weft_cpu_norm_dgrad (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  struct weft_row_norm norm = row_norm (k);
  struct weft_range rows = weft_part (k->shape.dim[0], 1, part, parts);

  for (uint64_t r = rows.begin; r < rows.end; r++) {
    struct weft_row_gradient g = row_gradient (k, &norm, r);
    weft_row_backward (&norm, &g);
  }
}

/* The arguments of norm_wgrad, with the operands at the operand numbers that they have in norm_bwd,
 * but without dx. */
static struct weft_kernel
weights_alone (const struct weft_kernel *k)
{
  struct weft_kernel all = *k;

  memset (all.operand, 0, sizeof all.operand);
  all.operand[DY] = k->operand[WGRAD_DY];
  all.operand[BWD_X] = k->operand[WGRAD_X];
  all.operand[DWEIGHT] = k->operand[WGRAD_DWEIGHT];
  all.operand[DBIAS] = k->operand[WGRAD_DBIAS];
  return all;
}

void
weft_cpu_norm_wgrad (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  struct weft_kernel all = weights_alone (k);

  (void) part;
  (void) parts;
  backward (&all);
}

/* -------------------------------------------------------------------- reference */

static void
moments (const struct weft_kernel *k, const double *x, double *mean, double *scale)
{
  uint64_t n = k->shape.dim[1];
  double sum = 0, squares = 0;

  for (uint64_t i = 0; i < n && k->model->normalization == WEFT_LAYERNORM; i++)
    sum += x[i];
  *mean = sum / (double) n;
  for (uint64_t i = 0; i < n; i++)
    squares += (x[i] - *mean) * (x[i] - *mean);
  *scale = 1 / sqrt (squares / (double) n + k->model->norm_epsilon);
}

void
weft_ref_norm (const struct weft_kernel *k)
{
  const double *weight = k->operand[WEIGHT].data, *bias = k->operand[BIAS].data;
  uint64_t n = k->shape.dim[1];

  for (uint64_t r = 0; r < k->shape.dim[0]; r++) {
    const double *x = (double *) k->operand[X].data + r * n;
    double *y = (double *) k->operand[Y].data + r * n, mean, scale;
    moments (k, x, &mean, &scale);
    for (uint64_t i = 0; i < n; i++)
      y[i] = (x[i] - mean) * scale * weight[i] + (bias ? bias[i] : 0);
  }
}

/* Reference of the norm of a sum: the sum is rounded to its stored type before it is normalised. */
void
weft_ref_add_norm (const struct weft_kernel *k)
{
  const struct weft_operand *o = k->operand;
  struct weft_kernel norm = *k;
  double *sum = o[ADD_SUM].data;

  for (uint64_t i = 0; i < k->shape.dim[0] * k->shape.dim[1]; i++) {
    float rounded = (float) (((double *) o[ADD_A].data)[i] + ((double *) o[ADD_B].data)[i]);
    weft_round (o[ADD_SUM].dtype, 1, &rounded);
    sum[i] = (double) rounded;
  }
  norm.operand[X] = o[ADD_SUM];
  norm.operand[WEIGHT] = o[ADD_WEIGHT];
  norm.operand[BIAS] = o[ADD_BIAS];
  norm.operand[Y] = o[ADD_Y];
  weft_ref_norm (&norm);
}

static void
ref_row (const struct weft_kernel *k, uint64_t r)
{
  uint64_t n = k->shape.dim[1], at = r * n;
  const double *dy = (double *) k->operand[DY].data + at;
  const double *x = (double *) k->operand[BWD_X].data + at;
  const double *weight = k->operand[BWD_WEIGHT].data, *residual = k->operand[DRESIDUAL].data;
  double *dx = k->operand[DX].data;
  double *dweight = k->operand[DWEIGHT].data, *dbias = k->operand[DBIAS].data;
  double mean, scale, of_g = 0, of_gx = 0;

  moments (k, x, &mean, &scale);
  for (uint64_t i = 0; i < n; i++) {
    double xhat = (x[i] - mean) * scale;
    of_g += dx ? dy[i] * weight[i] / (double) n : 0;
    of_gx += dx ? dy[i] * weight[i] * xhat / (double) n : 0;
    if (dweight)
      dweight[i] += dy[i] * xhat;
    if (dbias)
      dbias[i] += dy[i];
  }
  if (k->model->normalization != WEFT_LAYERNORM)
    of_g = 0;
  for (uint64_t i = 0; i < n && dx; i++) {
    double gradient = (dy[i] * weight[i] - of_g - (x[i] - mean) * scale * of_gx) * scale;
    dx[at + i] = gradient + (residual ? residual[at + i] : 0);
  }
}

void
weft_ref_norm_bwd (const struct weft_kernel *k)
{
  for (uint32_t o = DWEIGHT; o <= DBIAS; o++)
    if (k->operand[o].data && !k->operand[o].accumulate)
      memset (k->operand[o].data, 0, k->shape.dim[1] * sizeof (double));
  for (uint64_t r = 0; r < k->shape.dim[0]; r++)
    ref_row (k, r);
}

void
weft_ref_norm_dgrad (const struct weft_kernel *k)
{
  for (uint64_t r = 0; r < k->shape.dim[0]; r++)
    ref_row (k, r);
}

void
weft_ref_norm_wgrad (const struct weft_kernel *k)
{
  struct weft_kernel all = weights_alone (k);
  weft_ref_norm_bwd (&all);
}
