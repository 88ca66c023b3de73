/* Multiplies each row by one number. moe_weigh: the router weight, applied to the input of experts
 * (Llama 4; Megatron-Core moe/experts.py, moe_apply_probs_on_input). shared gate: the logistic
 * function of a logit scales the output of shared experts (Qwen2-MoE; moe/shared_experts.py). */
#include "kernels/float.h"
#include "kernels/math.h"
#include "kernels/moe.h"
#include "kernels/part.h"
#include <math.h>

/* Operands of gate, moe_weigh, gate_bwd or moe_weigh_bwd (core/ops.def). Forward: x, by (the factor
 * of each row, or its logit), out. Backward: also dy and dby, and out is dx. moe_weigh and
 * moe_weigh_bwd have one more operand, the row counts of the experts; gate_of() uses it to set
 * `rows`. */
struct gate {
  const struct weft_operand *x, *by, *dy, *out, *dby;
  uint64_t rows, columns;
  gboolean logistic;
};

static struct gate
gate_of (const struct weft_kernel *k, gboolean logistic, gboolean backward)
{
  const struct weft_operand *o = k->operand, *next = o + (logistic ? 2 : 3);
  struct gate g = {
    .x = o, .by = o + 1, .rows = k->shape.dim[0], .columns = k->shape.dim[1], .logistic = logistic
  };

  if (!logistic && k->shape.dim[3] == 0) /* number of rows that hold a token */
    g.rows = weft_moe_count (o[2].data, 0, o[2].n);
  g.dy = backward ? next++ : NULL;
  g.out = next;
  g.dby = next + 1;
  return g;
}

/* The factor by which a row is multiplied. *slope: the derivative of the logistic function if the
 * factor is a logistic function, else 1. */
static float
factor (const struct gate *g, uint64_t row, float *slope)
{
  float room, given = *weft_floats (g->by->data, g->by->dtype, row, 1, &room);

  *slope = 1;
  if (!g->logistic)
    return given;
  float e = weft_expf (given < 0 ? given : -given), more = 1 / (1 + e), less = e * more;
  *slope = more * less;
  return given < 0 ? less : more;
}

static void
forward_row (const struct gate *g, uint64_t row)
{
  float room[WEFT_STRETCH], y[WEFT_STRETCH], slope, by = factor (g, row, &slope);

  for (uint64_t c = 0; c < g->columns; c += WEFT_STRETCH) {
    uint64_t n = weft_least (g->columns - c, WEFT_STRETCH), at = row * g->columns + c;
    const float *x = weft_floats (g->x->data, g->x->dtype, at, n, room);
    for (uint64_t i = 0; i < n; i++)
      y[i] = x[i] * by;
    weft_store (g->out->data, g->out->dtype, at, n, y);
  }
}

/* Backward of one row. The gradient of the row's factor is summed along the row in element
 * order. */
static void
backward_row (const struct gate *g, uint64_t row)
{
  float room[2][WEFT_STRETCH], dx[WEFT_STRETCH], slope, sum = 0, by = factor (g, row, &slope);

  for (uint64_t c = 0; c < g->columns; c += WEFT_STRETCH) {
    uint64_t n = weft_least (g->columns - c, WEFT_STRETCH), at = row * g->columns + c;
    const float *x = weft_floats (g->x->data, g->x->dtype, at, n, room[0]),
                *dy = weft_floats (g->dy->data, g->dy->dtype, at, n, room[1]);
    for (uint64_t i = 0; i < n; i++) {
      sum += dy[i] * x[i];
      dx[i] = dy[i] * by;
    }
    weft_store (g->out->data, g->out->dtype, at, n, dx);
  }
  sum *= slope;
  weft_store (g->dby->data, g->dby->dtype, row, 1, &sum);
}

static void
each_row (struct gate g, void (*run) (const struct gate *g, uint64_t row), uint32_t part,
          uint32_t parts)
{
  struct weft_range rows = weft_part (g.rows, 16, part, parts);

  for (uint64_t row = rows.begin; row < rows.end; row++)
    run (&g, row);
}

/* ---------------------------------------------------------------------- reference */

static double
ref_factor (const struct gate *g, uint64_t row, double *slope)
{
  double given = ((const double *) g->by->data)[row], by = 1 / (1 + exp (-given));

  *slope = g->logistic ? by * (1 - by) : 1;
  return g->logistic ? by : given;
}

static void
ref_forward (struct gate g)
{
  const double *x = g.x->data;
  double *y = g.out->data, slope;

  for (uint64_t i = 0; i < g.rows * g.columns; i++)
    y[i] = x[i] * ref_factor (&g, i / g.columns, &slope);
}

static void
ref_backward (struct gate g)
{
  const double *x = g.x->data, *dy = g.dy->data;
  double *dx = g.out->data, *dby = g.dby->data;

  for (uint64_t row = 0; row < g.rows; row++) {
    double slope, by = ref_factor (&g, row, &slope), sum = 0;
    for (uint64_t i = row * g.columns; i < (row + 1) * g.columns; i++) {
      sum += dy[i] * x[i];
      dx[i] = dy[i] * by;
    }
    dby[row] = sum * slope;
  }
}

/* ------------------------------------------------------------------------- extents */

static uint64_t
extent_of (const struct weft_kernel *k, gboolean of_row)
{
  return k->shape.dim[0] * (of_row ? 1 : k->shape.dim[1]);
}

uint64_t
weft_extent_gate (const struct weft_kernel *k, uint32_t operand)
{
  return extent_of (k, operand == 1);
}

uint64_t
weft_extent_gate_bwd (const struct weft_kernel *k, uint32_t operand)
{
  return extent_of (k, operand == 1 || operand == 4);
}

/* Returns 0: the number of elements is not checked, because buffers may have room for more rows
 * than there are tokens. */
uint64_t
weft_extent_moe_weigh (const struct weft_kernel *k, uint32_t operand)
{
  (void) k;
  (void) operand;
  return 0;
}

uint64_t
weft_extent_moe_weigh_bwd (const struct weft_kernel *k, uint32_t operand)
{
  return weft_extent_moe_weigh (k, operand);
}

#define GATE(name, logistic, way, backward)                                                        \
  void weft_cpu_##name (const struct weft_kernel *k, uint32_t part, uint32_t parts)                \
  {                                                                                                \
    each_row (gate_of (k, logistic, backward), way##_row, part, parts);                            \
  }                                                                                                \
  void weft_ref_##name (const struct weft_kernel *k)                                               \
  {                                                                                                \
    ref_##way (gate_of (k, logistic, backward));                                                   \
  }
GATE (gate, TRUE, forward, FALSE)
GATE (gate_bwd, TRUE, backward, TRUE)
GATE (moe_weigh, FALSE, forward, FALSE)
GATE (moe_weigh_bwd, FALSE, backward, TRUE)
