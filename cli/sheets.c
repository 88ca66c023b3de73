#include "cli/sheets.h"
#include "cli/ask.h"
#include "cli/cli.h"
#include "cli/completion.h"
#include "core/base/json.h"
#include "core/base/conf.h"
#include "core/base/units.h"
#include <stdio.h>
#include <string.h>

enum { WIDTH = 100, KEY_WIDTH = 26, VALUE_WIDTH = 16, INDENT = 2 + KEY_WIDTH + VALUE_WIDTH };

/* The printed description of a topology or stack file: for each row of the table, the comment of
 * the file on the value. */
typedef struct sheet_page {
  weft_sheet_file *file;
  char *name, *title; /* comment on the first line of the file */
  GPtrArray *source;  /* comment on each row of the table, char * */
} sheet_page;

static void
page_free (sheet_page *page)
{
  weft_sheet_file_free (page->file);
  g_free (page->name);
  g_free (page->title);
  g_ptr_array_unref (page->source);
  g_free (page);
}
G_DEFINE_AUTOPTR_CLEANUP_FUNC (sheet_page, page_free)

static char *
strip_hashes (const char *comment)
{
  while (*comment == '#' || *comment == ' ')
    comment++;
  return g_strchomp (g_strdup (comment));
}

static gboolean
is_comment (const char *line)
{
  return line[strspn (line, " \t")] == '#';
}

/* The comment lines above line `at` (counted from 0) and the comment on the line, as one paragraph.
 * The caller frees the text. */
static char *
comment_of (char *const *lines, unsigned at)
{
  g_autoptr (GString) text = g_string_new (NULL);
  const char *beside = strchr (lines[at], '#');
  unsigned first = at;

  while (first > 0 && is_comment (lines[first - 1]))
    first--;
  for (unsigned i = first; i < at + (beside != NULL); i++) {
    g_autofree char *part = strip_hashes (i == at ? beside : g_strchug (lines[i]));
    g_string_append_printf (text, "%s%s", text->len ? " " : "", part);
  }
  return g_string_free (g_steal_pointer (&text), FALSE);
}

/* Reads the lines of each file that the page needs, as char **. NULL with an error if a file cannot
 * be read. */
static GPtrArray *
read_lines (const sheet_page *page, GError **error)
{
  g_autoptr (GPtrArray) lines = g_ptr_array_new_with_free_func ((GDestroyNotify) g_strfreev);

  for (unsigned i = 0; i < page->file->conf->len; i++) {
    const weft_conf *conf = g_ptr_array_index (page->file->conf, i);
    g_autofree char *text = NULL;
    if (!g_file_get_contents (conf->name, &text, NULL, error))
      return NULL;
    g_ptr_array_add (lines, g_strsplit (text, "\n", -1));
  }
  return g_steal_pointer (&lines);
}

char *
weft_cli_field_source (const weft_sheet_file *file, unsigned row, GError **error)
{
  const struct weft_sheet_from *from = &file->from[row];
  g_autofree char *text = NULL;

  if (!from->entry)
    return g_strdup ("");
  if (!g_file_get_contents (from->conf->name, &text, NULL, error))
    return NULL;
  g_auto (GStrv) lines = g_strsplit (text, "\n", -1);
  return comment_of (lines, from->entry->line - 1);
}

static gboolean
read_sources (sheet_page *page, GError **error)
{
  g_autoptr (GPtrArray) lines = read_lines (page, error);
  unsigned f;

  if (!lines)
    return FALSE;
  for (unsigned i = 0; i < page->file->sheet->table->n; i++) {
    const struct weft_sheet_from *from = &page->file->from[i];
    if (from->entry && g_ptr_array_find (page->file->conf, from->conf, &f))
      page->source->pdata[i] = comment_of (lines->pdata[f], from->entry->line - 1);
  }
  const char *first = ((char **) lines->pdata[0])[0];
  page->title = is_comment (first) ? strip_hashes (first) : g_strdup ("");
  return TRUE;
}

