/* Dropout, alone and fused with the residual addition, or with a bias too, and its gradient. A mask
 * has one byte per element: 1 if the element is kept. */
#include "kernels/dropout.h"
#include "kernels/float.h"
#include "kernels/part.h"
#include "kernels/sums.h"

enum { ROWS, TOKENS, COLUMNS, SITE, DROP };

static uint64_t
key_of (const struct weft_kernel *k)
{
  uint64_t key = weft_mix (k->control->seed);

  key = weft_mix (key ^ k->control->step);
  return weft_mix (key ^ ((uint64_t) k->draw.layer << 8 | k->shape.dim[SITE]));
}

struct weft_dropout
weft_dropout_of (const struct weft_kernel *k)
{
  uint64_t drop = k->control->forward_only ? 0 : k->shape.dim[DROP];

  return (struct weft_dropout){ .key = key_of (k),
                                .drop = drop,
                                .grow = (float) (0x1p32 / (0x1p32 - (double) drop)),
                                .columns = k->shape.dim[COLUMNS] };
}

/* Number of a token in the global batch, computed from its number in the microbatch. */
static uint64_t
whole_token (const struct weft_kernel *k, uint64_t token)
{
  uint64_t length = (uint64_t) k->model->seq_length, here = length / MAX (k->cp.of, 1);

  return ((uint64_t) k->draw.sequence + token / here) * length +
         weft_position (k->cp, here, token % here);
}

/* Index of a row of attention probabilities (one query of one head) in the global batch. This rank
 * has only some of the heads of each sequence. */
static uint64_t
whole_query (const struct weft_kernel *k, uint64_t row)
{
  uint64_t length = (uint64_t) k->model->seq_length;
  uint64_t heads = k->shape.dim[ROWS] / k->shape.dim[TOKENS], strip = row / length;
  uint64_t sequence = (uint64_t) k->draw.sequence + strip / heads;
  uint64_t head = k->tp.at / weft_kernel_group_ranks (k) * heads + strip % heads;

  return (sequence * (uint64_t) k->model->num_attention_heads + head) * length + row % length;
}

uint64_t
weft_dropout_row (const struct weft_kernel *k, uint64_t row)
{
  const uint64_t *dim = k->shape.dim;
  uint64_t first = dim[ROWS] < dim[TOKENS] ? k->tp.at * dim[ROWS] : 0;

  return dim[COLUMNS] * (dim[SITE] == WEFT_DROP_PROBABILITIES ? whole_query (k, row)
                                                              : whole_token (k, first + row));
}

/* --------------------------------------------------------------------- CPU kernels */

struct pass {
  /* add: an operand that is added after dropout, or NULL */
  const struct weft_operand *add, *in, *out;
  uint8_t *mask;
  gboolean draws; /* TRUE: generate the mask; FALSE: read the mask that forward stored */
  const struct weft_operand *bias; /* a row that is added before dropout, or NULL */
};

/* n elements of the input of dropout, in `room` if they are not stored in fp32. A sum with the bias
 * is rounded to the dtype of the output. */
static const float *
input (const struct weft_dropout *d, const struct pass *p, uint64_t from, uint64_t n, float *room)
{
  const float *x = weft_floats (p->in->data, p->in->dtype, from, n, room);
  float bias[WEFT_STRETCH];

  if (!p->bias)
    return x;
  memmove (room, x, n * sizeof *room);
  weft_sums_add (room,
                 weft_floats (p->bias->data, p->bias->dtype, from % d->columns, n, bias), n);
  weft_round (p->out->dtype, n, room);
  return room;
}

/* Processes n <= WEFT_STRETCH elements of one row. `number` is the number of the random draw for
 * the first element. */
static void
run (const struct weft_dropout *d, const struct pass *p, uint64_t from, uint64_t n, uint64_t number)
{
  float in_room[WEFT_STRETCH], add_room[WEFT_STRETCH], out_room[WEFT_STRETCH];
  const float *x = input (d, p, from, n, in_room);
  const float *a = p->add ? weft_floats (p->add->data, p->add->dtype, from, n, add_room) : NULL;
  float *y = weft_target (p->out->data, p->out->dtype, from, out_room);

  for (uint64_t i = 0; i < n; i++) {
    if (p->draws)
      p->mask[from + i] = weft_dropout_keeps (d, number + i);
    float kept = p->mask[from + i] ? x[i] * d->grow : 0;
    y[i] = a ? a[i] + kept : kept;
  }
  weft_store (p->out->data, p->out->dtype, from, n, y);
}

