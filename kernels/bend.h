/* bend.h - attention scores of architectures that bend them: soft-capping (x becomes cap
 * tanh (x / cap)) and ALiBi (a score falls by a slope with each token of distance). */
#pragma once
#include <glib.h>
#include <stdint.h>

struct weft_bend {
  float scale; /* of products of queries and keys */
  float cap;   /* 0: no soft-capping */
  float slope; /* of the head; 0: no ALiBi */
};

/* Rows [0, rows) and columns [low, high) of a tile whose rows are `row` floats long. Rows are keys
 * and columns queries, or the other way round. Column `itself` + r is the token of row r. */
struct weft_bend_tile {
  float *score;
  uint64_t row, rows, low, high;
  int64_t itself;
  gboolean rows_are_keys;
};

/* Products become scores, scaled. FALSE: nothing is bent, and the tile is as it was. */
gboolean weft_bend_scores (const struct weft_bend *bend, const struct weft_bend_tile *tile);

/* Scores, times `scale`, become probabilities p, and gradients g of probabilities become gradients
 * of scores: p (g - delta), of soft-capped scores times their slope, 1 - (score / cap)^2. lse and
 * delta of a pair are the sums of those of its row and its column; scores of hidden pairs are minus
 * infinity. */
struct weft_bend_gradients {
  float *score, *gradient;
  uint64_t row, rows, low, high;
  const float *row_lse, *row_delta, *column_lse, *column_delta;
};
void weft_bend_gradients (float scale, float cap, const struct weft_bend_gradients *g);
