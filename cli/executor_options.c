#include "cli/executor_options.h"
#include "cli/executors.h"
#include "core/base/error.h"
#include <string.h>

/* The text that the command line gives for one flag. */
struct given {
  gboolean on;
  const char *text;
};

struct weft_cli_options {
  const struct weft_exec_ops *const *executors;
  GArray *flag;       /* array of struct weft_cli_flag: the lines of --help */
  /* array of struct given *, one for each line; the lines of one flag have the same pointer */
  GPtrArray *given;
  GStringChunk *text; /* owns the strings of the lines */
};

/* The row for the flag `name` in an executor's table, or NULL if the table has no such row. */
static const struct weft_field *
row_of (const struct weft_exec_ops *ops, const char *name)
{
  int row = ops->options ? weft_table_find (ops->options, name) : -1;

  return row >= 0 && ops->options->field[row].doc ? &ops->options->field[row] : NULL;
}

static gboolean
has_flag (const struct weft_exec_ops *ops, const void *name)
{
  return row_of (ops, name) != NULL;
}

static gboolean
has_line (const struct weft_exec_ops *ops, const void *line)
{
  const struct weft_field *wanted = line, *row = row_of (ops, wanted->name);

  return row && g_str_equal (row->doc, wanted->doc) && g_str_equal (row->def, wanted->def);
}

static const char *
line_text (weft_cli_options *o, const struct weft_field *row)
{
  g_autofree char *about = weft_cli_executors_about (o->executors, has_line, row);
  gboolean shown = row->type != WEFT_TYPE_BOOL && *row->def;
  g_autofree char *line = g_strdup_printf ("%s%s%s%s%s", about, row->doc, shown ? " [" : "",
                                           shown ? row->def : "", shown ? "]" : "");

  return g_string_chunk_insert (o->text, line);
}

static const char *
value_text (weft_cli_options *o, const struct weft_field *row)
{
  g_autofree char *words = row->type == WEFT_TYPE_WORD ? weft_field_range (row) : NULL;

  return row->type == WEFT_TYPE_BOOL   ? NULL
         : row->type == WEFT_TYPE_TEXT ? "LIST"
         : words                       ? g_string_chunk_insert (o->text, words)
                                       : "N";
}

static const struct weft_cli_flag *
flag_at (const weft_cli_options *o, guint i)
{
  return &g_array_index (o->flag, struct weft_cli_flag, i);
}

/* Index of the last --help line of the flag with this name; -1 if there is none. */
static int
last_line (const weft_cli_options *o, const char *name)
{
  for (guint i = o->flag->len; i-- > 0;)
    if (g_str_equal (flag_at (o, i)->name, name))
      return (int) i;
  return -1;
}

/* Adds a line of --help below the other lines of the same flag. All lines of a flag point to one
 * struct given. */
static void
add_line (weft_cli_options *o, const struct weft_field *row)
{
  int last = last_line (o, row->name);
  struct given *given = last >= 0 ? o->given->pdata[last] : g_new0 (struct given, 1);
  const struct weft_cli_flag flag = { .name = row->name,
                                      .value = value_text (o, row),
                                      .doc = line_text (o, row),
                                      .on = &given->on,
                                      .text = &given->text,
                                      .joins = row->type == WEFT_TYPE_TEXT };
  guint at = last >= 0 ? (guint) last + 1 : o->flag->len;

  g_array_insert_val (o->flag, at, flag);
  g_ptr_array_insert (o->given, (gint) at, given);
}

/* Whether an executor that is listed before `ops` has added an equal line to --help. */
static gboolean
is_listed (const weft_cli_options *o, const struct weft_exec_ops *ops, const struct weft_field *row)
{
  for (const struct weft_exec_ops *const *before = o->executors; *before != ops; before++)
    if (has_line (*before, row))
      return TRUE;
  return FALSE;
}

static void
add_lines (weft_cli_options *o, const struct weft_exec_ops *ops)
{
  for (unsigned i = 0; i < ops->options->n; i++) {
    const struct weft_field *row = &ops->options->field[i];
    if (row->doc && !is_listed (o, ops, row))
      add_line (o, row);
  }
}

weft_cli_options *
weft_cli_options_new (const struct weft_exec_ops *const *executors)
{
  weft_cli_options *o = g_new0 (weft_cli_options, 1);

  o->executors = executors;
  o->flag = g_array_new (FALSE, FALSE, sizeof (struct weft_cli_flag));
  o->given = g_ptr_array_new ();
  o->text = g_string_chunk_new (1024);
  for (; *executors; executors++)
    if ((*executors)->options)
      add_lines (o, *executors);
  return o;
}

static gboolean
is_first_line (const weft_cli_options *o, guint i)
{
  return i == 0 || o->given->pdata[i] != o->given->pdata[i - 1];
}

void
weft_cli_options_free (weft_cli_options *o)
{
  for (guint i = 0; i < o->given->len; i++)
    if (is_first_line (o, i))
      g_free (o->given->pdata[i]);
  g_array_unref (o->flag);
  g_ptr_array_unref (o->given);
  g_string_chunk_free (o->text);
  g_free (o);
}

const struct weft_cli_flag *
weft_cli_options_flags (const weft_cli_options *o, unsigned *n)
{
  *n = o->flag->len;
  return (const struct weft_cli_flag *) (void *) o->flag->data;
}

static gboolean
read_flag (const weft_cli_options *o, const char *name, const struct given *given,
           const struct weft_exec_ops *chosen, struct weft_own_options *own, GError **error)
{
  if (!has_flag (chosen, name)) {
    g_autofree char *others = weft_cli_executors_with (o->executors, has_flag, name);
    return weft_bad_input (error, "--%s: not available with executor %s (expected --executor %s)",
                           name, chosen->name, others);
  }
  if (weft_own_options_set (own, chosen->options, name, given->on ? "true" : given->text, error))
    return TRUE;
  g_prefix_error (error, "--");
  return FALSE;
}

gboolean
weft_cli_options_read (const weft_cli_options *o, const struct weft_exec_ops *chosen,
                       struct weft_own_options *own, GError **error)
{
  *own = (struct weft_own_options){ 0 };
  for (guint i = 0; i < o->flag->len; i++) {
    const struct given *given = o->given->pdata[i];
    if ((given->on || given->text) &&
        !read_flag (o, flag_at (o, i)->name, given, chosen, own, error))
      return FALSE;
  }
  return TRUE;
}
