/* csv.h - a table as comma-separated values (RFC 4180).
 *
 * The first row holds the column names; every other row has the same number of cells.  A quoted
 * cell may contain commas, line ends and doubled quotes.  Lines end with LF or CR LF; the end of
 * the last line is optional.  The text is UTF-8; errors name file, line and column. */
#pragma once
#include <glib.h>

typedef struct weft_csv {
  char *name;                 /* name of the file in messages */
  unsigned n_column, n_row;   /* numbers of columns and of rows; the header row is not counted */
  const char **column;        /* names */
  const char **cell;          /* cell of a row and a column: cell[row * n_column + column] */
  unsigned *line;             /* first line of each row, 1-based */
  GStringChunk *strings;
} weft_csv;

/* Reads a file, or parses a text of `length` bytes (-1: up to its NUL) that messages call `name`.
 * NULL and an error if the input is bad. */
weft_csv *weft_csv_load (const char *path, GError **error);
weft_csv *weft_csv_parse (const char *text, gssize length, const char *name, GError **error);
void weft_csv_free (weft_csv *csv);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_csv, weft_csv_free)

static inline const char *
weft_csv_cell (const weft_csv *csv, unsigned row, unsigned column)
{
  return csv->cell[(gsize) row * csv->n_column + column];
}

/* Index of the column with exactly this name; -1 if there is none. */
int weft_csv_find (const weft_csv *csv, const char *column);

/* Prefixes an input error with "file:line: ".  Always returns FALSE. */
gboolean weft_csv_blame (const weft_csv *csv, unsigned row, GError **error);

/* Appends one cell to a text, quoted if necessary. */
void weft_csv_append (GString *text, const char *cell);
