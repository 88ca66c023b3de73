/* Parsing manifest.json. The input is not trusted: every member is checked. */
#include "core/base/error.h"
#include "core/base/json_scan.h"
#include "train/manifest.h"
#include "train/manifest_table.h"
#include <string.h>

/* Largest integer that every JSON reader represents exactly. */
#define MOST_NUMBER ((uint64_t) 1 << 53)

/* ------------------------------------------------------------------------ members */

static const char *
read_text (JsonObject *object, const char *member, GError **error)
{
  JsonNode *node = json_object_get_member (object, member);

  if (node && json_node_get_value_type (node) == G_TYPE_STRING)
    return json_node_get_string (node);
  weft_bad_input (error, "%s: found %s, wanted text", member, weft_json_kind (node));
  return NULL;
}

static gboolean
read_number (JsonObject *object, const char *member, uint64_t *value, GError **error)
{
  JsonNode *node = json_object_get_member (object, member);

  if (!node || json_node_get_value_type (node) != G_TYPE_INT64)
    return weft_bad_input (error, "%s: found %s, wanted a whole number", member,
                           weft_json_kind (node));
  int64_t found = json_node_get_int (node);
  if (found < 0 || (uint64_t) found > MOST_NUMBER)
    return weft_bad_input (error, "%s: found %" G_GINT64_FORMAT ", wanted 0 to 2^53", member,
                           found);
  *value = found;
  return TRUE;
}

static gboolean
read_decimal (JsonObject *object, const char *member, uint64_t *value, GError **error)
{
  const char *text = read_text (object, member, error);

  if (!text)
    return FALSE;
  if (g_ascii_string_to_unsigned (text, 10, 0, G_MAXUINT64, value, NULL))
    return TRUE;
  return weft_bad_input (error, "%s: found \"%s\", wanted a decimal number below 2^64", member,
                         text);
}

static gboolean
read_crc (JsonObject *object, uint32_t *crc, GError **error)
{
  const char *text = read_text (object, "crc32c", error);
  guint64 value;

  if (!text)
    return FALSE;
  if (strlen (text) != 8 || !g_ascii_string_to_unsigned (text, 16, 0, G_MAXUINT32, &value, NULL))
    return weft_bad_input (error, "crc32c: found \"%s\", wanted eight hexadecimal digits", text);
  *crc = value;
  return TRUE;
}

/* Index of a member's text in a NULL-terminated list of words; -1 with an error if the text is not
 * in the list. */
static int
read_word (JsonObject *object, const char *member, const char *const *words, GError **error)
{
  const char *text = read_text (object, member, error);

  for (int i = 0; text && words[i]; i++)
    if (g_str_equal (words[i], text))
      return i;
  g_autofree char *all = g_strjoinv (", ", (char **) words);
  if (text)
    weft_bad_input (error, "%s: found \"%s\", wanted one of %s", member, text, all);
  return -1;
}

/* Reads every element of an array of objects. Errors are prefixed with member name and index. */
typedef gboolean (*read_element) (weft_manifest *m, JsonObject *object, GError **error);

static gboolean
read_array (weft_manifest *m, JsonObject *object, const char *member, read_element read,
            GError **error)
{
  JsonNode *node = json_object_get_member (object, member);

  if (!node || !JSON_NODE_HOLDS_ARRAY (node))
    return weft_bad_input (error, "%s: found %s, wanted an array", member, weft_json_kind (node));
  JsonArray *array = json_node_get_array (node);
  for (uint32_t i = 0; i < json_array_get_length (array); i++) {
    JsonNode *element = json_array_get_element (array, i);
    gboolean ok =
        JSON_NODE_HOLDS_OBJECT (element)
            ? read (m, json_node_get_object (element), error)
            : weft_bad_input (error, "found %s, wanted an object", weft_json_kind (element));
    if (!ok) {
      g_prefix_error (error, "%s[%u]: ", member, i);
      return FALSE;
    }
  }
  return TRUE;
}

/* -------------------------------------------------------------------------- parts */

/* Accepts only a plain file name: a path could lead out of the checkpoint directory. */
static gboolean
check_file_name (const char *name, GError **error)
{
  if (*name && *name != '.' && !strchr (name, '/'))
    return TRUE;
  return weft_bad_input (error, "name: found \"%s\", wanted the name of a file beside it", name);
}

