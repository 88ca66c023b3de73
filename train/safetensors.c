/* Reading safetensors files. A shard is one mapped file with its checked entries; a
 * weft_safetensors lists the entries of one or more shards. */
#include "train/safetensors.h"
#include "core/base/error.h"
#include "core/base/json_scan.h"
#include "kernels/float.h"
#include "train/mapped_file.h"
#include <string.h>

/* Limit of the reference reader (safetensors/src/tensor.rs). */
#define MOST_HEADER 100000000u

_Static_assert(G_BYTE_ORDER == G_LITTLE_ENDIAN, "files are read as they are");

const char *const weft_tensor_type_words[] = {
#define WORD(id, word, bytes) word,
  WEFT_TENSOR_TYPE_LIST (WORD)
#undef WORD
      NULL
};
const uint8_t weft_tensor_type_bytes[] = {
#define BYTES(id, word, bytes) bytes,
  WEFT_TENSOR_TYPE_LIST (BYTES)
#undef BYTES
};

struct shard {
  GMappedFile *map;
  const uint8_t *data;
  uint64_t bytes;       /* size of the data section of the file in bytes */
  /* array of struct entry, which it owns, in the order of the entries' data */
  GPtrArray *entries;
  GHashTable *by_name;  /* tensor name -> struct entry, which belongs to `entries` */
  GHashTable *metadata; /* key -> value */
};

/* `tensor` is the first member, so that a pointer to a tensor is a pointer to its entry. */
struct entry {
  struct weft_tensor tensor;
  const struct shard *shard;
};

struct weft_safetensors {
  char *path;
  GPtrArray *shards;   /* array of struct shard, which it owns */
  GPtrArray *list;     /* array of struct entry, which the shards own */
  GHashTable *by_name; /* tensor name -> struct entry, which the shards own */
};

static void
entry_free (struct entry *entry)
{
  g_free (entry->tensor.name);
  g_free (entry);
}

static void
shard_free (struct shard *shard)
{
  g_hash_table_unref (shard->metadata);
  g_hash_table_unref (shard->by_name);
  g_ptr_array_unref (shard->entries);
  g_mapped_file_unref (shard->map);
  g_free (shard);
}

/* ------------------------------------------------------------------------- header */

/* Reads an array of non-negative integers. *n receives their count. */
static gboolean
read_numbers (JsonObject *object, const char *key, uint64_t number[WEFT_TENSOR_MOST_DIMS],
              uint32_t *n, GError **error)
{
  JsonNode *node = json_object_get_member (object, key);

  if (!node || !JSON_NODE_HOLDS_ARRAY (node))
    return weft_bad_input (error, "%s: found %s, wanted an array", key, weft_json_kind (node));
  JsonArray *array = json_node_get_array (node);
  *n = json_array_get_length (array);
  if (*n > WEFT_TENSOR_MOST_DIMS)
    return weft_bad_input (error, "%s: found %u numbers, wanted at most %d", key, *n,
                           WEFT_TENSOR_MOST_DIMS);
  for (uint32_t i = 0; i < *n; i++) {
    JsonNode *element = json_array_get_element (array, i);
    gboolean whole = json_node_get_value_type (element) == G_TYPE_INT64;
    if (!whole)
      return weft_bad_input (error, "%s: found %s, wanted a whole number", key,
                             weft_json_kind (element));
    if (json_node_get_int (element) < 0)
      return weft_bad_input (error, "%s: found %" G_GINT64_FORMAT ", wanted 0 or more", key,
                             json_node_get_int (element));
    number[i] = json_node_get_int (element);
  }
  return TRUE;
}

static gboolean
read_type (JsonObject *object, enum weft_tensor_type *type, GError **error)
{
  JsonNode *node = json_object_get_member (object, "dtype");

  if (!node || json_node_get_value_type (node) != G_TYPE_STRING)
    return weft_bad_input (error, "dtype: found %s, wanted the name of a type",
                           weft_json_kind (node));
  const char *word = json_node_get_string (node);
  for (*type = 0; *type < WEFT_N_TENSOR_TYPE; (*type)++)
    if (g_str_equal (weft_tensor_type_words[*type], word))
      return TRUE;
  g_autofree char *all = g_strjoinv (", ", (char **) weft_tensor_type_words);
  return weft_bad_input (error, "dtype: found \"%s\", wanted one of %s", word, all);
}

