/* Muon: momentum whose matrices are replaced by the nearest orthogonal matrix, in the order of
 * Megatron-Core (optimizer/emerging_optimizers.py) and NVIDIA's Emerging-Optimizers
 * (orthogonalized_optimizer.py, muon_utils.py, commit fd77292): momentum, Frobenius norm,
 * Newton-Schulz steps, decoupled weight decay, update. */
#include "kernels/muon.h"
#include "core/program/program.h"
#include "kernels/elementwise.h"
#include "kernels/float.h"
#include "kernels/gemm.h"
#include "kernels/part.h"
#include <math.h>

/* Operands and dimensions, in the order of core/ops.def. */
enum { MOMENTUM_GRAD, MOMENTUM_FACTOR, MOMENTUM };
enum { TAKE_MOMENTUM, TAKE_GRAD, TAKE_FACTOR, TAKE_U };
enum { NORMALISE_U, NORMALISE_X };
enum { PRODUCT_X, PRODUCT_A, PRODUCT_Y };
enum { UPDATE_O, UPDATE_FACTOR, UPDATE_PARAM, UPDATE_MASTER };
enum { ROWS, COLUMNS, WAYS, BLOCK };
enum { M, N, K, WHICH, STEP, TALL };

/* A smaller norm counts as this one (newton_schulz(), eps). */
#define LEAST_NORM 1e-15

void
weft_muon_coefficients (enum weft_muon_coefficient type, uint64_t step, float out[3])
{
  /* NVIDIA Emerging-Optimizers, muon_utils.py, _COEFFICIENT_SETS, which names the papers */
  static const struct {
    uint32_t n;
    gboolean repeats_last; /* FALSE: the steps are a cycle */
    float step[8][3];
  } sets[WEFT_N_MUON_COEFFICIENT] = {
    [WEFT_MUON_SIMPLE] = { 1, FALSE, { { 3.4445f, -4.7750f, 2.0315f } } },
    [WEFT_MUON_QUINTIC] = { 5, FALSE, { { 4.0848f, -6.8946f, 2.9270f },
                                        { 3.9505f, -6.3029f, 2.6377f },
                                        { 3.7418f, -5.5913f, 2.3037f },
                                        { 2.8769f, -3.1427f, 1.2046f },
                                        { 2.8366f, -3.0525f, 1.2012f } } },
    [WEFT_MUON_POLAR_EXPRESS] = { 8, TRUE, { { 8.2051f, -22.9019f, 16.4607f },
                                             { 4.0664f, -2.8612f, 0.5184f },
                                             { 3.9096f, -2.8234f, 0.5250f },
                                             { 3.2856f, -2.4153f, 0.4853f },
                                             { 2.2779f, -1.6198f, 0.3985f },
                                             { 1.8726f, -1.2307f, 0.3585f },
                                             { 1.8564f, -1.2132f, 0.3568f },
                                             { 1.8750f, -1.2500f, 0.3750f } } },
    [WEFT_MUON_CANS] = { 5, TRUE, { { 8.4703f, -25.1081f, 18.6293f },
                                    { 4.1828f, -3.1087f, 0.5806f },
                                    { 3.9619f, -2.9541f, 0.5630f },
                                    { 3.2866f, -2.4647f, 0.5074f },
                                    { 2.2737f, -1.6447f, 0.4162f } } },
    [WEFT_MUON_AOL] = { 4, FALSE, { { 4.0098f, -7.0585f, 2.4635f },
                                    { 3.4585f, -5.5479f, 2.5959f },
                                    { 2.7573f, -3.2939f, 1.4254f },
                                    { 2.7215f, -3.0494f, 1.3169f } } },
  };
  uint64_t n = sets[type].n, at = sets[type].repeats_last ? MIN (step, n - 1) : step % n;

  memcpy (out, sets[type].step[at], sizeof sets[type].step[at]);
}

double
weft_muon_scale (enum weft_muon_scale mode, uint64_t rows, uint64_t columns)
{
  double out = (double) rows, in = (double) columns;

  return sqrt (mode == WEFT_MUON_SPECTRAL        ? fmax (out, in)
               : mode == WEFT_MUON_UNIT_RMS_NORM ? out / in
                                                 : fmax (1, out / in));
}

static float
factor_of (const struct weft_operand *o)
{
  return o->data ? *(const float *) o->data : 1;
}

/* --------------------------------------------------------------------- momentum */

struct blend {
  float factor, keep, take;
};