static gboolean
read_file (weft_manifest *m, JsonObject *object, GError **error)
{
  struct weft_manifest_file file = { 0 };
  const char *name = read_text (object, "name", error);

  if (!name || !check_file_name (name, error) || !read_number (object, "bytes", &file.bytes, error))
    return FALSE;
  file.name = g_strdup (name);
  g_array_append_val (m->files, file);
  return TRUE;
}

static gboolean
check_chunk (const weft_manifest *m, const struct weft_manifest_chunk *c, GError **error)
{
  const struct weft_manifest_tensor *t = weft_manifest_tensor (m, c->tensor);
  gboolean inside = c->rows && c->columns && c->row <= t->rows && c->rows <= t->rows - c->row &&
                    c->column <= t->columns && c->columns <= t->columns - c->column;

  if (!inside)
    return weft_bad_input (error, "found a chunk that is empty or outside its tensor");
  if (c->file >= m->files->len)
    return weft_bad_input (error, "file: found %" G_GUINT64_FORMAT ", wanted one of %u", c->file,
                           m->files->len);
  uint64_t bytes = weft_manifest_file (m, c->file)->bytes;
  if (weft_manifest_chunk_bytes (c) > bytes || c->offset > bytes - weft_manifest_chunk_bytes (c))
    return weft_bad_input (error, "offset: found a chunk that ends after its file");
  return TRUE;
}

/* Reads kind and type of a chunk. Gradients are refused; only weights may have a type other than
 * F32. */
static gboolean
read_kind_and_type (JsonObject *object, struct weft_manifest_chunk *c, GError **error)
{
  int kind = read_word (object, "kind", weft_state_kind_words, error);
  int type = kind < 0 ? -1 : read_word (object, "type", weft_tensor_type_words, error);

  if (type < 0)
    return FALSE;
  c->kind = kind;
  c->type = type;
  if (kind == WEFT_STATE_GRAD)
    return weft_bad_input (error,
                           "kind: found \"grad\", wanted weights or state of the optimizer");
  if (weft_manifest_is_bytes (c->kind))
    return type == WEFT_TENSOR_U8 || weft_bad_input (error, "type: found %s, wanted U8",
                                                     weft_tensor_type_words[type]);
  if (type == WEFT_TENSOR_F32 ||
      ((type == WEFT_TENSOR_BF16 || type == WEFT_TENSOR_F16) && kind == WEFT_STATE_WEIGHT))
    return TRUE;
  return weft_bad_input (error, "type: found %s, wanted F32%s", weft_tensor_type_words[type],
                         kind == WEFT_STATE_WEIGHT ? ", BF16 or F16" : "");
}

/* Reads a chunk, and adds it to the tensor that was read last. */
static gboolean
read_chunk (weft_manifest *m, JsonObject *object, GError **error)
{
  struct weft_manifest_chunk c = { .tensor = m->tensors->len - 1 };

  if (!read_kind_and_type (object, &c, error) || !read_crc (object, &c.crc, error))
    return FALSE;
  for (int i = 0; i < WEFT_N_CHUNK_NUMBER; i++)
    if (!read_number (object, weft_manifest_chunk_numbers[i].name,
                      weft_manifest_number (&c, &weft_manifest_chunk_numbers[i]), error))
      return FALSE;
  if (!check_chunk (m, &c, error))
    return FALSE;
  g_array_append_val (m->chunks, c);
  return TRUE;
}

/* ----------------------------------------------------------------------- coverage */

static int
compare_chunks (gconstpointer a, gconstpointer b)
{
  const struct weft_manifest_chunk *x = *(const struct weft_manifest_chunk *const *) a;
  const struct weft_manifest_chunk *y = *(const struct weft_manifest_chunk *const *) b;

  if (x->row != y->row)
    return x->row < y->row ? -1 : 1;
  return (x->column > y->column) - (x->column < y->column);
}

static gboolean
check_disjoint (const weft_manifest *m, const GPtrArray *chunks, GError **error)
{
  for (uint32_t i = 0; i < chunks->len; i++) {
    const struct weft_manifest_chunk *a = chunks->pdata[i];
    for (uint32_t j = i + 1; j < chunks->len; j++) {
      const struct weft_manifest_chunk *b = chunks->pdata[j];
      if (b->row >= a->row + a->rows)
        break;
      if (a->column >= b->column + b->columns || b->column >= a->column + a->columns)
        continue;
      g_autofree char *one = weft_manifest_chunk_name (m, a),
                      *other = weft_manifest_chunk_name (m, b);
      return weft_bad_input (error, "%s and %s overlap", one, other);
    }
  }
  return TRUE;
}

/* Whether a tensor must have a kind: master; and a moment if it has the other one. `has`: its kinds
 * as bits 1 << kind. */
