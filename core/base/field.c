#include "core/base/field.h"
#include "core/base/error.h"
#include "core/base/suggest.h"
#include "core/base/units.h"
#include <math.h>
#include <string.h>

const char *
weft_type_word (enum weft_type type)
{
  static const char *const words[] = { "int", "bool", "real", "word", "text", "method" };
  return words[type];
}

void
weft_table_defaults (const struct weft_table *table, union weft_value *values)
{
  for (unsigned i = 0; i < table->n; i++) {
    g_autoptr (GError) error = NULL;
    if (table->field[i].type == WEFT_TYPE_METHOD)
      values[i].i = WEFT_NONE;
    else if (!weft_field_parse (&table->field[i], table->field[i].def, &values[i], &error))
      g_error ("default of %s %s: %s", table->noun, table->field[i].name, error->message);
  }
}

static gboolean
has_alias (const struct weft_field *field, const char *name)
{
  char alias[64];

  for (const char *at = field->aliases ? field->aliases : ""; *at; at += *at == ' ') {
    size_t n = strcspn (at, " ");
    g_assert (n < sizeof alias);
    memcpy (alias, at, n);
    alias[n] = '\0';
    if (weft_same_name (alias, name))
      return TRUE;
    at += n;
  }
  return FALSE;
}

int
weft_table_find (const struct weft_table *table, const char *name)
{
  for (unsigned i = 0; i < table->n; i++)
    if (weft_same_name (table->field[i].name, name))
      return i;
  for (unsigned i = 0; i < table->n; i++)
    if (has_alias (&table->field[i], name))
      return i;
  return -1;
}

static const char *
name_at (const void *fields, unsigned i)
{
  return ((const struct weft_field *) fields)[i].name;
}

gboolean
weft_table_unknown (const struct weft_table *table, const char *name, GError **error)
{
  const char *near = weft_suggest (name, name_at, table->field, table->n);

  if (near)
    return weft_bad_input (error, "unknown %s \"%s\"; did you mean %s?", table->noun, name, near);
  return weft_bad_input (error, "unknown %s \"%s\"", table->noun, name);
}

char *
weft_field_counts (const struct weft_field *field)
{
  gboolean plain = field->type == WEFT_TYPE_INT || (field->type == WEFT_TYPE_REAL && !*field->unit);
  size_t n = field->doc ? strcspn (field->doc, ":;(") : 0;

  while (n && field->doc[n - 1] == ' ')
    n--;
  return plain && n ? g_strdup_printf (" (%.*s)", (int) n, field->doc) : g_strdup ("");
}

static gboolean
wanted (const struct weft_field *field, const char *text, GError **error)
{
  g_autofree char *range = weft_field_range (field), *what = weft_field_counts (field);

  return weft_bad_input (error, "%s: found \"%s\", wanted %s%s", field->name, text, range, what);
}

static gboolean
within (const struct weft_field *field, double value)
{
  double bound;
  if (field->lo && weft_units_parse (field->lo, field->unit, &bound, NULL) && value < bound)
    return FALSE;
  if (field->hi && weft_units_parse (field->hi, field->unit, &bound, NULL) && value > bound)
    return FALSE;
  return TRUE;
}

static unsigned
n_words (const char *const *words)
{
  unsigned n = 0;

  while (words[n])
    n++;
  return n;
}

gboolean
weft_field_holds (const struct weft_field *field, union weft_value value)
{
  if (value.i == WEFT_NONE && field->type != WEFT_TYPE_TEXT)
    return strcmp (field->def, "none") == 0;
  switch (field->type) {
  case WEFT_TYPE_INT:
    return within (field, (double) value.i);
  case WEFT_TYPE_REAL:
    return within (field, value.r);
  case WEFT_TYPE_BOOL:
    return value.i == FALSE || value.i == TRUE;
  case WEFT_TYPE_WORD:
    return value.i >= 0 && value.i < (int64_t) n_words (field->words);
  case WEFT_TYPE_TEXT:
    return TRUE;
  default:
    return FALSE;
  }
}

