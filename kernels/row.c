#include "kernels/row.h"
#include "kernels/float.h"
#include "kernels/lanes.h"
#include "kernels/part.h"
#include "kernels/sums.h"
#include <math.h>

static const float *
floats (struct weft_row row, uint64_t at, uint64_t n, float *room)
{
  return weft_floats (row.operand->data, row.operand->dtype, row.first + at, n, room);
}

static struct weft_row
from_start (const struct weft_operand *o)
{
  return (struct weft_row){ o, 0 };
}

/* ---------------------------------------------------------------------- moments */

WEFT_WIDE static void
sum (weft_lanes *to, const float *x, uint64_t n)
{
  weft_lanes lanes = *to, some;
  uint64_t i = 0;

  for (; i + WEFT_N_LANES <= n; i += WEFT_N_LANES) {
    memcpy (&some, x + i, sizeof some);
    lanes += some;
  }
  weft_lanes_tail (&some, x + i, n - i);
  *to = lanes + some;
}

WEFT_WIDE static void
sum_deviations (weft_lanes *to, const float *x, float mean, uint64_t n)
{
  weft_lanes lanes = *to, some;
  float tail[WEFT_N_LANES] = { 0 };
  uint64_t i = 0;

  for (; i + WEFT_N_LANES <= n; i += WEFT_N_LANES) {
    memcpy (&some, x + i, sizeof some);
    some -= mean;
    lanes += some * some;
  }
  for (uint64_t t = i; t < n; t++)
    tail[t - i] = (x[t] - mean) * (x[t] - mean);
  memcpy (&some, tail, sizeof some);
  *to = lanes + some;
}

static float
mean_of (const struct weft_row_norm *norm, struct weft_row x)
{
  float room[WEFT_STRETCH];
  weft_lanes lanes = { 0 };

  if (!norm->centred)
    return 0;
  for (uint64_t c = 0; c < norm->n; c += WEFT_STRETCH) {
    uint64_t n = weft_least (norm->n - c, WEFT_STRETCH);
    sum (&lanes, floats (x, c, n, room), n);
  }
  return weft_lanes_sum (&lanes) / (float) norm->n;
}

struct weft_moments
weft_row_moments (const struct weft_row_norm *norm, struct weft_row x)
{
  float room[WEFT_STRETCH], mean = mean_of (norm, x);
  weft_lanes lanes = { 0 };

  for (uint64_t c = 0; c < norm->n; c += WEFT_STRETCH) {
    uint64_t n = weft_least (norm->n - c, WEFT_STRETCH);
    sum_deviations (&lanes, floats (x, c, n, room), mean, n);
  }
  float variance = weft_lanes_sum (&lanes) / (float) norm->n;
  return (struct weft_moments){ mean, 1 / sqrtf (variance + norm->epsilon) };
}

/* ---------------------------------------------------------------------- forward */

WEFT_WIDE static void
normalise (float *y, const float *x, const float *weight, const struct weft_moments *m, uint64_t n)
{
  float mean = m->mean, scale = m->scale;

  WEFT_NO_OVERLAP
  for (uint64_t i = 0; i < n; i++)
    y[i] = (x[i] - mean) * scale * weight[i];
}

void
weft_row_forward (const struct weft_row_norm *norm, struct weft_row x,
                  const struct weft_operand *weight, const struct weft_operand *bias,
                  struct weft_row y)
{
  struct weft_moments moments = weft_row_moments (norm, x);
  float x_room[WEFT_STRETCH], weight_room[WEFT_STRETCH], y_room[WEFT_STRETCH];

  for (uint64_t c = 0; c < norm->n; c += WEFT_STRETCH) {
    uint64_t n = weft_least (norm->n - c, WEFT_STRETCH);
    float *to = weft_target (y.operand->data, y.operand->dtype, y.first + c, y_room);
    normalise (to, floats (x, c, n, x_room), floats (from_start (weight), c, n, weight_room),
               &moments, n);
    if (bias)
      weft_sums_add (to, floats (from_start (bias), c, n, x_room), n);
    weft_store (y.operand->data, y.operand->dtype, y.first + c, n, to);
  }
}

/* --------------------------------------------------------------------- backward */

/* Inputs of the backward pass of a norm, for a part of a row. */
struct stretch {
  const float *dy, *x, *weight;
  struct weft_moments moments;
};