static struct blend
blend_of (const struct weft_kernel *k, const struct weft_operand *factor)
{
  double keep = k->train->muon_momentum;
  return (struct blend){ factor_of (factor), (float) keep, (float) (1 - keep) };
}

uint64_t
weft_extent_muon_momentum (const struct weft_kernel *k, uint32_t operand)
{
  return operand == MOMENTUM_FACTOR ? 1 : k->shape.dim[0];
}

WEFT_WIDE static void
add_gradient (const void *with, float *const *at, uint64_t n)
{
  const struct blend b = *(const struct blend *) with;
  const float *grad = at[MOMENTUM_GRAD];
  float *momentum = at[MOMENTUM];

  WEFT_NO_OVERLAP
  for (uint64_t i = 0; i < n; i++)
    momentum[i] = b.keep * momentum[i] + b.take * (grad[i] * b.factor);
}

void
weft_cpu_muon_momentum (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const struct blend b = blend_of (k, &k->operand[MOMENTUM_FACTOR]);
  const struct weft_elementwise flat = { "r-u", k->shape.dim[0], add_gradient, &b };

  if (b.factor != 0)
    weft_elementwise_run (k, &flat, part, parts);
}

void
weft_ref_muon_momentum (const struct weft_kernel *k)
{
  const double *grad = k->operand[MOMENTUM_GRAD].data, *f = k->operand[MOMENTUM_FACTOR].data;
  double *m = k->operand[MOMENTUM].data, keep = k->train->muon_momentum, factor = f ? *f : 1;

  for (uint64_t i = 0; i < k->shape.dim[0] && factor != 0; i++)
    m[i] = keep * m[i] + (1 - keep) * grad[i] * factor;
}

uint64_t
weft_extent_muon_take (const struct weft_kernel *k, uint32_t operand)
{
  return operand == TAKE_FACTOR ? 1 : k->shape.dim[0];
}

/* With a gradient, looks one gradient ahead (Nesterov). */
WEFT_WIDE static void
look_ahead (const void *with, float *const *at, uint64_t n)
{
  const struct blend b = *(const struct blend *) with;
  const float *grad = at[TAKE_GRAD], *momentum = at[TAKE_MOMENTUM];
  float *u = at[TAKE_U];

  WEFT_NO_OVERLAP
  for (uint64_t i = 0; i < n; i++)
    u[i] = grad ? b.keep * momentum[i] + b.take * (grad[i] * b.factor) : momentum[i];
}

void
weft_cpu_muon_take (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const struct blend b = blend_of (k, &k->operand[TAKE_FACTOR]);
  const struct weft_elementwise flat = { "rr-w", k->shape.dim[0], look_ahead, &b };

  weft_elementwise_run (k, &flat, part, parts);
}

void
weft_ref_muon_take (const struct weft_kernel *k)
{
  const double *m = k->operand[TAKE_MOMENTUM].data, *grad = k->operand[TAKE_GRAD].data;
  const double *f = k->operand[TAKE_FACTOR].data;
  double *u = k->operand[TAKE_U].data, keep = k->train->muon_momentum;

  for (uint64_t i = 0; i < k->shape.dim[0]; i++)
    u[i] = grad ? keep * m[i] + (1 - keep) * grad[i] * (f ? *f : 1) : m[i];
}

/* --------------------------------------------------------------------- matrices */

/* A run of consecutive elements of a row of a matrix: rank and index of its first element in that
 * rank's part of the parameter, and its number of elements. */
struct run {
  uint32_t rank;
  uint64_t at, n;
};

static gboolean
cuts (const struct weft_kernel *k, enum weft_cut cut)
{
  return k->shape.dim[WAYS] > 1 && k->matrix.cut == cut;
}

/* Number of runs of a row: one for each rank that has columns of it. */
static uint32_t
n_runs (const struct weft_kernel *k)
{
  return cuts (k, WEFT_CUT_COLUMNS) ? (uint32_t) k->shape.dim[WAYS] : 1;
}

/* Run number j of a row of the matrix. Ranks that divide rows divide each of [q | k | v] or
 * [gate | up] separately. */
