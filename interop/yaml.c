#include "interop/yaml.h"
#include "core/base/error.h"
#include <string.h>
#include <yaml.h>

struct reader {
  yaml_document_t *document;
  const char *name;
  GArray *values;
};

/* Limits of a YAML document: the most levels of nested mappings and sequences, and the most scalar
 * values. A value that aliases repeat counts once for each place in which it stands. */
enum { MOST_DEPTH = 32, MOST_VALUES = 100000 };

static void
clear_value (gpointer data)
{
  struct weft_yaml_value *value = data;
  g_free (value->path);
  g_free (value->text);
}

static gboolean
add_node (struct reader *r, int id, const char *path, unsigned depth, GError **error);

static char *
member (const char *path, const char *name)
{
  return *path ? g_strconcat (path, ".", name, NULL) : g_strdup (name);
}

static unsigned
line_of (const yaml_node_t *node)
{
  return (unsigned) node->start_mark.line + 1;
}

static gboolean
add_pair (struct reader *r, const yaml_node_pair_t *pair, const char *path, unsigned depth,
          GError **error)
{
  const yaml_node_t *key = yaml_document_get_node (r->document, pair->key);

  if (key->type != YAML_SCALAR_NODE)
    return weft_bad_input (error, "%s:%u: a key is no text", r->name, line_of (key));
  g_autofree char *inner = member (path, (const char *) key->data.scalar.value);
  return add_node (r, pair->value, inner, depth + 1, error);
}

static gboolean
add_items (struct reader *r, const yaml_node_t *node, const char *path, unsigned depth,
           GError **error)
{
  const yaml_node_item_t *item = node->data.sequence.items.start;

  for (unsigned i = 0; item < node->data.sequence.items.top; item++, i++) {
    g_autofree char *number = g_strdup_printf ("%u", i);
    g_autofree char *inner = member (path, number);
    if (!add_node (r, *item, inner, depth + 1, error))
      return FALSE;
  }
  return TRUE;
}

static gboolean
is_empty (const yaml_node_t *node)
{
  return node->type == YAML_SEQUENCE_NODE
             ? node->data.sequence.items.start == node->data.sequence.items.top
             : node->data.mapping.pairs.start == node->data.mapping.pairs.top;
}

static gboolean
add_text (struct reader *r, const yaml_node_t *node, const char *path, const char *text,
          GError **error)
{
  struct weft_yaml_value value = { g_strdup (path), g_strdup (text), line_of (node) };

  g_array_append_val (r->values, value);
  return r->values->len <= MOST_VALUES ||
         weft_bad_input (error, "%s:%u: more than %d values", r->name, value.line, MOST_VALUES);
}

static gboolean
add_node (struct reader *r, int id, const char *path, unsigned depth, GError **error)
{
  const yaml_node_t *node = yaml_document_get_node (r->document, id);

  if (depth > MOST_DEPTH)
    return weft_bad_input (error, "%s:%u: more than %d levels", r->name, line_of (node),
                           MOST_DEPTH);
  if (node->type == YAML_SCALAR_NODE)
    return add_text (r, node, path, (const char *) node->data.scalar.value, error);
  if (is_empty (node) && *path)
    return add_text (r, node, path, "", error);
  if (node->type == YAML_SEQUENCE_NODE)
    return add_items (r, node, path, depth, error);
  const yaml_node_pair_t *pair = node->data.mapping.pairs.start;
  for (; pair < node->data.mapping.pairs.top; pair++)
    if (!add_pair (r, pair, path, depth, error))
      return FALSE;
  return TRUE;
}

static gboolean
refuse (const yaml_parser_t *parser, const char *name, GError **error)
{
  return weft_bad_input (error, "%s:%zu: %s", name, parser->problem_mark.line + 1,
                         parser->problem ? parser->problem : "not YAML");
}

/* Reads the next document. *more is FALSE at the end of the file. */
static gboolean
read_document (yaml_parser_t *parser, struct reader *r, gboolean *more, GError **error)
{
  yaml_document_t document;

  if (!yaml_parser_load (parser, &document))
    return refuse (parser, r->name, error);
  r->document = &document;
  *more = yaml_document_get_root_node (&document) != NULL;
  gboolean ok = TRUE;
  if (*more && r->values->len)
    ok = weft_bad_input (error, "%s: more than one YAML document", r->name);
  else if (*more)
    ok = add_node (r, 1, "", 0, error);
  yaml_document_delete (&document);
  return ok;
}

GArray *
weft_yaml_values (const char *text, const char *name, GError **error)
{
  g_autoptr (GArray) values = g_array_new (FALSE, FALSE, sizeof (struct weft_yaml_value));
  struct reader r = { .name = name, .values = values };
  yaml_parser_t parser;
  gboolean more = TRUE, ok = TRUE;

  g_array_set_clear_func (values, clear_value);
  if (!yaml_parser_initialize (&parser)) {
    weft_run_error (error, "%s: libyaml has no memory", name);
    return NULL;
  }
  yaml_parser_set_input_string (&parser, (const unsigned char *) text, strlen (text));
  while (ok && more)
    ok = read_document (&parser, &r, &more, error);
  yaml_parser_delete (&parser);
  return ok ? g_steal_pointer (&values) : NULL;
}
