#include "core/base/sheet.h"
#include "core/base/conf.h"
#include "core/base/error.h"
#include "core/base/suggest.h"
#include <string.h>

static gboolean
has_prefix (const char *name, const char *section)
{
  size_t length = strlen (section);
  return strncmp (name, section, length) == 0 && name[length] == '_';
}

const char *
weft_sheet_section (const struct weft_sheet *sheet, unsigned row)
{
  const char *const *section = sheet->sections;

  while (sheet->prefixed && !has_prefix (sheet->table->field[row].name, *section))
    section++;
  return *section;
}

const char *
weft_sheet_key (const struct weft_sheet *sheet, unsigned row)
{
  const char *name = sheet->table->field[row].name;
  return sheet->prefixed ? name + strlen (weft_sheet_section (sheet, row)) + 1 : name;
}

int
weft_sheet_find (const struct weft_sheet *sheet, const char *section, const char *key)
{
  for (unsigned i = 0; i < sheet->table->n; i++)
    if (weft_same_name (weft_sheet_section (sheet, i), section) &&
        weft_same_name (weft_sheet_key (sheet, i), key))
      return i;
  return -1;
}

static gboolean
unknown_section (const struct weft_sheet *sheet, const char *section, GError **error)
{
  const char *near = weft_suggest_strv (section, sheet->sections);
  g_autofree char *all = g_strjoinv ("], [", (char **) sheet->sections);

  if (near)
    return weft_bad_input (error, "unknown section; did you mean [%s]?", near);
  return weft_bad_input (error, "unknown section, wanted [%s]", all);
}

static gboolean
unknown_key (const struct weft_sheet *sheet, const char *section, const char *key, GError **error)
{
  g_autoptr (GPtrArray) keys = g_ptr_array_new ();

  for (unsigned i = 0; i < sheet->table->n; i++)
    if (weft_same_name (weft_sheet_section (sheet, i), section))
      g_ptr_array_add (keys, (char *) weft_sheet_key (sheet, i));
  g_ptr_array_add (keys, NULL);
  const char *near = weft_suggest_strv (key, (const char *const *) keys->pdata);
  if (near)
    return weft_bad_input (error, "unknown key \"%s\"; did you mean %s?", key, near);
  return weft_bad_input (error, "unknown key \"%s\"", key);
}

static gboolean
is_section (const struct weft_sheet *sheet, const char *name)
{
  for (const char *const *section = sheet->sections; *section; section++)
    if (weft_same_name (*section, name))
      return TRUE;
  return FALSE;
}

/* Reads one entry into the value of its row, and stores the entry in `from[row]`.  The caller adds
 * file and line to an error. */
static gboolean
read_entry (const struct weft_sheet *sheet, const struct weft_conf_entry *entry,
            const struct weft_conf_entry **from, union weft_value *values, GError **error)
{
  int row = weft_sheet_find (sheet, entry->section, entry->key);

  if (!is_section (sheet, entry->section))
    return unknown_section (sheet, entry->section, error);
  if (row < 0)
    return unknown_key (sheet, entry->section, entry->key, error);
  if (from[row])
    return weft_bad_input (error, "%s is given twice, first as \"%s\" on line %u", entry->key,
                           from[row]->key, from[row]->line);
  from[row] = entry;
  struct weft_field field = sheet->table->field[row];
  field.name = weft_sheet_key (sheet, row);
  return weft_field_parse (&field, entry->value, &values[row], error);
}

static gboolean
read_entries (const struct weft_sheet *sheet, const weft_conf *conf,
              const struct weft_conf_entry **from, union weft_value *values, GError **error)
{
  for (unsigned i = 0; i < conf->n_entry; i++)
    if (!read_entry (sheet, &conf->entry[i], from, values, error))
      return weft_conf_blame (conf, &conf->entry[i], error);
  return TRUE;
}

static const char *
kind_word (const struct weft_sheet *sheet, const union weft_value *values)
{
  return sheet->table->field[sheet->kind].words[values[sheet->kind].i];
}

gboolean
weft_sheet_has (const struct weft_sheet *sheet, const union weft_value *values, unsigned row)
{
  const char *only = sheet->table->field[row].only;

  if (!sheet->has_kinds || !only)
    return TRUE;
  g_auto (GStrv) kinds = g_strsplit (only, " ", -1);
  return g_strv_contains ((const char *const *) kinds, kind_word (sheet, values));
}

