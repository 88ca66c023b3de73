/* csv.h - a table as comma-separated values (RFC 4180).
 *
 * The first row holds the names of the columns, every other one as many cells.  A cell in quotes
 * may hold commas, ends of lines and, doubled, quotes.  Lines end with LF or CR LF; the last may
 * end without.  The text is UTF-8; errors name file, line and column. */
#pragma once
#include <glib.h>

typedef struct weft_csv {
  char *name;                 /* file name for messages */
  unsigned n_column, n_row;   /* rows without that of the names */
  const char **column;        /* names */
  const char **cell;          /* [row * n_column + column] */
  unsigned *line;             /* on which a row begins, 1-based */
  GStringChunk *strings;
} weft_csv;

weft_csv *weft_csv_load (const char *path, GError **error);
weft_csv *weft_csv_parse (const char *text, gssize length, const char *name, GError **error);
void weft_csv_free (weft_csv *csv);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_csv, weft_csv_free)

static inline const char *
weft_csv_cell (const weft_csv *csv, unsigned row, unsigned column)
{
  return csv->cell[(gsize) row * csv->n_column + column];
}

/* Column of that very name, -1 when there is none. */
int weft_csv_find (const weft_csv *csv, const char *column);

/* Prefixes an input error with "file:line: ".  Always returns FALSE. */
gboolean weft_csv_blame (const weft_csv *csv, unsigned row, GError **error);

/* Adds one cell to a text, in quotes where it needs them. */
void weft_csv_append (GString *text, const char *cell);
