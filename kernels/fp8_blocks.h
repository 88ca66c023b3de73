/* fp8_blocks.h - a matrix becomes codes with a scale for each block of a line, which is a row or a column of
 * it, or for each square (fp8.h).  Operands begin with the matrix' own first element, code and scale. */
#pragma once
#include "kernels/fp8.h"
#include "kernels/kernel.h"

struct weft_blocks {
  uint64_t size[2];     /* lines, and elements of each, among which blocks lie */
  uint64_t stride[2];   /* elements from one line to the next, and from one to the next of a line */
  uint64_t to[2];       /* the same of codes */
  uint64_t scale[2];    /* of scales, from line to line or square to square, and from block to block */
  uint64_t block, high; /* elements of a line with one scale; lines, more than one of squares */
};

void weft_blocks_round (const struct weft_blocks *b, const struct weft_operand *x,
                        const struct weft_operand *y, const struct weft_operand *scale);

/* Of doubles; only the type of `codes` says what they are rounded to. */
void weft_blocks_reference (const struct weft_blocks *b, const double *x,
                            const struct weft_operand *codes, double *scales);
