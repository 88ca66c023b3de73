/* Reads a config.json: finds its family, applies the fields that the family fixes, checks the
 * fields that it requires, and evaluates keys that depend on each other. */
#include "core/job/model_hf.h"
#include "core/base/conf.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/invariant.h"
#include "core/base/suggest.h"
#include <string.h>

/* Largest size of a config.json that is read, in bytes; real files have a few KiB. */
#define MOST_BYTES (4 << 20)

static const char wanted_by_all[] =
    "num_layers hidden_size num_attention_heads vocab_size max_position_embeddings";

/* Member `name` of a JSON object if it is a string, or its first string if it is an array; NULL if
 * neither. */
static const char *
first_string (JsonObject *object, const char *name)
{
  JsonNode *node = object ? json_object_get_member (object, name) : NULL;

  if (node && JSON_NODE_HOLDS_ARRAY (node) &&
      json_array_get_length (json_node_get_array (node)) > 0)
    node = json_array_get_element (json_node_get_array (node), 0);
  if (!node || !JSON_NODE_HOLDS_VALUE (node) || json_node_get_value_type (node) != G_TYPE_STRING)
    return NULL;
  return json_node_get_string (node);
}

static JsonObject *
text_config (JsonObject *root)
{
  JsonNode *node = json_object_get_member (root, "text_config");
  return node && JSON_NODE_HOLDS_OBJECT (node) ? json_node_get_object (node) : NULL;
}

static gboolean
is_family (const struct weft_family *family, const char *name)
{
  g_auto (GStrv) also = weft_family_words (family->also);

  for (unsigned i = 0; also[i]; i++)
    if (weft_same_name (also[i], name))
      return TRUE;
  return weft_same_name (family->type, name);
}

static unsigned
n_families (void)
{
  unsigned n = 0;

  while (weft_families[n].type)
    n++;
  return n;
}

static const char *
family_at (const void *table, unsigned i)
{
  return ((const struct weft_family *) table)[i].type;
}

static const struct weft_family *
unknown_family (const char *key, const char *found, GError **error)
{
  g_autoptr (GString) all = g_string_new (NULL);
  const char *near =
      found ? weft_suggest (found, family_at, weft_families, n_families ()) : NULL;

  for (unsigned i = 0; i < n_families (); i++)
    g_string_append_printf (all, "%s%s%s%s", i ? ", " : "", weft_families[i].type,
                            weft_families[i].also ? ", " : "",
                            weft_families[i].also ? weft_families[i].also : "");
  if (!found)
    weft_bad_input (error, "model_type is missing; wanted one of %s", all->str);
  else if (near)
    weft_bad_input (error, "%s: found \"%s\", wanted one of %s; did you mean %s?", key, found,
                    all->str, near);
  else
    weft_bad_input (error, "%s: found \"%s\", wanted one of %s", key, found, all->str);
  return NULL;
}

/* Finds the family by model_type; if the file describes several models, by that of the language
 * model. Without a model_type, finds it by architectures: "Qwen3MoeForCausalLM" is qwen3_moe,
 * "GPT2LMHeadModel" is gpt2. */
static const struct weft_family *
find_family (JsonObject *root, GError **error)
{
  const char *key = "model_type", *found = first_string (text_config (root), key);
  g_autofree char *stem = NULL;

  if (!found)
    found = first_string (root, key);
  if (!found && (found = first_string (root, "architectures"))) {
    key = "architectures";
    stem = g_strdup (found);
    char *tail = strstr (stem, "ForCausalLM");
    tail = tail ? tail : strstr (stem, "LMHeadModel");
    if (tail)
      *tail = '\0';
  }
  for (unsigned i = 0; found && i < n_families (); i++)
    if (is_family (&weft_families[i], stem ? stem : found))
      return &weft_families[i];
  return unknown_family (key, found, error);
}

/* Sets the fields that the family fixes. An unknown field name in model_families.def is a bug of
 * Weft. */
static void
apply_fixed (const struct weft_family *family, union weft_model *model)
{
  g_auto (GStrv) settings = weft_family_words (family->fixed);

  for (unsigned i = 0; settings[i] && *settings[i]; i++) {
    g_auto (GStrv) pair = g_strsplit (settings[i], "=", 2);
    int f = weft_table_find (&weft_model_table, pair[0]);
    gboolean ok =
        f >= 0 && weft_field_parse (&weft_model_table.field[f], pair[1], &model->at[f], NULL);
    WEFT_INVARIANT (ok);
  }
  model->family = g_quark_from_string (family->type);
}

