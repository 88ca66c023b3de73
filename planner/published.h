/* published.h - reads a table of published measurements of training steps. Cells stay text; the
 * table is checked against the columns in published.def. */
#pragma once
#include "core/base/csv.h"

enum weft_published_column {
#define COLUMN(name, ...) WEFT_COLUMN_##name,
#include "planner/published.def"
  WEFT_N_COLUMN
};

typedef struct weft_published {
  weft_csv *csv;
  int at[WEFT_N_COLUMN]; /* index in the file of each column */
} weft_published;

/* Loads a table of published measurements and checks it. A missing column, a table without rows, a
 * repeated id and malformed numbers are errors. Columns that are not in published.def are ignored.
 * The caller frees the table. */
weft_published *weft_published_load (const char *path, GError **error);

/* Like weft_published_load(), for a text of `length` bytes (-1: the text ends with NUL). Error
 * messages begin with `name`. */
weft_published *weft_published_parse (const char *text, gssize length, const char *name,
                                      GError **error);
void weft_published_free (weft_published *table);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_published, weft_published_free)

const char *weft_published_name (enum weft_published_column column);

/* The index of the column with this name; -1 if there is no such column. */
int weft_published_find (const char *name);

/* The text of a cell; "" if the cell is blank. */
const char *weft_published_cell (const weft_published *table, unsigned row,
                                 enum weft_published_column column);

/* The number in a cell; NaN if the cell is blank. */
double weft_published_number (const char *cell);
