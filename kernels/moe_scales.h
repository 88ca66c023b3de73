/* moe_scales.h - scales of rows of codes that experts multiply, or of their weights, of which every expert's
 * rows are a group.  Of one for a group there is a largest magnitude.  Of others
 *
 *   along     blocks of a row follow each other, row by row
 *   squares   likewise, by lines of squares
 *   down      blocks go down the columns, one of each column side by side
 *
 * Lines of squares and blocks that go down begin anew with every group: those of one begin where they do
 * if the rows of all before had each a block more than they fill, which leaves gaps but needs no table. */
#pragma once
#include "kernels/fp8.h"

enum weft_moe_scales { WEFT_MOE_ALONG, WEFT_MOE_SQUARES, WEFT_MOE_DOWN };

/* The line of the first block of group g, whose rows begin at `first`. */
WEFT_INLINE uint64_t
weft_moe_line (uint64_t first, uint64_t g, uint64_t block)
{
  return first / block + g;
}

/* Lines of all blocks of n groups. */
WEFT_INLINE uint64_t
weft_moe_lines (uint64_t rows, uint64_t n, uint64_t block)
{
  return rows / block + n;
}

/* Groups that go down rows of so many columns, as the number of their scales says. */
WEFT_INLINE uint64_t
weft_moe_groups_of (uint64_t scales, uint64_t rows, uint64_t columns, uint64_t block)
{
  return scales / columns - rows / block;
}
