/* moe.h - layout of token rows in expert-parallel MoE layers.
 *
 * A row is a token routed to one of its experts. Rows are sorted by expert, then by source (the
 * rank they came from), then by token. `counts` is a table [experts][sources][leaves] of the number
 * of rows; leaves are the sequence chunks of canonical sums (sums.h), in the order of their tokens.
 * Blocks of (expert, source) follow each other directly, or begin `stride` rows apart if every
 * expert is padded to its capacity. */
#pragma once
#include "kernels/kernel.h"
#include "kernels/moe_scales.h"

/* Number of token rows: the sum of row counts [first, first + n). */
static inline uint64_t
weft_moe_count (const int64_t *counts, uint64_t first, uint64_t n)
{
  uint64_t sum = 0;

  for (uint64_t i = first; i < first + n; i++)
    sum += (uint64_t) counts[i];
  return sum;
}

/* The token rows of one expert that a product multiplies: index of the first row, number of
 * rows. */
struct weft_moe_rows {
  uint64_t first, n;
};

/* Rows of expert e. They follow from `counts`; with a fixed capacity (stride not 0) or without
 * counts, every expert has m / experts rows, where `m` is the number of all rows.
 *
 * The function also finds the rows of a group of consecutive sources of one expert: if every expert
 * has the same number of groups, pass the index of the group among all groups as `e`, and the
 * number of all groups as `experts`. */
static inline struct weft_moe_rows
weft_moe_rows_of (const struct weft_operand *counts, uint64_t e, uint64_t experts, uint64_t stride,
                  uint64_t m)
{
  uint64_t per = counts->n / experts;

  if (stride || !counts->data)
    return (struct weft_moe_rows){ m / experts * e, m / experts };
  return (struct weft_moe_rows){ weft_moe_count (counts->data, 0, e * per),
                                 weft_moe_count (counts->data, e * per, per) };
}
