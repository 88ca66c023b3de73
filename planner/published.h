/* published.h - a table of published measurements of training steps: rows of text that was held
 * against the columns of published.def. */
#pragma once
#include "core/base/csv.h"

enum weft_published_column {
#define COLUMN(name, ...) WEFT_COLUMN_##name,
#include "planner/published.def"
  WEFT_N_COLUMN
};

typedef struct weft_published {
  weft_csv *csv;
  int at[WEFT_N_COLUMN]; /* where the file has each column */
} weft_published;

/* Refuses a table without one of the columns, without a row, with an id twice, and numbers that are
 * none.  Columns that are not in published.def are left alone. */
weft_published *weft_published_load (const char *path, GError **error);
weft_published *weft_published_parse (const char *text, gssize length, const char *name,
                                      GError **error);
void weft_published_free (weft_published *table);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_published, weft_published_free)

const char *weft_published_name (enum weft_published_column column);

/* Column of a name, -1 when there is none. */
int weft_published_find (const char *name);

/* A cell as text; "" where it is blank. */
const char *weft_published_cell (const weft_published *table, unsigned row,
                                 enum weft_published_column column);

/* A cell of a column of numbers; not a number where it is blank. */
double weft_published_number (const char *cell);
