#include "core/base/exact.h"
#include "core/base/fold.h"
#include "kernels/float.h"
#include "kernels/math.h"
#include "kernels/part.h"
#include "kernels/scalar.h"
#include "kernels/logsumexp.h"
#include <math.h>

/* Maximum number of rows whose losses are added at a time. */
#define MOST_ROWS 256

enum { LOGITS, TARGETS, LSE, COUNT, LOSS };
enum { MOST = 1 };            /* operand number of the result of xent_max */
enum { PART_MOST = 2, PART }; /* operand numbers of xent_part */
enum { STATS, END_LSE, END_COUNT, END_LOSS, END_TARGETS };
/* number of the dimension that is 1 if exponentials are relative to the largest logit of each
 * part */
enum { OWN = 4 };

/* Statistics that vocabulary-parallel ranks exchange: arrays with one float per row, one after the
 * other. */
enum { ALL_MOST, ALL_TARGET, ALL_SUM, N_STATS };

/* operand number of the gradient in xent_bwd */
enum { GRADIENT = 3 };

/* Operand numbers of xent_grad, which computes forward and backward. */
enum { BOTH_COUNT = 2, BOTH_GRADIENT, BOTH_LOSS };

static uint64_t
extent (const struct weft_kernel *k, uint32_t operand)
{
  return operand == LOGITS  ? k->shape.dim[0] * k->shape.dim[1]
         : operand == LOSS  ? weft_scalar_extent (&k->operand[LOSS])
         : operand == COUNT ? 1
                            : k->shape.dim[0];
}

uint64_t
weft_extent_xent (const struct weft_kernel *k, uint32_t operand)
{
  return extent (k, operand);
}

uint64_t
weft_extent_xent_bwd (const struct weft_kernel *k, uint32_t operand)
{
  return operand == GRADIENT ? 1 : extent (k, operand);
}

uint64_t
weft_extent_xent_grad (const struct weft_kernel *k, uint32_t operand)
{
  return operand == BOTH_LOSS ? weft_scalar_extent (&k->operand[BOTH_LOSS])
         : operand == BOTH_COUNT || operand == BOTH_GRADIENT ? 1
                                                             : extent (k, operand);
}

uint64_t
weft_extent_xent_max (const struct weft_kernel *k, uint32_t operand)
{
  return k->shape.dim[0] * (operand == LOGITS ? k->shape.dim[1] : 1);
}

uint64_t
weft_extent_xent_part (const struct weft_kernel *k, uint32_t operand)
{
  uint32_t stats = k->operand[PART_MOST].data ? N_STATS - 1 : N_STATS;

  return operand == PART ? k->shape.dim[0] * stats
                         : k->shape.dim[0] * (operand == LOGITS ? k->shape.dim[1] : 1);
}

uint64_t
weft_extent_xent_end (const struct weft_kernel *k, uint32_t operand)
{
  return operand == STATS ? k->shape.dim[0] * k->shape.dim[1] * N_STATS
         : operand == END_LSE || operand == END_TARGETS ? k->shape.dim[0]
         : operand == END_LOSS                          ? weft_scalar_extent (&k->operand[END_LOSS])
                                                        : 1;
}

/* Logit of a row's target. Returns 0 if the target is in the columns of another rank. */
static float
target_logit (const struct weft_kernel *k, uint64_t row)
{
  const struct weft_operand *logits = &k->operand[LOGITS];
  uint64_t at = weft_logits_target (k, ((const int32_t *) k->operand[TARGETS].data)[row]);
  float room;

  if (at >= k->shape.dim[1])
    return 0;
  return *weft_floats (logits->data, logits->dtype, row * k->shape.dim[1] + at, 1, &room);
}

/* A token at the end of a sequence may have no target (-1); it adds no loss. */
static gboolean
has_target (const struct weft_kernel *k, uint32_t targets, uint64_t row)
{
  return ((const int32_t *) k->operand[targets].data)[row] >= 0;
}

/* Loss of a row from its log-sum-exp. */
static float
cross_entropy (const struct weft_kernel *k, uint64_t row, double total)
{
  return has_target (k, TARGETS, row) ? (float) (total - (double) target_logit (k, row)) : 0;
}

/* Cross entropy loss of one row of logits. */
static float
row_loss (const struct weft_kernel *k, uint64_t row)
{
  struct weft_logits_row r = weft_logits_row (k, row);
  struct weft_logsumexp soft = k->shape.dim[OWN]
                                   ? weft_logsumexp_own (&r)
                                   : weft_logsumexp_against (&r, weft_logsumexp_most (&r));
  double total = weft_logsumexp_value (soft);

  ((float *) k->operand[LSE].data)[row] = (float) total;
  return cross_entropy (k, row, total);
}

