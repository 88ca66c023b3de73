/* row.h - layernorm and rmsnorm of one row, also used for norms of heads.
 *
 *   y = xhat weight + bias
 *   xhat = (x - mean) scale
 *   scale = 1 / sqrt (mean of (x - mean)^2 + epsilon)
 *
 * An rmsnorm uses a mean of 0 and has no bias. */
#pragma once
#include "kernels/kernel.h"
#include "kernels/part.h"

struct weft_row_norm {
  uint64_t n; /* number of elements in a row */
  float epsilon;
  gboolean centred; /* TRUE: layernorm; FALSE: rmsnorm */
};

/* A row: the elements of an operand from `first` on. */
struct weft_row {
  const struct weft_operand *operand;
  uint64_t first;
};

struct weft_moments {
  float mean, scale;
};
struct weft_moments weft_row_moments (const struct weft_row_norm *norm, struct weft_row x);

/* Normalises the row x and stores it in y. y and x may be one row; bias may be NULL. */
void weft_row_forward (const struct weft_row_norm *norm, struct weft_row x,
                       const struct weft_operand *weight, const struct weft_operand *bias,
                       struct weft_row y);

/* dx = dresidual + input gradient of the norm. dresidual may be absent: then dx is the input
 * gradient alone. dx may be the array of dy or of dresidual. */
struct weft_row_gradient {
  struct weft_row dy, x, dresidual, dx;
  const struct weft_operand *weight;
  struct weft_moments moments;
};
void weft_row_backward (const struct weft_row_norm *norm, const struct weft_row_gradient *g);

/* dweight += dy xhat and, unless dbias is NULL, dbias += dy, for a range of columns; dweight[0] and
 * dbias[0] belong to the first column of the range. */
void weft_row_weights (const struct weft_row_gradient *g, struct weft_range columns, float *dweight,
                       float *dbias);
