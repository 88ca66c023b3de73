#include "train/peft.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/json_scan.h"
#include "train/durable.h"
#include "train/hugging_face.h"
#include <errno.h>
#include <glib/gstdio.h>
#include <string.h>

#define TENSORS "adapter_model.safetensors"
#define CONFIG "adapter_config.json"
#define MOST_CONFIG (1 << 20)

#define A_SUFFIX ".lora_a.weight"
#define B_SUFFIX ".lora_b.weight"

gboolean
weft_peft_is_adapter (const struct weft_state_tensor *tensor)
{
  return g_str_has_suffix (tensor->param, A_SUFFIX) || g_str_has_suffix (tensor->param, B_SUFFIX);
}

/* ------------------------------------------------------------------------- names */

/* Outputs of the linear map to which an adapter belongs. */
static uint64_t
outputs_of (const union weft_model *m, const char *param)
{
  const struct {
    const char *map;
    int64_t outputs;
  } maps[] = {
    { "qkv.", (m->num_attention_heads + 2 * m->num_query_groups) * m->kv_channels },
    { "fc1.", m->ffn_hidden_size * (int64_t) weft_model_wide (m) },
  };

  for (unsigned i = 0; i < G_N_ELEMENTS (maps); i++)
    if (g_str_has_prefix (param, maps[i].map))
      return (uint64_t) maps[i].outputs;
  return (uint64_t) m->hidden_size; /* proj, fc2 */
}

/* The pieces of the weight that an adapter changes. */
static GArray *
base_pieces (const union weft_model *model, const struct weft_state_tensor *tensor, GError **error)
{
  g_autofree char *param = g_strdup (tensor->param);
  struct weft_state_tensor base = *tensor;

  *strstr (param, ".lora_") = 0;
  g_autofree char *weight = g_strconcat (param, ".weight", NULL);
  base.param = weight;
  base.rows = outputs_of (model, tensor->param);
  base.columns = 2; /* a matrix, also with one column */
  return weft_hf_pieces (model, &base, error);
}

/* The module of a tensor of transformers: its name without ".weight". The caller frees it. */
static char *
module_of (const struct weft_hf_piece *piece)
{
  return g_strndup (piece->name, strlen (piece->name) - strlen (".weight"));
}

/* The tensors of PEFT for a tensor of the state; none for tensors that are not of adapters. */
static GArray *
pieces_of (const union weft_model *model, const struct weft_state_tensor *tensor, GError **error)
{
  gboolean first = g_str_has_suffix (tensor->param, A_SUFFIX);

  if (!weft_peft_is_adapter (tensor))
    return g_array_new (FALSE, FALSE, sizeof (struct weft_hf_piece));
  GArray *pieces = base_pieces (model, tensor, error);
  for (guint i = 0; pieces && i < pieces->len; i++) {
    struct weft_hf_piece *piece = &g_array_index (pieces, struct weft_hf_piece, i);
    g_autofree char *module = module_of (piece);
    g_free (piece->name);
    piece->name = g_strdup_printf ("base_model.model.%s.lora_%c.weight", module, first ? 'A' : 'B');
    piece->columns = tensor->columns;
    piece->transposed = piece->vector = FALSE;
    if (!first)
      continue;
    piece->first_row = 0;
    piece->rows = tensor->rows;
    piece->order = (struct weft_hf_order){ 0 };
  }
  return pieces;
}

/* ------------------------------------------------------------------------- configuration */

/* The last two parts of a module's name, which tell the projections of attention from those of the
 * MLP in every family: "self_attn.q_proj" of "model.layers.0.self_attn.q_proj". */
static const char *
short_name (const char *module)
{
  const char *dot = strrchr (module, '.');

  while (dot && dot > module && dot[-1] != '.')
    dot--;
  return dot ? dot : module;
}

/* Lists the modules with adapters, without layer numbers, and whether transformers store their
 * weights transposed (Conv1D of gpt2). */
