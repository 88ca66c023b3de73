#include "core/collective/expression.h"
#include "core/base/error.h"
#include <string.h>

struct reading {
  const char *at;
  const struct weft_variables *v;
  gboolean check;
  unsigned depth;
  GError **error;
};

/* Operators by precedence: a level binds weaker than the next one. Within a level the longer
 * operators come first. */
enum { N_LEVEL = 6, MOST_OPERATORS = 7, MOST_DEPTH = 40 };
static const char *const operators[N_LEVEL][MOST_OPERATORS] = {
  { "||" }, { "&&" }, { "==", "!=", "<=", ">=", "<", ">" }, { "^" }, { "+", "-" },
  { "*", "/", "%" },
};

/* Values stay so small that sums and products of two of them fit in 64 bits. */
static const int64_t most_value = 1 << 30;

static void
skip_blanks (struct reading *r)
{
  while (*r->at == ' ' || *r->at == '\t')
    r->at++;
}

static gboolean
wanted (const struct reading *r, const char *what)
{
  g_autofree char *start = g_strndup (r->at, 20), *found = g_strescape (start, NULL);

  return weft_bad_input (r->error, "found \"%s\", wanted %s", found, what);
}

int
weft_variables_find (const struct weft_variables *v, const char *name, gsize length)
{
  for (int i = (int) v->n - 1; i >= 0; i--)
    if (strlen (v->name[i]) == length && strncmp (v->name[i], name, length) == 0)
      return i;
  return -1;
}

static gboolean
divide (const struct reading *r, char operator, int64_t a, int64_t b, int64_t *value)
{
  if (b == 0 && !r->check)
    return weft_bad_input (r->error, "found a division by 0");
  b = b == 0 ? 1 : b;
  int64_t rest = a % b, quotient = a / b;
  if (rest != 0 && (rest < 0) != (b < 0)) {
    rest += b;
    quotient--;
  }
  *value = operator == '/' ? quotient : rest;
  return TRUE;
}

static gboolean
apply (const struct reading *r, const char *operator, int64_t a, int64_t b, int64_t *value)
{
  gboolean equal = operator[1] == '=';

  switch (operator[0]) {
  case '|':
    *value = a || b;
    break;
  case '&':
    *value = a && b;
    break;
  case '=':
    *value = a == b;
    break;
  case '!':
    *value = a != b;
    break;
  case '<':
    *value = equal ? a <= b : a < b;
    break;
  case '>':
    *value = equal ? a >= b : a > b;
    break;
  case '^':
    *value = a ^ b;
    break;
  case '+':
    *value = a + b;
    break;
  case '-':
    *value = a - b;
    break;
  case '*':
    *value = a * b;
    break;
  default:
    if (!divide (r, operator[0], a, b, value))
      return FALSE;
  }
  if (r->check)
    *value = 1;
  return ABS (*value) <= most_value ||
         weft_bad_input (r->error, "found the value %" G_GINT64_FORMAT ", wanted at most %d",
                         *value, 1 << 30);
}

static gboolean read_level (struct reading *r, unsigned level, int64_t *value);

static gboolean
read_name (struct reading *r, int64_t *value)
{
  const char *name = r->at;

  while (g_ascii_isalnum (*r->at) || *r->at == '_')
    r->at++;
  int i = weft_variables_find (r->v, name, r->at - name);
  if (i < 0) {
    g_autofree char *found = g_strndup (name, MIN (r->at - name, 40));
    return weft_bad_input (r->error,
                           "unknown name \"%s\": wanted r, n, chunks, or a name of for or let",
                           found);
  }
  *value = r->check ? 1 : r->v->value[i];
  return TRUE;
}

static gboolean
read_number (struct reading *r, int64_t *value)
{
  for (*value = 0; g_ascii_isdigit (*r->at); r->at++)
    if ((*value = 10 * *value + *r->at - '0') > most_value)
      return wanted (r, "a smaller number");
  return TRUE;
}

static gboolean
read_term (struct reading *r, int64_t *value)
{
  skip_blanks (r);
  if (g_ascii_isdigit (*r->at))
    return read_number (r, value);
  if (g_ascii_isalpha (*r->at))
    return read_name (r, value);
  gboolean minus = *r->at == '-';
  if ((!minus && *r->at != '(') || r->depth == MOST_DEPTH)
    return wanted (r, "a number, a name or (");
  r->at++;
  r->depth++;
  if (!(minus ? read_term (r, value) : read_level (r, 0, value)))
    return FALSE;
  r->depth--;
  skip_blanks (r);
  if (minus)
    *value = -*value;
  else if (*r->at++ != ')') {
    r->at--;
    return wanted (r, ")");
  }
  return TRUE;
}

static const char *
next_operator (struct reading *r, unsigned level)
{
  skip_blanks (r);
  for (unsigned i = 0; i < MOST_OPERATORS && operators[level][i]; i++)
    if (g_str_has_prefix (r->at, operators[level][i]))
      return operators[level][i];
  return NULL;
}

static gboolean
read_level (struct reading *r, unsigned level, int64_t *value)
{
  const char *operator;
  int64_t right;

  if (level == N_LEVEL)
    return read_term (r, value);
  if (!read_level (r, level + 1, value))
    return FALSE;
  while ((operator = next_operator (r, level))) {
    r->at += strlen (operator);
    if (!read_level (r, level + 1, &right) || !apply (r, operator, *value, right, value))
      return FALSE;
  }
  return TRUE;
}

gboolean
weft_expression_read (const char **at, const struct weft_variables *v, gboolean check,
                      int64_t *value, GError **error)
{
  struct reading r = { .at = *at, .v = v, .check = check, .error = error };
  gboolean good = read_level (&r, 0, value);

  skip_blanks (&r);
  *at = r.at;
  return good;
}
