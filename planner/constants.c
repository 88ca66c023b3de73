#include "planner/constants.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------------ reading */

/* Finds the kind of file that a section name gives: "stack megatron-core" -> the table of stacks,
 * and the names after it. */
static const struct weft_sheet *
sheet_of (const char *section, const char **files)
{
  static const struct {
    const char *word;
    const struct weft_sheet *sheet;
  } kinds[] = { { "topology ", &weft_cluster_sheet }, { "stack ", &weft_stack_sheet } };

  for (unsigned i = 0; i < G_N_ELEMENTS (kinds); i++)
    if (g_str_has_prefix (section, kinds[i].word)) {
      *files = section + strlen (kinds[i].word);
      return kinds[i].sheet;
    }
  return NULL;
}

/* Reads the next number of a text that ends at `end`, or, if `end` is NULL, at its NUL. */
static gboolean
read_number (char **at, const char *end, const char *unit, double *number, GError **error)
{
  char *next = end ? strstr (*at, end) : NULL;

  if (end && !next)
    return weft_bad_input (error, "found no \"%s\", wanted PRIOR in LOW..HIGH [within SPREAD]",
                           end);
  g_autofree char *word = next ? g_strndup (*at, next - *at) : g_strdup (*at);
  if (next)
    *at = next + strlen (end);
  return weft_units_parse (g_strstrip (word), unit, number, error);
}

static gboolean
read_value (const char *value, const char *unit, struct weft_constant *c, GError **error)
{
  g_autofree char *text = g_strdup (value);
  gboolean has_spread = strstr (text, " within ") != NULL;
  char *at = text;

  c->spread = WEFT_CONSTANT_SPREAD;
  if (!read_number (&at, " in ", unit, &c->prior, error) ||
      !read_number (&at, "..", unit, &c->low, error) ||
      !read_number (&at, has_spread ? " within " : NULL, unit, &c->high, error) ||
      (has_spread && !read_number (&at, NULL, "", &c->spread, error)))
    return FALSE;
  if (!(c->low > 0 && c->low < c->prior && c->prior < c->high && c->spread > 0))
    return weft_bad_input (error, "found \"%s\", wanted 0 < LOW < PRIOR < HIGH and 0 < SPREAD",
                           value);
  return TRUE;
}

/* Finds the row of the constant's field in its table. All files of the constant must set the field
 * themselves, to a number. */
static gboolean
find_field (struct weft_constant *c, const char *key, GError **error)
{
  int row = weft_table_find (c->sheet->table, key);

  if (row < 0)
    return weft_table_unknown (c->sheet->table, key, error);
  c->row = (unsigned) row;
  if (c->sheet->table->field[row].type != WEFT_TYPE_REAL)
    return weft_bad_input (error, "%s is %s, wanted a field with a real number", key,
                           weft_type_word (c->sheet->table->field[row].type));
  for (guint i = 0; i < c->sheets->len; i++) {
    const weft_sheet_file *file = c->sheets->pdata[i];
    const weft_conf *own = file->conf->pdata[0];
    if (file->from[row].conf != own)
      return weft_bad_input (error, "%s does not give %s itself; wanted the file that does",
                             own->name, key);
  }
  return TRUE;
}

static gboolean
load_files (struct weft_constant *c, GError **error)
{
  g_auto (GStrv) names = g_strsplit (c->files, "|", -1);

  for (char **name = names; *name; name++) {
    weft_sheet_file *file = weft_sheet_file_load (c->sheet, g_strstrip (*name), error);
    if (!file)
      return FALSE;
    g_ptr_array_add (c->sheets, file);
  }
  return TRUE;
}

static void
free_file (gpointer file)
{
  weft_sheet_file_free (file);
}

static gboolean
read_constant (const struct weft_conf_entry *entry, struct weft_constant *c, GError **error)
{
  const char *files;

  c->line = entry->line;
  c->sheets = g_ptr_array_new_with_free_func (free_file);
  if (!(c->sheet = sheet_of (entry->section, &files)))
    return weft_bad_input (error, "unknown section, wanted [topology FILES] or [stack FILES]");
  c->files = g_strdup (files);
  return load_files (c, error) && find_field (c, entry->key, error) &&
         read_value (entry->value, c->sheet->table->field[c->row].unit, c, error);
}