static gboolean
finish_biases (struct weft_hf_reader *r, GError **error)
{
  const union weft_model *m = r->model;
  gboolean attention = r->attention_bias == WEFT_HF_UNSAID ? m->add_bias_linear : r->attention_bias;
  gboolean mlp = r->mlp_bias == WEFT_HF_UNSAID ? m->add_bias_linear : r->mlp_bias;

  if (r->family->ways & WEFT_HF_QKV_BIAS) {
    if (r->attention_bias != WEFT_HF_UNSAID)
      r->model->add_qkv_bias = r->attention_bias;
    return TRUE;
  }
  if (attention != mlp)
    return weft_bad_input (error, "attention_bias is %s but mlp_bias is %s; wanted both or neither",
                           attention ? "true" : "false", mlp ? "true" : "false");
  if (attention)
    r->model->add_qkv_bias = r->model->add_bias_linear = TRUE;
  return TRUE;
}

/* Decides whether layers have a sliding window. If the file says that only layers from
 * max_window_layers > 0 on have a window, no layer gets a window, and the key is reported as
 * unknown, because Weft does not support this pattern. The key layer_types overrides both
 * decisions. */
static void
finish_window (struct weft_hf_reader *r)
{
  gboolean asked = r->use_window == 1;
  gboolean asks = r->family->ways & WEFT_HF_ASKS_FOR_WINDOW;
  gboolean on = r->use_window == WEFT_HF_UNSAID ? !asks : asked;

  if (on && asked && r->window_layers > 0) {
    on = FALSE;
    if (r->window_layers < r->model->num_layers && r->layer_window == WEFT_HF_UNSAID)
      weft_hf_report (r, "max_window_layers");
  }
  if (r->layer_window != WEFT_HF_UNSAID) {
    on = r->layer_window;
    r->model->window_attn_skip_freq = r->full_layers;
  }
  if (!on)
    r->model->sliding_window = r->model->attention_chunk_size = r->model->window_attn_skip_freq = 0;
}

/* Reads the groups of experts, and norm_topk_prob: whether the weights of the chosen experts are
 * scaled to the sum one. With softmax scores, scaling is the same as a softmax over the chosen
 * experts only. In Weft the weights from sigmoid scores always have the sum one. */
static gboolean
finish_router (struct weft_hf_reader *r, GError **error)
{
  union weft_model *m = r->model;

  if (r->groups > 1 && !r->greedy) {
    m->moe_router_num_groups = r->groups;
    m->moe_router_group_topk = r->group_topk;
  }
  if (r->normalised == WEFT_HF_UNSAID)
    return TRUE;
  if (m->moe_router_score_function == WEFT_SCORE_SOFTMAX)
    m->moe_router_pre_softmax = !r->normalised;
  else if (!r->normalised)
    return weft_bad_input (error,
                           "norm_topk_prob: found false, wanted true with scores by sigmoid");
  return TRUE;
}

static gboolean
finish_shared_experts (struct weft_hf_reader *r, GError **error)
{
  const enum weft_model_field f = WEFT_MODEL_moe_shared_expert_intermediate_size;
  const struct weft_field *field = &weft_model_table.field[f];
  union weft_value value;

  if (r->shared_experts == 0)
    return TRUE;
  g_autofree char *width =
      g_strdup_printf ("%" G_GINT64_FORMAT, r->shared_experts * r->model->moe_ffn_hidden_size);
  return weft_field_parse (field, width, &value, error) &&
         weft_hf_assign (r, f, "n_shared_experts", value, error);
}

static gboolean
check_given (const struct weft_hf_reader *r, const char *names, GError **error)
{
  g_auto (GStrv) wanted = weft_family_words (names);

  for (unsigned i = 0; wanted[i] && *wanted[i]; i++) {
    int f = weft_table_find (&weft_model_table, wanted[i]);
    WEFT_INVARIANT (f >= 0);
    if (r->typed[f] ||
        (f == WEFT_MODEL_max_position_embeddings && r->typed[WEFT_MODEL_seq_length]))
      continue;
    g_autofree char *all = weft_hf_spellings (f);
    return weft_bad_input (error, "missing key: model_type %s wants %s (%s)", r->family->type,
                           all, weft_model_table.field[f].doc);
  }
  return TRUE;
}