static GPtrArray *
list_modules (const weft_state *state, const union weft_model *model, gboolean *transposed,
              GError **error)
{
  g_autoptr (GPtrArray) names = g_ptr_array_new_with_free_func (g_free);

  *transposed = FALSE;
  for (uint32_t t = 0; t < weft_state_count (state); t++) {
    const struct weft_state_tensor *tensor = weft_state_at (state, t);
    if (tensor->layer != 0 || !g_str_has_suffix (tensor->param, B_SUFFIX))
      continue;
    g_autoptr (GArray) pieces = base_pieces (model, tensor, error);
    if (!pieces)
      return NULL;
    for (guint i = 0; i < pieces->len; i++) {
      const struct weft_hf_piece *piece = &g_array_index (pieces, struct weft_hf_piece, i);
      g_autofree char *module = module_of (piece);
      g_ptr_array_add (names, g_strdup (short_name (module)));
      *transposed |= piece->transposed;
    }
  }
  return g_steal_pointer (&names);
}

static char *
print_config (const struct weft_job *job, const GPtrArray *modules, gboolean transposed)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();

  json_builder_begin_object (b);
  weft_json_text (b, "peft_type", "LORA");
  weft_json_text (b, "task_type", "CAUSAL_LM");
  weft_json_null (b, "base_model_name_or_path");
  weft_json_int (b, "r", job->train.lora_dim);
  weft_json_int (b, "lora_alpha", job->train.lora_alpha);
  weft_json_real (b, "lora_dropout", job->train.lora_dropout);
  weft_json_text (b, "bias", "none");
  weft_json_bool (b, "fan_in_fan_out", transposed);
  weft_json_bool (b, "use_rslora", FALSE);
  weft_json_bool (b, "use_dora", FALSE);
  weft_json_bool (b, "inference_mode", TRUE);
  weft_json_null (b, "modules_to_save");
  weft_json_array (b, "target_modules");
  for (guint i = 0; i < modules->len; i++)
    json_builder_add_string_value (b, modules->pdata[i]);
  json_builder_end_array (b);
  json_builder_end_object (b);
  g_autoptr (JsonNode) root = json_builder_get_root (b);
  return weft_json_print (root, TRUE);
}

static gboolean
write_config (const struct weft_job *job, const GPtrArray *modules, gboolean transposed,
              const char *folder, GError **error)
{
  g_autofree char *path = g_build_filename (folder, CONFIG, NULL);
  g_autofree char *text = print_config (job, modules, transposed);

  return weft_write_synced (path, text, error);
}

gboolean
weft_peft_export (weft_state *state, const struct weft_job *job, const char *folder, GError **error)
{
  gboolean transposed;
  g_autoptr (GPtrArray) modules = list_modules (state, &job->model, &transposed, error);
  g_autofree char *path = g_build_filename (folder, TENSORS, NULL);
  const struct weft_hf_files files = { state, &job->model, pieces_of, path };

  if (!modules)
    return FALSE;
  if (weft_hf_writes (state) && g_mkdir_with_parents (folder, 0777) != 0)
    return weft_failed_path (folder, error);
  return weft_hf_write (&files, WEFT_STATE_MASTER, error) &&
         (!weft_hf_writes (state) || write_config (job, modules, transposed, folder, error));
}

/* ------------------------------------------------------------------------- import */

/* A member of the configuration that must have one value. */
static gboolean
check_number (JsonObject *config, const char *path, const char *member, int64_t wanted,
              GError **error)
{
  JsonNode *node = json_object_get_member (config, member);
  gboolean number =
      node && JSON_NODE_HOLDS_VALUE (node) && json_node_get_value_type (node) != G_TYPE_STRING;
  double found = number ? json_node_get_double (node) : 0;

  if (number && found == (double) wanted)
    return TRUE;
  return number ? weft_bad_input (error, "%s: %s: found %g, wanted %" G_GINT64_FORMAT, path, member,
                                  found, wanted)
                : weft_bad_input (error, "%s: %s: found %s, wanted %" G_GINT64_FORMAT, path, member,
                                  weft_json_kind (node), wanted);
}

