#include "kernels/logsumexp.h"
#include "core/base/fold.h"
#include "kernels/float.h"
#include "kernels/lanes.h"
#include "kernels/math.h"
#include <math.h>

/* maximum number of leaves of a sum over columns, a limit of core/passes/shard/tensor.c */
#define MOST_LEAVES 8
#define MOST_DEPTH 4

enum { ROWS, COLUMNS, LEAVES, WHOLE };

uint64_t
weft_logits_columns (const struct weft_kernel *k)
{
  uint64_t columns = k->shape.dim[COLUMNS], before = k->tp.at * columns;
  uint64_t whole = k->shape.dim[WHOLE];

  if (whole == 0)
    return columns;
  return before < whole ? weft_least (columns, whole - before) : 0;
}

struct weft_logits_row
weft_logits_row (const struct weft_kernel *k, uint64_t row)
{
  uint32_t leaves = (uint32_t) k->shape.dim[LEAVES];
  struct weft_logits_row r = { .logits = &k->operand[0],
                               .first = row * k->shape.dim[COLUMNS],
                               .columns = weft_logits_columns (k),
                               .leaves = weft_leaves_dealt (k->shape.dim[COLUMNS], leaves, 0),
                               .in_leaves = leaves > 0 };

  r.leaves.segment[0].end = r.columns;
  return r;
}

uint64_t
weft_logits_target (const struct weft_kernel *k, int32_t target)
{
  return (uint64_t) target - k->tp.at * k->shape.dim[COLUMNS];
}

/* Elementwise maximum of two vectors. NaN is ignored here, but makes the sum of exponentials
 * NaN. */
static inline __attribute__ ((always_inline)) void
keep_larger (weft_lanes *most, const weft_lanes *x)
{
  typedef int32_t mask __attribute__ ((vector_size (sizeof (weft_lanes))));
  mask above = *x > *most;
  *most = (weft_lanes) (((mask) *x & above) | ((mask) *most & ~above));
}

/* The maximum of `least` and of n <= WEFT_STRETCH elements. */
WEFT_WIDE static float
largest (const float *x, uint64_t n, float least)
{
  weft_lanes most = least - (weft_lanes){ 0 }, some;
  float lane[WEFT_N_LANES];
  uint64_t i = 0;

  for (; i + WEFT_N_LANES <= n; i += WEFT_N_LANES) {
    memcpy (&some, x + i, sizeof some);
    keep_larger (&most, &some);
  }
  for (; i < n; i++)
    least = x[i] > least ? x[i] : least;
  memcpy (lane, &most, sizeof lane);
  for (i = 0; i < WEFT_N_LANES; i++)
    least = lane[i] > least ? lane[i] : least;
  return least;
}

/* Sum of exp (x[i] - shift) over n <= WEFT_STRETCH elements. */
WEFT_WIDE static float
sum_of_exponentials (const float *x, uint64_t n, float shift)
{
  float e[WEFT_STRETCH + WEFT_N_LANES];
  weft_lanes lanes = { 0 }, some;

  for (uint64_t i = 0; i < n; i++)
    e[i] = weft_expf (x[i] - shift);
  memset (e + n, 0, WEFT_N_LANES * sizeof *e); /* fills the last vector with 0 */
  for (uint64_t i = 0; i < n; i += WEFT_N_LANES) {
    memcpy (&some, e + i, sizeof some);
    lanes += some;
  }
  return weft_lanes_sum (&lanes);
}

static float
most_of (const struct weft_logits_row *row, struct weft_range columns)
{
  float room[WEFT_STRETCH], most = -INFINITY;

  for (uint64_t c = columns.begin; c < columns.end; c += WEFT_STRETCH) {
    uint64_t n = weft_least (columns.end - c, WEFT_STRETCH);
    const float *x = weft_floats (row->logits->data, row->logits->dtype, row->first + c, n, room);
    most = largest (x, n, most);
  }
  return most;
}

static double
sum_over (const struct weft_logits_row *row, struct weft_range columns, float most)
{
  float room[WEFT_STRETCH];
  double sum = 0;

  for (uint64_t c = columns.begin; c < columns.end; c += WEFT_STRETCH) {
    uint64_t n = weft_least (columns.end - c, WEFT_STRETCH);
    const float *x = weft_floats (row->logits->data, row->logits->dtype, row->first + c, n, room);
    sum += (double) sum_of_exponentials (x, n, most);
  }
  return row->in_leaves ? (double) (float) sum : sum;
}

float
weft_logsumexp_most (const struct weft_logits_row *row)
{
  return most_of (row, (struct weft_range){ 0, row->columns });
}

/* Joins two log-sum-exps of parts of a row. A part without columns has sum 0 and does not change
 * the other part. */
struct weft_logsumexp
weft_logsumexp_join (struct weft_logsumexp a, struct weft_logsumexp b)
{
  if (b.most > a.most)
    return weft_logsumexp_join (b, a);
  if (b.sum != 0)
    a.sum = (double) ((float) a.sum + (float) b.sum * weft_expf (b.most - a.most));
  return a;
}

void
weft_logsumexp_join_top (void *stack, uint32_t below)
{
  struct weft_logsumexp *s = stack;

  s[below] = weft_logsumexp_join (s[below], s[below + 1]);
}

/* Log-sum-exp of a row of logits. The columns are summed leaf by leaf (kernels/leaves.h), and the
 * leaves are added as a tree. The exponentials are relative to *given or, if `given` is NULL, to
 * the largest logit of their leaf. */
static struct weft_logsumexp
fold (const struct weft_logits_row *row, const float *given)
{
  struct weft_logsumexp stack[MOST_DEPTH + 1];
  uint32_t top = 0;

  g_assert (row->leaves.n <= MOST_LEAVES);
  for (uint32_t i = 0; i < row->leaves.n; i++) {
    struct weft_range columns = weft_leaves_segment (&row->leaves, i, 0);
    float most = given ? *given : most_of (row, columns);
    stack[top] = (struct weft_logsumexp){ most, sum_over (row, columns, most) };
    top = weft_fold_push (top, i, row->leaves.n, weft_logsumexp_join_top, stack);
  }
  return stack[0];
}

struct weft_logsumexp
weft_logsumexp_against (const struct weft_logits_row *row, float most)
{
  return fold (row, &most);
}

struct weft_logsumexp
weft_logsumexp_own (const struct weft_logits_row *row)
{
  return fold (row, NULL);
}

double
weft_logsumexp_value (struct weft_logsumexp soft)
{
  return (double) soft.most + log (soft.sum);
}
