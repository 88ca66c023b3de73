#include "interop/keys.h"
#include "core/base/error.h"
#include "core/base/suggest.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The key that begins with `name`, if there is only one. */
static int
find_abbreviated (const struct weft_schema *schema, const char *name)
{
  int found = -1;

  for (unsigned i = 0; i < schema->n; i++)
    if (g_str_has_prefix (schema->key[i].name, name)) {
      if (found >= 0)
        return -1;
      found = (int) i;
    }
  return found;
}

int
weft_schema_find (const struct weft_schema *schema, const char *name)
{
  for (unsigned i = 0; i < schema->n; i++)
    if (strcmp (schema->key[i].name, name) == 0)
      return (int) i;
  return schema->abbreviated && *name ? find_abbreviated (schema, name) : -1;
}

static gboolean
is_int (const char *text)
{
  gint64 value;
  return g_ascii_string_to_signed (text, 10, G_MININT64, G_MAXINT64, &value, NULL);
}

static gboolean
is_real (const char *text)
{
  char *end;

  errno = 0;
  g_ascii_strtod (text, &end);
  return end != text && *end == '\0' && errno == 0;
}

static gboolean
is_bool (const char *text)
{
  static const char *const words[] = { "true", "false", "True", "False", NULL };
  return g_strv_contains (words, text);
}

static gboolean
is_any (const char *text)
{
  return text != NULL;
}

static gboolean
is_none (const char *text)
{
  return *text == '\0';
}

/* The values that a kind of key accepts, by enum weft_key_kind. */
static const struct kind {
  const char *what;
  gboolean (*holds) (const char *text);
} kinds[] = {
  [WEFT_KEY_INT] = { "a whole number", is_int }, [WEFT_KEY_REAL] = { "a number", is_real },
  [WEFT_KEY_TEXT] = { "a text", is_any },        [WEFT_KEY_BOOL] = { "true or false", is_bool },
  [WEFT_KEY_ON] = { "no value", is_none },       [WEFT_KEY_OFF] = { "no value", is_none },
};

static gboolean
check_one (const struct weft_key *key, const char *prefix, const char *value, GError **error)
{
  g_auto (GStrv) choices = g_strsplit (key->choices, " ", -1);

  if (!kinds[key->kind].holds (value))
    return weft_bad_input (error, "%s%s: found \"%s\", wanted %s", prefix, key->name, value,
                           kinds[key->kind].what);
  if (*key->choices && !g_strv_contains ((const char *const *) choices, value))
    return weft_bad_input (error, "%s%s: found \"%s\", wanted one of: %s", prefix, key->name, value,
                           key->choices);
  return TRUE;
}

gboolean
weft_key_check (const struct weft_key *key, const char *prefix, const char *value, GError **error)
{
  if (!key->many)
    return check_one (key, prefix, value, error);
  g_auto (GStrv) parts = g_strsplit (value, ",", -1);
  for (unsigned i = 0; parts[i]; i++)
    if (!check_one (key, prefix, parts[i], error))
      return FALSE;
  return TRUE;
}

static void
clear_given (gpointer data)
{
  struct weft_given *given = data;
  g_free (given->value);
  g_free (given->where);
}

weft_keys_read *
weft_keys_read_new (void)
{
  weft_keys_read *read = g_new0 (weft_keys_read, 1);
  read->given = g_array_new (FALSE, FALSE, sizeof (struct weft_given));
  g_array_set_clear_func (read->given, clear_given);
  read->unknown = g_ptr_array_new_with_free_func (g_free);
  return read;
}

void
weft_keys_read_free (weft_keys_read *read)
{
  if (!read)
    return;
  g_array_unref (read->given);
  g_ptr_array_unref (read->unknown);
  g_free (read);
}

static const char *
name_at (const void *keys, unsigned i)
{
  return ((const struct weft_key *) keys)[i].name;
}

static void
add_unknown (weft_keys_read *read, const struct weft_schema *schema, const char *prefix,
             const char *name, const char *where)
{
  const char *near = weft_suggest (name, name_at, schema->key, schema->n);

  g_ptr_array_add (read->unknown,
                   near ? g_strdup_printf ("%s: unknown key %s%s; did you mean %s%s?", where,
                                           prefix, name, prefix, near)
                        : g_strdup_printf ("%s: unknown key %s%s", where, prefix, name));
}

/* Returns the entry of a key in the list. A key that is given twice has one entry, cleared. */
static struct weft_given *
place_of (weft_keys_read *read, unsigned key)
{
  struct weft_given *given = (struct weft_given *) (void *) read->given->data;

  for (unsigned i = 0; i < read->given->len; i++)
    if (given[i].key == key) {
      clear_given (&given[i]);
      return &given[i];
    }
  g_array_set_size (read->given, read->given->len + 1);
  return &g_array_index (read->given, struct weft_given, read->given->len - 1);
}

gboolean
weft_keys_add (weft_keys_read *read, const struct weft_schema *schema, const char *prefix,
               const char *name, const char *value, const char *where, GError **error)
{
  int at = weft_schema_find (schema, name);

  if (at < 0) {
    add_unknown (read, schema, prefix, name, where);
    return TRUE;
  }
  if (!weft_key_check (&schema->key[at], prefix, value ? value : "", error)) {
    g_prefix_error (error, "%s: ", where);
    return FALSE;
  }
  *place_of (read, (unsigned) at) =
      (struct weft_given){ (unsigned) at, g_strdup (value ? value : ""), g_strdup (where) };
  return TRUE;
}

const struct weft_given *
weft_keys_given (const weft_keys_read *read, unsigned key)
{
  const struct weft_given *given = (const struct weft_given *) (void *) read->given->data;

  for (unsigned i = 0; i < read->given->len; i++)
    if (given[i].key == key)
      return &given[i];
  return NULL;
}

const struct weft_given *
weft_keys_value (const weft_keys_read *read, const struct weft_schema *schema, const char *name)
{
  int at = weft_schema_find (schema, name);

  return at < 0 ? NULL : weft_keys_given (read, (unsigned) at);
}
