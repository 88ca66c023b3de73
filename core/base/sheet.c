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
  g_autofree char *name = g_strconcat (sheet->prefixed ? section : "", key, NULL);

  /* The names are compared first, because almost all of them differ in their first letters. */
  for (unsigned i = 0; i < sheet->table->n; i++)
    if (weft_same_name (sheet->table->field[i].name, name) &&
        weft_same_name (weft_sheet_section (sheet, i), section))
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

static gboolean
is_base (const struct weft_sheet *sheet, const struct weft_conf_entry *entry)
{
  return sheet->inherits && weft_same_name (entry->section, sheet->sections[0]) &&
         weft_same_name (entry->key, "base");
}

/* Parses one "key = value" entry of an .ini file. The field of sheet->table with this key defines
 * type and limits. The result is stored in file->values, in place of a value that a base file (see
 * `inherits` in sheet.h) gave to the same key. The caller adds file and line to an error. */
static gboolean
read_entry (weft_sheet_file *file, const weft_conf *conf, const struct weft_conf_entry *entry,
            GError **error)
{
  const struct weft_sheet *sheet = file->sheet;
  int row = weft_sheet_find (sheet, entry->section, entry->key);

  if (is_base (sheet, entry))
    return TRUE;
  if (!is_section (sheet, entry->section))
    return unknown_section (sheet, entry->section, error);
  if (row < 0)
    return unknown_key (sheet, entry->section, entry->key, error);
  struct weft_sheet_from *from = &file->from[row];
  if (from->conf == conf)
    return weft_bad_input (error, "%s is given twice, first as \"%s\" on line %u", entry->key,
                           from->entry->key, from->entry->line);
  *from = (struct weft_sheet_from){ conf, entry };
  struct weft_field field = sheet->table->field[row];
  field.name = weft_sheet_key (sheet, row);
  return weft_field_parse (&field, entry->value, &file->values[row], error);
}

/* Reads the entries of a sheet file and of the files that it inherits from. Entries of an inherited
 * file are read first, so entries of the file itself replace them. The name of an inherited file is
 * ignored. */
static gboolean
read_entries (weft_sheet_file *file, GError **error)
{
  for (unsigned f = file->conf->len; f-- > 0;) {
    const weft_conf *conf = g_ptr_array_index (file->conf, f);
    if (file->sheet->inherits)
      file->from[file->sheet->name] = (struct weft_sheet_from){ NULL, NULL };
    for (unsigned i = 0; i < conf->n_entry; i++)
      if (!read_entry (file, conf, &conf->entry[i], error))
        return weft_conf_blame (conf, &conf->entry[i], error);
  }
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
  g_auto (GStrv) kinds = g_strsplit (sheet->table->field[row].only, " ", -1);
  g_autofree char *wanted = g_strjoinv (" or ", kinds);
  return weft_bad_input (error, "found %s with [%s] %s = %s, wanted it only with %s = %s",
                         weft_sheet_key (sheet, row), weft_sheet_section (sheet, sheet->kind),
                         weft_sheet_key (sheet, sheet->kind), kind_word (sheet, values),
                         weft_sheet_key (sheet, sheet->kind), wanted);
}

static gboolean
check_kinds (const weft_sheet_file *file, GError **error)
{
  for (unsigned i = 0; i < file->sheet->table->n; i++) {
    const struct weft_sheet_from *from = &file->from[i];
    if (from->entry && !weft_sheet_check_kind (file->sheet, file->values, i, error))
      return weft_conf_blame (from->conf, from->entry, error);
  }
  return TRUE;
}

static gboolean
is_needed (const struct weft_sheet *sheet, const union weft_value *values, unsigned row)
{
  return !sheet->table->field[row].optional && weft_sheet_has (sheet, values, row);
}

/* Whether a section of a sheet file contains a field that has no default. */
static gboolean
is_wanted (const struct weft_sheet *sheet, const union weft_value *values, const char *section)
{
  for (unsigned i = 0; i < sheet->table->n; i++)
    if (is_needed (sheet, values, i) && weft_same_name (weft_sheet_section (sheet, i), section))
      return TRUE;
  return FALSE;
}

static gboolean
check_sections (const weft_sheet_file *file, GError **error)
{
  const weft_conf *conf = g_ptr_array_index (file->conf, 0);

  for (const char *const *section = file->sheet->sections; *section; section++) {
    gboolean found = FALSE;
    for (unsigned i = 0; i < conf->n_entry; i++)
      found |= weft_same_name (conf->entry[i].section, *section);
    if (!found && is_wanted (file->sheet, file->values, *section))
      return weft_bad_input (error, "%s: section [%s] is missing", conf->name, *section);
  }
  return TRUE;
}

static gboolean
check_given (const weft_sheet_file *file, GError **error)
{
  const struct weft_sheet *sheet = file->sheet;
  const weft_conf *conf = g_ptr_array_index (file->conf, 0);

  for (unsigned i = 0; i < sheet->table->n; i++)
    if (!file->from[i].entry && is_needed (sheet, file->values, i)) {
      g_autofree char *range = weft_field_range (&sheet->table->field[i]);
      return weft_bad_input (error, "%s: [%s] %s is missing: %s; wanted %s", conf->name,
                             weft_sheet_section (sheet, i), weft_sheet_key (sheet, i),
                             sheet->table->field[i].doc, range);
    }
  return TRUE;
}