/* Checks that shape and type need exactly the bytes between the offsets. */
static gboolean
check_size (const struct weft_tensor *t, GError **error)
{
  uint64_t bytes = weft_tensor_type_bytes[t->type];

  if (t->end < t->begin)
    return weft_bad_input (error,
                           "data_offsets: found an end at %" G_GUINT64_FORMAT
                           " before the begin at %" G_GUINT64_FORMAT,
                           t->end, t->begin);
  for (uint32_t d = 0; d < t->n_dim; d++)
    if (__builtin_mul_overflow (bytes, t->dim[d], &bytes))
      return weft_bad_input (error, "shape: found more than 2^64 bytes");
  if (bytes == t->end - t->begin)
    return TRUE;
  return weft_bad_input (error,
                         "data_offsets: found %" G_GUINT64_FORMAT
                         " bytes, wanted %" G_GUINT64_FORMAT " bytes for the shape",
                         t->end - t->begin, bytes);
}

static gboolean
read_entry (JsonNode *node, struct weft_tensor *t, GError **error)
{
  uint64_t offsets[WEFT_TENSOR_MOST_DIMS];
  uint32_t n;

  if (!JSON_NODE_HOLDS_OBJECT (node))
    return weft_bad_input (error, "found %s, wanted an object", weft_json_kind (node));
  JsonObject *object = json_node_get_object (node);
  if (!read_type (object, &t->type, error) ||
      !read_numbers (object, "shape", t->dim, &t->n_dim, error) ||
      !read_numbers (object, "data_offsets", offsets, &n, error))
    return FALSE;
  if (n != 2)
    return weft_bad_input (error, "data_offsets: found %u numbers, wanted 2", n);
  t->begin = offsets[0];
  t->end = offsets[1];
  return check_size (t, error);
}

static gboolean
read_metadata (JsonNode *node, GHashTable *metadata, GError **error)
{
  JsonObjectIter iter;
  const char *key;
  JsonNode *value;

  if (!JSON_NODE_HOLDS_OBJECT (node))
    return weft_bad_input (error, "__metadata__: found %s, wanted an object",
                           weft_json_kind (node));
  json_object_iter_init_ordered (&iter, json_node_get_object (node));
  while (json_object_iter_next_ordered (&iter, &key, &value)) {
    if (json_node_get_value_type (value) != G_TYPE_STRING)
      return weft_bad_input (error, "__metadata__: %s: found %s, wanted text", key,
                             weft_json_kind (value));
    g_hash_table_insert (metadata, g_strdup (key), g_strdup (json_node_get_string (value)));
  }
  return TRUE;
}

static gboolean
read_member (struct shard *shard, const char *name, JsonNode *node, GError **error)
{
  if (g_str_equal (name, "__metadata__"))
    return read_metadata (node, shard->metadata, error);
  struct entry *entry = g_new0 (struct entry, 1);
  entry->tensor.name = g_strdup (name);
  entry->shard = shard;
  g_ptr_array_add (shard->entries, entry);
  g_hash_table_insert (shard->by_name, entry->tensor.name, entry);
  if (read_entry (node, &entry->tensor, error))
    return TRUE;
  g_prefix_error (error, "tensor %s: ", name);
  return FALSE;
}

/* Compares tensors by offset. An empty tensor comes before the tensor that begins at the same
 * offset. */
static int
compare_places (gconstpointer a, gconstpointer b)
{
  const struct weft_tensor *s = *(struct weft_tensor *const *) a;
  const struct weft_tensor *t = *(struct weft_tensor *const *) b;

  if (s->begin != t->begin)
    return s->begin < t->begin ? -1 : 1;
  if (s->end != t->end)
    return s->end < t->end ? -1 : 1;
  return strcmp (s->name, t->name);
}

