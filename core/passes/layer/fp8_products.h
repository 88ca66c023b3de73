/* fp8_products.h - private to layer/: factors of products in fp8 (precision = fp8). */
#pragma once
#include "core/passes/layer/block.h"

/* A tensor in fp8: codes, and the buffer with its scale or scales. */
struct weft_fp8 {
  uint32_t codes, scale;
};
enum weft_fp8_role { WEFT_FP8_INPUT, WEFT_FP8_WEIGHT, WEFT_FP8_GRADIENT, WEFT_N_FP8_ROLE };

/* Rows of experts. Each expert has scales of its own, in canonical order one for each replica
 * whose tokens come. `rows` as costs count them; counts and stride as in kernels/moe.h. */
struct weft_fp8_groups {
  uint64_t experts, each, rows, stride;
  uint32_t counts;
};

/* A factor of a product: rows of `columns`, or codes that were made of them before. */
struct weft_fp8_source {
  uint32_t buf, param; /* param: the weight of the map */
  enum weft_fp8_role role;
  uint64_t columns;
  const char *name;
  struct weft_fp8_groups groups; /* all 0 for maps without experts */
};

void weft_fp8_start (struct weft_step *s);
void weft_fp8_free (struct weft_fp8_products *fp8);

/* Whether products read a parameter in fp8; elements that share a scale, or 0: a whole tensor
 * does. */
gboolean weft_fp8_takes (const struct weft_step *s, uint32_t param);
uint64_t weft_fp8_block (const struct weft_step *s);

/* A factor in fp8, with the terms of the sum along its rows; transposed, along its columns. An
 * input is rounded once for forward and backward. */
struct weft_fp8 weft_fp8_rows (struct weft_step *s, const struct weft_fp8_source *x);
struct weft_fp8 weft_fp8_columns (struct weft_step *s, const struct weft_fp8_source *x);
struct weft_fp8 weft_fp8_weight (struct weft_step *s, uint32_t param);
struct weft_fp8 weft_fp8_weight_transposed (struct weft_step *s, uint32_t param);

/* `all` was all-gathered from the codes `part` of every rank: it has the same scale. */
uint32_t weft_fp8_gathered (struct weft_step *s, uint32_t part, uint32_t all);
