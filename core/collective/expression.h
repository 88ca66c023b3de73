/* expression.h - whole numbers in the text of a collective algorithm: variables, + - * / %, ^
 * (exclusive or), comparisons, && and ||, parentheses. Division rounds down, and the remainder is
 * never negative. */
#pragma once
#include <glib.h>
#include <stdint.h>

enum { WEFT_MOST_VARIABLES = 16 };

struct weft_variables {
  uint32_t n;
  const char *name[WEFT_MOST_VARIABLES]; /* interned */
  int64_t value[WEFT_MOST_VARIABLES];
};

/* Index of a variable with this name of `length` bytes; -1: there is none. */
int weft_variables_find (const struct weft_variables *v, const char *name, gsize length);

/* The value of the expression at the start of *at; moves *at behind it. The text ends where no
 * operator follows. FALSE with an error that says what was found and wanted. With `check`, only
 * notation and names are checked, and every value is 1. */
gboolean weft_expression_read (const char **at, const struct weft_variables *v, gboolean check,
                               int64_t *value, GError **error);
