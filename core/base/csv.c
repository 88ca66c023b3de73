#include "core/base/csv.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include <string.h>

#define MOST_BYTES (64 << 20)
#define MOST_COLUMNS 1024
#define MARK "\xef\xbb\xbf"

/* State of the CSV reader: its position in the text, and the cells and rows that it has read. */
struct reader {
  weft_csv *csv;
  const char *at, *end;
  unsigned line; /* line number of position `at` */
  GPtrArray *cell;
  GArray *line_of_row;
  GString *text; /* text of the cell that is read */
};

static gboolean
blame_line (const struct reader *r, unsigned line, GError **error)
{
  g_prefix_error (error, "%s:%u: ", r->csv->name, line);
  return FALSE;
}

/* Bytes of the line end at `at`: 1 for LF, 2 for CR LF, 0 if the line does not end here. */
static unsigned
line_end (const struct reader *r)
{
  if (r->at < r->end && *r->at == '\n')
    return 1;
  return r->at + 1 < r->end && r->at[0] == '\r' && r->at[1] == '\n' ? 2 : 0;
}

/* Reads a quoted cell after its opening quote, up to its closing quote. */
static gboolean
read_quoted (struct reader *r, GError **error)
{
  unsigned first = r->line;

  for (r->at++; r->at < r->end; r->at++) {
    if (*r->at == '"' && (r->at + 1 == r->end || r->at[1] != '"')) {
      r->at++;
      return TRUE;
    }
    r->at += *r->at == '"';
    r->line += *r->at == '\n';
    g_string_append_c (r->text, *r->at);
  }
  weft_bad_input (error, "found a quote without a closing quote");
  return blame_line (r, first, error);
}

static gboolean
read_plain (struct reader *r, GError **error)
{
  for (; r->at < r->end && *r->at != ',' && !line_end (r); r->at++) {
    if (*r->at == '"' || *r->at == '\r') {
      weft_bad_input (error, "found %s inside a cell, wanted the whole cell in quotes",
                      *r->at == '"' ? "a quote" : "a carriage return");
      return blame_line (r, r->line, error);
    }
    g_string_append_c (r->text, *r->at);
  }
  return TRUE;
}

static gboolean
read_cell (struct reader *r, GError **error)
{
  gboolean quoted = r->at < r->end && *r->at == '"';

  g_string_truncate (r->text, 0);
  if (!(quoted ? read_quoted (r, error) : read_plain (r, error)))
    return FALSE;
  if (r->at < r->end && *r->at != ',' && !line_end (r)) {
    weft_bad_input (error, "found \"%.1s\" after a closing quote, wanted a comma or a new line",
                    g_ascii_isprint (*r->at) ? r->at : "?");
    return blame_line (r, r->line, error);
  }
  g_ptr_array_add (r->cell, g_string_chunk_insert (r->csv->strings, r->text->str));
  return TRUE;
}

/* Reads one row with its line end; stores the number of its cells in `n`. */
static gboolean
read_row (struct reader *r, unsigned *n, GError **error)
{
  for (*n = 1;; ++*n) {
    if (*n > MOST_COLUMNS) {
      weft_bad_input (error, "found more than %d cells, wanted fewer", MOST_COLUMNS);
      return blame_line (r, r->line, error);
    }
    if (!read_cell (r, error))
      return FALSE;
    if (r->at == r->end || *r->at != ',')
      break;
    r->at++;
  }
  unsigned length = line_end (r);
  r->at += length;
  r->line += length > 0;
  return TRUE;
}

static gboolean
check_width (const struct reader *r, unsigned line, unsigned n, GError **error)
{
  if (n == r->csv->n_column)
    return TRUE;
  weft_bad_input (error, "found %u cells, wanted %u, one for each column", n, r->csv->n_column);
  return blame_line (r, line, error);
}