static gboolean
read_root (JsonObject *root, union weft_model *model, GPtrArray *unknown, GError **error)
{
  struct weft_hf_reader r = { .model = model,
                              .unknown = unknown,
                              .prefix = "",
                              .attention_bias = WEFT_HF_UNSAID,
                              .mlp_bias = WEFT_HF_UNSAID,
                              .use_window = WEFT_HF_UNSAID,
                              .layer_window = WEFT_HF_UNSAID,
                              .normalised = WEFT_HF_UNSAID };

  r.family = find_family (root, error);
  if (!r.family)
    return FALSE;
  apply_fixed (r.family, model);
  r.own = model->activation;
  r.shared_experts = r.family->ways & WEFT_HF_EXPERT_WIDTH ? 1 : 0;
  if (!weft_hf_walk (&r, root, "", error) || !check_given (&r, wanted_by_all, error) ||
      !check_given (&r, r.family->wanted, error))
    return FALSE;
  finish_window (&r);
  return finish_biases (&r, error) && finish_shared_experts (&r, error) &&
         finish_router (&r, error) && weft_model_complete (model, r.typed, error);
}

static gboolean
read_text (const char *json, gsize length, union weft_model *model, GPtrArray *unknown,
           GError **error)
{
  if (length > MOST_BYTES)
    return weft_bad_input (
        error, " found %" G_GSIZE_FORMAT " bytes, wanted a config.json of at most %d bytes", length,
        MOST_BYTES);
  g_autoptr (JsonParser) parser = weft_json_load (json, length, error);
  if (!parser)
    return FALSE;
  JsonNode *root = json_parser_get_root (parser);
  if (!root || !JSON_NODE_HOLDS_OBJECT (root))
    return weft_bad_input (error, " found %s at the top, wanted an object", weft_json_kind (root));
  if (read_root (json_node_get_object (root), model, unknown, error))
    return TRUE;
  g_prefix_error (error, " ");
  return FALSE;
}

/* The name of a model: that of the file without suffix ("llama3-8b" for llama3-8b.json), or that of
 * the folder if the file is named config.json. */
static GQuark
model_name (const char *file_name)
{
  g_autofree char *base = g_path_get_basename (file_name);

  if (strcmp (base, "config.json") == 0) {
    g_autofree char *folder = g_path_get_dirname (file_name);
    g_autofree char *last = g_path_get_basename (folder);
    return g_quark_from_string (last);
  }
  if (g_str_has_suffix (base, ".json"))
    base[strlen (base) - strlen (".json")] = '\0';
  return g_quark_from_string (base);
}

gboolean
weft_model_parse (const char *json, gssize length, const char *file_name, union weft_model *model,
                  GPtrArray *unknown, GError **error)
{
  weft_table_defaults (&weft_model_table, model->at);
  model->name = model_name (file_name);
  if (read_text (json, length < 0 ? strlen (json) : (gsize) length, model, unknown, error))
    return TRUE;
  g_prefix_error (error, "%s:", file_name);
  return FALSE;
}

gboolean
weft_model_load (const char *name_or_path, union weft_model *model, GPtrArray *unknown,
                 GError **error)
{
  g_autofree char *inside = g_build_filename (name_or_path, "config.json", NULL);
  gboolean folder = strchr (name_or_path, '/') && g_file_test (inside, G_FILE_TEST_IS_REGULAR);
  g_autofree char *path = weft_data_find ("models", folder ? inside : name_or_path, ".json", error);
  gsize length;

  if (!path)
    return FALSE;
  if (!g_file_test (path, G_FILE_TEST_IS_REGULAR))
    return weft_bad_input (error, "%s: found something that is not a file, wanted a config.json",
                           path);
  g_autofree char *json = weft_file_read (path, MOST_BYTES, &length, error);
  return json && weft_model_parse (json, length, path, model, unknown, error);
}

char **
weft_model_names (void)
{
  return weft_data_names ("models", ".json");
}
