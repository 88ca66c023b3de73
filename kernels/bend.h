/* bend.h - changes that some architectures make to attention scores: soft-capping (x becomes cap
 * tanh (x / cap)) and ALiBi (a slope times the distance in tokens is subtracted from a score). */
#pragma once
#include <glib.h>
#include <stdint.h>

struct weft_bend {
  float scale; /* factor of the products of queries and keys */
  float cap;   /* scores x become cap tanh (x / cap); 0: no soft-capping */
  float slope; /* ALiBi slope of the head; 0: no ALiBi */
};

/* Rows [0, rows) and columns [low, high) of a tile; `row` is the stride between rows, in floats.
 * rows_are_keys TRUE: rows are keys and columns are queries; FALSE: rows are queries and columns
 * are keys. Row r and column `itself` + r belong to the same token. */
struct weft_bend_tile {
  float *score;
  uint64_t row, rows, low, high;
  int64_t itself;
  gboolean rows_are_keys;
};

/* Turns products of queries and keys into scores: scales them and applies soft-capping and ALiBi.
 * FALSE: the model uses neither; the tile is unchanged, so the caller must scale it. */
gboolean weft_bend_scores (const struct weft_bend *bend, const struct weft_bend_tile *tile);

/* Turns scores into probabilities p, and gradients g of probabilities into gradients of scores, p
 * (g - delta). With soft-capping (cap > 0) the scores are already scaled, and their gradients are
 * multiplied by the derivative of soft-capping, 1 - (score / cap)^2; otherwise scores are first
 * multiplied by `scale`. lse of a pair is row_lse + column_lse, delta is row_delta + column_delta.
 * Scores of hidden pairs are minus infinity. */
struct weft_bend_gradients {
  float *score, *gradient;
  uint64_t row, rows, low, high;
  const float *row_lse, *row_delta, *column_lse, *column_delta;
};
void weft_bend_gradients (float scale, float cap, const struct weft_bend_gradients *g);