static char *
base_name (const char *path)
{
  char *name = g_path_get_basename (path);
  if (g_str_has_suffix (name, WEFT_SHEET_SUFFIX))
    name[strlen (name) - strlen (WEFT_SHEET_SUFFIX)] = '\0';
  return name;
}

static sheet_page *
page_load (const struct weft_sheet *sheet, const char *name, GError **error)
{
  g_autoptr (weft_sheet_file) file = weft_sheet_file_load (sheet, name, error);

  if (!file)
    return NULL;
  g_autoptr (sheet_page) page = g_new0 (sheet_page, 1);
  page->name = base_name (((const weft_conf *) file->conf->pdata[0])->name);
  page->file = g_steal_pointer (&file);
  page->source = g_ptr_array_new_with_free_func (g_free);
  g_ptr_array_set_size (page->source, sheet->table->n);
  return read_sources (page, error) ? g_steal_pointer (&page) : NULL;
}

static const char *
source_of (const sheet_page *page, unsigned row)
{
  return page->source->pdata[row] ? page->source->pdata[row] : "not in the file: the default";
}

char *
weft_cli_field_human (const struct weft_field *field, union weft_value value)
{
  if (field->type == WEFT_TYPE_REAL && *field->unit)
    return weft_units_human (value.r, field->unit);
  return weft_field_print (field, value);
}

/* Counts the values of a page by the first word of their source. "16/6/8" means 16 values from
 * specifications, 6 measured values and 8 others. The caller frees the text. */
static char *
count_sources (const sheet_page *page)
{
  unsigned specification = 0, measured = 0, n = 0;

  for (unsigned i = 0; i < page->file->sheet->table->n; i++) {
    n += weft_sheet_has (page->file->sheet, page->file->values, i);
    specification += g_str_has_prefix (source_of (page, i), "specification");
    measured += g_str_has_prefix (source_of (page, i), "measured");
  }
  return g_strdup_printf ("%u/%u/%u", specification, measured, n - specification - measured);
}

/* The name of the file that gives the value of a row; NULL: the value is a default. The caller
 * frees the text. */
static char *
file_of (const sheet_page *page, unsigned row)
{
  const weft_conf *conf = page->file->from[row].conf;
  return conf ? base_name (conf->name) : NULL;
}

static void
print_wrapped (const char *text, int indent)
{
  g_auto (GStrv) words = g_strsplit (text, " ", -1);
  int column = 0, most = MIN (WIDTH, weft_cli_columns ());

  for (unsigned i = 0; words[i]; i++) {
    int width = g_utf8_strlen (words[i], -1);
    gboolean breaks = column > 0 && column + 1 + width > most;
    if (breaks)
      printf ("\n");
    if (breaks || column == 0)
      column = printf ("%*s", indent, "");
    else
      column += printf (" ");
    column += width;
    printf ("%s", words[i]);
  }
  printf ("\n");
}

static void
print_field (const sheet_page *page, unsigned row)
{
  const struct weft_field *field = &page->file->sheet->table->field[row];
  g_autofree char *value = weft_cli_field_human (field, page->file->values[row]);
  g_autofree char *file = file_of (page, row);
  gboolean inherited = file && !g_str_equal (file, page->name);
  g_autofree char *source = inherited ? g_strdup_printf ("[%s] %s", file, source_of (page, row))
                                      : g_strdup (source_of (page, row));

  int used = printf ("  %-*s%-*s  ", KEY_WIDTH, weft_sheet_key (page->file->sheet, row),
                     VALUE_WIDTH - 2, value);
  weft_cli_print_beside (field->doc, used, weft_cli_columns ());
  if (*source)
    print_wrapped (source, INDENT + 2);
}

