/* moe.h - rows of tokens on their way through experts.
 *
 * A row is a token for one of its experts.  Rows of an expert lie together, experts in order of their
 * number, and within an expert by source (a rank they came from), then by token.  `counts` is the
 * table [experts][sources][leaves] of how many there are, leaves being the chunks of sequences that
 * canonical sums are taken over (sums.h), here in the order of their tokens.  Blocks of (expert, source) follow each other, or begin `stride` rows apart where every
 * expert was padded to its capacity. */
#pragma once
#include "kernels/kernel.h"

/* Sum of counts [first, first + n). */
static inline uint64_t
weft_moe_count (const int64_t *counts, uint64_t first, uint64_t n)
{
  uint64_t sum = 0;

  for (uint64_t i = first; i < first + n; i++)
    sum += (uint64_t) counts[i];
  return sum;
}

/* The rows of one expert that a product runs over. */
struct weft_moe_rows {
  uint64_t first, n;
};

/* Of expert e; m is the number of all rows where there is a stride or nobody counts, else not looked at.
 * The same of one of several groups of every expert, of sources that follow each other. */
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

/* Scales of rows of codes that experts multiply, or of their weights, whose rows are a group each.  Of one
 * for a group there is a largest magnitude.  Of others
 *
 *   along     blocks of a row follow each other, row by row
 *   squares   likewise, by lines of squares
 *   down      blocks go down the columns, one of each column side by side
 *
 * Lines of squares and blocks that go down begin anew with every group: those of one begin where they do
 * if the rows of all before had each a block more than they fill, which leaves gaps but needs no table. */
enum weft_moe_scales { WEFT_MOE_ALONG, WEFT_MOE_SQUARES, WEFT_MOE_DOWN };

/* The line of the first block of group g, whose rows begin at `first`. */
static inline uint64_t
weft_moe_line (uint64_t first, uint64_t g, uint64_t block)
{
  return first / block + g;
}

/* Lines of all blocks of n groups. */
static inline uint64_t
weft_moe_lines (uint64_t rows, uint64_t n, uint64_t block)
{
  return rows / block + n;
}

/* Groups that go down rows of so many columns, as the number of their scales says. */
static inline uint64_t
weft_moe_groups_of (uint64_t scales, uint64_t rows, uint64_t columns, uint64_t block)
{
  return scales / columns - rows / block;
}
