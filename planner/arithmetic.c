#include "planner/arithmetic.h"
#include <math.h>
#include <string.h>

enum { MOST_DEPTH = 16 }; /* levels of parentheses */

struct reader {
  const char *at;
  weft_arithmetic_names *names;
  const void *user;
  unsigned depth;
};

static gboolean read_sum (struct reader *r, double *value);

static void
skip_blanks (struct reader *r)
{
  r->at += strspn (r->at, " \t");
}

static gboolean
take (struct reader *r, char symbol)
{
  skip_blanks (r);
  if (*r->at != symbol)
    return FALSE;
  r->at++;
  return TRUE;
}

static gboolean
read_parentheses (struct reader *r, double *value)
{
  if (r->depth == MOST_DEPTH)
    return FALSE;
  r->depth++;
  gboolean ok = read_sum (r, value) && take (r, ')');
  r->depth--;
  return ok;
}

static const struct {
  const char *name;
  double (*of) (double x);
} functions[] = { { "ceil", ceil }, { "sqrt", sqrt } };

static gboolean
read_name (struct reader *r, double *value)
{
  size_t length = 0;

  while (g_ascii_isalnum (r->at[length]) || (r->at[length] && strchr ("_.", r->at[length])))
    length++;
  g_autofree char *name = g_strndup (r->at, length);
  r->at += length;
  for (unsigned i = 0; i < G_N_ELEMENTS (functions); i++)
    if (g_str_equal (name, functions[i].name)) {
      gboolean ok = take (r, '(') && read_parentheses (r, value);
      *value = ok ? functions[i].of (*value) : NAN;
      return ok;
    }
  return r->names && r->names (name, value, r->user);
}

static gboolean
read_factor (struct reader *r, double *value)
{
  char *end;

  if (take (r, '('))
    return read_parentheses (r, value);
  if (g_ascii_isalpha (*r->at))
    return read_name (r, value);
  if (!g_ascii_isdigit (*r->at))
    return FALSE;
  *value = g_ascii_strtod (r->at, &end);
  r->at = end;
  return TRUE;
}

static gboolean
read_product (struct reader *r, double *value)
{
  double by;

  if (!read_factor (r, value))
    return FALSE;
  for (;;) {
    skip_blanks (r);
    char sign = *r->at;
    if (!sign || !strchr ("*/%", sign))
      return TRUE;
    r->at++;
    if (!read_factor (r, &by))
      return FALSE;
    *value = sign == '*' ? *value * by : sign == '/' ? *value / by : fmod (*value, by);
  }
}

static gboolean
read_sum (struct reader *r, double *value)
{
  double by;

  if (!read_product (r, value))
    return FALSE;
  for (;;) {
    gboolean plus = take (r, '+');
    if (!plus && !take (r, '-'))
      return TRUE;
    if (!read_product (r, &by))
      return FALSE;
    *value += plus ? by : -by;
  }
}

gboolean
weft_arithmetic (const char *text, weft_arithmetic_names *names, const void *user, double *value)
{
  struct reader r = { .at = text, .names = names, .user = user };
  gboolean ok = read_sum (&r, value);

  skip_blanks (&r);
  return ok && !*r.at;
}