static void
print_page (const sheet_page *page)
{
  const char *section = "";

  int used = printf ("%s: ", page->name);
  weft_cli_print_beside (page->title, used, weft_cli_columns ());
  printf ("%s\n", ((const weft_conf *) page->file->conf->pdata[0])->name);
  for (unsigned i = 0; i < page->file->sheet->table->n; i++) {
    if (!weft_sheet_has (page->file->sheet, page->file->values, i))
      continue;
    if (strcmp (section, weft_sheet_section (page->file->sheet, i)) != 0) {
      section = weft_sheet_section (page->file->sheet, i);
      printf ("\n[%s]\n", section);
    }
    print_field (page, i);
  }
}

static void
build_page (JsonBuilder *builder, const sheet_page *page)
{
  json_builder_begin_object (builder);
  weft_json_text (builder, "name", page->name);
  weft_json_text (builder, "title", page->title);
  json_builder_set_member_name (builder, "fields");
  json_builder_begin_object (builder);
  for (unsigned i = 0; i < page->file->sheet->table->n; i++) {
    const struct weft_field *field = &page->file->sheet->table->field[i];
    if (!weft_sheet_has (page->file->sheet, page->file->values, i))
      continue;
    json_builder_set_member_name (builder, field->name);
    json_builder_begin_object (builder);
    weft_json_value (builder, "value", field, page->file->values[i]);
    weft_json_text (builder, "unit", field->unit);
    weft_json_text (builder, "doc", field->doc);
    weft_json_text (builder, "source", source_of (page, i));
    g_autofree char *file = file_of (page, i);
    if (file)
      weft_json_text (builder, "file", file);
    else
      weft_json_null (builder, "file");
    json_builder_end_object (builder);
  }
  json_builder_end_object (builder);
  json_builder_end_object (builder);
}

static GPtrArray *
load_pages (const struct weft_sheet *sheet, GError **error)
{
  g_autoptr (GPtrArray) pages = g_ptr_array_new_with_free_func ((GDestroyNotify) page_free);
  g_auto (GStrv) names = weft_sheet_names (sheet);

  for (unsigned i = 0; names[i]; i++) {
    sheet_page *page = page_load (sheet, names[i], error);
    if (!page)
      return NULL;
    g_ptr_array_add (pages, page);
  }
  return g_steal_pointer (&pages);
}

/* The cells of a row of the list: name, the columns for this kind of file, sources. If `page` is
 * NULL, the heads of the columns. The caller frees the cells. */
static char **
list_row (const struct weft_cli_sheets *kind, const sheet_page *page)
{
  GPtrArray *cells = g_ptr_array_new ();

  g_ptr_array_add (cells, g_strdup (page ? page->name : "name"));
  for (unsigned i = 0; kind->heads[i]; i++)
    g_ptr_array_add (cells, page ? kind->cell (page->file->values, i) : g_strdup (kind->heads[i]));
  g_ptr_array_add (cells, page ? count_sources (page) : g_strdup ("printed/measured/other"));
  g_ptr_array_add (cells, NULL);
  return (char **) g_ptr_array_free (cells, FALSE);
}

static int
column_width (const GPtrArray *rows, unsigned column)
{
  int width = 0;

  for (unsigned i = 0; i < rows->len; i++)
    width = MAX (width, (int) g_utf8_strlen (((char **) rows->pdata[i])[column], -1));
  return width;
}

/* Number of columns, counted from the left, that fit the terminal; at least 1. */
static unsigned
columns_that_fit (const GPtrArray *rows)
{
  unsigned n = 0, all = g_strv_length (rows->pdata[0]);
  int used = 0, columns = weft_cli_columns ();

  while (n < all && (n == 0 || column_width (rows, n) <= columns - used))
    used += column_width (rows, n++) + 2;
  return n;
}

static void
print_cells (const GPtrArray *rows, unsigned shown)
{
  for (unsigned i = 0; i < rows->len; i++) {
    char *const *cells = rows->pdata[i];
    for (unsigned k = 0; k + 1 < shown; k++)
      printf ("%-*s  ", column_width (rows, k), cells[k]);
    printf ("%s\n", cells[shown - 1]);
  }
}