static struct run
run_of (const struct weft_kernel *k, uint64_t row, uint32_t j)
{
  const struct weft_matrix *m = &k->matrix;
  uint64_t ways = cuts (k, WEFT_CUT_ROWS) ? k->shape.dim[WAYS] : 1;
  uint64_t first = m->rows - 2 * m->tail, begin = 0, n = first;
  uint32_t block = (uint32_t) k->shape.dim[BLOCK];

  if (block != WEFT_MUON_WHOLE) {
    n = weft_muon_rows (m->rows, m->tail, block);
    begin = block == WEFT_MUON_QUERIES ? 0 : first + (block == WEFT_MUON_VALUES ? m->tail : 0);
  } else {
    while (row >= n * ways) {
      row -= n * ways;
      begin += n;
      n = m->tail;
    }
  }
  return (struct run){ ways > 1 ? (uint32_t) (row / n) : j, (begin + row % n) * m->columns,
                       m->columns };
}

uint64_t
weft_extent_muon_normalise (const struct weft_kernel *k, uint32_t operand)
{
  const struct weft_matrix *m = &k->matrix;

  return operand == NORMALISE_U ? m->rows * m->columns * k->shape.dim[WAYS]
                                : k->shape.dim[ROWS] * k->shape.dim[COLUMNS];
}

/* Elements from the part of one rank to that of the next. */
static uint64_t
part_of (const struct weft_kernel *k)
{
  return k->operand[NORMALISE_U].n / k->shape.dim[WAYS];
}

/* The squares are added as doubles, row by row: the sum does not depend on the number of ranks. */
static double
norm_of (const struct weft_kernel *k, const float *u)
{
  uint64_t part = part_of (k);
  double sum = 0;

  for (uint64_t row = 0; row < k->shape.dim[ROWS]; row++)
    for (uint32_t j = 0; j < n_runs (k); j++) {
      struct run run = run_of (k, row, j);
      const float *at = u + run.rank * part + run.at;
      for (uint64_t i = 0; i < run.n; i++)
        sum += (double) at[i] * at[i];
    }
  return fmax (sqrt (sum), LEAST_NORM);
}

void
weft_cpu_muon_normalise (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const struct weft_operand *x = &k->operand[NORMALISE_X];
  const float *u = k->operand[NORMALISE_U].data;
  uint64_t of_rank = part_of (k), to = 0;
  float norm = (float) norm_of (k, u), room[WEFT_STRETCH];

  (void) part;
  (void) parts;
  for (uint64_t row = 0; row < k->shape.dim[ROWS]; row++)
    for (uint32_t j = 0; j < n_runs (k); j++) {
      struct run run = run_of (k, row, j);
      const float *at = u + run.rank * of_rank + run.at;
      for (uint64_t first = 0, n; first < run.n; first += n) {
        n = weft_least (run.n - first, WEFT_STRETCH);
        for (uint64_t i = 0; i < n; i++)
          room[i] = at[first + i] / norm;
        weft_store (x->data, x->dtype, to, n, room);
        to += n;
      }
    }
}

void
weft_ref_muon_normalise (const struct weft_kernel *k)
{
  const double *u = k->operand[NORMALISE_U].data;
  double *x = k->operand[NORMALISE_X].data, sum = 0;
  uint64_t of_rank = part_of (k), to = 0;

  for (uint64_t row = 0; row < k->shape.dim[ROWS]; row++)
    for (uint32_t j = 0; j < n_runs (k); j++) {
      struct run run = run_of (k, row, j);
      for (uint64_t i = 0; i < run.n; i++, to++) {
        x[to] = u[run.rank * of_rank + run.at + i];
        sum += x[to] * x[to];
      }
    }
  for (uint64_t i = 0; i < to; i++)
    x[i] /= fmax (sqrt (sum), LEAST_NORM);
}

/* ---------------------------------------------------------------------- products */

enum { GRAM, POLYNOMIAL, APPLY };

/* A product of a step: its factors, and its result alpha (product) + beta added. */
struct product {
  struct weft_factor a, b;
  const struct weft_operand *added;
  float alpha, beta;
};

static struct weft_factor
factor (const struct weft_operand *o, uint64_t along, uint64_t sum)
{
  return (struct weft_factor){ .data = o->data, .along = along, .sum = sum, .dtype = o->dtype };
}

/* The product of an op. A matrix with more rows than columns (tall) is multiplied from the right,
 * so that the square matrices have its smaller side. */
