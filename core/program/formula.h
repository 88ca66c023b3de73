/* formula.h - the FLOPs and bytes of an op as a person writes them: the expression of
 * core/costs.def, and the same with the dimensions of a shape in place of their names. */
#pragma once
#include "core/program/op.h"

/* "2 x m x n x k = 2 x 8192 x 6144 x 4096"; a number alone is "0". The caller frees the text. */
char *weft_op_formula_flops (enum weft_op_kind kind, const struct weft_shape *shape);
char *weft_op_formula_bytes (enum weft_op_kind kind, const struct weft_shape *shape);
