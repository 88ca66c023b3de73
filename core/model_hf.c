/* model_hf.c - reads a Hugging Face config.json into the fields of model.def.
 *
 * Three tables say it all: what an architecture fixes (families), which keys carry shape (keys),
 * which do not (ignored).  A key is looked up in `keys`, then among the fields' own Megatron names,
 * then in `ignored`; keys that begin with an underscore are comments; the rest is reported. */
#include "core/conf.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json_scan.h"
#include "core/model.h"
#include "core/suggest.h"
#include "core/units.h"
#include <string.h>

/* Real files have a few KiB. */
#define MOST_BYTES (4 << 20)

/* What a model_type means without any key, and which fields its file must give. */
static const struct family {
  const char *model_type, *also; /* `also`: other model_types of the same shape, space separated */
  const char *fixed;             /* "field=value", space separated, the later wins */
  const char *wanted;            /* beyond what every family needs */
  gboolean window_is_asked_for;  /* sliding_window holds only where use_sliding_window is true */
} families[] = {
#define LLAMA "normalization=rmsnorm norm_epsilon=1e-6 activation=swiglu "
#define MOE " num_moe_experts moe_router_topk"
  { "gpt2", "",
    "position_embedding_type=learned share_embeddings_and_output_weights=true add_bias_linear=true "
    "add_qkv_bias=true",
    "", FALSE },
  { "llama", "mistral", LLAMA, "ffn_hidden_size", FALSE },
  { "mixtral", "", LLAMA "norm_epsilon=1e-5 rotary_base=1e6", "ffn_hidden_size" MOE, FALSE },
  { "qwen2", "", LLAMA "add_qkv_bias=true", "ffn_hidden_size", TRUE },
  { "qwen3", "", LLAMA "qk_layernorm=true", "ffn_hidden_size kv_channels", TRUE },
  { "qwen3_moe", "", LLAMA "qk_layernorm=true",
    "ffn_hidden_size kv_channels moe_ffn_hidden_size" MOE, TRUE },
  { "deepseek_v3", "kimi_k2", LLAMA "moe_router_bias=true",
    "ffn_hidden_size moe_ffn_hidden_size kv_lora_rank qk_head_dim qk_pos_emb_head_dim "
    "v_head_dim" MOE,
    FALSE },
  { "nemotron", "", "normalization=layernorm activation=squared_relu rotary_percent=0.5",
    "ffn_hidden_size", FALSE },
#undef MOE
#undef LLAMA
};

static const char wanted_by_all[] =
    "num_layers hidden_size num_attention_heads vocab_size max_position_embeddings";

enum { UNSAID = -1 };

struct reader {
  union weft_model *model;
  const struct family *family;
  GPtrArray *unknown;
  const char *typed[WEFT_N_MODEL_FIELD]; /* the key a field was read from; the JSON owns it */
  const char *prefix;                    /* "rope_parameters." inside it */
  JsonObject *object;                    /* the one being walked */
  gboolean gated;                        /* the family's MLP has a gate */
  enum weft_rotary_scaling scaling;      /* of the rope object being walked */
  int64_t shared_experts, window_layers;
  int attention_bias, mlp_bias, use_window, layer_window; /* UNSAID, 0 or 1 */
};

struct key {
  const char *name;
  gboolean (*take) (struct reader *r, const struct key *key, JsonNode *node, GError **error);
  enum weft_model_field field; /* for take_field */
};

/* The value as the field's own parser reads it, NULL when it is of another kind.  Caller frees. */
static char *
value_text (JsonNode *node, enum weft_type type)
{
  gboolean number = type == WEFT_TYPE_INT || type == WEFT_TYPE_REAL;

  if (!JSON_NODE_HOLDS_VALUE (node))
    return NULL;
  GType found = json_node_get_value_type (node);
  if (found == G_TYPE_INT64 && number)
    return g_strdup_printf ("%" G_GINT64_FORMAT, json_node_get_int (node));
  if (found == G_TYPE_DOUBLE && number)
    return weft_units_print (json_node_get_double (node));
  if (found == G_TYPE_BOOLEAN && type == WEFT_TYPE_BOOL)
    return g_strdup (json_node_get_boolean (node) ? "true" : "false");
  if (found == G_TYPE_STRING && (type == WEFT_TYPE_WORD || type == WEFT_TYPE_TEXT))
    return g_strdup (json_node_get_string (node));
  return NULL;
}