gboolean
weft_sheet_check_kind (const struct weft_sheet *sheet, const union weft_value *values, unsigned row,
                       GError **error)
{
  if (weft_sheet_has (sheet, values, row))
    return TRUE;
  return weft_bad_input (error, "found %s with [%s] %s = %s, wanted it only with %s = %s",
                         weft_sheet_key (sheet, row), weft_sheet_section (sheet, sheet->kind),
                         weft_sheet_key (sheet, sheet->kind), kind_word (sheet, values),
                         weft_sheet_key (sheet, sheet->kind), sheet->table->field[row].only);
}

static gboolean
check_kinds (const struct weft_sheet *sheet, const weft_conf *conf,
             const struct weft_conf_entry *const *from, const union weft_value *values,
             GError **error)
{
  for (unsigned i = 0; i < sheet->table->n; i++)
    if (from[i] && !weft_sheet_check_kind (sheet, values, i, error))
      return weft_conf_blame (conf, from[i], error);
  return TRUE;
}

static gboolean
is_needed (const struct weft_sheet *sheet, const union weft_value *values, unsigned row)
{
  return !sheet->table->field[row].optional && weft_sheet_has (sheet, values, row);
}

/* Whether a section has a field that the file must give. */
static gboolean
is_wanted (const struct weft_sheet *sheet, const union weft_value *values, const char *section)
{
  for (unsigned i = 0; i < sheet->table->n; i++)
    if (is_needed (sheet, values, i) && weft_same_name (weft_sheet_section (sheet, i), section))
      return TRUE;
  return FALSE;
}

static gboolean
check_sections (const struct weft_sheet *sheet, const weft_conf *conf,
                const union weft_value *values, GError **error)
{
  for (const char *const *section = sheet->sections; *section; section++) {
    gboolean found = FALSE;
    for (unsigned i = 0; i < conf->n_entry; i++)
      found |= weft_same_name (conf->entry[i].section, *section);
    if (!found && is_wanted (sheet, values, *section))
      return weft_bad_input (error, "%s: section [%s] is missing", conf->name, *section);
  }
  return TRUE;
}

static gboolean
check_given (const struct weft_sheet *sheet, const weft_conf *conf,
             const struct weft_conf_entry *const *from, const union weft_value *values,
             GError **error)
{
  for (unsigned i = 0; i < sheet->table->n; i++)
    if (!from[i] && is_needed (sheet, values, i)) {
      g_autofree char *range = weft_field_range (&sheet->table->field[i]);
      return weft_bad_input (error, "%s: [%s] %s is missing: %s; wanted %s", conf->name,
                             weft_sheet_section (sheet, i), weft_sheet_key (sheet, i),
                             sheet->table->field[i].doc, range);
    }
  return TRUE;
}

static gboolean
check_reachable (const struct weft_sheet *sheet, const weft_conf *conf,
                 const struct weft_conf_entry *const *from, const union weft_value *values,
                 GError **error)
{
  for (unsigned i = 0; i < sheet->table->n; i++) {
    g_autofree char *name = g_strconcat (sheet->table->field[i].name, "_spec", NULL);
    int spec = weft_table_find (sheet->table, name);
    if (spec < 0 || !from[i] || values[i].r <= values[spec].r)
      continue;
    g_autofree char *limit = weft_field_print (&sheet->table->field[spec], values[spec]);
    weft_bad_input (error, "%s: found \"%s\", wanted at most %s (%s)", weft_sheet_key (sheet, i),
                    from[i]->value, weft_sheet_key (sheet, spec), limit);
    return weft_conf_blame (conf, from[i], error);
  }
  return TRUE;
}

gboolean
weft_sheet_load (const struct weft_sheet *sheet, const char *name_or_path, union weft_value *values,
                 GError **error)
{
  g_autofree char *path = weft_data_find (sheet->folder, name_or_path, WEFT_SHEET_SUFFIX, error);
  g_autoptr (weft_conf) conf = path ? weft_conf_load (path, error) : NULL;

  if (!conf)
    return FALSE;
  g_autofree const struct weft_conf_entry **from =
      g_new0 (const struct weft_conf_entry *, sheet->table->n);
  weft_table_defaults (sheet->table, values);
  return read_entries (sheet, conf, from, values, error) &&
         check_kinds (sheet, conf, from, values, error) &&
         check_sections (sheet, conf, values, error) &&
         check_given (sheet, conf, from, values, error) &&
         check_reachable (sheet, conf, from, values, error);
}

char **
weft_sheet_names (const struct weft_sheet *sheet)
{
  return weft_data_names (sheet->folder, WEFT_SHEET_SUFFIX);
}
