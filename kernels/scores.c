/* Unfused attention: every op reads and writes whole score matrices. Written for readability: one
 * row at a time, sums in the order of keys, queries or head elements. */
#include "kernels/scores.h"
#include "kernels/traits.h"
#include "kernels/float.h"
#include "kernels/math.h"
#include "kernels/part.h"
#include <math.h>

/* Scratch: room for WEFT_STRETCH inputs and WEFT_STRETCH results, for elements of a head or of a
 * row of scores. */
struct room {
  float in[WEFT_STRETCH], out[WEFT_STRETCH];
};

static float
element (const struct weft_operand *o, uint64_t at)
{
  float room;
  return *weft_floats (o->data, o->dtype, at, 1, &room);
}

static float
dot (const struct weft_operand *a, uint64_t from, const struct weft_operand *b, uint64_t with,
     uint64_t n)
{
  struct room room;
  float sum = 0;

  for (uint64_t done = 0; done < n; done += WEFT_STRETCH) {
    uint64_t some = weft_least (WEFT_STRETCH, n - done);
    const float *x = weft_floats (a->data, a->dtype, from + done, some, room.in);
    const float *y = weft_floats (b->data, b->dtype, with + done, some, room.out);
    for (uint64_t i = 0; i < some; i++)
      sum += x[i] * y[i];
  }
  return sum;
}

/* A query: batch element, head, and number of the query in its sequence. */
struct row {
  uint64_t batch, head, query;
};

static struct row
row_at (const uint64_t *dim, uint64_t r)
{
  uint64_t strip = r / dim[WEFT_SEQUENCE];
  return (struct row){ strip / dim[WEFT_HEADS], strip % dim[WEFT_HEADS], r % dim[WEFT_SEQUENCE] };
}

static struct weft_range
rows_of (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const uint64_t *dim = k->shape.dim;
  return weft_part (dim[WEFT_BATCH] * dim[WEFT_HEADS] * dim[WEFT_SEQUENCE], 64, part, parts);
}

/* Fills a row of the result with dot products: of one head of x (at element `from`) with the head
 * `slot` of each key. Masked elements become 0. */
static void
products (const struct weft_kernel *k, const struct row *r, const struct weft_operand *x,
          uint64_t from, uint64_t slot)
{
  const uint64_t *dim = k->shape.dim;
  gboolean forward = k->kind == WEFT_OP_SCORES;
  const struct weft_operand *qkv = &k->operand[forward ? 0 : 1], *to = &k->operand[forward ? 1 : 2];
  uint64_t at = weft_square_at (dim, r->batch, r->head, r->query);
  float scale = forward ? weft_attention_scale (k, dim[WEFT_HEAD_WIDTH]) : 1;

  for (uint64_t c = 0; c < dim[WEFT_SEQUENCE]; c += WEFT_STRETCH) {
    uint64_t n = weft_least (WEFT_STRETCH, dim[WEFT_SEQUENCE] - c);
    float product[WEFT_STRETCH];
    for (uint64_t key = c; key < c + n; key++) {
      gboolean seen = key <= r->query && key >= weft_first_key (k, r->query);
      uint64_t with = weft_qkv_at (dim, r->batch, key, slot);
      product[key - c] = seen ? scale * dot (x, from, qkv, with, dim[WEFT_HEAD_WIDTH]) : 0;
    }
    weft_store (to->data, to->dtype, at + c, n, product);
  }
}

void
weft_cpu_scores (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const uint64_t *dim = k->shape.dim;
  struct weft_range rows = rows_of (k, part, parts);

  for (uint64_t i = rows.begin; i < rows.end; i++) {
    struct row r = row_at (dim, i);
    products (k, &r, &k->operand[0], weft_qkv_at (dim, r.batch, r.query, r.head),
              weft_key_slot (dim, r.head));
  }
}

void
weft_cpu_context_bwd (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const uint64_t *dim = k->shape.dim;
  struct weft_range rows = rows_of (k, part, parts);

  for (uint64_t i = rows.begin; i < rows.end; i++) {
    struct row r = row_at (dim, i);
    products (k, &r, &k->operand[0], weft_o_at (dim, r.batch, r.query, r.head),
              weft_value_slot (dim, r.head));
  }
}

