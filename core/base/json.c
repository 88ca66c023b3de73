#include "core/base/json.h"
#include <math.h>
#include <string.h>

/* Defines weft_json_text(), weft_json_int(), weft_json_real() and weft_json_bool(). */
#define MEMBER(name, type, add)                                                                    \
  void weft_json_##name (JsonBuilder *b, const char *member, type value)                           \
  {                                                                                                \
    json_builder_set_member_name (b, member);                                                      \
    json_builder_add_##add##_value (b, value);                                                     \
  }
MEMBER (text, const char *, string)
MEMBER (int, int64_t, int)
MEMBER (real, double, double)
MEMBER (bool, gboolean, boolean)
#undef MEMBER

void
weft_json_null (JsonBuilder *b, const char *member)
{
  json_builder_set_member_name (b, member);
  json_builder_add_null_value (b);
}

void
weft_json_real_or_null (JsonBuilder *b, const char *member, double value)
{
  if (isfinite (value))
    weft_json_real (b, member, value);
  else
    weft_json_null (b, member);
}

void
weft_json_array (JsonBuilder *b, const char *member)
{
  json_builder_set_member_name (b, member);
  json_builder_begin_array (b);
}

void
weft_json_object (JsonBuilder *b, const char *member)
{
  json_builder_set_member_name (b, member);
  json_builder_begin_object (b);
}

void
weft_json_value (JsonBuilder *b, const char *member, const struct weft_field *field,
                 union weft_value value)
{
  g_autofree char *text = weft_field_print (field, value);

  if (value.i == WEFT_NONE)
    weft_json_null (b, member);
  else if (field->type == WEFT_TYPE_INT)
    weft_json_int (b, member, value.i);
  else if (field->type == WEFT_TYPE_REAL)
    weft_json_real (b, member, value.r);
  else if (field->type == WEFT_TYPE_BOOL)
    weft_json_bool (b, member, value.i != 0);
  else
    weft_json_text (b, member, text);
}

#define NUMBER "+-.0123456789eE"

/* Writes a real number of `n` characters with as few digits as give its value back, and returns the
 * number of characters, which is at most n. A number without an exponent keeps its point. */
static size_t
shorten_real (char *to, const char *number, size_t n)
{
  g_autofree char *text = g_strndup (number, n);
  char shortest[G_ASCII_DTOSTR_BUF_SIZE + 2];
  double value = g_ascii_strtod (text, NULL);
  static const char *const formats[] = { "%.15g", "%.16g", "%.17g" };

  for (unsigned i = 0; i < G_N_ELEMENTS (formats); i++) {
    g_ascii_formatd (shortest, G_ASCII_DTOSTR_BUF_SIZE, formats[i], value);
    if (g_ascii_strtod (shortest, NULL) == value)
      break;
  }
  if (!strpbrk (shortest, ".e"))
    strcat (shortest, ".0");
  size_t length = strlen (shortest);
  if (length > n) { /* an exponent instead of zeros */
    memmove (to, number, n);
    return n;
  }
  memcpy (to, shortest, length);
  return length;
}

/* Shortens the real numbers of a document, but not inside strings. */
static char *
shorten_reals (char *text)
{
  gboolean quoted = FALSE;
  char *to = text;

  for (const char *c = text; *c; c++) {
    size_t n = quoted ? 0 : strspn (c, NUMBER);
    if (n > 0 && (*c == '-' || g_ascii_isdigit (*c))) {
      gboolean real = strcspn (c, ".eE") < n;
      to += real ? shorten_real (to, c, n) : (memmove (to, c, n), n);
      c += n - 1;
      continue;
    }
    if (quoted && *c == '\\')
      *to++ = *c++;
    else if (*c == '"')
      quoted = !quoted;
    *to++ = *c;
  }
  *to = '\0';
  return text;
}

char *
weft_json_print (JsonNode *root, gboolean pretty)
{
  return shorten_reals (json_to_string (root, pretty));
}
