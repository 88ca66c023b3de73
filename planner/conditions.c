#include "planner/conditions.h"
#include "core/base/error.h"
#include "core/base/suggest.h"
#include "planner/arithmetic.h"
#include <math.h>
#include <string.h>

struct condition {
  int column;       /* -1: an expression */
  /* expression of several columns, as text; NULL: the condition is on one column */
  char *expression;
  char op;          /* '=', '!' (for !=) or '>' */
  char **pattern;   /* the patterns, NULL-terminated; the condition is met if one of them matches */
};

/* The columns of a table, and the cells of one row. If the cells are NULL, every number is 1. */
struct names {
  const char *const *columns;
  char *const *cells;
};

struct weft_conditions {
  const char *const *columns;
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
  if ((condition->op == '>' || condition->expression) && !is_number (values))
    return weft_bad_input (error, "found \"%s\" after %s, wanted a number", values,
                           condition->expression ? condition->expression : ">");
  condition->pattern = g_strsplit (values, "|", -1);
  for (unsigned i = 0; condition->pattern[i]; i++)
    g_strstrip (condition->pattern[i]);
  return TRUE;
}

static double
number_in (const char *cell)
{
  return *cell ? g_ascii_strtod (cell, NULL) : NAN;
}

/* A weft_arithmetic_names function: the number in a column of the row. */
static gboolean
column_value (const char *name, double *value, const void *user)
{
  const struct names *names = user;

  for (int i = 0; names->columns[i]; i++)
    if (g_str_equal (names->columns[i], name)) {
      *value = names->cells ? number_in (names->cells[i]) : 1;
      return TRUE;
    }
  return FALSE;
}

/* Reads the left side of a condition: the name of a column, or an expression. */
static gboolean
read_left (const char *text, const char *const *columns, struct condition *condition,
           GError **error)
{
  const struct names names = { columns, NULL };
  double value;

  if (!strpbrk (text, "+-*/%("))
    return weft_conditions_column (columns, text, &condition->column, error);
  condition->column = -1;
  condition->expression = g_strdup (text);
  return weft_arithmetic (text, column_value, &names, &value) ||
         weft_bad_input (error,
                         "found \"%s\", wanted a column, or numbers and columns with + - * / "
                         "%% and parentheses",
                         text);
}

static gboolean
read_condition (const char *text, const char *const *columns, struct condition *condition,
                GError **error)
{
  const char *op = strpbrk (text, "!=>");

  if (!op || (*op == '!' && op[1] != '='))
    return weft_bad_input (error, "found \"%s\", wanted COLUMN = VALUE, != or >", text);
  g_autofree char *name = g_strndup (text, op - text);
  if (!read_left (g_strstrip (name), columns, condition, error))
    return FALSE;
  condition->op = *op;
  return read_patterns (op + (*op == '!' ? 2 : 1), condition, error);
}

static void
clear_condition (gpointer data)
{
  struct condition *condition = data;
  g_strfreev (condition->pattern);
  g_free (condition->expression);
}

weft_conditions *
weft_conditions_parse (const char *section, const char *const *columns, GError **error)
{
  g_auto (GStrv) parts = g_strsplit (section, " and ", -1);
  g_autoptr (weft_conditions) all = g_new0 (weft_conditions, 1);

  all->columns = columns;
  all->condition = g_array_new (FALSE, TRUE, sizeof (struct condition));
  g_array_set_clear_func (all->condition, clear_condition);
  for (unsigned i = 0; parts[i]; i++) {
    struct condition condition = { 0 };
    gboolean ok = read_condition (parts[i], columns, &condition, error);
    g_array_append_val (all->condition, condition);
    if (!ok)
      return NULL;
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

/* Whether the value of an expression meets its condition. FALSE if the expression contains a column
 * whose cell is blank. */
static gboolean
compares (const struct condition *condition, const struct names *names)
{
  double value, wanted = g_ascii_strtod (condition->pattern[0], NULL);

  if (!weft_arithmetic (condition->expression, column_value, names, &value) || isnan (value))
    return FALSE;
  return condition->op == '>' ? value > wanted : (value == wanted) == (condition->op == '=');
}

static gboolean
matches (const struct condition *condition, const struct names *names)
{
  if (condition->expression)
    return compares (condition, names);
  const char *cell = names->cells[condition->column];
  if (condition->op == '>')
    return number_in (cell) > g_ascii_strtod (condition->pattern[0], NULL);
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
  const struct names names = { conditions->columns, cells };

  for (unsigned i = 0; i < conditions->condition->len; i++)
    if (!matches (&g_array_index (conditions->condition, struct condition, i), &names))
      return FALSE;
  return TRUE;
}