static gboolean
read_rows (struct reader *r, GError **error)
{
  while (r->at < r->end) {
    unsigned n, line = r->line;
    if (!read_row (r, &n, error))
      return FALSE;
    if (r->csv->n_column == 0)
      r->csv->n_column = n;
    if (!check_width (r, line, n, error))
      return FALSE;
    g_array_append_val (r->line_of_row, line);
  }
  return r->line_of_row->len > 0 ||
         weft_bad_input (error, "%s: found nothing, wanted a row of column names", r->csv->name);
}

static gboolean
check_names (const weft_csv *csv, GError **error)
{
  for (unsigned c = 0; c < csv->n_column; c++) {
    if (!*csv->column[c])
      return weft_bad_input (error, "%s:1: column %u has no name", csv->name, c + 1);
    if (weft_csv_find (csv, csv->column[c]) != (int) c)
      return weft_bad_input (error, "%s:1: column \"%s\" is given twice", csv->name,
                             csv->column[c]);
  }
  return TRUE;
}

static void
take (struct reader *r)
{
  weft_csv *csv = r->csv;

  csv->n_row = r->line_of_row->len ? r->line_of_row->len - 1 : 0;
  csv->column = (const char **) g_ptr_array_free (r->cell, FALSE);
  csv->cell = csv->column ? csv->column + csv->n_column : NULL;
  csv->line = (unsigned *) (void *) g_array_free (r->line_of_row, FALSE);
}

weft_csv *
weft_csv_parse (const char *text, gssize length, const char *name, GError **error)
{
  gsize size = length < 0 ? strlen (text) : (gsize) length;
  gsize mark = size >= strlen (MARK) && memcmp (text, MARK, strlen (MARK)) == 0 ? strlen (MARK) : 0;

  if (!weft_file_check_text (text, size, name, error))
    return NULL;
  g_autoptr (weft_csv) csv = g_new0 (weft_csv, 1);
  g_autoptr (GString) cell = g_string_new (NULL);
  csv->name = g_strdup (name);
  csv->strings = g_string_chunk_new (4096);
  struct reader r = { .csv = csv,
                      .at = text + mark,
                      .end = text + size,
                      .line = 1,
                      .cell = g_ptr_array_new (),
                      .line_of_row = g_array_new (FALSE, FALSE, sizeof (unsigned)),
                      .text = cell };
  gboolean ok = read_rows (&r, error);
  take (&r);
  return ok && check_names (csv, error) ? g_steal_pointer (&csv) : NULL;
}

weft_csv *
weft_csv_load (const char *path, GError **error)
{
  gsize length;
  g_autofree char *text = weft_file_read (path, MOST_BYTES, &length, error);

  return text ? weft_csv_parse (text, length, path, error) : NULL;
}

void
weft_csv_free (weft_csv *csv)
{
  if (!csv)
    return;
  g_free (csv->name);
  g_free (csv->column);
  g_free (csv->line);
  g_string_chunk_free (csv->strings);
  g_free (csv);
}

int
weft_csv_find (const weft_csv *csv, const char *column)
{
  for (unsigned c = 0; c < csv->n_column; c++)
    if (strcmp (csv->column[c], column) == 0)
      return c;
  return -1;
}

gboolean
weft_csv_blame (const weft_csv *csv, unsigned row, GError **error)
{
  g_prefix_error (error, "%s:%u: ", csv->name, csv->line[row + 1]);
  return FALSE;
}

void
weft_csv_append (GString *text, const char *cell)
{
  /* A cell that begins with a byte order mark is quoted, so that the mark cannot begin the text. */
  if (!strpbrk (cell, ",\"\r\n") && !g_str_has_prefix (cell, MARK)) {
    g_string_append (text, cell);
    return;
  }
  g_string_append_c (text, '"');
  for (const char *c = cell; *c; c++)
    g_string_append (text, *c == '"' ? "\"\"" : (const char[]){ *c, '\0' });
  g_string_append_c (text, '"');
}
