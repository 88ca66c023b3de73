#include "core/program/formula.h"
#include <glib.h>
#include <string.h>

/* Appends the value of a name: a dimension, or bytes of an element. FALSE: the name is that of a
 * function. */
static gboolean
append_value (GString *text, const char *name, const char *dims, const struct weft_shape *s)
{
  g_auto (GStrv) dim = g_strsplit_set (dims, "(, )", -1);
  unsigned n = 0;

  for (unsigned i = 0; dim[i]; i++) {
    if (!*dim[i])
      continue;
    if (strcmp (dim[i], name) == 0) {
      g_string_append_printf (text, "%" G_GUINT64_FORMAT, s->dim[n]);
      return TRUE;
    }
    n++;
  }
  if (strcmp (name, "size") != 0 && strcmp (name, "result") != 0)
    return FALSE;
  g_string_append_printf (text, "%u",
                          weft_dtype_bytes (*name == 's' ? s->dtype : s->out_dtype));
  return TRUE;
}

/* Appends an expression with " x " for " * ". With a shape, names have its values. */
static void
append_expression (GString *text, const char *at, const char *dims, const struct weft_shape *s)
{
  while (*at) {
    if (g_ascii_isalpha (*at)) {
      gsize n = 0;
      while (g_ascii_isalnum (at[n]) || at[n] == '_')
        n++;
      g_autofree char *name = g_strndup (at, n);
      if (!s || !append_value (text, name, dims, s))
        g_string_append (text, name);
      at += n;
      continue;
    }
    g_string_append_c (text, *at == '*' ? 'x' : *at);
    at++;
  }
}

static char *
formula_text (const struct weft_op_formula *formula, const char *expression,
              const struct weft_shape *s)
{
  g_autoptr (GString) names = g_string_new (NULL), values = g_string_new (NULL);

  append_expression (names, expression, formula->dims, NULL);
  append_expression (values, expression, formula->dims, s);
  if (strcmp (names->str, values->str) == 0)
    return g_strdup (names->str);
  return g_strdup_printf ("%s = %s", names->str, values->str);
}

char *
weft_op_formula_flops (enum weft_op_kind kind, const struct weft_shape *s)
{
  const struct weft_op_formula *formula = weft_op_info[kind].formula;

  return formula_text (formula, formula->flops, s);
}

char *
weft_op_formula_bytes (enum weft_op_kind kind, const struct weft_shape *s)
{
  const struct weft_op_formula *formula = weft_op_info[kind].formula;

  return formula_text (formula, formula->bytes, s);
}