static gboolean
wrong_kind (const char *key, JsonNode *node, const char *wanted, GError **error)
{
  return weft_bad_input (error, "%s: found %s, wanted %s", key, weft_json_kind (node), wanted);
}

/* Reads a node as `field` under the name `key`. */
static gboolean
read_value (const struct weft_field *field, const char *key, JsonNode *node,
            union weft_value *value, GError **error)
{
  static const char *const kinds[] = { [WEFT_TYPE_INT] = "a whole number ",
                                       [WEFT_TYPE_REAL] = "a number ",
                                       [WEFT_TYPE_BOOL] = "",
                                       [WEFT_TYPE_WORD] = "one of ",
                                       [WEFT_TYPE_TEXT] = "" };
  struct weft_field named = *field;
  g_autofree char *text = value_text (node, field->type);

  named.name = key;
  if (text)
    return weft_field_parse (&named, g_strdelimit (text, "\t\r\n", ' '), value, error);
  g_autofree char *range = weft_field_range (field);
  g_autofree char *wanted = g_strconcat (kinds[field->type], range, NULL);
  return wrong_kind (key, node, wanted, error);
}

static gboolean
read_int (const struct key *key, JsonNode *node, int64_t *out, GError **error)
{
  static const struct weft_field any = {
    .type = WEFT_TYPE_INT, .def = "0", .lo = "0", .hi = "1048576", .unit = ""
  };
  union weft_value value;

  if (!read_value (&any, key->name, node, &value, error))
    return FALSE;
  *out = value.i;
  return TRUE;
}

static gboolean
read_flag (const struct key *key, JsonNode *node, int *out, GError **error)
{
  static const struct weft_field any = { .type = WEFT_TYPE_BOOL, .def = "false", .unit = "" };
  union weft_value value;

  if (!read_value (&any, key->name, node, &value, error))
    return FALSE;
  *out = value.i != 0;
  return TRUE;
}

/* Sets a field once; a second spelling must agree. */
static gboolean
assign (struct reader *r, enum weft_model_field f, const char *key, union weft_value value,
        GError **error)
{
  const struct weft_field *field = &weft_model_table.field[f];

  if (r->typed[f] && r->model->at[f].i != value.i) {
    g_autofree char *first = weft_field_print (field, r->model->at[f]);
    g_autofree char *second = weft_field_print (field, value);
    return weft_bad_input (error, "%s is %s but %s is %s; wanted one value for %s", r->typed[f],
                           first, key, second, field->name);
  }
  r->model->at[f] = value;
  r->typed[f] = key;
  return TRUE;
}

static gboolean
take_field (struct reader *r, const struct key *key, JsonNode *node, GError **error)
{
  union weft_value value;
  return read_value (&weft_model_table.field[key->field], key->name, node, &value, error) &&
         assign (r, key->field, key->name, value, error);
}

/* transformers 5 writes qk_head_dim for the sum of both parts; Megatron means the one without
 * position. */
static gboolean
take_qk_head_dim (struct reader *r, const struct key *key, JsonNode *node, GError **error)
{
  if (json_object_has_member (r->object, "qk_nope_head_dim"))
    return TRUE;
  return take_field (r, key, node, error);
}

/* A family with a gate means the gated form of the function it names. */
static gboolean
take_activation (struct reader *r, const struct key *key, JsonNode *node, GError **error)
{
  static const struct {
    const char *name;
    gboolean gated;
    enum weft_activation word;
  } known[] = {
    { "silu", TRUE, WEFT_SWIGLU },           { "swish", TRUE, WEFT_SWIGLU },
    { "gelu", FALSE, WEFT_GELU_ERF },        { "gelu_new", FALSE, WEFT_GELU },
    { "gelu_fast", FALSE, WEFT_GELU },       { "gelu_pytorch_tanh", FALSE, WEFT_GELU },
    { "gelu_python", FALSE, WEFT_GELU_ERF }, { "relu2", FALSE, WEFT_SQUARED_RELU },
  };
  const char *wanted = r->gated ? "silu (this family has a gate)"
                                : "gelu, gelu_new, gelu_fast, "
                                  "gelu_pytorch_tanh or relu2";
  g_autofree char *text = value_text (node, WEFT_TYPE_WORD);

  if (!text)
    return wrong_kind (key->name, node, wanted, error);
  for (unsigned i = 0; i < G_N_ELEMENTS (known); i++)
    if (known[i].gated == r->gated && strcmp (known[i].name, text) == 0)
      return assign (r, key->field, key->name, (union weft_value){ .i = known[i].word }, error);
  return weft_bad_input (error, "%s: found \"%s\", wanted %s", key->name, text, wanted);
}

