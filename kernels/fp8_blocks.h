/* fp8_blocks.h - quantises a matrix with one scale per block of a line (a row or a column of the
 * matrix) or per square (fp8.h). Operands point to the first element, the first code and the first
 * scale of the matrix. */
#pragma once
#include "kernels/fp8.h"
#include "kernels/kernel.h"

struct weft_blocks {
  uint64_t size[2];     /* number of lines, and elements per line */
  uint64_t stride[2];   /* strides of the input: from line to line, and inside a line */
  uint64_t to[2];       /* strides of the codes: from line to line, and inside a line */
  uint64_t scale[2];    /* strides of the scales: from line (or line of squares) to line, and from
                         * block to block */
  uint64_t block, high; /* elements of a line per scale; number of lines per scale: more than 1 for
                         * squares */
};

void weft_blocks_round (const struct weft_blocks *b, const struct weft_operand *x,
                        const struct weft_operand *y, const struct weft_operand *scale);

/* weft_blocks_round() in double, for tests: nothing is rounded except to the type of `codes`. */
void weft_blocks_reference (const struct weft_blocks *b, const double *x,
                            const struct weft_operand *codes, double *scales);