/* Prints a table. Columns on the right that do not fit the terminal are left out, and a line names
 * them. */
static void
print_list (const struct weft_cli_sheets *kind, const GPtrArray *pages)
{
  g_autoptr (GPtrArray) rows = g_ptr_array_new_with_free_func ((GDestroyNotify) g_strfreev);

  g_ptr_array_add (rows, list_row (kind, NULL));
  for (unsigned i = 0; i < pages->len; i++)
    g_ptr_array_add (rows, list_row (kind, pages->pdata[i]));
  unsigned shown = columns_that_fit (rows);
  char **heads = rows->pdata[0];
  print_cells (rows, shown);
  if (heads[shown]) {
    g_autofree char *others = g_strjoinv (", ", heads + shown);
    g_autofree char *line = g_strconcat ("not shown on this terminal: ", others, NULL);
    printf ("\n");
    weft_cli_print_wrapped (line, 0, weft_cli_columns ());
  }
  printf ("\nprinted/measured/other: how many numbers are printed by the vendor, measured,\n"
          "and estimated, derived or chosen.  `weft %s NAME` shows each number\n"
          "with its source.\n",
          kind->command);
}

static int
show_all (const struct weft_cli_sheets *kind, gboolean json)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (GPtrArray) pages = load_pages (kind->sheet, &error);

  if (!pages)
    return weft_cli_fail (error);
  if (!json) {
    print_list (kind, pages);
    return 0;
  }
  g_autoptr (JsonBuilder) builder = json_builder_new ();
  json_builder_begin_array (builder);
  for (unsigned i = 0; i < pages->len; i++)
    build_page (builder, pages->pdata[i]);
  json_builder_end_array (builder);
  weft_cli_print_json (builder);
  return 0;
}

static int
show_one (const struct weft_cli_sheets *kind, const char *name, gboolean json)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (sheet_page) page = page_load (kind->sheet, name, &error);

  if (!page)
    return weft_cli_fail (error);
  if (!json) {
    print_page (page);
    return 0;
  }
  g_autoptr (JsonBuilder) builder = json_builder_new ();
  build_page (builder, page);
  weft_cli_print_json (builder);
  return 0;
}

static int
show_help (const struct weft_cli_sheets *kind)
{
  if (weft_cli_form == WEFT_CLI_FORM_FLAGS)
    return 0;
  printf ("usage: weft %s [NAME] [--json]\n\n"
          "Lists the files of %s/, or shows one: a bundled name or a path to an .ini",
          kind->command, kind->sheet->folder);
  for (const struct weft_cli_sheet_form *form = kind->forms; form && form->claims; form++)
    if (form->word)
      printf ("\nor to %s", form->word);
  printf (".\n\nexamples:\n  weft %s\n  weft %s %s\n  weft %s --json\n", kind->command,
          kind->command, kind->example, kind->command);
  return 0;
}

/* The form of a file that is no sheet; NULL: it is one. */
static const struct weft_cli_sheet_form *
form_of (const struct weft_cli_sheets *kind, const char *name)
{
  for (const struct weft_cli_sheet_form *form = kind->forms; form && form->claims; form++)
    if (form->claims (name))
      return form;
  return NULL;
}

int
weft_cli_sheets (const struct weft_cli_sheets *kind, int argc, char **argv)
{
  struct weft_cli_ask ask;
  g_autoptr (GError) error = NULL;

  if (!weft_cli_ask (argc, argv, FALSE, &ask, &error))
    return weft_cli_fail (error);
  if (ask.help)
    return show_help (kind);
  const struct weft_cli_sheet_form *form = ask.name ? form_of (kind, ask.name) : NULL;
  if (form)
    return form->show (ask.name, ask.json);
  return ask.name ? show_one (kind, ask.name, ask.json) : show_all (kind, ask.json);
}