static gboolean
take_attention_bias (struct reader *r, const struct key *key, JsonNode *node, GError **error)
{
  return read_flag (key, node, &r->attention_bias, error);
}

static gboolean
take_mlp_bias (struct reader *r, const struct key *key, JsonNode *node, GError **error)
{
  return read_flag (key, node, &r->mlp_bias, error);
}

static gboolean
take_use_window (struct reader *r, const struct key *key, JsonNode *node, GError **error)
{
  return read_flag (key, node, &r->use_window, error);
}

static gboolean
take_window_layers (struct reader *r, const struct key *key, JsonNode *node, GError **error)
{
  return read_int (key, node, &r->window_layers, error);
}

static gboolean
take_shared_experts (struct reader *r, const struct key *key, JsonNode *node, GError **error)
{
  return read_int (key, node, &r->shared_experts, error);
}

/* Only the bias-corrected choice of experts ("noaux_tc") has the bias. */
static gboolean
take_topk_method (struct reader *r, const struct key *key, JsonNode *node, GError **error)
{
  g_autofree char *text = value_text (node, WEFT_TYPE_TEXT);

  if (!text)
    return wrong_kind (key->name, node, "the name of a method", error);
  union weft_value value = { .i = strcmp (text, "noaux_tc") == 0 };
  return assign (r, key->field, key->name, value, error);
}

static gboolean
take_sparse_step (struct reader *r, const struct key *key, JsonNode *node, GError **error)
{
  int64_t step;

  (void) r;
  if (!read_int (key, node, &step, error))
    return FALSE;
  if (step == 1)
    return TRUE;
  return weft_bad_input (error, "%s: found %" G_GINT64_FORMAT ", wanted 1 (experts in every layer)",
                         key->name, step);
}

static gboolean
take_dense_layers (struct reader *r, const struct key *key, JsonNode *node, GError **error)
{
  if (!JSON_NODE_HOLDS_ARRAY (node))
    return wrong_kind (key->name, node, "an array of layer numbers", error);
  JsonArray *layers = json_node_get_array (node);
  unsigned n = json_array_get_length (layers);
  for (unsigned i = 0; i < n; i++) {
    int64_t layer;
    if (!read_int (key, json_array_get_element (layers, i), &layer, error))
      return FALSE;
    if (layer != i)
      return weft_bad_input (error,
                             "%s: found layer %" G_GINT64_FORMAT " at place %u, wanted %u: dense "
                             "layers must lead",
                             key->name, layer, i, i);
  }
  return n == 0 || assign (r, key->field, key->name, (union weft_value){ .i = n }, error);
}

static void
report (struct reader *r, const char *key)
{
  if (r->unknown)
    g_ptr_array_add (r->unknown, g_strconcat (r->prefix, key, NULL));
}

/* Layers with a window among layers without: all count as without, and the key is reported. */
static gboolean
take_layer_types (struct reader *r, const struct key *key, JsonNode *node, GError **error)
{
  static const char wanted[] = "full_attention or sliding_attention";

  if (!JSON_NODE_HOLDS_ARRAY (node))
    return wrong_kind (key->name, node, "an array of layer types", error);
  JsonArray *types = json_node_get_array (node);
  unsigned n = json_array_get_length (types), sliding = 0;
  for (unsigned i = 0; i < n; i++) {
    g_autofree char *type = value_text (json_array_get_element (types, i), WEFT_TYPE_TEXT);
    if (!type)
      return wrong_kind (key->name, json_array_get_element (types, i), wanted, error);
    if (strcmp (type, "sliding_attention") == 0)
      sliding++;
    else if (strcmp (type, "full_attention") != 0)
      return weft_bad_input (error, "%s: found \"%s\" in layer %u, wanted %s", key->name, type, i,
                             wanted);
  }
  r->layer_window = n > 0 && sliding == n;
  if (sliding > 0 && sliding < n)
    report (r, key->name);
  return TRUE;
}