static gboolean
check_reachable (const weft_sheet_file *file, GError **error)
{
  const struct weft_table *table = file->sheet->table;

  for (unsigned i = 0; i < table->n; i++) {
    const struct weft_sheet_from *from = &file->from[i];
    if (!from->entry)
      continue;
    g_autofree char *name = g_strconcat (table->field[i].name, "_spec", NULL);
    int spec = weft_table_find (table, name);
    if (spec < 0 || file->values[i].r <= file->values[spec].r)
      continue;
    g_autofree char *limit = weft_field_print (&table->field[spec], file->values[spec]);
    weft_bad_input (error, "%s: found \"%s\", wanted at most %s (%s)",
                    weft_sheet_key (file->sheet, i), from->entry->value,
                    weft_sheet_key (file->sheet, spec), limit);
    return weft_conf_blame (from->conf, from->entry, error);
  }
  return TRUE;
}

/* ------------------------------------------------------------------------- bases */

/* The path of the file that a sheet file inherits from. A relative path counts from the folder of
 * the sheet file. */
static char *
base_path (const struct weft_sheet *sheet, const weft_conf *conf, const char *base, GError **error)
{
  g_autofree char *folder = g_path_get_dirname (conf->name);
  g_autofree char *beside = g_build_filename (folder, base, NULL);

  if (g_str_has_suffix (base, WEFT_SHEET_SUFFIX) && !g_path_is_absolute (base) &&
      g_file_test (beside, G_FILE_TEST_IS_REGULAR))
    return g_steal_pointer (&beside);
  char *path = weft_data_find (sheet->folder, base, WEFT_SHEET_SUFFIX, error);
  if (!path)
    g_prefix_error (error, "base: found \"%s\", wanted another file: ", base);
  return path;
}

static gboolean
same_file (const char *a, const char *b)
{
  g_autofree char *one = g_canonicalize_filename (a, NULL);
  g_autofree char *other = g_canonicalize_filename (b, NULL);
  return g_str_equal (one, other);
}

/* Refuses a file that inherits from itself, directly or through other files. */
static gboolean
check_circle (const GPtrArray *confs, const char *base, const char *path, GError **error)
{
  for (unsigned i = 0; i < confs->len; i++) {
    const weft_conf *conf = g_ptr_array_index (confs, i);
    if (same_file (conf->name, path))
      return weft_bad_input (error,
                             "base: found \"%s\", wanted a file that does not build on this one",
                             base);
  }
  return TRUE;
}

/* The entry `base` of a file, which names the file that it inherits from; NULL if there is none. */
static const struct weft_conf_entry *
base_of (const struct weft_sheet *sheet, const weft_conf *conf)
{
  for (unsigned i = 0; i < conf->n_entry; i++)
    if (is_base (sheet, &conf->entry[i]))
      return &conf->entry[i];
  return NULL;
}

static gboolean
load_base (weft_sheet_file *file, const weft_conf *conf, const struct weft_conf_entry *entry,
           GError **error)
{
  g_autofree char *path = base_path (file->sheet, conf, entry->value, error);

  if (!path || !check_circle (file->conf, entry->value, path, error))
    return weft_conf_blame (conf, entry, error);
  weft_conf *base = weft_conf_load (path, error);
  if (base)
    g_ptr_array_add (file->conf, base);
  return base != NULL;
}

/* Loads a sheet file, then the file that its entry `base` names, then the base of that file, and so
 * on. */
static gboolean
load_files (weft_sheet_file *file, const char *path, GError **error)
{
  weft_conf *conf = weft_conf_load (path, error);
  const struct weft_conf_entry *base;

  if (!conf)
    return FALSE;
  g_ptr_array_add (file->conf, conf);
  while ((base = base_of (file->sheet, conf))) {
    if (!load_base (file, conf, base, error))
      return FALSE;
    conf = g_ptr_array_index (file->conf, file->conf->len - 1);
  }
  return TRUE;
}

weft_sheet_file *
weft_sheet_file_load (const struct weft_sheet *sheet, const char *name_or_path, GError **error)
{
  g_autofree char *path = weft_data_find (sheet->folder, name_or_path, WEFT_SHEET_SUFFIX, error);
  g_autoptr (weft_sheet_file) file = g_new0 (weft_sheet_file, 1);

  file->sheet = sheet;
  file->conf = g_ptr_array_new_with_free_func ((GDestroyNotify) weft_conf_free);
  file->values = g_new0 (union weft_value, sheet->table->n);
  file->from = g_new0 (struct weft_sheet_from, sheet->table->n);
  weft_table_defaults (sheet->table, file->values);
  if (!path || !load_files (file, path, error) || !read_entries (file, error) ||
      !check_kinds (file, error) || !check_sections (file, error) || !check_given (file, error) ||
      !check_reachable (file, error))
    return NULL;
  return g_steal_pointer (&file);
}

void
weft_sheet_file_free (weft_sheet_file *file)
{
  g_ptr_array_unref (file->conf);
  g_free (file->values);
  g_free (file->from);
  g_free (file);
}

gboolean
weft_sheet_load (const struct weft_sheet *sheet, const char *name_or_path, union weft_value *values,
                 GError **error)
{
  g_autoptr (weft_sheet_file) file = weft_sheet_file_load (sheet, name_or_path, error);

  if (file)
    memcpy (values, file->values, sheet->table->n * sizeof *values);
  return file != NULL;
}

char **
weft_sheet_names (const struct weft_sheet *sheet)
{
  return weft_data_names (sheet->folder, WEFT_SHEET_SUFFIX);
}
