/* conditions.h - conditions on the cells of a table's row: the section names of rule files.
 *
 *   [id = zb-* and recompute = blank]
 *
 * Conditions are joined with "and". A condition is a column, an operator (= != >) and a value. The
 * value of = and != is a pattern with * and ?, or several patterns separated by bars. The value
 * `blank` matches an empty cell. The value of > is a number. The left side may also be an
 * expression of columns, "(layers + 2) % (pp * vpp) = 0" (arithmetic.h): the value is then one
 * number, and a blank cell meets no such condition. */
#pragma once
#include <glib.h>

/* Conditions that a row must meet together. */
typedef struct weft_conditions weft_conditions;

/* Parses the name of a section into conditions. `columns`: names of the table's columns,
 * NULL-terminated, which must outlive the conditions. The caller frees the conditions. */
weft_conditions *weft_conditions_parse (const char *section, const char *const *columns,
                                        GError **error);
void weft_conditions_free (weft_conditions *conditions);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_conditions, weft_conditions_free)

/* Whether a row meets all conditions. `cells`: the row's cells, in the order of the columns. */
gboolean weft_conditions_hold (const weft_conditions *conditions, char *const *cells);

/* Finds the index of a column by its name and stores it in *column. An unknown name is an error
 * that suggests the nearest name. */
gboolean weft_conditions_column (const char *const *columns, const char *name, int *column,
                                 GError **error);
