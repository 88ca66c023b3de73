#include "train/manifest.h"
#include "core/base/json.h"
#include "train/crc32c.h"
#include "train/manifest_table.h"
#include <string.h>

const struct weft_manifest_number weft_progress_numbers[WEFT_N_PROGRESS] = {
  { "step", offsetof (struct weft_progress, step) },
  { "position", offsetof (struct weft_progress, position) },
  { "seed", offsetof (struct weft_progress, seed) },
  { "data", offsetof (struct weft_progress, data) },
  { "skipped", offsetof (struct weft_progress, skipped) },
};

const struct weft_manifest_number weft_data_file_numbers[WEFT_N_DATA_FILE] = {
  { "bytes", offsetof (struct weft_data_mark, bytes) },
  { "modified", offsetof (struct weft_data_mark, modified) },
  { "head", offsetof (struct weft_data_mark, head) },
  { "tail", offsetof (struct weft_data_mark, tail) },
};

const struct weft_manifest_number weft_scale_numbers[WEFT_N_SCALE_NUMBER] = {
  { "good", offsetof (struct weft_loss_scale, good) },
  { "hysteresis", offsetof (struct weft_loss_scale, hysteresis) },
};

const struct weft_manifest_number weft_manifest_chunk_numbers[WEFT_N_CHUNK_NUMBER] = {
  { "file", offsetof (struct weft_manifest_chunk, file) },
  { "offset", offsetof (struct weft_manifest_chunk, offset) },
  { "row", offsetof (struct weft_manifest_chunk, row) },
  { "column", offsetof (struct weft_manifest_chunk, column) },
  { "rows", offsetof (struct weft_manifest_chunk, rows) },
  { "columns", offsetof (struct weft_manifest_chunk, columns) },
};

static void
clear_tensor (void *tensor)
{
  g_free (((struct weft_manifest_tensor *) tensor)->name);
}

static void
clear_file (void *file)
{
  g_free (((struct weft_manifest_file *) file)->name);
}

weft_manifest *
weft_manifest_new (void)
{
  weft_manifest *m = g_new0 (weft_manifest, 1);

  m->files = g_array_new (FALSE, TRUE, sizeof (struct weft_manifest_file));
  m->tensors = g_array_new (FALSE, TRUE, sizeof (struct weft_manifest_tensor));
  m->chunks = g_array_new (FALSE, TRUE, sizeof (struct weft_manifest_chunk));
  g_array_set_clear_func (m->files, clear_file);
  g_array_set_clear_func (m->tensors, clear_tensor);
  return m;
}

void
weft_manifest_free (weft_manifest *m)
{
  if (!m)
    return;
  g_array_free (m->files, TRUE);
  g_array_free (m->tensors, TRUE);
  g_array_free (m->chunks, TRUE);
  g_free (m->model);
  g_free (m->job);
  g_free (m);
}

char *
weft_manifest_chunk_name (const weft_manifest *m, const struct weft_manifest_chunk *c)
{
  return g_strdup_printf ("%s/%s@%" G_GUINT64_FORMAT ",%" G_GUINT64_FORMAT,
                          weft_manifest_tensor (m, c->tensor)->name, weft_state_kind_words[c->kind],
                          c->row, c->column);
}

#define LORA_ALPHA ", lora_alpha = "

char *
weft_manifest_model (const struct weft_job *job)
{
  static const enum weft_model_field fields[] = {
    WEFT_MODEL_num_attention_heads, WEFT_MODEL_num_query_groups, WEFT_MODEL_kv_channels,
    WEFT_MODEL_activation,          WEFT_MODEL_normalization,    WEFT_MODEL_position_embedding_type
  };
  GString *out = g_string_new (NULL);

  for (unsigned i = 0; i < G_N_ELEMENTS (fields); i++) {
    const struct weft_field *field = &weft_model_table.field[fields[i]];
    g_autofree char *value = weft_field_print (field, job->model.at[fields[i]]);
    g_string_append_printf (out, "%s%s = %s", i ? ", " : "", field->name, value);
  }
  if (job->train.lora_dim > 0)
    g_string_append_printf (out, LORA_ALPHA "%" G_GINT64_FORMAT, job->train.lora_alpha);
  return g_string_free (out, FALSE);
}

gboolean
weft_manifest_fits (const char *found, const char *wanted, gboolean *older)
{
  const char *alpha = strstr (wanted, LORA_ALPHA);

  *older = alpha && strlen (found) == (gsize) (alpha - wanted) && g_str_has_prefix (wanted, found);
  return *older || g_str_equal (found, wanted);
}

/* ----------------------------------------------------------------------- printing */

/* Prints integers as JSON strings, because many JSON readers keep only 53 bits of an integer. */
static void
print_numbers (JsonBuilder *b, const void *row, const struct weft_manifest_number *number, int n)
{
  for (int i = 0; i < n; i++) {
    g_autofree char *text =
        g_strdup_printf ("%" G_GUINT64_FORMAT, *weft_manifest_number (row, &number[i]));
    weft_json_text (b, number[i].name, text);
  }
}