/* *g += dy weight, *gx += dy weight xhat. v: dy, x, weight; lanes past the end have dy = 0. */
static inline __attribute__ ((always_inline)) void
pull_back (weft_lanes *g, weft_lanes *gx, const weft_lanes v[3], const struct weft_moments *m)
{
  weft_lanes one = v[0] * v[2];
  *g += one;
  *gx += one * ((v[1] - m->mean) * m->scale);
}

WEFT_WIDE static void
sum_gradients (weft_lanes *to, const struct stretch *s, uint64_t n)
{
  weft_lanes g = to[0], gx = to[1], v[3];
  uint64_t i = 0;

  for (; i + WEFT_N_LANES <= n; i += WEFT_N_LANES) {
    memcpy (&v[0], s->dy + i, sizeof *v);
    memcpy (&v[1], s->x + i, sizeof *v);
    memcpy (&v[2], s->weight + i, sizeof *v);
    pull_back (&g, &gx, v, &s->moments);
  }
  weft_lanes_tail (&v[0], s->dy + i, n - i);
  weft_lanes_tail (&v[1], s->x + i, n - i);
  weft_lanes_tail (&v[2], s->weight + i, n - i);
  pull_back (&g, &gx, v, &s->moments);
  to[0] = g;
  to[1] = gx;
}

/* Input gradient of a norm: from dy * weight, subtracts of_g (the mean of dy * weight; 0 for
 * rmsnorm) and the component along the normalised row (of_gx), because the output does not depend
 * on the scale of the row and, for layernorm, on its mean. */
WEFT_WIDE static void
project (float *dx, const struct stretch *s, float of_g, float of_gx, uint64_t n)
{
  const float *dy = s->dy, *x = s->x, *weight = s->weight;
  float mean = s->moments.mean, scale = s->moments.scale;

  WEFT_NO_OVERLAP
  for (uint64_t i = 0; i < n; i++)
    dx[i] = (dy[i] * weight[i] - of_g - (x[i] - mean) * scale * of_gx) * scale;
}

struct rooms {
  float dy[WEFT_STRETCH], x[WEFT_STRETCH], weight[WEFT_STRETCH];
};

static struct stretch
stretch (const struct weft_row_gradient *g, uint64_t c, uint64_t n, struct rooms *rooms)
{
  return (struct stretch){ floats (g->dy, c, n, rooms->dy), floats (g->x, c, n, rooms->x),
                           floats (from_start (g->weight), c, n, rooms->weight), g->moments };
}

void
weft_row_backward (const struct weft_row_norm *norm, const struct weft_row_gradient *g)
{
  struct rooms rooms;
  float out[WEFT_STRETCH], residual[WEFT_STRETCH];
  weft_lanes sums[2] = { { 0 } };

  for (uint64_t c = 0; c < norm->n; c += WEFT_STRETCH) {
    uint64_t n = weft_least (norm->n - c, WEFT_STRETCH);
    struct stretch s = stretch (g, c, n, &rooms);
    sum_gradients (sums, &s, n);
  }
  float of_g = norm->centred ? weft_lanes_sum (&sums[0]) / (float) norm->n : 0;
  float of_gx = weft_lanes_sum (&sums[1]) / (float) norm->n;
  for (uint64_t c = 0; c < norm->n; c += WEFT_STRETCH) {
    uint64_t n = weft_least (norm->n - c, WEFT_STRETCH);
    struct stretch s = stretch (g, c, n, &rooms);
    project (out, &s, of_g, of_gx, n);
    if (g->dresidual.operand)
      weft_sums_add (out, floats (g->dresidual, c, n, residual), n);
    weft_store (g->dx.operand->data, g->dx.operand->dtype, g->dx.first + c, n, out);
  }
}

WEFT_WIDE static void
add_weights (float *dweight, const struct stretch *s, uint64_t n)
{
  const float *dy = s->dy, *x = s->x;
  float mean = s->moments.mean, scale = s->moments.scale;

  for (uint64_t i = 0; i < n; i++)
    dweight[i] += dy[i] * ((x[i] - mean) * scale);
}

void
weft_row_weights (const struct weft_row_gradient *g, struct weft_range columns, float *dweight,
                  float *dbias)
{
  struct rooms rooms;

  for (uint64_t c = columns.begin; c < columns.end; c += WEFT_STRETCH) {
    uint64_t n = weft_least (columns.end - c, WEFT_STRETCH), at = c - columns.begin;
    struct stretch s = { .dy = floats (g->dy, c, n, rooms.dy),
                         .x = floats (g->x, c, n, rooms.x),
                         .moments = g->moments };
    add_weights (dweight + at, &s, n);
    if (dbias)
      weft_sums_add (dbias + at, s.dy, n);
  }
}