static gboolean
parse_number (const struct weft_field *field, const char *text, double *number)
{
  if (!weft_units_parse (text, field->unit, number, NULL) || !within (field, *number))
    return FALSE;
  /* -0.0 becomes 0.0, because the bits of -0.0 as a double are those of WEFT_NONE */
  *number += 0.0;
  return TRUE;
}

static gboolean
parse_word (const char *const *words, const char *text, int64_t *out)
{
  for (int i = 0; words[i]; i++)
    if (weft_same_name (words[i], text)) {
      *out = i;
      return TRUE;
    }
  return FALSE;
}

static gboolean
parse_bool (const char *text, int64_t *out)
{
  static const char *const words[] = { "false", "true", "0", "1", "no", "yes", "off", "on", NULL };
  if (!parse_word (words, text, out))
    return FALSE;
  *out &= 1;
  return TRUE;
}

gboolean
weft_field_parse (const struct weft_field *field, const char *text, union weft_value *value,
                  GError **error)
{
  gboolean ok = FALSE;
  double number;

  if (field->type != WEFT_TYPE_TEXT && strcmp (field->def, "none") == 0 &&
      strcmp (text, "none") == 0 &&
      !(field->type == WEFT_TYPE_WORD && parse_word (field->words, text, &value->i))) {
    value->i = WEFT_NONE;
    return TRUE;
  }
  switch (field->type) {
  case WEFT_TYPE_INT:
    ok = parse_number (field, text, &number) && number == trunc (number);
    if (ok)
      value->i = (int64_t) number;
    break;
  case WEFT_TYPE_REAL:
    ok = parse_number (field, text, &number);
    if (ok)
      value->r = number;
    break;
  case WEFT_TYPE_BOOL:
    ok = parse_bool (text, &value->i);
    break;
  case WEFT_TYPE_WORD:
    ok = parse_word (field->words, text, &value->i);
    break;
  case WEFT_TYPE_TEXT:
    value->i = g_quark_from_string (text);
    ok = TRUE;
    break;
  case WEFT_TYPE_METHOD:
    return weft_bad_input (error, "%s is a method, not a setting", field->name);
  }
  return ok ? TRUE : wanted (field, text, error);
}

gboolean
weft_field_is_default (const struct weft_field *field, union weft_value value)
{
  union weft_value def;
  if (field->type == WEFT_TYPE_METHOD)
    return TRUE;
  return weft_field_parse (field, field->def, &def, NULL) && def.i == value.i;
}

char *
weft_field_print (const struct weft_field *field, union weft_value value)
{
  if (value.i == WEFT_NONE)
    return g_strdup ("none");
  switch (field->type) {
  case WEFT_TYPE_INT:
    return g_strdup_printf ("%" G_GINT64_FORMAT, value.i);
  case WEFT_TYPE_REAL:
    return weft_units_print (value.r);
  case WEFT_TYPE_BOOL:
    return g_strdup (value.i ? "true" : "false");
  case WEFT_TYPE_WORD:
    return g_strdup (field->words[value.i]);
  case WEFT_TYPE_TEXT:
    return g_strdup (g_quark_to_string ((GQuark) value.i));
  case WEFT_TYPE_METHOD:
    break;
  }
  return g_strdup ("");
}

char *
weft_field_range (const struct weft_field *field)
{
  const char *none = strcmp (field->def, "none") == 0 ? "none|" : "";

  switch (field->type) {
  case WEFT_TYPE_BOOL:
    return g_strdup_printf ("%strue|false", none);
  case WEFT_TYPE_WORD: {
    g_autofree char *all = g_strjoinv ("|", (char **) field->words);
    return g_strdup_printf ("%s%s", g_str_has_prefix (all, "none") ? "" : none, all);
  }
  case WEFT_TYPE_INT:
  case WEFT_TYPE_REAL:
    return g_strdup_printf ("%s%s..%s%s%s", none, field->lo ? field->lo : "",
                            field->hi ? field->hi : "", *field->unit ? " " : "", field->unit);
  case WEFT_TYPE_TEXT:
    return g_strdup ("text");
  case WEFT_TYPE_METHOD:
    break;
  }
  return g_strdup ("");
}

gboolean
weft_field_is_pending (const struct weft_field *field)
{
  return g_str_has_prefix (field->affects, "not yet");
}
