#include "interop/tree.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/json_scan.h"
#include "interop/yaml.h"
#include <math.h>
#include <string.h>

GArray *
weft_json_values (const char *text, const char *name, GError **error)
{
  g_autoptr (JsonParser) parser = weft_json_load (text, strlen (text), error);
  JsonNode *root = parser ? json_parser_get_root (parser) : NULL;

  if (!parser)
    g_prefix_error (error, "%s:", name);
  else if (!root || !JSON_NODE_HOLDS_OBJECT (root))
    weft_bad_input (error, "%s: found %s, wanted an object", name, weft_json_kind (root));
  else
    return weft_yaml_values (text, name, error);
  return NULL;
}

/* --------------------------------------------------------------------------------- reading */

/* Whether the path is an item of a list that a key of the schema takes; *list receives the path of
 * the list, which the caller frees. */
static gboolean
is_item (const struct weft_schema *schema, const char *path, char **list)
{
  const char *dot = strrchr (path, '.');

  if (!dot || !dot[1] || dot[1 + strspn (dot + 1, "0123456789")])
    return FALSE;
  *list = g_strndup (path, (gsize) (dot - path));
  int at = weft_schema_find (schema, *list);
  if (at >= 0 && schema->key[at].many)
    return TRUE;
  g_clear_pointer (list, g_free);
  return FALSE;
}

/* The key for a path: itself, or the innermost "parent.*" of the schema. The caller frees it. */
static char *
key_of (const struct weft_schema *schema, const char *path)
{
  g_autofree char *parent = g_strdup (path);

  if (weft_schema_find (schema, path) >= 0)
    return g_strdup (path);
  for (char *dot; (dot = strrchr (parent, '.'));) {
    *dot = '\0';
    g_autofree char *open = g_strconcat (parent, ".*", NULL);
    if (weft_schema_find (schema, open) >= 0)
      return g_steal_pointer (&open);
  }
  g_autofree char *open = g_strconcat (path, ".*", NULL); /* the value may be an empty section */
  return weft_schema_find (schema, open) >= 0 ? g_steal_pointer (&open) : g_strdup (path);
}

/* YAML 1.1 also has the words yes and no. The caller frees the text. */
static char *
plain_bool (const char *text)
{
  static const char *const yes[] = { "yes", "on", NULL }, *const no[] = { "no", "off", NULL };
  g_autofree char *word = g_ascii_strdown (text, -1);

  return g_strv_contains (yes, word)  ? g_strdup ("true")
         : g_strv_contains (no, word) ? g_strdup ("false")
                                      : g_steal_pointer (&word);
}

/* A value as the schema writes it: null is none, True is true, 5e8 is 500000000. The caller frees
 * it. */
static char *
plain (const struct weft_key *key, const char *text)
{
  static const char *const nothing[] = { "null", "Null", "~", "None", "none", "", NULL };
  char *end;

  if (g_strv_contains (nothing, text))
    return g_strdup ("none");
  if (!key || key->many)
    return g_strdup (text);
  if (key->kind == WEFT_KEY_BOOL)
    return plain_bool (text);
  double number = g_ascii_strtod (text, &end);
  if (key->kind == WEFT_KEY_INT && *end == '\0' && strpbrk (text, ".eE") && fabs (number) < 1e18 &&
      number == floor (number))
    return g_strdup_printf ("%" G_GINT64_FORMAT, (gint64) number);
  return g_strdup (text);
}

/* Joins the items of the list from `i` on. Returns the index after the last one. */
static unsigned
join (const GArray *values, unsigned i, const char *list, GString *text)
{
  gsize length = strlen (list);

  for (; i < values->len; i++) {
    const struct weft_yaml_value *value = &g_array_index (values, struct weft_yaml_value, i);
    const char *rest = value->path + length + 1;
    if (!g_str_has_prefix (value->path, list) || value->path[length] != '.' ||
        rest[strspn (rest, "0123456789")])
      break;
    g_string_append_printf (text, "%s%s", text->len ? "," : "", value->text);
  }
  return i;
}

/* Whether a section of the schema is given without members, so that it sets nothing. */
static gboolean
is_empty_section (const struct weft_schema *schema, const struct weft_yaml_value *value)
{
  g_autofree char *begin = g_strconcat (value->path, ".", NULL);
  g_autofree char *word = plain (NULL, value->text);

  for (unsigned i = 0; strcmp (word, "none") == 0 && i < schema->n; i++)
    if (g_str_has_prefix (schema->key[i].name, begin))
      return TRUE;
  return FALSE;
}

/* Adds the key of the value `i`. *next receives the index after its last value. */
static gboolean
add_value (const GArray *values, unsigned i, const char *name, const struct weft_target *target,
           weft_keys_read *out, unsigned *next, GError **error)
{
  const struct weft_yaml_value *value = &g_array_index (values, struct weft_yaml_value, i);
  const struct weft_schema *schema = target->schema;
  g_autofree char *where = g_strdup_printf ("%s:%u", name, value->line);
  g_autoptr (GString) text = g_string_new (NULL);
  g_autofree char *list = NULL;

  *next = i + 1;
  if (is_empty_section (schema, value))
    return TRUE;
  if (is_item (schema, value->path, &list))
    *next = join (values, i, list, text);
  else
    g_string_assign (text, value->text);
  g_autofree char *path = key_of (schema, list ? list : value->path);
  int at = weft_schema_find (schema, path);
  const struct weft_key *key = at >= 0 ? &schema->key[at] : NULL;
  g_autofree char *word = plain (key, text->str);
  if (key && strcmp (word, "none") == 0 &&
      (key->kind != WEFT_KEY_TEXT || strcmp (key->def, "none") == 0))
    return TRUE; /* the default */
  return weft_keys_add (out, schema, target->prefix, path, word, where, error);
}