static gboolean walk (struct reader *r, JsonObject *object, const char *prefix, GError **error);

static gboolean
take_object (struct reader *r, const struct key *key, JsonNode *node, GError **error)
{
  if (!JSON_NODE_HOLDS_OBJECT (node))
    return wrong_kind (key->name, node, "an object", error);
  g_autofree char *prefix = g_strconcat (r->prefix, key->name, ".", NULL);
  return walk (r, json_node_get_object (node), prefix, error);
}

/* The rule a rope object names: `type` is the older spelling of `rope_type`.  Without a name, none
 * unless there is a factor. */
static gboolean
read_scaling (JsonObject *object, enum weft_rotary_scaling *scaling, GError **error)
{
  static const char *const spelling[] = { "rope_type", "type" };
  static const struct {
    const char *name;
    enum weft_rotary_scaling word;
  } known[] = { { "default", WEFT_ROTARY_NONE },
                { "linear", WEFT_ROTARY_LINEAR },
                { "llama3", WEFT_ROTARY_LLAMA3 } };

  *scaling = json_object_has_member (object, "factor") ? WEFT_ROTARY_OTHER : WEFT_ROTARY_NONE;
  for (unsigned i = 0; i < G_N_ELEMENTS (spelling); i++) {
    JsonNode *node = json_object_get_member (object, spelling[i]);
    if (!node || JSON_NODE_HOLDS_NULL (node))
      continue;
    g_autofree char *text = value_text (node, WEFT_TYPE_TEXT);
    if (!text)
      return wrong_kind (spelling[i], node, "the name of a rule such as llama3", error);
    *scaling = WEFT_ROTARY_OTHER;
    for (unsigned k = 0; k < G_N_ELEMENTS (known); k++)
      if (strcmp (known[k].name, text) == 0)
        *scaling = known[k].word;
    return TRUE;
  }
  return TRUE;
}

/* A rule that is known comes with its numbers; those of others say nothing to us. */
static gboolean
rope_has (const struct reader *r, enum weft_model_field field)
{
  return r->scaling == WEFT_ROTARY_LLAMA3 ||
         (r->scaling == WEFT_ROTARY_LINEAR && field == WEFT_MODEL_rotary_scaling_factor);
}

static gboolean
take_rope_number (struct reader *r, const struct key *key, JsonNode *node, GError **error)
{
  return !rope_has (r, key->field) || take_field (r, key, node, error);
}

static gboolean check_rope (const struct reader *r, const char *key, GError **error);

/* rope_scaling of transformers 4, rope_parameters of 5. */
static gboolean
take_rope (struct reader *r, const struct key *key, JsonNode *node, GError **error)
{
  if (!JSON_NODE_HOLDS_OBJECT (node))
    return wrong_kind (key->name, node, "an object", error);
  if (!read_scaling (json_node_get_object (node), &r->scaling, error))
    return FALSE;
  union weft_value value = { .i = r->scaling };
  if (r->scaling != WEFT_ROTARY_NONE &&
      !assign (r, WEFT_MODEL_rotary_scaling, key->name, value, error))
    return FALSE;
  if (!take_object (r, key, node, error) || !check_rope (r, key->name, error))
    return FALSE;
  r->scaling = WEFT_ROTARY_NONE;
  return TRUE;
}

/* Keys that carry shape, where they differ from the field's own name.  Sources: the configuration
 * classes of huggingface/transformers 4 and 5 for the families above. */
