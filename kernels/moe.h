/* moe.h - rows of tokens on their way through experts.
 *
 * A row is a token for one of its experts.  Rows of an expert lie together, experts in order of their
 * number, and within an expert by source (a rank they came from), then by token.  `counts` is the
 * table [experts][sources][leaves] of how many there are, leaves being the chunks of sequences that
 * canonical sums are taken over (sums.h), here in the order of their tokens.  Blocks of (expert, source) follow each other, or begin `stride` rows apart where every
 * expert was padded to its capacity. */
#pragma once
#include "kernels/kernel.h"
#include "kernels/moe_scales.h"

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
