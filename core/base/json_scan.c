#include "core/base/json_scan.h"
#include "core/base/error.h"
#include <string.h>

/* Maximum depth of nested brackets.  A config.json has about four levels; the JSON parser recurses
 * on each level. */
#define MOST_LEVELS 32

struct scan {
  const char *at, *end;
  unsigned line, column, levels;
  guint64 pairs; /* colons outside strings: one for each key of an object */
  gboolean closed;
};

static void
step (struct scan *s)
{
  s->column = *s->at == '\n' ? 1 : s->column + 1;
  s->line += *s->at == '\n';
  s->at++;
}

static gboolean
scan_fail (const struct scan *s, const char *wanted, GError **error)
{
  char found[] = { s->at < s->end ? *s->at : ' ', '\0' };

  if (s->at == s->end)
    return weft_bad_input (error, "%u:%u: found the end of the file, wanted %s", s->line, s->column,
                           wanted);
  if (!g_ascii_isgraph (*found))
    return weft_bad_input (error, "%u:%u: found byte 0x%02x, wanted %s", s->line, s->column,
                           (unsigned char) *found, wanted);
  return weft_bad_input (error, "%u:%u: found '%s', wanted %s", s->line, s->column, found, wanted);
}

/* The UTF-16 code unit that the four hex digits at `at` stand for; -1 if they are not hex
 * digits. */
static int
code_unit (const char *at, const char *end)
{
  int unit = 0;

  for (int i = 0; i < 4; i++) {
    if (at + i >= end || !g_ascii_isxdigit (at[i]))
      return -1;
    unit = unit * 16 + g_ascii_xdigit_value (at[i]);
  }
  return unit;
}

/* Checks the escape \\u, from its u on.  A lone surrogate or fewer than four digits would produce
 * bytes that are not UTF-8. */
static gboolean
scan_unicode (struct scan *s, GError **error)
{
  int unit = code_unit (s->at + 1, s->end), other = -1;

  if (s->end - s->at > 11 && s->at[5] == '\\' && s->at[6] == 'u')
    other = code_unit (s->at + 7, s->end);
  gboolean pair = unit >> 10 == 0xd800 >> 10 && other >> 10 == 0xdc00 >> 10;
  if (unit < 0 || (unit >> 11 == 0xd800 >> 11 && !pair))
    return scan_fail (s, "\\u and four hexadecimal digits, surrogates in pairs", error);
  for (int n = pair ? 10 : 4; n; n--)
    step (s);
  return TRUE;
}

static gboolean
scan_string (struct scan *s, GError **error)
{
  for (step (s); s->at < s->end && *s->at != '"'; step (s)) {
    if (*s->at == '\\' && s->at + 1 < s->end) {
      step (s);
      if (!*s->at || !strchr ("\"\\/bfnrtu", *s->at))
        return scan_fail (s, "an escape of JSON after the backslash", error);
      if (*s->at == 'u' && !scan_unicode (s, error))
        return FALSE;
    }
    if (*s->at == '\0')
      return scan_fail (s, "text", error);
  }
  if (s->at == s->end)
    return scan_fail (s, "a closing quote", error);
  step (s);
  return TRUE;
}

/* Checks a number. A whole number may have 18 digits, because these always fit 64 bits. */
static gboolean
scan_number (struct scan *s, GError **error)
{
  struct scan start = *s;
  size_t length = 0;
  gboolean whole = TRUE;

  for (; s->at < s->end && strchr ("0123456789+-.eE", *s->at) && *s->at; step (s), length++)
    whole = whole && *s->at != '.' && *s->at != 'e' && *s->at != 'E';
  const char *digits = start.at + (*start.at == '-');
  if (digits + 1 < s->at && digits[0] == '0' && g_ascii_isdigit (digits[1]))
    return scan_fail (&start, "a number without leading zeros", error);
  if (whole && length > 18)
    return scan_fail (&start, "a whole number of at most 18 digits", error);
  return TRUE;
}

static gboolean
scan_bracket (struct scan *s, GError **error)
{
  gboolean opens = *s->at == '{' || *s->at == '[';

  if (!opens && s->levels == 0)
    return scan_fail (s, "an opening bracket first", error);
  if (opens && s->levels == MOST_LEVELS)
    return scan_fail (s, "at most 32 levels of brackets", error);
  s->levels += opens ? 1 : -1;
  s->closed = s->levels == 0;
  step (s);
  return TRUE;
}

static gboolean
scan_text (struct scan *s, GError **error)
{
  while (s->at < s->end) {
    if (*s->at && strchr (" \t\r\n", *s->at))
      step (s);
    else if (s->closed)
      return scan_fail (s, "nothing after the last bracket", error);
    else if (*s->at == '"') {
      if (!scan_string (s, error))
        return FALSE;
    } else if (*s->at == '-' || g_ascii_isdigit (*s->at)) {
      if (!scan_number (s, error))
        return FALSE;
    } else if (*s->at && strchr ("{}[]", *s->at)) {
      if (!scan_bracket (s, error))
        return FALSE;
    } else if (*s->at && strchr (":,truefalsn", *s->at)) {
      s->pairs += *s->at == ':';
      step (s);
    } else
      return scan_fail (s, "JSON", error);
  }
  return s->levels == 0 || scan_fail (s, "a closing bracket", error);
}

