/* arithmetic.h - the values of expressions with numbers and names, such as
 * "(layers + 2) % (pp * vpp)" or "ceil (layers / pp)". */
#pragma once
#include <glib.h>

/* A function that finds the value of a name. A blank cell has the value NaN. Returns FALSE if the
 * name is unknown. */
typedef gboolean weft_arithmetic_names (const char *name, double *value, const void *user);

/* Calculates an expression of numbers, names, + - * / % ( ), ceil() and sqrt(), with the usual
 * precedence. Names consist of letters, digits, underscores and dots.
 * `names` NULL: the expression may not contain names. Returns FALSE if the text is not an
 * expression. */
gboolean weft_arithmetic (const char *text, weft_arithmetic_names *names, const void *user,
                          double *value);