static const struct key keys[] = {
#define KEY(name, take, field)                                                                     \
  {                                                                                                \
    name, take_##take, WEFT_MODEL_##field                                                          \
  }
  KEY ("_source", field, source),
  KEY ("num_hidden_layers", field, num_layers),
  KEY ("n_layer", field, num_layers),
  KEY ("n_embd", field, hidden_size),
  KEY ("intermediate_size", field, ffn_hidden_size),
  KEY ("n_inner", field, ffn_hidden_size),
  KEY ("n_head", field, num_attention_heads),
  KEY ("num_key_value_heads", field, num_query_groups),
  KEY ("head_dim", field, kv_channels),
  KEY ("n_positions", field, max_position_embeddings),
  KEY ("hidden_act", activation, activation),
  KEY ("activation_function", activation, activation),
  KEY ("tie_word_embeddings", field, share_embeddings_and_output_weights),
  KEY ("rms_norm_eps", field, norm_epsilon),
  KEY ("layer_norm_epsilon", field, norm_epsilon),
  KEY ("layer_norm_eps", field, norm_epsilon),
  KEY ("norm_eps", field, norm_epsilon),
  KEY ("rope_theta", field, rotary_base),
  KEY ("partial_rotary_factor", field, rotary_percent),
  KEY ("factor", rope_number, rotary_scaling_factor),
  KEY ("low_freq_factor", rope_number, rotary_low_freq_factor),
  KEY ("high_freq_factor", rope_number, rotary_high_freq_factor),
  KEY ("original_max_position_embeddings", rope_number, rotary_original_positions),
  KEY ("num_experts", field, num_moe_experts),
  KEY ("num_local_experts", field, num_moe_experts),
  KEY ("n_routed_experts", field, num_moe_experts),
  KEY ("num_experts_per_tok", field, moe_router_topk),
  KEY ("moe_intermediate_size", field, moe_ffn_hidden_size),
  KEY ("first_k_dense_replace", field, moe_first_dense_layers),
  KEY ("mlp_only_layers", dense_layers, moe_first_dense_layers),
  KEY ("qk_nope_head_dim", field, qk_head_dim),
  KEY ("qk_head_dim", qk_head_dim, qk_head_dim),
  KEY ("qk_rope_head_dim", field, qk_pos_emb_head_dim),
  KEY ("num_nextn_predict_layers", field, mtp_num_layers),
  KEY ("topk_method", topk_method, moe_router_bias),
#undef KEY
  { .name = "n_shared_experts", .take = take_shared_experts },
  { .name = "decoder_sparse_step", .take = take_sparse_step },
  { .name = "attention_bias", .take = take_attention_bias },
  { .name = "mlp_bias", .take = take_mlp_bias },
  { .name = "use_sliding_window", .take = take_use_window },
  { .name = "max_window_layers", .take = take_window_layers },
  { .name = "layer_types", .take = take_layer_types },
  { .name = "text_config", .take = take_object },
  { .name = "rope_scaling", .take = take_rope },
  { .name = "rope_parameters", .take = take_rope },
};

/* Known, and without effect on the shape: tokens, dropout, initialisation, stored precision,
 * rules of stretched rotary positions that are not known, choice among groups of experts, losses.
 * Sources as above. */
static const char *const ignored[] = {
  "architectures",
  "model_type",
  "transformers_version",
  "torch_dtype",
  "dtype",
  "auto_map",
  "quantization_config",
  "use_cache",
  "bos_token_id",
  "eos_token_id",
  "pad_token_id",
  "unk_token_id",
  "sep_token_id",
  "decoder_start_token_id",
  "initializer_range",
  "attention_dropout",
  "hidden_dropout",
  "resid_pdrop",
  "embd_pdrop",
  "attn_pdrop",
  "summary_type",
  "summary_use_proj",
  "summary_activation",
  "summary_first_dropout",
  "summary_proj_to_labels",
  "scale_attn_weights",
  "scale_attn_by_inverse_layer_idx",
  "reorder_and_upcast_attn",
  "n_ctx",
  "task_specific_params",
  "pretraining_tp",
  "rope_interleave",
  "rope_type",
  "type",
  "attention_factor",
  "beta_fast",
  "beta_slow",
  "mscale",
  "mscale_all_dim",
  "short_factor",
  "long_factor",
  "truncate",
  "use_mrope",
  "router_aux_loss_coef",
  "router_jitter_noise",
  "output_router_logits",
  "norm_topk_prob",
  "aux_loss_alpha",
  "seq_aux",
  "ep_size",
  "n_group",
  "topk_group",
  "scoring_func",
  "routed_scaling_factor",
  "gradient_checkpointing",
  "is_decoder",
  "is_encoder_decoder",
  "add_cross_attention",
  "cross_attention_hidden_size",
  "output_attentions",
  "output_hidden_states",
  "return_dict",
  "id2label",
  "label2id",
  "problem_type",
  "finetuning_task",
  "chunk_size_feed_forward",
  "pruned_heads",
  "generation_config",
};