static gboolean
is_required (uint32_t has, enum weft_state_kind kind)
{
  static const uint8_t partner[WEFT_N_STATE_KIND] = { [WEFT_STATE_EXP_AVG] = WEFT_STATE_EXP_AVG_SQ,
                                                      [WEFT_STATE_EXP_AVG_SQ] = WEFT_STATE_EXP_AVG,
                                                      [WEFT_STATE_STATE1] = WEFT_STATE_STATE2,
                                                      [WEFT_STATE_STATE2] = WEFT_STATE_STATE1 };

  return kind == WEFT_STATE_MASTER || (partner[kind] && (has >> partner[kind] & 1));
}

/* Checks that the chunks of one kind cover the last tensor: chunks do not overlap, and their sizes
 * add up to that of the tensor. `first` is the first chunk of the tensor. */
static gboolean
check_cover (const weft_manifest *m, uint32_t first, enum weft_state_kind kind, GError **error)
{
  g_autoptr (GPtrArray) chunks = g_ptr_array_new ();
  const struct weft_manifest_tensor *t = weft_manifest_tensor (m, m->tensors->len - 1);
  uint64_t covered = 0;
  uint32_t has = 0;

  for (uint32_t i = first; i < m->chunks->len; i++) {
    struct weft_manifest_chunk *c = weft_manifest_chunk (m, i);
    has |= 1u << c->kind;
    if (c->kind != kind)
      continue;
    g_ptr_array_add (chunks, c);
    covered += c->rows * c->columns;
  }
  g_ptr_array_sort (chunks, compare_chunks);
  if (!is_required (has, kind) && chunks->len == 0)
    return TRUE;
  if (!check_disjoint (m, chunks, error))
    return FALSE;
  if (covered == t->rows * t->columns)
    return TRUE;
  return weft_bad_input (error,
                         "found %" G_GUINT64_FORMAT " elements of %s, wanted %" G_GUINT64_FORMAT
                         " elements",
                         covered, weft_state_kind_words[kind], t->rows * t->columns);
}

static gboolean
check_tensor (const weft_manifest *m, const struct weft_manifest_tensor *t, GError **error)
{
  uint64_t elements;

  for (uint32_t i = 0; i < m->tensors->len; i++)
    if (g_str_equal (weft_manifest_tensor (m, i)->name, t->name))
      return weft_bad_input (error, "name: found \"%s\" twice", t->name);
  if (t->rows && t->columns && !__builtin_mul_overflow (t->rows, t->columns, &elements) &&
      elements <= MOST_NUMBER)
    return TRUE;
  return weft_bad_input (
      error, "found %" G_GUINT64_FORMAT " x %" G_GUINT64_FORMAT ", wanted 1 to 2^53 elements",
      t->rows, t->columns);
}

static gboolean
read_chunks (weft_manifest *m, JsonObject *object, GError **error)
{
  uint32_t first = m->chunks->len;

  if (!read_array (m, object, "chunks", read_chunk, error))
    return FALSE;
  for (int kind = 0; kind < WEFT_STATE_GRAD; kind++)
    if (!check_cover (m, first, kind, error))
      return FALSE;
  return TRUE;
}

static gboolean
read_tensor (weft_manifest *m, JsonObject *object, GError **error)
{
  struct weft_manifest_tensor t = { 0 };
  const char *name = read_text (object, "name", error);

  if (!name || !read_number (object, "rows", &t.rows, error) ||
      !read_number (object, "columns", &t.columns, error))
    return FALSE;
  t.name = (char *) (uintptr_t) name; /* points to text of the parser until all checks pass */
  if (!check_tensor (m, &t, error))
    return FALSE;
  t.name = g_strdup (name);
  g_array_append_val (m->tensors, t);
  if (read_chunks (m, object, error))
    return TRUE;
  g_prefix_error (error, "%s: ", t.name);
  return FALSE;
}

/* -------------------------------------------------------------------------- whole */

/* Reads the schema. A manifest of schema 1 with the checksum of schema 2 has a damaged schema. */
static gboolean
read_schema (JsonObject *root, gboolean *unsealed, GError **error)
{
  const char *schema = read_text (root, "schema", error);

  if (!schema)
    return FALSE;
  *unsealed =
      g_str_equal (schema, WEFT_MANIFEST_SCHEMA_1) && !json_object_has_member (root, "crc32c");
  if (*unsealed || g_str_equal (schema, WEFT_MANIFEST_SCHEMA))
    return TRUE;
  return weft_bad_input (error,
                         "schema: found \"%s\", wanted \"" WEFT_MANIFEST_SCHEMA
                         "\": damaged, or written by another version of Weft",
                         schema);
}

