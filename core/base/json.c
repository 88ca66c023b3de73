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

/* Removes the ".0" that follows an exponent, but not inside strings. */
static char *
without_fractions_of_exponents (char *text)
{
  gboolean quoted = FALSE, exponent = FALSE;
  char *to = text;

  for (const char *c = text; *c; c++) {
    if (quoted && *c == '\\')
      *to++ = *c++;
    else if (*c == '"')
      quoted = !quoted;
    exponent = !quoted && (*c == 'e' || (exponent && strchr ("+-.0123456789", *c)));
    if (exponent && *c == '.')
      c++;
    else
      *to++ = *c;
  }
  *to = '\0';
  return text;
}

char *
weft_json_print (JsonNode *root, gboolean pretty)
{
  return without_fractions_of_exponents (json_to_string (root, pretty));
}