static void
run_rows (const struct weft_kernel *k, const struct pass *p, uint32_t part, uint32_t parts)
{
  const struct weft_dropout d = weft_dropout_of (k);
  struct weft_range rows = weft_part (k->shape.dim[ROWS], 64, part, parts);

  for (uint64_t row = rows.begin; row < rows.end; row++)
    for (uint64_t c = 0; c < d.columns; c += WEFT_STRETCH)
      run (&d, p, row * d.columns + c, weft_least (WEFT_STRETCH, d.columns - c),
           weft_dropout_row (k, row) + c);
}

void
weft_cpu_dropout (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const struct weft_operand *o = k->operand;

  run_rows (k, &(struct pass){ NULL, &o[0], &o[1], o[2].data, TRUE, NULL }, part, parts);
}

void
weft_cpu_dropout_add (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const struct weft_operand *o = k->operand;

  run_rows (k, &(struct pass){ &o[0], &o[1], &o[2], o[3].data, TRUE, NULL }, part, parts);
}

void
weft_cpu_bias_dropout_add (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const struct weft_operand *o = k->operand;

  run_rows (k, &(struct pass){ &o[2], &o[0], &o[3], o[4].data, TRUE, &o[1] }, part, parts);
}

void
weft_cpu_dropout_bwd (const struct weft_kernel *k, uint32_t part, uint32_t parts)
{
  const struct weft_operand *o = k->operand;

  run_rows (k, &(struct pass){ NULL, &o[0], &o[2], o[1].data, FALSE, NULL }, part, parts);
}

/* ----------------------------------------------------------------------- reference */

static uint64_t
elements (const struct weft_kernel *k)
{
  return k->shape.dim[ROWS] * k->shape.dim[COLUMNS];
}

static void
draw (const struct weft_kernel *k, uint8_t *mask)
{
  const struct weft_dropout d = weft_dropout_of (k);

  for (uint64_t i = 0; i < elements (k); i++)
    mask[i] = weft_dropout_keeps (&d, weft_dropout_row (k, i / d.columns) + i % d.columns);
}

static void
keep (const struct weft_kernel *k, const double *add, const double *x, const uint8_t *mask,
      double *y)
{
  double grow = 0x1p32 / (0x1p32 - (double) weft_dropout_of (k).drop);

  for (uint64_t i = 0; i < elements (k); i++)
    y[i] = (add ? add[i] : 0) + (mask[i] ? x[i] * grow : 0);
}

void
weft_ref_dropout (const struct weft_kernel *k)
{
  draw (k, k->operand[2].data);
  keep (k, NULL, k->operand[0].data, k->operand[2].data, k->operand[1].data);
}

void
weft_ref_dropout_add (const struct weft_kernel *k)
{
  draw (k, k->operand[3].data);
  keep (k, k->operand[0].data, k->operand[1].data, k->operand[3].data, k->operand[2].data);
}

void
weft_ref_bias_dropout_add (const struct weft_kernel *k)
{
  const struct weft_operand *o = k->operand;
  const double *x = o[0].data, *bias = o[1].data;
  g_autofree double *biased = g_new (double, elements (k));

  for (uint64_t i = 0; i < elements (k); i++) {
    float sum = (float) (x[i] + bias[i % k->shape.dim[COLUMNS]]);
    weft_round (o[3].dtype, 1, &sum);
    biased[i] = sum;
  }
  draw (k, o[4].data);
  keep (k, o[2].data, biased, o[4].data, o[3].data);
}

void
weft_ref_dropout_bwd (const struct weft_kernel *k)
{
  keep (k, NULL, k->operand[0].data, k->operand[1].data, k->operand[2].data);
}

#define EXTENT(name)                                                                               \
  uint64_t weft_extent_##name (const struct weft_kernel *k, uint32_t operand)                      \
  {                                                                                                \
    (void) operand;                                                                                \
    return elements (k);                                                                           \
  }
EXTENT (dropout)
EXTENT (dropout_add)
EXTENT (dropout_bwd)

uint64_t
weft_extent_bias_dropout_add (const struct weft_kernel *k, uint32_t operand)
{
  return operand == 1 ? k->shape.dim[COLUMNS] : elements (k);
}