static gboolean
is_skipped (const char *path, const char *const *skipped)
{
  for (unsigned i = 0; skipped && skipped[i]; i++)
    if (g_str_has_prefix (path, skipped[i]))
      return TRUE;
  return FALSE;
}

gboolean
weft_tree_keys (const GArray *values, const char *name, const struct weft_target *target,
                const char *const *skipped, weft_keys_read *out, GError **error)
{
  for (unsigned i = 0, next; i < values->len; i = next) {
    next = i + 1;
    if (!is_skipped (g_array_index (values, struct weft_yaml_value, i).path, skipped) &&
        !add_value (values, i, name, target, out, &next, error))
      return FALSE;
  }
  return TRUE;
}

/* --------------------------------------------------------------------------------- writing */

static JsonNode *
node_of (enum weft_key_kind kind, const char *text)
{
  JsonNode *node = json_node_new (JSON_NODE_VALUE);

  if (strcmp (text, "none") == 0)
    json_node_init_null (node);
  else if (kind == WEFT_KEY_INT)
    json_node_set_int (node, g_ascii_strtoll (text, NULL, 10));
  else if (kind == WEFT_KEY_REAL)
    json_node_set_double (node, g_ascii_strtod (text, NULL));
  else if (kind == WEFT_KEY_BOOL)
    json_node_set_boolean (node, strcmp (text, "true") == 0);
  else
    json_node_set_string (node, text);
  return node;
}

static JsonNode *
list_of (enum weft_key_kind kind, const char *text)
{
  g_auto (GStrv) items = g_strsplit (text, ",", -1);
  JsonNode *node = json_node_new (JSON_NODE_ARRAY);
  JsonArray *array = json_array_new ();

  for (unsigned i = 0; items[i]; i++)
    json_array_add_element (array, node_of (kind, items[i]));
  json_node_take_array (node, array);
  return node;
}

/* The object of a section, which is made if it is missing. */
static JsonObject *
section_of (JsonObject *root, char *const *names)
{
  for (unsigned i = 0; names[i + 1]; i++) {
    if (!json_object_has_member (root, names[i]))
      json_object_set_object_member (root, names[i], json_object_new ());
    root = json_object_get_object_member (root, names[i]);
  }
  return root;
}

static JsonNode *
tree_of (const struct weft_target *target, const weft_keys_read *keys)
{
  JsonNode *root = json_node_new (JSON_NODE_OBJECT);
  JsonObject *object = json_object_new ();

  for (unsigned k = 0; k < target->schema->n; k++) {
    const struct weft_given *given = weft_keys_given (keys, k);
    const struct weft_key *key = &target->schema->key[k];
    if (!given)
      continue;
    g_auto (GStrv) names = g_strsplit (key->name, ".", -1);
    json_object_set_member (section_of (object, names), names[g_strv_length (names) - 1],
                            (key->many ? list_of : node_of) (key->kind, given->value));
  }
  json_node_take_object (root, object);
  return root;
}

char *
weft_tree_json (const struct weft_target *target, const weft_keys_read *keys)
{
  g_autoptr (JsonNode) root = tree_of (target, keys);
  g_autofree char *text = weft_json_print (root, TRUE);

  return g_strconcat (text, "\n", NULL);
}

/* Appends the members of an object as lines of YAML; their values are in the syntax of JSON, which
 * YAML contains. */
static void
append_members (GString *out, JsonObject *object, unsigned indent)
{
  g_autoptr (GList) names = json_object_get_members (object);

  for (GList *name = names; name; name = name->next) {
    JsonNode *node = json_object_get_member (object, name->data);
    g_string_append_printf (out, "%*s%s:", (int) indent, "", (const char *) name->data);
    if (JSON_NODE_HOLDS_OBJECT (node)) {
      g_string_append_c (out, '\n');
      append_members (out, json_node_get_object (node), indent + 2);
      continue;
    }
    g_autofree char *text = weft_json_print (node, FALSE);
    gsize length = strlen (text);
    gboolean word = *text == '"' && length > 2 && g_ascii_isalpha (text[1]) &&
                    strspn (text + 1, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                      "0123456789_./-") == length - 2;
    static const char *const special[] = { "\"no\"", "\"yes\"",  "\"on\"",    "\"off\"",
                                           "\"NO\"", "\"true\"", "\"false\"", "\"null\"",
                                           "\"n\"",  "\"y\"",    NULL };
    gboolean bare = word && !g_strv_contains (special, text);
    g_string_append_printf (out, " %.*s\n", (int) (bare ? length - 2 : length), text + bare);
  }
}

char *
weft_tree_yaml (const struct weft_target *target, const weft_keys_read *keys)
{
  g_autoptr (JsonNode) root = tree_of (target, keys);
  GString *out = g_string_new (NULL);

  append_members (out, json_node_get_object (root), 0);
  return g_string_free (out, FALSE);
}