/* Sorts the entries by offset and checks that each byte of the data belongs to one entry. */
static gboolean
check_places (struct shard *shard, GError **error)
{
  uint64_t at = 0;

  g_ptr_array_sort (shard->entries, compare_places);
  for (uint32_t i = 0; i < shard->entries->len; i++) {
    const struct weft_tensor *t = g_ptr_array_index (shard->entries, i);
    if (t->begin != at)
      return weft_bad_input (error,
                             "tensor %s: found %s: data_offsets begin at %" G_GUINT64_FORMAT
                             ", wanted %" G_GUINT64_FORMAT ", where the previous tensor ends",
                             t->name, t->begin < at ? "an overlap" : "a hole", t->begin, at);
    at = t->end;
  }
  if (at == shard->bytes)
    return TRUE;
  return weft_bad_input (error,
                         "found %" G_GUINT64_FORMAT " bytes of data, wanted %" G_GUINT64_FORMAT
                         " bytes for the tensors of the header",
                         shard->bytes, at);
}

static gboolean
read_header (struct shard *shard, const char *json, uint64_t length, GError **error)
{
  JsonObjectIter iter;
  const char *name;
  JsonNode *node;

  if (length == 0 || *json != '{')
    return weft_bad_input (error, "found a header that does not begin with '{': not safetensors");
  g_autoptr (JsonParser) parser = weft_json_load (json, length, error);
  if (!parser) {
    g_prefix_error (error, "header:");
    return FALSE;
  }
  json_object_iter_init_ordered (&iter, json_node_get_object (json_parser_get_root (parser)));
  while (json_object_iter_next_ordered (&iter, &name, &node))
    if (!read_member (shard, name, node, error))
      return FALSE;
  return check_places (shard, error);
}

static gboolean
read_shard (struct shard *shard, GError **error)
{
  const char *start = g_mapped_file_get_contents (shard->map);
  uint64_t bytes = g_mapped_file_get_length (shard->map), length;

  if (bytes < sizeof length)
    return weft_bad_input (
        error, "found %" G_GUINT64_FORMAT " bytes, wanted the 8 bytes of a header size", bytes);
  memcpy (&length, start, sizeof length);
  if (length > MOST_HEADER || length > bytes - sizeof length)
    return weft_bad_input (
        error,
        "found a header of %" G_GUINT64_FORMAT " bytes, wanted at most %" G_GUINT64_FORMAT " bytes",
        length, MIN (MOST_HEADER, bytes - sizeof length));
  shard->data = (const uint8_t *) start + sizeof length + length;
  shard->bytes = bytes - sizeof length - length;
  return read_header (shard, start + sizeof length, length, error);
}

static struct shard *
shard_open (const char *path, GError **error)
{
  GMappedFile *map = weft_map_file (path, error);

  if (!map)
    return NULL;
  struct shard *shard = g_new0 (struct shard, 1);
  shard->map = map;
  shard->entries = g_ptr_array_new_with_free_func ((GDestroyNotify) entry_free);
  shard->by_name = g_hash_table_new (g_str_hash, g_str_equal);
  shard->metadata = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, g_free);
  if (read_shard (shard, error))
    return shard;
  g_prefix_error (error, "%s: ", path);
  shard_free (shard);
  return NULL;
}

/* -------------------------------------------------------------------------- index */

static void
list_entry (weft_safetensors *file, struct entry *entry)
{
  g_ptr_array_add (file->list, entry);
  g_hash_table_insert (file->by_name, entry->tensor.name, entry);
}

static gboolean
open_single (weft_safetensors *file, GError **error)
{
  struct shard *shard = shard_open (file->path, error);

  if (!shard)
    return FALSE;
  g_ptr_array_add (file->shards, shard);
  for (uint32_t i = 0; i < shard->entries->len; i++)
    list_entry (file, g_ptr_array_index (shard->entries, i));
  return TRUE;
}

/* Returns a shard file in the folder of the index; opens the shard at the first call. `opened` maps
 * file names to shards, which `file` owns. */