/* Variants of LoRA that change what the tensors mean. */
static gboolean
check_variants (JsonObject *config, const char *path, GError **error)
{
  static const char *const off[] = { "use_rslora", "use_dora" };
  const char *type = json_object_get_string_member_with_default (config, "peft_type", "");

  if (!g_str_equal (type, "LORA"))
    return weft_bad_input (error, "%s: peft_type: found \"%s\", wanted \"LORA\"", path, type);
  for (unsigned i = 0; i < G_N_ELEMENTS (off); i++)
    if (json_object_get_boolean_member_with_default (config, off[i], FALSE))
      return weft_bad_input (error, "%s: %s: found true, wanted false", path, off[i]);
  return TRUE;
}

static gboolean
check_config (const struct weft_job *job, const char *folder, GError **error)
{
  g_autofree char *path = g_build_filename (folder, CONFIG, NULL);
  gsize length = 0;
  g_autofree char *text = weft_file_read (path, MOST_CONFIG, &length, error);
  g_autoptr (JsonParser) parser = text ? weft_json_load (text, length, error) : NULL;
  JsonNode *root = parser ? json_parser_get_root (parser) : NULL;

  if (!parser) {
    if (text)
      g_prefix_error (error, "%s:", path);
    return FALSE;
  }
  if (!root || !JSON_NODE_HOLDS_OBJECT (root))
    return weft_bad_input (error, "%s: found %s, wanted an object", path, weft_json_kind (root));
  JsonObject *config = json_node_get_object (root);
  return check_variants (config, path, error) &&
         check_number (config, path, "r", job->train.lora_dim, error) &&
         check_number (config, path, "lora_alpha", job->train.lora_alpha, error);
}

/* Whether the tensors of all pieces of an A have equal values. */
static gboolean
check_equal (const weft_safetensors *file, const GArray *pieces, const char *path, GError **error)
{
  const struct weft_hf_piece *piece = (const struct weft_hf_piece *) (const void *) pieces->data;
  uint64_t n = piece[0].rows * piece[0].columns;
  g_autofree float *one = g_new (float, n), *other = g_new (float, n);

  for (guint i = 0; i < pieces->len; i++) {
    const struct weft_tensor *t = weft_safetensors_find (file, piece[i].name);
    if (!t || weft_tensor_elements (t) != n)
      return TRUE; /* weft_hf_read() explains */
    if (!weft_safetensors_floats (file, t, 0, n, i ? other : one, error))
      return FALSE;
    if (i && memcmp (one, other, n * sizeof *one) != 0)
      return weft_bad_input (error,
                             "%s: found different values in %s and %s, wanted equal ones: they "
                             "are one matrix of a fused linear map here",
                             path, piece[0].name, piece[i].name);
  }
  return TRUE;
}

static gboolean
check_shared (const struct weft_hf_files *files, GError **error)
{
  g_autoptr (weft_safetensors) file = weft_safetensors_open (files->path, error);

  for (uint32_t t = 0; file && t < weft_state_count (files->state); t++) {
    const struct weft_state_tensor *tensor = weft_state_at (files->state, t);
    if (!g_str_has_suffix (tensor->param, A_SUFFIX))
      continue;
    g_autoptr (GArray) pieces = pieces_of (files->model, tensor, error);
    if (!pieces || !check_equal (file, pieces, files->path, error))
      return FALSE;
  }
  return file != NULL;
}

gboolean
weft_peft_import (weft_state *state, const struct weft_job *job, const char *folder, GError **error)
{
  g_autofree char *path = g_build_filename (folder, TENSORS, NULL), *unused = NULL;
  const struct weft_hf_files files = { state, &job->model, pieces_of, path };

  if (!check_config (job, folder, error) || !check_shared (&files, error) ||
      !weft_hf_read (&files, &unused, error))
    return FALSE;
  return !unused || weft_bad_input (error, "%s: found tensors that the job has no adapters for: %s",
                                    path, unused);
}