static struct product
product_of (const struct weft_kernel *k)
{
  const uint64_t *dim = k->shape.dim;
  const struct weft_operand *x = &k->operand[PRODUCT_X], *a = &k->operand[PRODUCT_A];
  float c[3];

  weft_muon_coefficients ((enum weft_muon_coefficient) k->train->muon_coefficient_type, dim[STEP],
                          c);
  if (dim[WHICH] == GRAM && dim[TALL])
    return (struct product){ factor (x, 1, dim[M]), factor (x, 1, dim[N]), NULL, 1, 0 };
  if (dim[WHICH] == GRAM)
    return (struct product){ factor (x, dim[K], 1), factor (x, dim[K], 1), NULL, 1, 0 };
  if (dim[WHICH] == POLYNOMIAL)
    return (struct product){ factor (x, dim[K], 1), factor (x, 1, dim[N]), x, c[2], c[1] };
  if (dim[TALL])
    return (struct product){ factor (x, dim[K], 1), factor (a, 1, dim[N]), x, 1, c[0] };
  return (struct product){ factor (a, dim[K], 1), factor (x, 1, dim[N]), x, 1, c[0] };
}

uint64_t
weft_extent_newton_schulz (const struct weft_kernel *k, uint32_t operand)
{
  const uint64_t *dim = k->shape.dim;
  uint64_t apply = dim[TALL] ? dim[M] * dim[K] : dim[K] * dim[N];

  if (operand == PRODUCT_Y)
    return dim[M] * dim[N];
  if (operand == PRODUCT_A)
    return dim[TALL] ? dim[K] * dim[N] : dim[M] * dim[K];
  return dim[WHICH] == APPLY ? apply : dim[M] * dim[K];
}

/* Rows and columns of the sums that are kept on the stack, in fp32: 64 KiB. */
enum { MOST_ROWS = 32, MOST_COLUMNS = 512 };

/* Computes rows [row, row + n) of columns [column, column + width) of the result. */
static void
multiply_tile (const struct weft_kernel *k, const struct product *p, struct weft_range rows,
               struct weft_range columns)
{
  const struct weft_operand *y = &k->operand[PRODUCT_Y];
  float sums[MOST_ROWS * MOST_COLUMNS], room[MOST_COLUMNS];
  uint64_t width = columns.end - columns.begin, n = k->shape.dim[N];
  struct weft_gemm g = { .a = p->a, .b = p->b, .columns = width, .last = rows.end - rows.begin,
                         .c = { .data = sums, .row = width, .dtype = WEFT_FP32 },
                         .terms = weft_leaves_one (k->shape.dim[K]) };

  g.a.data = (const uint8_t *) p->a.data + rows.begin * p->a.along * weft_dtype_bytes (p->a.dtype);
  g.b.data =
      (const uint8_t *) p->b.data + columns.begin * p->b.along * weft_dtype_bytes (p->b.dtype);
  weft_gemm (&g);
  for (uint64_t i = rows.begin; i < rows.end; i++) {
    uint64_t first = i * n + columns.begin;
    float *sum = sums + (i - rows.begin) * width;
    const float *added =
        p->added ? weft_floats (p->added->data, p->added->dtype, first, width, room) : NULL;
    for (uint64_t j = 0; added && j < width; j++)
      sum[j] = p->alpha * sum[j] + p->beta * added[j];
    weft_store (y->data, y->dtype, first, width, sum);
  }
}

void
weft_cpu_newton_schulz (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const struct product p = product_of (k);
  struct weft_range mine = weft_part (k->shape.dim[M], WEFT_TILE_ROWS, part, parts);

  for (uint64_t row = mine.begin; row < mine.end; row += MOST_ROWS)
    for (uint64_t column = 0; column < k->shape.dim[N]; column += MOST_COLUMNS)
      multiply_tile (
          k, &p, (struct weft_range){ row, weft_least (row + MOST_ROWS, mine.end) },
          (struct weft_range){ column, weft_least (column + MOST_COLUMNS, k->shape.dim[N]) });
}

void
weft_ref_newton_schulz (const struct weft_kernel *k)
{
  const struct product p = product_of (k);
  const double *a = p.a.data, *b = p.b.data, *added = p.added ? p.added->data : NULL;
  double *y = k->operand[PRODUCT_Y].data;
  uint64_t n = k->shape.dim[N];

  for (uint64_t i = 0; i < k->shape.dim[M]; i++)
    for (uint64_t j = 0; j < n; j++) {
      double sum = 0;
      for (uint64_t t = 0; t < k->shape.dim[K]; t++)
        sum += a[i * p.a.along + t * p.a.sum] * b[j * p.b.along + t * p.b.sum];
      y[i * n + j] = (double) p.alpha * sum + (added ? (double) p.beta * added[i * n + j] : 0);
    }
}

/* ------------------------------------------------------------------------ update */

