/* Attention in double, as its formulas are written. */
#include "kernels/kernel.h"
#include <math.h>

enum { BATCH, SEQUENCE, HEADS, GROUPS, WIDTH };
enum { QKV, O, LSE };
enum { BWD_QKV, BWD_O, BWD_LSE, BWD_DO, BWD_DQKV };

struct head {
  const struct weft_kernel *k;
  uint64_t batch, query, group; /* the query head and the group it reads */
};

static struct head
head_at (const struct weft_kernel *k, uint64_t batch, uint64_t query)
{
  uint64_t ratio = k->shape.dim[HEADS] / k->shape.dim[GROUPS];

  return (struct head){ k, batch, query, query / ratio };
}

/* Where position t of head `slot` begins, in rows of `slots` heads. */
static uint64_t
element (const struct head *h, uint64_t t, uint64_t slot, uint64_t slots)
{
  const uint64_t *dim = h->k->shape.dim;

  return ((h->batch * dim[SEQUENCE] + t) * slots + slot) * dim[WIDTH];
}

static uint64_t
in_qkv (const struct head *h, uint64_t t, uint64_t slot)
{
  const uint64_t *dim = h->k->shape.dim;

  return element (h, t, slot, dim[HEADS] + 2 * dim[GROUPS]);
}

static uint64_t
q_at (const struct head *h, uint64_t t)
{
  return in_qkv (h, t, h->query);
}

static uint64_t
k_at (const struct head *h, uint64_t t)
{
  return in_qkv (h, t, h->k->shape.dim[HEADS] + h->group);
}

static uint64_t
v_at (const struct head *h, uint64_t t)
{
  return in_qkv (h, t, h->k->shape.dim[HEADS] + h->k->shape.dim[GROUPS] + h->group);
}

static uint64_t
o_at (const struct head *h, uint64_t t)
{
  return element (h, t, h->query, h->k->shape.dim[HEADS]);
}

static uint64_t
lse_at (const struct head *h, uint64_t t)
{
  const uint64_t *dim = h->k->shape.dim;

  return (h->batch * dim[HEADS] + h->query) * dim[SEQUENCE] + t;
}

static double
dot (const double *x, const double *y, uint64_t n)
{
  double sum = 0;

  for (uint64_t i = 0; i < n; i++)
    sum += x[i] * y[i];
  return sum;
}

static void
add (double *to, double factor, const double *x, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++)
    to[i] += factor * x[i];
}

/* The first key that query i sees; i itself is the last. */
static uint64_t
first_key (const struct weft_kernel *k, uint64_t i)
{
  uint64_t window = k->model ? (uint64_t) k->model->sliding_window : 0;

  return window > 0 && i >= window ? i - window + 1 : 0;
}

static double
score (const struct head *h, const double *qkv, uint64_t i, uint64_t j)
{
  uint64_t width = h->k->shape.dim[WIDTH];

  return dot (qkv + q_at (h, i), qkv + k_at (h, j), width) / sqrt ((double) width);
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
  uint64_t width = h->k->shape.dim[WIDTH];

  ((double *) h->k->operand[LSE].data)[lse_at (h, i)] = lse;
  for (uint64_t w = 0; w < width; w++)
    o[w] = 0;
  for (uint64_t j = first_key (h->k, i); j <= i; j++)
    add (o, exp (score (h, qkv, i, j) - lse), qkv + v_at (h, j), width);
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

/* With p the probabilities of query i and g their gradients do . v: the gradient of a score is
 * p (g - sum of p g), and that sum is do . o. */
static void
attend_backward (const struct head *h, uint64_t i)
{
  const struct weft_operand *operand = h->k->operand;
  const double *qkv = operand[BWD_QKV].data, *lse = operand[BWD_LSE].data;
  const double *o = (const double *) operand[BWD_O].data + o_at (h, i);
  const double *d = (const double *) operand[BWD_DO].data + o_at (h, i);
  double *dqkv = operand[BWD_DQKV].data;
  uint64_t width = h->k->shape.dim[WIDTH];
  double delta = dot (o, d, width), scale = 1 / sqrt ((double) width);

  for (uint64_t j = first_key (h->k, i); j <= i; j++) {
    double p = exp (score (h, qkv, i, j) - lse[lse_at (h, i)]);
    double ds = p * (dot (d, qkv + v_at (h, j), width) - delta);
    add (dqkv + v_at (h, j), p, d, width);
    add (dqkv + q_at (h, i), ds * scale, qkv + k_at (h, j), width);
    add (dqkv + k_at (h, j), ds * scale, qkv + q_at (h, i), width);
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
    [QKV] = tokens (k) * (dim[HEADS] + 2 * dim[GROUPS]) * dim[WIDTH],
    [O] = tokens (k) * dim[HEADS] * dim[WIDTH],
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
