#include "planner/published.h"
#include "core/base/error.h"
#include "core/base/field.h"
#include "core/base/suggest.h"
#include <math.h>
#include <string.h>

static const struct weft_field columns[] = {
#define COLUMN(id, type_, lo_, hi_, doc_)                                                          \
  { .name = #id,                                                                                   \
    .type = WEFT_TYPE_##type_,                                                                     \
    .def = "",                                                                                     \
    .lo = lo_,                                                                                     \
    .hi = hi_,                                                                                     \
    .unit = "",                                                                                    \
    .doc = doc_ },
#include "planner/published.def"
};

const char *
weft_published_name (enum weft_published_column column)
{
  return columns[column].name;
}

int
weft_published_find (const char *name)
{
  for (unsigned i = 0; i < WEFT_N_COLUMN; i++)
    if (strcmp (columns[i].name, name) == 0)
      return i;
  return -1;
}

const char *
weft_published_cell (const weft_published *table, unsigned row, enum weft_published_column column)
{
  return weft_csv_cell (table->csv, row, table->at[column]);
}

double
weft_published_number (const char *cell)
{
  return *cell ? g_ascii_strtod (cell, NULL) : NAN;
}

/* ------------------------------------------------------------------------ checks */

static gboolean
find_columns (weft_published *table, GError **error)
{
  const weft_csv *csv = table->csv;

  for (unsigned i = 0; i < WEFT_N_COLUMN; i++) {
    table->at[i] = weft_csv_find (csv, columns[i].name);
    if (table->at[i] < 0)
      return weft_bad_input (error,
                             "%s:1: found no column \"%s\" (%s), wanted all %d; see "
                             "validation/README.md",
                             csv->name, columns[i].name, columns[i].doc, WEFT_N_COLUMN);
  }
  return csv->n_row > 0 ||
         weft_bad_input (error, "%s: found no rows, wanted at least one", csv->name);
}

/* Whether a cell is a plain number. Needed because weft_field_parse() also accepts words and units,
 * which tables may not contain. */
static gboolean
is_plain (const char *cell)
{
  return strspn (cell, "0123456789.eE+-") == strlen (cell);
}

static gboolean
check_cell (const struct weft_field *column, const char *cell, GError **error)
{
  union weft_value value;

  if (!*cell || column->type == WEFT_TYPE_TEXT)
    return TRUE;
  if (is_plain (cell))
    return weft_field_parse (column, cell, &value, error);
  return weft_bad_input (error, "%s: found \"%s\", wanted a number or nothing", column->name, cell);
}

static gboolean
check_row (const weft_published *table, unsigned row, GHashTable *ids, GError **error)
{
  const char *id = weft_published_cell (table, row, WEFT_COLUMN_id);
  const char *tier = weft_published_cell (table, row, WEFT_COLUMN_tier);

  if (!*id)
    return weft_bad_input (error, "id: found nothing, wanted a name");
  if (!g_hash_table_add (ids, (char *) id))
    return weft_bad_input (error, "id: found \"%s\" again, wanted each id once", id);
  if (strlen (tier) != 1 || !strchr ("ABC", *tier))
    return weft_bad_input (error, "tier: found \"%s\", wanted A, B or C", tier);
  for (unsigned i = 0; i < WEFT_N_COLUMN; i++)
    if (!check_cell (&columns[i], weft_published_cell (table, row, i), error))
      return FALSE;
  return TRUE;
}

static gboolean
check (weft_published *table, GError **error)
{
  g_autoptr (GHashTable) ids = g_hash_table_new (g_str_hash, g_str_equal);

  if (!find_columns (table, error))
    return FALSE;
  for (unsigned row = 0; row < table->csv->n_row; row++)
    if (!check_row (table, row, ids, error))
      return weft_csv_blame (table->csv, row, error);
  return TRUE;
}

/* Makes a table from the rows of `csv` and checks it. Takes ownership of `csv`; NULL returns
 * NULL. */
static weft_published *
take (weft_csv *csv, GError **error)
{
  if (!csv)
    return NULL;
  g_autoptr (weft_published) table = g_new0 (weft_published, 1);
  table->csv = csv;
  return check (table, error) ? g_steal_pointer (&table) : NULL;
}

weft_published *
weft_published_load (const char *path, GError **error)
{
  return take (weft_csv_load (path, error), error);
}

weft_published *
weft_published_parse (const char *text, gssize length, const char *name, GError **error)
{
  return take (weft_csv_parse (text, length, name, error), error);
}

void
weft_published_free (weft_published *table)
{
  if (!table)
    return;
  weft_csv_free (table->csv);
  g_free (table);
}