/* Prints the loss scale as a JSON string with enough digits to read back the same bits. */
static void
print_loss_scale (JsonBuilder *b, const struct weft_loss_scale *scale)
{
  char text[G_ASCII_DTOSTR_BUF_SIZE];

  if (scale->scale == 0)
    return;
  json_builder_set_member_name (b, "loss_scale");
  json_builder_begin_object (b);
  weft_json_text (b, "scale", g_ascii_dtostr (text, sizeof text, scale->scale));
  print_numbers (b, scale, weft_scale_numbers, WEFT_N_SCALE_NUMBER);
  json_builder_end_object (b);
}

static void
print_data_file (JsonBuilder *b, const struct weft_data_mark *file)
{
  if (file->bytes == 0)
    return;
  weft_json_object (b, "data_file");
  print_numbers (b, file, weft_data_file_numbers, WEFT_N_DATA_FILE);
  json_builder_end_object (b);
}

static void
print_progress (JsonBuilder *b, const struct weft_progress *progress)
{
  print_numbers (b, progress, weft_progress_numbers, WEFT_N_PROGRESS);
  print_data_file (b, &progress->data_file);
  print_loss_scale (b, &progress->loss_scale);
}

static void
print_files (JsonBuilder *b, const weft_manifest *m)
{
  weft_json_array (b, "files");
  for (uint32_t i = 0; i < m->files->len; i++) {
    const struct weft_manifest_file *file = weft_manifest_file (m, i);
    json_builder_begin_object (b);
    weft_json_text (b, "name", file->name);
    weft_json_int (b, "bytes", file->bytes);
    json_builder_end_object (b);
  }
  json_builder_end_array (b);
}

static void
print_chunk (JsonBuilder *b, const struct weft_manifest_chunk *c)
{
  g_autofree char *crc = g_strdup_printf ("%08x", c->crc);

  json_builder_begin_object (b);
  weft_json_text (b, "kind", weft_state_kind_words[c->kind]);
  weft_json_text (b, "type", weft_tensor_type_words[c->type]);
  for (int i = 0; i < WEFT_N_CHUNK_NUMBER; i++)
    weft_json_int (b, weft_manifest_chunk_numbers[i].name,
                   *weft_manifest_number (c, &weft_manifest_chunk_numbers[i]));
  weft_json_text (b, "crc32c", crc);
  json_builder_end_object (b);
}

static void
print_tensors (JsonBuilder *b, const weft_manifest *m)
{
  uint32_t c = 0;

  weft_json_array (b, "tensors");
  for (uint32_t i = 0; i < m->tensors->len; i++) {
    const struct weft_manifest_tensor *tensor = weft_manifest_tensor (m, i);
    json_builder_begin_object (b);
    weft_json_text (b, "name", tensor->name);
    weft_json_int (b, "rows", tensor->rows);
    weft_json_int (b, "columns", tensor->columns);
    weft_json_array (b, "chunks");
    for (; c < m->chunks->len && weft_manifest_chunk (m, c)->tensor == i; c++)
      print_chunk (b, weft_manifest_chunk (m, c));
    json_builder_end_array (b);
    json_builder_end_object (b);
  }
  json_builder_end_array (b);
}

#define END "\n}"

char *
weft_manifest_seal (const char *text, gsize n)
{
  struct weft_crc32c crc;

  weft_crc32c_init (&crc);
  return g_strdup_printf (",\n \"crc32c\" : \"%08x\"" END, weft_crc32c (&crc, 0, text, n));
}

/* Puts the checksum at the end of a manifest that has none. Frees `text`. */
static char *
add_seal (char *text)
{
  gsize n = strlen (text) - strlen (END);

  g_assert (g_str_has_suffix (text, END));
  g_autofree char *seal = weft_manifest_seal (text, n);
  text[n] = '\0';
  char *whole = g_strconcat (text, seal, NULL);
  g_free (text);
  return whole;
}

char *
weft_manifest_print (const weft_manifest *m)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();
  g_autoptr (JsonGenerator) generator = json_generator_new ();

  json_builder_begin_object (b);
  weft_json_text (b, "schema", WEFT_MANIFEST_SCHEMA);
  print_progress (b, &m->progress);
  weft_json_text (b, "model", m->model);
  weft_json_text (b, "job", m->job);
  print_files (b, m);
  print_tensors (b, m);
  json_builder_end_object (b);
  g_autoptr (JsonNode) root = json_builder_get_root (b);
  json_generator_set_root (generator, root);
  json_generator_set_pretty (generator, TRUE);
  json_generator_set_indent (generator, 1);
  return add_seal (json_generator_to_data (generator, NULL));
}
