#include "interop/toml.h"
#include "interop/tomlc17/tomlc17.h"
#include "core/base/error.h"
#include <string.h>

struct reader {
  const char *name;
  GArray *values;
};

/* The most levels of tables. */
enum { MOST_DEPTH = 32 };

static void
clear_value (gpointer data)
{
  struct weft_toml_value *value = data;
  g_free (value->path);
  g_free (value->text);
}

/* The text of a value, or NULL for a type without one. The caller frees it. */
static char *
scalar (const toml_datum_t *datum)
{
  char number[G_ASCII_DTOSTR_BUF_SIZE];

  if (datum->type == TOML_STRING)
    return g_strdup (datum->u.s);
  if (datum->type == TOML_INT64)
    return g_strdup_printf ("%" G_GINT64_FORMAT, (gint64) datum->u.int64);
  if (datum->type == TOML_FP64)
    return g_strdup (g_ascii_dtostr (number, sizeof number, datum->u.fp64));
  if (datum->type == TOML_BOOLEAN)
    return g_strdup (datum->u.boolean ? "true" : "false");
  return NULL;
}

/* The items of a list, separated by commas, or NULL. */
static char *
list_text (const toml_datum_t *list)
{
  g_autoptr (GString) text = g_string_new (NULL);

  for (int32_t i = 0; i < list->u.arr.size; i++) {
    const toml_datum_t *item = &list->u.arr.elem[i];
    g_autofree char *inner = item->type == TOML_ARRAY ? NULL : scalar (item);
    if (!inner)
      return NULL;
    g_string_append_printf (text, "%s%s", i ? "," : "", inner);
  }
  return g_string_free (g_steal_pointer (&text), FALSE);
}

static gboolean
add_value (struct reader *r, const toml_datum_t *datum, const char *path, GError **error)
{
  struct weft_toml_value value = { g_strdup (path),
                                   datum->type == TOML_ARRAY ? list_text (datum) : scalar (datum),
                                   (unsigned) MAX (datum->lineno, 0) };

  g_array_append_val (r->values, value);
  return value.text ? TRUE
                    : weft_bad_input (error,
                                      "%s:%u: %s: wanted a text, a number, true or false, or a "
                                      "list of these",
                                      r->name, value.line, path);
}

static gboolean
add_table (struct reader *r, const toml_datum_t *table, const char *path, unsigned depth,
           GError **error)
{
  if (depth > MOST_DEPTH)
    return weft_bad_input (error, "%s: more than %d levels of tables", r->name, MOST_DEPTH);
  for (int32_t i = 0; i < table->u.tab.size; i++) {
    const toml_datum_t *datum = &table->u.tab.value[i];
    g_autofree char *inner =
        *path ? g_strconcat (path, ".", table->u.tab.key[i], NULL) : g_strdup (table->u.tab.key[i]);
    if (!(datum->type == TOML_TABLE ? add_table (r, datum, inner, depth + 1, error)
                                    : add_value (r, datum, inner, error)))
      return FALSE;
  }
  return TRUE;
}

GArray *
weft_toml_values (const char *text, const char *name, GError **error)
{
  g_autoptr (GArray) values = g_array_new (FALSE, FALSE, sizeof (struct weft_toml_value));
  struct reader r = { name, values };
  toml_result_t result = toml_parse (text, (int) strlen (text));
  gboolean ok = result.ok;

  g_array_set_clear_func (values, clear_value);
  if (ok)
    ok = add_table (&r, &result.toptab, "", 0, error);
  else
    weft_bad_input (error, "%s: %s", name, result.errmsg);
  toml_free (result);
  return ok ? g_steal_pointer (&values) : NULL;
}