static void
count_rows (const struct weft_operand *count, uint64_t rows)
{
  if (count->data)
    *(float *) count->data = (count->accumulate ? *(float *) count->data : 0) + (float) rows;
}

static void
add_losses (const struct weft_kernel *k, const struct weft_operand *loss,
            float (*loss_of) (const struct weft_kernel *k, uint64_t row))
{
  uint64_t rows = k->shape.dim[0];
  double term[MOST_ROWS], sum = 0;

  weft_scalar_begin (loss);
  for (uint64_t first = 0; first < rows; first += MOST_ROWS) {
    uint64_t n = weft_least (rows - first, MOST_ROWS);
    for (uint64_t i = 0; i < n; i++) {
      term[i] = (double) loss_of (k, first + i);
      sum += term[i];
    }
    if (weft_scalar_is_exact (loss))
      weft_exact_add (loss->data, term, n);
  }
  if (!weft_scalar_is_exact (loss))
    *(float *) loss->data += (float) sum;
}

void
weft_cpu_xent (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  (void) part;
  (void) parts;
  add_losses (k, &k->operand[LOSS], row_loss);
  count_rows (&k->operand[COUNT], k->shape.dim[0]);
}

/* -------------------------------------------------------------------- vocabulary parallel */

void
weft_cpu_xent_max (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  struct weft_range rows = weft_part (k->shape.dim[0], 1, part, parts);

  for (uint64_t r = rows.begin; r < rows.end; r++) {
    struct weft_logits_row row = weft_logits_row (k, r);
    ((float *) k->operand[MOST].data)[r] = weft_logsumexp_most (&row);
  }
}

/* Over this rank's columns, stores the logit of the target and the sum of exponentials of each row.
 * Exponentials are relative to the largest logit of the whole row, if given; else to the largest
 * logit of this rank, which is then also stored. */
void
weft_cpu_xent_part (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  uint64_t n = k->shape.dim[0];
  struct weft_range rows = weft_part (n, 1, part, parts);
  const float *given = k->operand[PART_MOST].data;
  float *stats = k->operand[PART].data;
  float *target = given ? stats : stats + n, *sum = target + n;

  for (uint64_t r = rows.begin; r < rows.end; r++) {
    struct weft_logits_row row = weft_logits_row (k, r);
    struct weft_logsumexp soft =
        given ? weft_logsumexp_against (&row, given[r]) : weft_logsumexp_own (&row);
    target[r] = target_logit (k, r);
    sum[r] = (float) soft.sum;
    if (!given)
      stats[r] = soft.most;
  }
}

/* Joins the statistics of all vocabulary-parallel ranks. With one part, an all-reduce has already
 * joined them. */
static struct weft_logsumexp
join_parts (const struct weft_kernel *k, uint64_t row, float *target)
{
  uint64_t rows = k->shape.dim[0], parts = k->shape.dim[1];
  struct weft_logsumexp stack[WEFT_FOLD_MOST_DEPTH];
  uint32_t top = 0;

  *target = 0;
  for (uint32_t i = 0; i < parts; i++) {
    const float *stats = (const float *) k->operand[STATS].data + i * N_STATS * rows + row;
    stack[top] = (struct weft_logsumexp){ stats[ALL_MOST * rows], (double) stats[ALL_SUM * rows] };
    *target += stats[ALL_TARGET * rows];
    top = weft_fold_push (top, i, (uint32_t) parts, weft_logsumexp_join_top, stack);
  }
  return stack[0];
}

static float
joined_loss (const struct weft_kernel *k, uint64_t row)
{
  float target;
  double total = weft_logsumexp_value (join_parts (k, row, &target));

  ((float *) k->operand[END_LSE].data)[row] = (float) total;
  return has_target (k, END_TARGETS, row) ? (float) (total - (double) target) : 0;
}

void
weft_cpu_xent_end (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  (void) part;
  (void) parts;
  add_losses (k, &k->operand[END_LOSS], joined_loss);
  count_rows (&k->operand[END_COUNT], k->shape.dim[0]);
}

/* ------------------------------------------------------------------------ backward */

WEFT_WIDE static void
probabilities (float *p, const float *logit, float lse, float share, uint64_t n)
{
  WEFT_NO_OVERLAP
  for (uint64_t i = 0; i < n; i++)
    p[i] = weft_expf (logit[i] - lse) * share;
}