WEFT_WIDE static void
exponentials (float *e, const float *x, float peak, uint64_t n)
{
  for (uint64_t i = 0; i < n; i++)
    e[i] = weft_expf (x[i] - peak);
}

/* The largest element among the visible keys of a row. */
static float
highest (const struct weft_operand *x, struct weft_range keys)
{
  float room[WEFT_STRETCH], peak = element (x, keys.begin);

  for (uint64_t at = keys.begin; at < keys.end; at += WEFT_STRETCH) {
    uint64_t n = weft_least (WEFT_STRETCH, keys.end - at);
    const float *some = weft_floats (x->data, x->dtype, at, n, room);
    for (uint64_t i = 0; i < n; i++)
      peak = fmaxf (peak, some[i]);
  }
  return peak;
}

static float
sum_of_exponentials (const struct weft_operand *x, struct weft_range keys, float peak)
{
  struct room room;
  float total = 0;

  for (uint64_t at = keys.begin; at < keys.end; at += WEFT_STRETCH) {
    uint64_t n = weft_least (WEFT_STRETCH, keys.end - at);
    exponentials (room.out, weft_floats (x->data, x->dtype, at, n, room.in), peak, n);
    for (uint64_t i = 0; i < n; i++)
      total += room.out[i];
  }
  return total;
}

void
weft_cpu_softmax (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const struct weft_operand *x = &k->operand[0], *y = &k->operand[1];
  uint64_t width = k->shape.dim[WEFT_SEQUENCE];
  struct weft_range rows = rows_of (k, part, parts);
  struct room room;

  for (uint64_t i = rows.begin; i < rows.end; i++) {
    uint64_t query = i % width, row = i * width;
    struct weft_range seen = { row + weft_first_key (k, query), row + query + 1 };
    float peak = highest (x, seen), total = sum_of_exponentials (x, seen, peak);
    for (uint64_t at = row; at < row + width; at += WEFT_STRETCH) {
      uint64_t n = weft_least (WEFT_STRETCH, row + width - at);
      exponentials (room.out, weft_floats (x->data, x->dtype, at, n, room.in), peak, n);
      for (uint64_t j = 0; j < n; j++)
        room.out[j] = at + j >= seen.begin && at + j < seen.end ? room.out[j] / total : 0;
      weft_store (y->data, y->dtype, at, n, room.out);
    }
  }
}

/* Backward of softmax: ds = p (dp - sum of p dp). */
void
weft_cpu_softmax_bwd (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const struct weft_operand *d = &k->operand[0], *p = &k->operand[1];
  uint64_t n = k->shape.dim[WEFT_SEQUENCE];
  struct weft_range rows = rows_of (k, part, parts);
  struct room room;

  for (uint64_t i = rows.begin; i < rows.end; i++) {
    float mean = dot (d, i * n, p, i * n, n), out[WEFT_STRETCH];
    for (uint64_t at = i * n; at < (i + 1) * n; at += WEFT_STRETCH) {
      uint64_t some = weft_least (WEFT_STRETCH, (i + 1) * n - at);
      const float *dp = weft_floats (d->data, d->dtype, at, some, room.in);
      const float *q = weft_floats (p->data, p->dtype, at, some, room.out);
      for (uint64_t j = 0; j < some; j++)
        out[j] = q[j] * (dp[j] - mean);
      weft_store (d->data, d->dtype, at, some, out);
    }
  }
}

/* A weighted sum of the rows of an operand, for n of its columns. */
struct mixture {
  const struct weft_operand *of;
  float sum[WEFT_STRETCH];
  uint64_t n;
};

static void
begin_mixture (struct mixture *m, uint64_t n)
{
  m->n = n;
  memset (m->sum, 0, n * sizeof *m->sum);
}

static void
mix (struct mixture *m, float factor, uint64_t at)
{
  float room[WEFT_STRETCH];
  const float *x = weft_floats (m->of->data, m->of->dtype, at, m->n, room);

  for (uint64_t i = 0; i < m->n; i++)
    m->sum[i] += factor * x[i];
}

static void
end_mixture (struct mixture *m, float factor, const struct weft_operand *to, uint64_t at)
{
  for (uint64_t i = 0; i < m->n; i++)
    m->sum[i] *= factor;
  weft_store (to->data, to->dtype, at, m->n, m->sum);
}