static struct shard *
shard_beside (weft_safetensors *file, GHashTable *opened, const char *name, GError **error)
{
  g_autofree char *folder = g_path_get_dirname (file->path);
  g_autofree char *path = g_build_filename (folder, name, NULL);
  struct shard *shard = g_hash_table_lookup (opened, name);

  if (shard)
    return shard;
  shard = shard_open (path, error);
  if (!shard)
    return NULL;
  g_ptr_array_add (file->shards, shard);
  g_hash_table_insert (opened, g_strdup (name), shard);
  return shard;
}

/* Adds one member of weight_map: a tensor name and the shard file in the folder of the index. */
static gboolean
add_indexed (weft_safetensors *file, GHashTable *opened, const char *name, JsonNode *node,
             GError **error)
{
  const char *shard_name =
      json_node_get_value_type (node) == G_TYPE_STRING ? json_node_get_string (node) : NULL;

  if (!shard_name)
    return weft_bad_input (error, "%s: weight_map: %s: found %s, wanted the name of a file",
                           file->path, name, weft_json_kind (node));
  if (!*shard_name || *shard_name == '.' || strchr (shard_name, '/'))
    return weft_bad_input (error,
                           "%s: weight_map: %s: found \"%s\", wanted the name of a file beside it",
                           file->path, name, shard_name);
  struct shard *shard = shard_beside (file, opened, shard_name, error);
  if (!shard)
    return FALSE;
  struct entry *entry = g_hash_table_lookup (shard->by_name, name);
  if (!entry)
    return weft_bad_input (error, "%s: weight_map: found no tensor %s in %s", file->path, name,
                           shard_name);
  list_entry (file, entry);
  return TRUE;
}

static gboolean
read_index (weft_safetensors *file, JsonNode *root, GError **error)
{
  g_autoptr (GHashTable) opened = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL);
  JsonNode *map = NULL;
  JsonObjectIter iter;
  const char *name;
  JsonNode *node;

  if (root && JSON_NODE_HOLDS_OBJECT (root))
    map = json_object_get_member (json_node_get_object (root), "weight_map");
  if (!map || !JSON_NODE_HOLDS_OBJECT (map))
    return weft_bad_input (error,
                           "%s: weight_map: found %s, wanted an object that maps tensors to files",
                           file->path, weft_json_kind (map));
  json_object_iter_init_ordered (&iter, json_node_get_object (map));
  while (json_object_iter_next_ordered (&iter, &name, &node))
    if (!add_indexed (file, opened, name, node, error))
      return FALSE;
  return TRUE;
}

static gboolean
open_index (weft_safetensors *file, GError **error)
{
  g_autoptr (GMappedFile) map = weft_map_file (file->path, error);

  if (!map)
    return FALSE;
  uint64_t length = g_mapped_file_get_length (map);
  const char *json = length ? g_mapped_file_get_contents (map) : "";
  if (length > MOST_HEADER)
    return weft_bad_input (error, "%s: found %" G_GUINT64_FORMAT " bytes, wanted at most %u bytes",
                           file->path, length, MOST_HEADER);
  g_autoptr (JsonParser) parser = weft_json_load (json, length, error);
  if (parser)
    return read_index (file, json_parser_get_root (parser), error);
  g_prefix_error (error, "%s:", file->path);
  return FALSE;
}

/* The path to open: for a folder its index or its file, else `path` itself. The caller frees the
 * path. */
static char *
find_file (const char *path)
{
  static const char *const names[] = { "model.safetensors.index.json", "model.safetensors" };

  for (unsigned i = 0; i < G_N_ELEMENTS (names) && g_file_test (path, G_FILE_TEST_IS_DIR); i++) {
    g_autofree char *inside = g_build_filename (path, names[i], NULL);
    if (g_file_test (inside, G_FILE_TEST_EXISTS))
      return g_steal_pointer (&inside);
  }
  return g_strdup (path);
}