/* Derivative of soft-capping, from the capped logits. */
WEFT_WIDE static void
cap_slopes (float *slope, const float *logit, float cap, uint64_t n)
{
  float less = 1 / cap;

  for (uint64_t i = 0; i < n; i++)
    slope[i] = 1 - logit[i] * less * (logit[i] * less);
}

WEFT_WIDE static void
multiply_floats (float *x, const float *by, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++)
    x[i] *= by[i];
}

/* Replaces the logits of a row by their gradient. */
static void
row_gradient (const struct weft_kernel *k, uint64_t row, float lse, float share)
{
  const struct weft_operand *logits = &k->operand[LOGITS];
  uint64_t columns = k->shape.dim[1], counted = weft_logits_columns (k);
  int32_t target = ((const int32_t *) k->operand[TARGETS].data)[row];
  float room[WEFT_STRETCH], slope[WEFT_STRETCH];
  float cap = (float) k->model->final_logit_softcapping;

  share = target < 0 ? 0 : share;
  for (uint64_t c = 0; c < columns; c += WEFT_STRETCH) {
    uint64_t n = weft_least (columns - c, WEFT_STRETCH), at = row * columns + c;
    uint64_t hit = weft_logits_target (k, target) - c;
    float *x = (float *) weft_floats (logits->data, logits->dtype, at, n, room);
    float logit = hit < n ? x[hit] : 0;
    if (cap != 0)
      cap_slopes (slope, x, cap, n);
    probabilities (x, x, lse, share, n);
    if (hit < n)
      x[hit] = (weft_expf (logit - lse) - 1) * share;
    if (cap != 0)
      multiply_floats (x, slope, n);
    for (uint64_t i = counted > c ? counted - c : 0; i < n; i++)
      x[i] = 0;
    weft_store (logits->data, logits->dtype, at, n, x);
  }
}

/* The factor by which the gradient of each row's loss is multiplied. */
static float
share_of (const struct weft_kernel *k, const struct weft_operand *gradient)
{
  return (float) weft_loss_share (k) * (gradient->data ? *(const float *) gradient->data : 1);
}

void
weft_cpu_xent_bwd (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const float *lse = k->operand[LSE].data;
  struct weft_range rows = weft_part (k->shape.dim[0], 1, part, parts);
  float share = share_of (k, &k->operand[GRADIENT]);

  for (uint64_t r = rows.begin; r < rows.end; r++)
    row_gradient (k, r, lse[r], share);
}

/* Loss and gradient of a row, with the same bits as xent followed by xent_bwd. */
static float
row_both (const struct weft_kernel *k, uint64_t row)
{
  struct weft_logits_row r = weft_logits_row (k, row);
  double total = weft_logsumexp_value (weft_logsumexp_against (&r, weft_logsumexp_most (&r)));
  float loss = cross_entropy (k, row, total);

  row_gradient (k, row, (float) total, share_of (k, &k->operand[BOTH_GRADIENT]));
  return loss;
}

void
weft_cpu_xent_grad (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  (void) part;
  (void) parts;
  add_losses (k, &k->operand[BOTH_LOSS], row_both);
  count_rows (&k->operand[BOTH_COUNT], k->shape.dim[0]);
}

/* -------------------------------------------------------------------- reference */

void
weft_ref_xent (const struct weft_kernel *k)
{
  const int32_t *target = k->operand[TARGETS].data;
  double *lse = k->operand[LSE].data, *loss = k->operand[LOSS].data;
  uint64_t columns = k->shape.dim[1];

  if (!k->operand[LOSS].accumulate)
    *loss = 0;
  for (uint64_t r = 0; r < k->shape.dim[0]; r++) {
    const double *x = (double *) k->operand[LOGITS].data + r * columns;
    uint64_t counted = weft_logits_columns (k);
    double most = x[0], sum = 0;
    for (uint64_t i = 0; i < counted; i++)
      most = fmax (most, x[i]);
    for (uint64_t i = 0; i < counted; i++)
      sum += exp (x[i] - most);
    lse[r] = most + log (sum);
    *loss += target[r] < 0 ? 0 : lse[r] - x[target[r]];
  }
  if (k->operand[COUNT].data) {
    double *count = k->operand[COUNT].data;
    *count = (k->operand[COUNT].accumulate ? *count : 0) + (double) k->shape.dim[0];
  }
}