void
weft_cpu_context (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const uint64_t *dim = k->shape.dim;
  struct weft_range rows = rows_of (k, part, parts);
  struct mixture m = { .of = &k->operand[1] };

  for (uint64_t i = rows.begin; i < rows.end; i++) {
    struct row r = row_at (dim, i);
    uint64_t slot = weft_value_slot (dim, r.head), at = i * dim[WEFT_SEQUENCE];
    for (uint64_t c = 0; c < dim[WEFT_HEAD_WIDTH]; c += WEFT_STRETCH) {
      begin_mixture (&m, weft_least (WEFT_STRETCH, dim[WEFT_HEAD_WIDTH] - c));
      for (uint64_t key = weft_first_key (k, r.query); key <= r.query; key++)
        mix (&m, element (&k->operand[0], at + key), weft_qkv_at (dim, r.batch, key, slot) + c);
      end_mixture (&m, 1, &k->operand[2], weft_o_at (dim, r.batch, r.query, r.head) + c);
    }
  }
}

/* ------------------------------------------------- gradients of queries, keys, values */

enum { DS, P, DO, QKV, DQKV };

/* Gradient of a query: the product of its row of ds with the keys. */
static void
query_gradient (const struct weft_kernel *k, const struct row *r, struct mixture *m, uint64_t c)
{
  const uint64_t *dim = k->shape.dim;
  uint64_t at = weft_square_at (dim, r->batch, r->head, r->query);

  m->of = &k->operand[QKV];
  for (uint64_t key = weft_first_key (k, r->query); key <= r->query; key++)
    mix (m, element (&k->operand[DS], at + key),
         weft_qkv_at (dim, r->batch, key, weft_key_slot (dim, r->head)) + c);
  end_mixture (m, weft_attention_scale (k, dim[WEFT_HEAD_WIDTH]), &k->operand[DQKV],
               weft_qkv_at (dim, r->batch, r->query, r->head) + c);
}

/* Gradient of a key or of a value. The sum runs over the query heads of the key's group and over
 * the queries that see the key. Gradient of the key: sum of ds times query. Gradient of the value:
 * sum of p times do. r->head is the first query head of the group, r->query the number of the
 * key. */
static void
key_gradient (const struct weft_kernel *k, const struct row *r, struct mixture *m, uint64_t c)
{
  const uint64_t *dim = k->shape.dim;
  gboolean values = m->of == &k->operand[DO];
  uint64_t ratio = dim[WEFT_HEADS] / dim[WEFT_GROUPS];

  for (uint64_t head = r->head; head < r->head + ratio; head++)
    for (uint64_t query = r->query; query < dim[WEFT_SEQUENCE]; query++) {
      uint64_t at = weft_square_at (dim, r->batch, head, query) + r->query;
      if (weft_first_key (k, query) > r->query)
        break;
      mix (m, element (&k->operand[values ? P : DS], at),
           (values ? weft_o_at : weft_qkv_at) (dim, r->batch, query, head) + c);
    }
  end_mixture (m, values ? 1 : weft_attention_scale (k, dim[WEFT_HEAD_WIDTH]), &k->operand[DQKV],
               weft_qkv_at (dim, r->batch, r->query,
                            (values ? weft_value_slot : weft_key_slot) (dim, r->head)) +
                   c);
}

void
weft_cpu_scores_bwd (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const uint64_t *dim = k->shape.dim;
  uint64_t ratio = dim[WEFT_HEADS] / dim[WEFT_GROUPS];
  struct weft_range rows = rows_of (k, part, parts);
  struct mixture m;

  for (uint64_t i = rows.begin; i < rows.end; i++) {
    struct row r = row_at (dim, i);
    for (uint64_t c = 0; c < dim[WEFT_HEAD_WIDTH]; c += WEFT_STRETCH) {
      uint64_t n = weft_least (WEFT_STRETCH, dim[WEFT_HEAD_WIDTH] - c);
      begin_mixture (&m, n);
      query_gradient (k, &r, &m, c);
      if (r.head % ratio)
        continue;
      begin_mixture (&m, n);
      m.of = &k->operand[QKV];
      key_gradient (k, &r, &m, c);
      begin_mixture (&m, n);
      m.of = &k->operand[DO];
      key_gradient (k, &r, &m, c);
    }
  }
}