/* Checks that a manifest ends with the text that weft_manifest_seal() computes for the bytes before
 * it. A change of any byte is refused. */
static gboolean
check_seal (const char *text, gsize length, GError **error)
{
  g_autofree char *any = weft_manifest_seal ("", 0);
  gsize n = strlen (any), before = length > n ? length - n : 0;
  g_autofree char *wanted = weft_manifest_seal (text, before);

  if (length - before == n && memcmp (text + before, wanted, n) == 0)
    return TRUE;
  return weft_bad_input (error, "is damaged: its text does not end with the checksum of this text");
}

static gboolean
read_decimals (JsonObject *object, void *row, const struct weft_manifest_number *number, int n,
               GError **error)
{
  for (int i = 0; i < n; i++)
    if (!read_decimal (object, number[i].name, weft_manifest_number (row, &number[i]), error))
      return FALSE;
  return TRUE;
}

/* The object of an optional member; NULL if the member is absent. FALSE if the member is no
 * object. */
static gboolean
find_object (JsonObject *root, const char *member, JsonObject **object, GError **error)
{
  JsonNode *node = json_object_get_member (root, member);

  *object = node && JSON_NODE_HOLDS_OBJECT (node) ? json_node_get_object (node) : NULL;
  return !node || *object ||
         weft_bad_input (error, "%s: found %s, wanted an object", member, weft_json_kind (node));
}

/* Reads the mark (size, time, checksums) of the token file. The manifest has no mark if the token
 * file is not known. */
static gboolean
read_data_file (JsonObject *root, struct weft_data_mark *file, GError **error)
{
  JsonObject *object;

  if (!find_object (root, "data_file", &object, error))
    return FALSE;
  return !object || read_decimals (object, file, weft_data_file_numbers, WEFT_N_DATA_FILE, error);
}

/* Reads the loss scale. The manifest has no loss scale if the run did not scale the loss. */
static gboolean
read_loss_scale (JsonObject *root, struct weft_loss_scale *scale, GError **error)
{
  JsonObject *object;
  char *end;

  if (!find_object (root, "loss_scale", &object, error))
    return FALSE;
  if (!object)
    return TRUE;
  const char *text = read_text (object, "scale", error);
  if (!text)
    return FALSE;
  scale->scale = g_ascii_strtod (text, &end);
  if (*end || end == text || !(scale->scale >= 1e-30 && scale->scale <= 1e30))
    return weft_bad_input (error, "scale: found \"%s\", wanted a number from 1e-30 to 1e30", text);
  return read_decimals (object, scale, weft_scale_numbers, WEFT_N_SCALE_NUMBER, error);
}

static gboolean
read_root (weft_manifest *m, JsonObject *root, GError **error)
{
  struct weft_progress *progress = &m->progress;

  if (!read_decimals (root, progress, weft_progress_numbers, WEFT_N_PROGRESS, error) ||
      !read_data_file (root, &progress->data_file, error) ||
      !read_loss_scale (root, &progress->loss_scale, error))
    return FALSE;
  const char *model = read_text (root, "model", error);
  const char *job = model ? read_text (root, "job", error) : NULL;
  if (!job)
    return FALSE;
  m->model = g_strdup (model);
  m->job = g_strdup (job);
  return read_array (m, root, "files", read_file, error) &&
         read_array (m, root, "tensors", read_tensor, error);
}

weft_manifest *
weft_manifest_parse (const char *json, gsize length, GError **error)
{
  g_autoptr (weft_manifest) m = weft_manifest_new ();

  if (!g_utf8_validate_len (json, length, NULL)) {
    weft_bad_input (error, "found bytes that are not UTF-8, wanted JSON");
    return NULL;
  }
  g_autoptr (JsonParser) parser = weft_json_load (json, length, error);
  if (!parser)
    return NULL;
  JsonNode *root = json_parser_get_root (parser);
  if (!root || !JSON_NODE_HOLDS_OBJECT (root)) {
    weft_bad_input (error, "found %s at the top, wanted an object", weft_json_kind (root));
    return NULL;
  }
  JsonObject *object = json_node_get_object (root);
  if (!read_schema (object, &m->unsealed, error) ||
      (!m->unsealed && !check_seal (json, length, error)) || !read_root (m, object, error))
    return NULL;
  return g_steal_pointer (&m);
}