static struct scan
scan_of (const char *json, gsize length)
{
  return (struct scan){ .at = json, .end = json + length, .line = 1, .column = 1 };
}

gboolean
weft_json_scan (const char *json, gsize length, GError **error)
{
  struct scan scan = scan_of (json, length);

  return scan_text (&scan, error);
}

/* ---------------------------------------------------------------- duplicate keys */

/* Counts the keys in and below a node.  The parser keeps the last of duplicate keys, so a text with
 * a duplicate has more colons than keys. */
static guint64
count_keys (JsonNode *node)
{
  guint64 n = 0;

  if (node && JSON_NODE_HOLDS_OBJECT (node)) {
    JsonObjectIter iter;
    JsonNode *value;
    json_object_iter_init (&iter, json_node_get_object (node));
    while (json_object_iter_next (&iter, NULL, &value))
      n += 1 + count_keys (value);
  } else if (node && JSON_NODE_HOLDS_ARRAY (node)) {
    JsonArray *array = json_node_get_array (node);
    for (guint i = 0; i < json_array_get_length (array); i++)
      n += count_keys (json_array_get_element (array, i));
  }
  return n;
}

/* Keys of the open objects, innermost last, and the first duplicate. */
struct keys {
  GPtrArray *open; /* keys of one open object: GHashTable, a set that owns its strings */
  GString *twice;  /* error message about the first duplicate key; empty if there is none */
};

static void
object_starts (JsonParser *parser, struct keys *keys)
{
  (void) parser;
  g_ptr_array_add (keys->open, g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL));
}

static void
object_has (JsonParser *parser, JsonObject *object, const char *key, struct keys *keys)
{
  GHashTable *seen = g_ptr_array_index (keys->open, keys->open->len - 1);

  (void) object;
  if (!g_hash_table_add (seen, g_strdup (key)) && keys->twice->len == 0)
    g_string_printf (keys->twice, "%u:%u: found the key \"%s\" twice, wanted it once",
                     json_parser_get_current_line (parser), json_parser_get_current_pos (parser),
                     key);
}

static void
object_ends (JsonParser *parser, JsonObject *object, struct keys *keys)
{
  (void) parser;
  (void) object;
  g_ptr_array_remove_index (keys->open, keys->open->len - 1);
}

/* Parses a text.  The parser's messages are "<data>:LINE:COLUMN: ..."; "<data>:" is removed. */
static gboolean
parse (JsonParser *parser, const char *json, gsize length, GError **error)
{
  g_autoptr (GError) found = NULL;

  if (json_parser_load_from_data (parser, json, length, &found))
    return TRUE;
  const char *what = found->message;
  if (g_str_has_prefix (what, "<data>:"))
    what += strlen ("<data>:");
  return weft_bad_input (error, "%s", what);
}

/* Reports the first duplicate key; always returns FALSE.  The text is parsed a second time, with a
 * signal for every key.  Signals double the time, so the first pass has none. */
static gboolean
report_twice (const char *json, gsize length, GError **error)
{
  g_autoptr (JsonParser) parser = json_parser_new ();
  g_autoptr (GPtrArray) open = g_ptr_array_new_with_free_func ((GDestroyNotify) g_hash_table_unref);
  g_autoptr (GString) twice = g_string_new (NULL);
  struct keys keys = { open, twice };

  g_signal_connect (parser, "object-start", G_CALLBACK (object_starts), &keys);
  g_signal_connect (parser, "object-member", G_CALLBACK (object_has), &keys);
  g_signal_connect (parser, "object-end", G_CALLBACK (object_ends), &keys);
  return parse (parser, json, length, error) &&
         weft_bad_input (error, "%s",
                         twice->len ? twice->str : "found a colon without a key, wanted JSON");
}

JsonParser *
weft_json_load (const char *json, gsize length, GError **error)
{
  g_autoptr (JsonParser) parser = json_parser_new ();
  struct scan scan = scan_of (json, length);

  if (!scan_text (&scan, error) || !parse (parser, json, length, error))
    return NULL;
  if (count_keys (json_parser_get_root (parser)) == scan.pairs)
    return g_steal_pointer (&parser);
  report_twice (json, length, error);
  return NULL;
}

const char *
weft_json_kind (JsonNode *node)
{
  if (!node)
    return "nothing";
  switch (json_node_get_node_type (node)) {
  case JSON_NODE_OBJECT:
    return "an object";
  case JSON_NODE_ARRAY:
    return "an array";
  case JSON_NODE_NULL:
    return "null";
  case JSON_NODE_VALUE:
    break;
  }
  GType type = json_node_get_value_type (node);
  return type == G_TYPE_STRING ? "a string" : type == G_TYPE_BOOLEAN ? "true or false" : "a number";
}