weft_safetensors *
weft_safetensors_open (const char *path, GError **error)
{
  g_autoptr (weft_safetensors) file = g_new0 (weft_safetensors, 1);

  file->path = find_file (path);
  file->shards = g_ptr_array_new_with_free_func ((GDestroyNotify) shard_free);
  file->list = g_ptr_array_new ();
  file->by_name = g_hash_table_new (g_str_hash, g_str_equal);
  if (g_str_has_suffix (file->path, ".json") ? open_index (file, error) : open_single (file, error))
    return g_steal_pointer (&file);
  return NULL;
}

void
weft_safetensors_free (weft_safetensors *file)
{
  if (!file)
    return;
  g_hash_table_unref (file->by_name);
  g_ptr_array_unref (file->list);
  g_ptr_array_unref (file->shards);
  g_free (file->path);
  g_free (file);
}

/* ----------------------------------------------------------------------- contents */

uint32_t
weft_safetensors_count (const weft_safetensors *file)
{
  return file->list->len;
}

const struct weft_tensor *
weft_safetensors_at (const weft_safetensors *file, uint32_t i)
{
  return g_ptr_array_index (file->list, i);
}

const struct weft_tensor *
weft_safetensors_find (const weft_safetensors *file, const char *name)
{
  return g_hash_table_lookup (file->by_name, name);
}

const char *
weft_safetensors_metadata (const weft_safetensors *file, const char *key)
{
  const char *value = NULL;

  for (uint32_t i = 0; i < file->shards->len && !value; i++) {
    const struct shard *shard = g_ptr_array_index (file->shards, i);
    value = g_hash_table_lookup (shard->metadata, key);
  }
  return value;
}

const void *
weft_safetensors_data (const weft_safetensors *file, const struct weft_tensor *tensor)
{
  const struct entry *entry = (const struct entry *) tensor;

  (void) file;
  return entry->shard->data + tensor->begin;
}

static float
half_float (uint16_t h)
{
  uint32_t exponent = h >> 10 & 0x1f, fraction = h & 0x3ff;
  uint32_t bits = exponent == 0x1f ? 0x7f800000u : (exponent + 127 - 15) << 23;
  float f;

  bits |= fraction << 13;
  memcpy (&f, &bits, sizeof f);
  if (exponent == 0)
    f = fraction * 0x1p-24f;
  return h >> 15 ? -f : f;
}

/* Converts n elements to floats. Elements are copied one by one, because data may be unaligned. */
#define CONVERT(name, type, value)                                                                 \
  static void convert_##name (const uint8_t *data, uint64_t n, float *out)                         \
  {                                                                                                \
    for (uint64_t i = 0; i < n; i++) {                                                             \
      type x;                                                                                      \
      memcpy (&x, data + i * sizeof x, sizeof x);                                                  \
      out[i] = value;                                                                              \
    }                                                                                              \
  }
CONVERT (f32, float, x)
CONVERT (f64, double, (float) x)
CONVERT (f16, uint16_t, half_float (x))
CONVERT (bf16, uint16_t, weft_bf16_float (x))
#undef CONVERT

gboolean
weft_safetensors_floats (const weft_safetensors *file, const struct weft_tensor *tensor,
                         uint64_t first, uint64_t n, float *out, GError **error)
{
  static void (*const convert[WEFT_N_TENSOR_TYPE]) (const uint8_t *, uint64_t, float *) = {
    [WEFT_TENSOR_F32] = convert_f32,
    [WEFT_TENSOR_F64] = convert_f64,
    [WEFT_TENSOR_F16] = convert_f16,
    [WEFT_TENSOR_BF16] = convert_bf16,
  };
  uint64_t elements = weft_tensor_elements (tensor);
  const uint8_t *data = weft_safetensors_data (file, tensor);

  g_assert (first <= elements && n <= elements - first);
  if (!convert[tensor->type])
    return weft_bad_input (error, "%s: tensor %s: found type %s, wanted F32, F16, BF16 or F64",
                           file->path, tensor->name, weft_tensor_type_words[tensor->type]);
  convert[tensor->type](data + first * weft_tensor_type_bytes[tensor->type], n, out);
  return TRUE;
}