static gboolean
check_rope (const struct reader *r, const char *key, GError **error)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (keys); i++)
    if (keys[i].take == take_rope_number && rope_has (r, keys[i].field) && !r->typed[keys[i].field])
      return weft_bad_input (error, "%s: found no %s, wanted it with rope_type %s", key,
                             keys[i].name, weft_rotary_scaling_words[r->scaling]);
  return TRUE;
}

static gboolean
is_ignored (const char *key)
{
  if (*key == '_')
    return TRUE;
  for (unsigned i = 0; i < G_N_ELEMENTS (ignored); i++)
    if (strcmp (ignored[i], key) == 0)
      return TRUE;
  return FALSE;
}

static gboolean
take (struct reader *r, const char *name, JsonNode *node, GError **error)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (keys); i++)
    if (strcmp (keys[i].name, name) == 0)
      return keys[i].take (r, &keys[i], node, error);
  int f = weft_table_find (&weft_model_table, name);
  if (f >= 0 && weft_model_table.field[f].type != WEFT_TYPE_TEXT)
    return take_field (r, &(struct key){ .name = name, .field = f }, node, error);
  if (!is_ignored (name))
    report (r, name);
  return TRUE;
}

/* null is the same as not given. */
static gboolean
walk (struct reader *r, JsonObject *object, const char *prefix, GError **error)
{
  JsonObject *outer = r->object;
  const char *outer_prefix = r->prefix;
  JsonObjectIter iter;
  const char *name;
  JsonNode *node;

  json_object_iter_init_ordered (&iter, object);
  while (json_object_iter_next_ordered (&iter, &name, &node)) {
    r->object = object;
    r->prefix = prefix;
    if (!JSON_NODE_HOLDS_NULL (node) && !take (r, name, node, error))
      return FALSE;
  }
  r->object = outer;
  r->prefix = outer_prefix;
  return TRUE;
}

/* The string `name` of an object, or the first of an array of them; NULL when there is none. */
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
is_family (const struct family *family, const char *name)
{
  g_auto (GStrv) also = g_strsplit (family->also, " ", -1);

  for (unsigned i = 0; also[i]; i++)
    if (weft_same_name (also[i], name))
      return TRUE;
  return weft_same_name (family->model_type, name);
}

static const char *
family_at (const void *table, unsigned i)
{
  return ((const struct family *) table)[i].model_type;
}

static const struct family *
unknown_family (const char *key, const char *found, GError **error)
{
  g_autoptr (GString) all = g_string_new (NULL);
  const char *near =
      found ? weft_suggest (found, family_at, families, G_N_ELEMENTS (families)) : NULL;

  for (unsigned i = 0; i < G_N_ELEMENTS (families); i++)
    g_string_append_printf (all, "%s%s%s%s", i ? ", " : "", families[i].model_type,
                            *families[i].also ? ", " : "", families[i].also);
  if (!found)
    weft_bad_input (error, "model_type is missing; wanted one of %s", all->str);
  else if (near)
    weft_bad_input (error, "%s: found \"%s\", wanted one of %s; did you mean %s?", key, found,
                    all->str, near);
  else
    weft_bad_input (error, "%s: found \"%s\", wanted one of %s", key, found, all->str);
  return NULL;
}

/* By model_type, of the language part where there are several, else by architectures:
 * "Qwen3MoeForCausalLM" is qwen3_moe, "GPT2LMHeadModel" is gpt2. */
static const struct family *
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
  for (unsigned i = 0; found && i < G_N_ELEMENTS (families); i++)
    if (is_family (&families[i], stem ? stem : found))
      return &families[i];
  return unknown_family (key, found, error);
}

/* The rows above are ours: a word in them that no field knows is a bug. */
static void
apply_fixed (const struct family *family, union weft_model *model)
{
  g_auto (GStrv) settings = g_strsplit (family->fixed, " ", -1);

  for (unsigned i = 0; settings[i] && *settings[i]; i++) {
    g_auto (GStrv) pair = g_strsplit (settings[i], "=", 2);
    int f = weft_table_find (&weft_model_table, pair[0]);
    gboolean ok =
        f >= 0 && weft_field_parse (&weft_model_table.field[f], pair[1], &model->at[f], NULL);
    g_assert (ok);
  }
  model->family = g_quark_from_string (family->model_type);
}

