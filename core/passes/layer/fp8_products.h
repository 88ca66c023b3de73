/* fp8_products.h - private to layer/: operands of matrix products in fp8 (precision = fp8). */
#pragma once
#include "core/passes/layer/block.h"

/* A tensor in fp8: the buffer of fp8 values (codes), and the buffer of its scale or scales. */
struct weft_fp8 {
  uint32_t codes, scale;
};
enum weft_fp8_role { WEFT_FP8_INPUT, WEFT_FP8_WEIGHT, WEFT_FP8_GRADIENT, WEFT_N_FP8_ROLE };

/* Rows of experts. each: number of scales of one expert, which is 1, or in canonical order the
 * number of replicas that send tokens. rows: total number of rows with which costs are computed.
 * kernels/moe.h describes counts and stride. */
struct weft_fp8_groups {
  uint64_t experts, each, rows, stride;
  uint32_t counts;
};

/* An operand of a matrix product: rows of `columns` elements, either 16-bit or already quantised to
 * fp8. */
struct weft_fp8_source {
  uint32_t buf, param; /* param: the weight of the linear layer */
  enum weft_fp8_role role;
  uint64_t columns;
  const char *name;
  struct weft_fp8_groups groups; /* all fields are 0 for linear layers outside experts */
};

/* Creates s->layer->fp8 if precision = fp8. weft_fp8_free() accepts NULL. */
void weft_fp8_start (struct weft_step *s);
void weft_fp8_free (struct weft_fp8_products *fp8);

/* Whether matrix products read a parameter in fp8. */
gboolean weft_fp8_takes (const struct weft_step *s, uint32_t param);

/* Returns the number of elements that share a scale. 0: a whole tensor shares one scale. */
uint64_t weft_fp8_block (const struct weft_step *s);

/* Quantise an operand to fp8, unless the operand is already quantised. weft_fp8_rows() returns the
 * operand for a matrix product that sums along rows. weft_fp8_columns() returns the operand for a
 * matrix product that sums along columns: a transposed copy, or for experts with one scale the
 * untransposed values. An input is quantised once for forward and backward. */
struct weft_fp8 weft_fp8_rows (struct weft_step *s, const struct weft_fp8_source *x);
struct weft_fp8 weft_fp8_columns (struct weft_step *s, const struct weft_fp8_source *x);

/* Return a weight in fp8, or its transposed copy in fp8. The first call of each function appends
 * the conversion. */
struct weft_fp8 weft_fp8_weight (struct weft_step *s, uint32_t param);
struct weft_fp8 weft_fp8_weight_transposed (struct weft_step *s, uint32_t param);

/* Registers `all`, the all-gathered fp8 values of every rank's buffer `part`. All ranks have the
 * scale of `part`. Returns `all`. */
uint32_t weft_fp8_gathered (struct weft_step *s, uint32_t part, uint32_t all);
