#include "kernels/bend.h"
#include "kernels/float.h"
#include "kernels/math.h"

WEFT_WIDE static void
scale_row (float *score, float by, uint64_t n)
{
  for (uint64_t c = 0; c < n; c++)
    score[c] *= by;
}

WEFT_WIDE static void
cap_row (float *score, float cap, uint64_t n)
{
  float less = 1 / cap;

  for (uint64_t c = 0; c < n; c++)
    score[c] = cap * weft_tanhf (score[c] * less);
}

/* Subtracts the ALiBi penalty from a row of scores: slope times the distance between query and key,
 * which is `first` + `sign` c tokens in column c. */
WEFT_WIDE static void
slope_row (float *score, float slope, float first, float sign, uint64_t n)
{
  for (uint64_t c = 0; c < n; c++)
    score[c] -= slope * (first + sign * (float) c);
}

gboolean
weft_bend_scores (const struct weft_bend *bend, const struct weft_bend_tile *tile)
{
  uint64_t n = tile->high - tile->low;
  float sign = tile->rows_are_keys ? 1 : -1;

  if (bend->cap == 0 && bend->slope == 0)
    return FALSE;
  for (uint64_t r = 0; r < tile->rows; r++) {
    float *score = tile->score + r * tile->row + tile->low;
    float first = (float) ((int64_t) tile->low - tile->itself - (int64_t) r);
    scale_row (score, bend->scale, n);
    if (bend->cap != 0)
      cap_row (score, bend->cap, n);
    if (bend->slope != 0)
      slope_row (score, bend->slope, sign * first, sign, n);
  }
  return TRUE;
}

WEFT_WIDE static void
plain_gradients (float scale, const struct weft_bend_gradients *g)
{
  for (uint64_t r = 0; r < g->rows; r++) {
    float *score = g->score + r * g->row, *gradient = g->gradient + r * g->row;
    float lse = g->row_lse[r], delta = g->row_delta[r];
    for (uint64_t c = g->low; c < g->high; c++) {
      score[c] = weft_expf (score[c] * scale - lse - g->column_lse[c]);
      gradient[c] = score[c] * (gradient[c] - delta - g->column_delta[c]);
    }
  }
}

/* Computes gradients of scores with soft-capping. The scores were scaled before they were
 * capped. */
WEFT_WIDE static void
capped_gradients (float cap, const struct weft_bend_gradients *g)
{
  float less = 1 / cap;

  for (uint64_t r = 0; r < g->rows; r++) {
    float *score = g->score + r * g->row, *gradient = g->gradient + r * g->row;
    float lse = g->row_lse[r], delta = g->row_delta[r];
    for (uint64_t c = g->low; c < g->high; c++) {
      float at = score[c] < -cap ? -1 : score[c] * less;
      score[c] = weft_expf (score[c] - lse - g->column_lse[c]);
      gradient[c] = score[c] * (gradient[c] - delta - g->column_delta[c]) * (1 - at * at);
    }
  }
}

void
weft_bend_gradients (float scale, float cap, const struct weft_bend_gradients *g)
{
  if (cap == 0)
    plain_gradients (scale, g);
  else
    capped_gradients (cap, g);
}