static gboolean
finish_biases (struct reader *r, GError **error)
{
  gboolean attention = r->attention_bias == 1, mlp = r->mlp_bias == 1;

  if (attention != mlp)
    return weft_bad_input (error, "attention_bias is %s but mlp_bias is %s; wanted both or neither",
                           attention ? "true" : "false", mlp ? "true" : "false");
  if (attention)
    r->model->add_qkv_bias = r->model->add_bias_linear = TRUE;
  return TRUE;
}

/* Whether all layers look back only so far; those from max_window_layers on have the window. */
static void
finish_window (struct reader *r)
{
  gboolean asked = r->use_window == 1;
  gboolean on = r->use_window == UNSAID ? !r->family->window_is_asked_for : asked;

  if (on && asked && r->window_layers > 0) {
    on = FALSE;
    if (r->window_layers < r->model->num_layers && r->layer_window == UNSAID)
      report (r, "max_window_layers");
  }
  if (r->layer_window != UNSAID)
    on = r->layer_window;
  if (!on)
    r->model->sliding_window = 0;
}

static gboolean
finish_shared_experts (struct reader *r, GError **error)
{
  const enum weft_model_field f = WEFT_MODEL_moe_shared_expert_intermediate_size;
  const struct weft_field *field = &weft_model_table.field[f];
  union weft_value value;

  if (r->shared_experts == 0)
    return TRUE;
  g_autofree char *width =
      g_strdup_printf ("%" G_GINT64_FORMAT, r->shared_experts * r->model->moe_ffn_hidden_size);
  return weft_field_parse (field, width, &value, error) &&
         assign (r, f, "n_shared_experts", value, error);
}

/* "num_hidden_layers or n_layer or num_layers" */
static char *
spellings (enum weft_model_field f)
{
  GString *all = g_string_new (NULL);

  for (unsigned i = 0; i < G_N_ELEMENTS (keys); i++)
    if (keys[i].take == take_field && keys[i].field == f)
      g_string_append_printf (all, "%s or ", keys[i].name);
  g_string_append (all, weft_model_table.field[f].name);
  return g_string_free (all, FALSE);
}

static gboolean
check_given (const struct reader *r, const char *names, GError **error)
{
  g_auto (GStrv) wanted = g_strsplit (names, " ", -1);

  for (unsigned i = 0; wanted[i] && *wanted[i]; i++) {
    int f = weft_table_find (&weft_model_table, wanted[i]);
    g_assert (f >= 0);
    if (r->typed[f])
      continue;
    g_autofree char *all = spellings (f);
    return weft_bad_input (error, "missing key: model_type %s wants %s (%s)", r->family->model_type,
                           all, weft_model_table.field[f].doc);
  }
  return TRUE;
}

static gboolean
read_root (JsonObject *root, union weft_model *model, GPtrArray *unknown, GError **error)
{
  struct reader r = { .model = model,
                      .unknown = unknown,
                      .prefix = "",
                      .attention_bias = UNSAID,
                      .mlp_bias = UNSAID,
                      .use_window = UNSAID,
                      .layer_window = UNSAID };

  r.family = find_family (root, error);
  if (!r.family)
    return FALSE;
  apply_fixed (r.family, model);
  r.gated = model->activation == WEFT_SWIGLU;
  if (!walk (&r, root, "", error) || !check_given (&r, wanted_by_all, error) ||
      !check_given (&r, r.family->wanted, error))
    return FALSE;
  finish_window (&r);
  return finish_biases (&r, error) && finish_shared_experts (&r, error) &&
         weft_model_complete (model, r.typed, error);
}

static gboolean
read_text (const char *json, gsize length, union weft_model *model, GPtrArray *unknown,
           GError **error)
{
  if (length > MOST_BYTES)
    return weft_bad_input (error,
                           " found %" G_GSIZE_FORMAT " bytes, wanted a config.json of at most %d",
                           length, MOST_BYTES);
  g_autoptr (JsonParser) parser = weft_json_load (json, length, error);
  if (!parser)
    return FALSE;
  JsonNode *root = json_parser_get_root (parser);
  if (!root || !JSON_NODE_HOLDS_OBJECT (root))
    return weft_bad_input (error, " found %s at the top, wanted an object",
                           weft_json_kind (root));
  if (read_root (json_node_get_object (root), model, unknown, error))
    return TRUE;
  g_prefix_error (error, " ");
  return FALSE;
}

/* "llama3-8b" for llama3-8b.json; for a config.json, the name of its folder. */
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
