#include "core/exec/options.h"
#include <string.h>

/* Replaces WEFT_NONE by 0. In the option structs of executors, 0 stands for "none", whether the
 * user gave "none" or it is the default. */
static void
clear_none (const struct weft_table *table, union weft_value *values)
{
  for (unsigned i = 0; i < table->n; i++)
    if (values[i].i == WEFT_NONE)
      values[i].i = 0;
}

static void
fill_defaults (const struct weft_table *table, union weft_value *values)
{
  weft_table_defaults (table, values);
  clear_none (table, values);
}

struct weft_own_options
weft_own_options_of (const struct weft_table *table, const union weft_value *values)
{
  struct weft_own_options own = { .table = table };

  g_assert (table->n <= WEFT_MOST_OWN_OPTIONS);
  memcpy (own.at, values, table->n * sizeof *values);
  return own;
}

gboolean
weft_own_options_set (struct weft_own_options *own, const struct weft_table *table,
                      const char *name, const char *text, GError **error)
{
  int row = weft_table_find (table, name);

  g_assert (table->n <= WEFT_MOST_OWN_OPTIONS && (!own->table || own->table == table));
  if (row < 0)
    return weft_table_unknown (table, name, error);
  if (!own->table)
    fill_defaults (table, own->at);
  own->table = table;
  if (!weft_field_parse (&table->field[row], text, &own->at[row], error))
    return FALSE;
  clear_none (table, own->at);
  return TRUE;
}

void
weft_own_options_read (const struct weft_own_options *own, const struct weft_table *table,
                       union weft_value *values)
{
  if (!own->table) {
    fill_defaults (table, values);
    return;
  }
  g_assert (own->table == table);
  memcpy (values, own->at, table->n * sizeof *values);
}

char *
weft_own_options_print (const struct weft_own_options *own, const struct weft_table *table)
{
  union weft_value values[WEFT_MOST_OWN_OPTIONS];
  GString *text = g_string_new (NULL);

  weft_own_options_read (own, table, values);
  for (unsigned i = 0; i < table->n; i++) {
    g_autofree char *value = weft_field_print (&table->field[i], values[i]);
    g_string_append_printf (text, "%s %s\n", table->field[i].name, value);
  }
  return g_string_free (text, FALSE);
}
