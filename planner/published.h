/* published.h - reads a table of published measurements of training steps. Rows stay text; the
 * table is checked against the columns of published.def. */
#pragma once
#include "core/base/csv.h"

enum weft_published_column {
#define COLUMN(name, ...) WEFT_COLUMN_##name,
#include "planner/published.def"
  WEFT_N_COLUMN
};

typedef struct weft_published {
  weft_csv *csv;
  int at[WEFT_N_COLUMN]; /* index of each column in the file */
} weft_published;

/* Loads and checks a table. A missing column, a table without rows, a repeated id and malformed
 * numbers are errors. Columns that are not in published.def are ignored. The caller frees the
 * table. */
weft_published *weft_published_load (const char *path, GError **error);

/* Like weft_published_load(), for a text of `length` bytes (-1: the text ends with NUL). Error
 * messages begin with `name`. */
weft_published *weft_published_parse (const char *text, gssize length, const char *name,
                                      GError **error);
void weft_published_free (weft_published *table);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_published, weft_published_free)

const char *weft_published_name (enum weft_published_column column);

/* The column with this name; -1 if there is no such column. */
int weft_published_find (const char *name);

/* The text of a cell; "" if it is blank. */
const char *weft_published_cell (const weft_published *table, unsigned row,
                                 enum weft_published_column column);

/* The number in a cell; NaN if the cell is blank. */
double weft_published_number (const char *cell);
