/* fp8_blocks.h - quantises a matrix with one scale per block of a line (a row or a column of the
 * matrix) or per square (fp8.h). Operands point to the first element, the first code and the first
 * scale of the matrix. */
#pragma once
#include "kernels/fp8.h"
#include "kernels/kernel.h"

struct weft_blocks {
  /* number of lines (rows or columns of the matrix); number of elements per line */
  uint64_t size[2];
  /* strides of the input: from one line (row or column) to the next, and between elements of a
   * line */
  uint64_t stride[2];
  /* strides of the codes: from one line (row or column) to the next, and between elements of a
   * line */
  uint64_t to[2];
  /* strides of the scales: from one line (or, with squares, one line of squares) to the next, and
   * from one block of a line to the next */
  uint64_t scale[2];
  /* block: number of elements of a line that share a scale; high: number of lines that share a
   * scale, more than 1 for squares */
  uint64_t block, high;
};

void weft_blocks_round (const struct weft_blocks *b, const struct weft_operand *x,
                        const struct weft_operand *y, const struct weft_operand *scale);

/* Like weft_blocks_round(), but in double, for tests: only the conversion to the type of `codes`
 * rounds. */
void weft_blocks_reference (const struct weft_blocks *b, const double *x,
                            const struct weft_operand *codes, double *scales);