uint64_t
weft_extent_muon_update (const struct weft_kernel *k, uint32_t operand)
{
  return operand == UPDATE_O        ? k->shape.dim[ROWS] * k->shape.dim[COLUMNS]
         : operand == UPDATE_FACTOR ? 1
                                    : k->matrix.rows * k->matrix.columns;
}

/* Decays and moves n weights, from element `at` of this rank's part on. */
static void
step_run (const struct weft_kernel *k, uint64_t from, uint64_t at, uint64_t n)
{
  const struct weft_operand *o = k->operand;
  const struct weft_operand *to = o[UPDATE_MASTER].data ? &o[UPDATE_MASTER] : &o[UPDATE_PARAM];
  const struct weft_control *c = k->control;
  const union weft_train *t = k->train;
  double scale = weft_muon_scale ((enum weft_muon_scale) t->muon_scale_mode, k->shape.dim[ROWS],
                                  k->shape.dim[COLUMNS]);
  float keep = k->decay ? (float) (1 - c->lr * c->weight_decay) : 1;
  float rate = (float) (c->lr * scale * t->muon_extra_scale_factor);
  float matrix[WEFT_STRETCH], weights[WEFT_STRETCH];

  for (uint64_t first = 0, few; first < n; first += few) {
    few = weft_least (n - first, WEFT_STRETCH);
    const float *x = weft_floats (o[UPDATE_O].data, o[UPDATE_O].dtype, from + first, few, matrix);
    const float *old = weft_floats (to->data, to->dtype, at + first, few, weights);
    for (uint64_t i = 0; i < few; i++)
      weights[i] = old[i] * keep - rate * x[i];
    weft_store (to->data, to->dtype, at + first, few, weights);
    if (o[UPDATE_MASTER].data && o[UPDATE_PARAM].data)
      weft_store (o[UPDATE_PARAM].data, o[UPDATE_PARAM].dtype, at + first, few, weights);
  }
}

/* Whether a run of a row belongs to this rank. */
static gboolean
is_mine (const struct weft_kernel *k, const struct run *run)
{
  return k->shape.dim[WAYS] == 1 || run->rank == k->matrix.at;
}

/* A skipped step changes nothing but weights that have not been initialised: adam.c. */
void
weft_cpu_muon_update (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const struct weft_operand *o = k->operand;
  struct weft_range rows = weft_part (k->shape.dim[ROWS], 1, part, parts);
  gboolean skips = factor_of (&o[UPDATE_FACTOR]) == 0;
  gboolean copies = o[UPDATE_MASTER].data && o[UPDATE_PARAM].data && !o[UPDATE_PARAM].accumulate;

  for (uint64_t row = rows.begin; row < rows.end; row++)
    for (uint32_t j = 0; j < n_runs (k); j++) {
      struct run run = run_of (k, row, j);
      if (is_mine (k, &run) && !skips)
        step_run (k, row * k->shape.dim[COLUMNS] + j * run.n, run.at, run.n);
      else if (is_mine (k, &run) && copies)
        weft_store (o[UPDATE_PARAM].data, o[UPDATE_PARAM].dtype, run.at, run.n,
                    (const float *) o[UPDATE_MASTER].data + run.at);
    }
}

void
weft_ref_muon_update (const struct weft_kernel *k)
{
  const struct weft_operand *o = k->operand;
  const double *x = o[UPDATE_O].data, *f = o[UPDATE_FACTOR].data;
  double *param = o[UPDATE_PARAM].data;
  double *weight = o[UPDATE_MASTER].data ? o[UPDATE_MASTER].data : param;
  double rate = k->control->lr * k->train->muon_extra_scale_factor *
                weft_muon_scale ((enum weft_muon_scale) k->train->muon_scale_mode,
                                 k->shape.dim[ROWS], k->shape.dim[COLUMNS]);
  double decay = k->decay ? k->control->lr * k->control->weight_decay : 0;
  gboolean skips = f && *f == 0;

  for (uint64_t row = 0; row < k->shape.dim[ROWS]; row++)
    for (uint32_t j = 0; j < n_runs (k); j++) {
      struct run run = run_of (k, row, j);
      for (uint64_t i = 0; i < run.n && is_mine (k, &run); i++) {
        double *to = &weight[run.at + i];
        *to -= skips ? 0 : decay * *to + rate * x[row * k->shape.dim[COLUMNS] + j * run.n + i];
        if (param && (!skips || !o[UPDATE_PARAM].accumulate))
          param[run.at + i] = *to;
      }
    }
}
