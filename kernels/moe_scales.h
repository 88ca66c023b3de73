/* moe_scales.h - fp8 scales of expert rows and expert weights; the rows of each expert are a group.
 * With one scale per group, the scale is stored as a largest magnitude. With blocks:
 *
 *   along     blocks lie along rows: scales row by row
 *   squares   blocks are squares: one line of scales per line of squares
 *   down      blocks lie down the columns: one line of scales, one per column, per line of blocks
 *
 * With `squares` and `down`, every group starts a new line of blocks: group g, whose first row is
 * `first`, starts line first / block + g. This leaves gaps between groups but needs no table of
 * offsets. */
#pragma once
#include "kernels/fp8.h"

enum weft_moe_scales { WEFT_MOE_ALONG, WEFT_MOE_SQUARES, WEFT_MOE_DOWN };

/* The number of the scale line that belongs to the first block of group g, whose rows begin at
 * `first`. */
WEFT_INLINE uint64_t
weft_moe_line (uint64_t first, uint64_t g, uint64_t block)
{
  return first / block + g;
}

/* Upper bound of the number of scale lines of n groups. */
WEFT_INLINE uint64_t
weft_moe_lines (uint64_t rows, uint64_t n, uint64_t block)
{
  return rows / block + n;
}

/* Number of groups, computed from the number of scales of blocks that lie down the columns. */
WEFT_INLINE uint64_t
weft_moe_groups_of (uint64_t scales, uint64_t rows, uint64_t columns, uint64_t block)
{
  return scales / columns - rows / block;
}