void
weft_ref_xent_bwd (const struct weft_kernel *k)
{
  const int32_t *target = k->operand[TARGETS].data;
  const double *lse = k->operand[LSE].data, *gradient = k->operand[GRADIENT].data;
  double all = (gradient ? *gradient : 1) * weft_loss_share (k);
  uint64_t columns = k->shape.dim[1], counted = weft_logits_columns (k);
  double cap = k->model->final_logit_softcapping;

  for (uint64_t r = 0; r < k->shape.dim[0]; r++)
    for (uint64_t i = 0; i < columns; i++) {
      double *x = (double *) k->operand[LOGITS].data + r * columns + i;
      double one = i == weft_logits_target (k, target[r]), share = target[r] < 0 ? 0 : all;
      double at = cap > 0 ? *x / cap : 0;
      *x = i < counted ? (exp (*x - lse[r]) - one) * share * (1 - at * at) : 0;
    }
}

/* Runs the references of xent and xent_bwd. The token count is dimension 5 of xent_grad, and
 * dimension 2 of xent_bwd. */
void
weft_ref_xent_grad (const struct weft_kernel *k)
{
  const struct weft_operand *o = k->operand;
  g_autofree double *lse = g_new (double, k->shape.dim[0]);
  struct weft_kernel one = *k;

  one.operand[LSE] = (struct weft_operand){ .data = lse, .n = k->shape.dim[0] };
  one.operand[COUNT] = o[BOTH_COUNT];
  one.operand[LOSS] = o[BOTH_LOSS];
  weft_ref_xent (&one);
  one.kind = WEFT_OP_XENT_BWD;
  one.shape.dim[2] = k->shape.dim[5];
  one.operand[GRADIENT] = o[BOTH_GRADIENT];
  weft_ref_xent_bwd (&one);
}

void
weft_ref_xent_max (const struct weft_kernel *k)
{
  uint64_t columns = k->shape.dim[1];

  for (uint64_t r = 0; r < k->shape.dim[0]; r++) {
    const double *x = (double *) k->operand[LOGITS].data + r * columns;
    double most = -INFINITY;
    for (uint64_t i = 0; i < weft_logits_columns (k); i++)
      most = fmax (most, x[i]);
    ((double *) k->operand[MOST].data)[r] = most;
  }
}

void
weft_ref_xent_part (const struct weft_kernel *k)
{
  uint64_t n = k->shape.dim[0], columns = k->shape.dim[1];
  const int32_t *targets = k->operand[TARGETS].data;
  const double *given = k->operand[PART_MOST].data;
  double *stats = k->operand[PART].data, *target = given ? stats : stats + n;

  for (uint64_t r = 0; r < n; r++) {
    const double *x = (double *) k->operand[LOGITS].data + r * columns;
    uint64_t counted = weft_logits_columns (k), at = weft_logits_target (k, targets[r]);
    double most = -INFINITY, sum = 0;
    for (uint64_t i = 0; i < counted; i++)
      most = fmax (most, x[i]);
    most = given ? given[r] : most;
    for (uint64_t i = 0; i < counted; i++)
      sum += exp (x[i] - most);
    target[r] = at < columns ? x[at] : 0;
    target[n + r] = sum;
    if (!given)
      stats[r] = most;
  }
}

void
weft_ref_xent_end (const struct weft_kernel *k)
{
  uint64_t n = k->shape.dim[0], parts = k->shape.dim[1];
  double *lse = k->operand[END_LSE].data, *loss = k->operand[END_LOSS].data;

  if (!k->operand[END_LOSS].accumulate)
    *loss = 0;
  for (uint64_t r = 0; r < n; r++) {
    double most = -INFINITY, sum = 0, target = 0;
    for (uint64_t i = 0; i < parts; i++)
      most = fmax (most, ((double *) k->operand[STATS].data)[i * N_STATS * n + r]);
    for (uint64_t i = 0; i < parts; i++) {
      const double *stats = (double *) k->operand[STATS].data + i * N_STATS * n + r;
      sum += stats[ALL_SUM * n] * exp (stats[ALL_MOST * n] - most);
      target += stats[ALL_TARGET * n];
    }
    lse[r] = most + log (sum);
    *loss += has_target (k, END_TARGETS, r) ? lse[r] - target : 0;
  }
  if (k->operand[END_COUNT].data) {
    double *count = k->operand[END_COUNT].data;
    *count = (k->operand[END_COUNT].accumulate ? *count : 0) + (double) n;
  }
}
