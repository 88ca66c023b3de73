#include "planner/conditions.h"
#include "core/base/error.h"
#include "core/base/suggest.h"
#include <math.h>
#include <string.h>

struct condition {
  int column;
  char op;        /* '=', '!' (for !=) or '>' */
  char **pattern; /* alternative patterns, NULL-terminated; the condition is met if one of them
                   * matches */
};

struct weft_conditions {
  GArray *condition;
};

gboolean
weft_conditions_column (const char *const *columns, const char *name, int *column, GError **error)
{
  for (*column = 0; columns[*column]; ++*column)
    if (g_str_equal (columns[*column], name))
      return TRUE;
  const char *near = weft_suggest_strv (name, columns);
  if (near)
    return weft_bad_input (error, "unknown column \"%s\"; did you mean %s?", name, near);
  return weft_bad_input (error, "unknown column \"%s\"", name);
}

static gboolean
is_number (const char *text)
{
  char *end;

  g_ascii_strtod (text, &end);
  return end != text && !*end;
}

static gboolean
read_patterns (const char *text, struct condition *condition, GError **error)
{
  g_autofree char *values = g_strstrip (g_strdup (text));

  if (!*values)
    return weft_bad_input (error, "found no value after a column, wanted one, or \"blank\"");
  if (condition->op == '>' && !is_number (values))
    return weft_bad_input (error, "found \"%s\" after >, wanted a number", values);
  condition->pattern = g_strsplit (values, "|", -1);
  for (unsigned i = 0; condition->pattern[i]; i++)
    g_strstrip (condition->pattern[i]);
  return TRUE;
}

static gboolean
read_condition (const char *text, const char *const *columns, struct condition *condition,
                GError **error)
{
  const char *op = strpbrk (text, "!=>");

  if (!op || (*op == '!' && op[1] != '='))
    return weft_bad_input (error, "found \"%s\", wanted COLUMN = VALUE, != or >", text);
  g_autofree char *name = g_strndup (text, op - text);
  if (!weft_conditions_column (columns, g_strstrip (name), &condition->column, error))
    return FALSE;
  condition->op = *op;
  return read_patterns (op + (*op == '!' ? 2 : 1), condition, error);
}

static void
clear_condition (gpointer data)
{
  g_strfreev (((struct condition *) data)->pattern);
}

weft_conditions *
weft_conditions_parse (const char *section, const char *const *columns, GError **error)
{
  g_auto (GStrv) parts = g_strsplit (section, " and ", -1);
  g_autoptr (weft_conditions) all = g_new0 (weft_conditions, 1);

  all->condition = g_array_new (FALSE, TRUE, sizeof (struct condition));
  g_array_set_clear_func (all->condition, clear_condition);
  for (unsigned i = 0; parts[i]; i++) {
    struct condition condition = { 0 };
    if (!read_condition (parts[i], columns, &condition, error))
      return NULL;
    g_array_append_val (all->condition, condition);
  }
  return g_steal_pointer (&all);
}

void
weft_conditions_free (weft_conditions *conditions)
{
  if (!conditions)
    return;
  g_array_unref (conditions->condition);
  g_free (conditions);
}

static gboolean
matches (const struct condition *condition, const char *cell)
{
  if (condition->op == '>')
    return (*cell ? g_ascii_strtod (cell, NULL) : NAN) >
           g_ascii_strtod (condition->pattern[0], NULL);
  for (unsigned i = 0; condition->pattern[i]; i++)
    if (g_str_equal (condition->pattern[i], "blank")
            ? !*cell
            : g_pattern_match_simple (condition->pattern[i], cell))
      return condition->op == '=';
  return condition->op == '!';
}

gboolean
weft_conditions_hold (const weft_conditions *conditions, char *const *cells)
{
  for (unsigned i = 0; i < conditions->condition->len; i++) {
    const struct condition *condition = &g_array_index (conditions->condition, struct condition, i);
    if (!matches (condition, cells[condition->column]))
      return FALSE;
  }
  return TRUE;
}