weft_constants *
weft_constants_load (const char *path, GError **error)
{
  g_autofree char *bundled = g_build_filename (weft_data_dir (), "validation", "fit.ini", NULL);
  g_autoptr (weft_constants) constants = g_new0 (weft_constants, 1);

  if (!(constants->conf = weft_conf_load (path ? path : bundled, error)))
    return NULL;
  constants->constant = g_new0 (struct weft_constant, constants->conf->n_entry + 1);
  for (unsigned i = 0; i < constants->conf->n_entry; i++) {
    const struct weft_conf_entry *entry = &constants->conf->entry[i];
    if (!read_constant (entry, &constants->constant[constants->n++], error)) {
      weft_conf_blame (constants->conf, entry, error);
      return NULL;
    }
  }
  return g_steal_pointer (&constants);
}

void
weft_constants_free (weft_constants *constants)
{
  for (uint32_t k = 0; k < constants->n; k++) {
    g_free (constants->constant[k].files);
    g_ptr_array_unref (constants->constant[k].sheets);
  }
  g_free (constants->constant);
  weft_conf_free (constants->conf);
  g_free (constants);
}

char *
weft_constant_name (const struct weft_constant *c)
{
  return g_strdup_printf ("%s of %s %s", weft_sheet_key (c->sheet, c->row),
                          c->sheet == &weft_stack_sheet ? "stack" : "topology", c->files);
}

/* ---------------------------------------------------------------- the values of a job */

/* Whether a job has the constant's field from one of the constant's files. TRUE: the topology or
 * stack `used` was read from such a file, and the job's value of the field is the value in the
 * file. */
static gboolean
is_from (const struct weft_constant *c, const weft_sheet_file *used, double value)
{
  const weft_conf *from = used->from[c->row].conf;

  for (guint i = 0; i < c->sheets->len; i++) {
    const weft_sheet_file *file = c->sheets->pdata[i];
    const weft_conf *own = file->conf->pdata[0];
    if (from && g_str_equal (from->name, own->name))
      return file->values[c->row].r == value;
  }
  return FALSE;
}

void
weft_constants_of (const weft_constants *constants, const weft_row_job *row, gboolean *applies)
{
  const struct weft_job *job = &row->job;
  g_autoptr (weft_sheet_file) topology = weft_sheet_file_load (
      &weft_cluster_sheet, g_quark_to_string (job->cluster.topology), NULL);
  g_autoptr (weft_sheet_file) stack = weft_sheet_file_load (
      &weft_stack_sheet, g_quark_to_string ((GQuark) job->stack.name), NULL);

  for (uint32_t k = 0; k < constants->n; k++) {
    const struct weft_constant *c = &constants->constant[k];
    gboolean of_stack = c->sheet == &weft_stack_sheet;
    const weft_sheet_file *used = of_stack ? stack : topology;
    double value = of_stack ? job->stack.at[c->row].r : job->cluster.f.at[c->row].r;
    applies[k] = used && is_from (c, used, value);
  }
}

void
weft_constants_set (const weft_constants *constants, const gboolean *applies,
                    const double *values, union weft_cluster_fields *cluster,
                    union weft_stack *stack)
{
  for (uint32_t k = 0; k < constants->n; k++) {
    const struct weft_constant *c = &constants->constant[k];
    if (applies[k])
      (c->sheet == &weft_stack_sheet ? stack->at : cluster->at)[c->row].r = values[k];
  }
}

/* ------------------------------------------------------------------------ writing */

/* Returns the line of an entry with another value and comment. The value is printed with four
 * digits, more than a fit determines. */
static char *
fitted_line (const struct weft_constant *c, double value, const char *how)
{
  g_autofree char *number = g_strdup_printf ("%.4g", value);
  const char *unit = c->sheet->table->field[c->row].unit;

  return g_strdup_printf ("%s = %s%s  # fitted: %s", weft_sheet_key (c->sheet, c->row), number,
                          unit, how);
}

static gboolean
write_file (const struct weft_constant *c, const weft_sheet_file *file, double value,
            const char *how, GError **error)
{
  const struct weft_sheet_from *from = &file->from[c->row];
  g_autofree char *text = NULL;

  if (!g_file_get_contents (from->conf->name, &text, NULL, error))
    return FALSE;
  g_auto (GStrv) lines = g_strsplit (text, "\n", -1);
  char **line = &lines[from->entry->line - 1];
  g_free (*line);
  *line = fitted_line (c, value, how);
  g_autofree char *changed = g_strjoinv ("\n", lines);
  return g_file_set_contents (from->conf->name, changed, -1, error);
}

gboolean
weft_constant_write (const struct weft_constant *constant, double value, const char *how,
                     GError **error)
{
  for (guint i = 0; i < constant->sheets->len; i++)
    if (!write_file (constant, constant->sheets->pdata[i], value, how, error))
      return FALSE;
  return TRUE;
}
