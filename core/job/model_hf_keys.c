/* The keys of a config.json that define the shape of the model. */
#include "core/base/conf.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "core/job/model_hf.h"
#include <string.h>

struct key {
  const char *name;
  gboolean (*take) (struct weft_hf_reader *r, const struct key *key, JsonNode *node,
                    GError **error);
  enum weft_model_field field; /* the model field that `take` sets, if `take` sets a single field */
};

/* The value of a key as text for the parser of fields; NULL if the value has another JSON type than
 * the field. The caller frees the text. */
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

/* Reads a JSON node as the value of `field`. `key` is the name for messages. */
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

gboolean
weft_hf_assign (struct weft_hf_reader *r, enum weft_model_field f, const char *key,
                union weft_value value, GError **error)
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
take_field (struct weft_hf_reader *r, const struct key *key, JsonNode *node, GError **error)
{
  union weft_value value;
  return read_value (&weft_model_table.field[key->field], key->name, node, &value, error) &&
         weft_hf_assign (r, key->field, key->name, value, error);
}

/* Reads qk_head_dim. In transformers 5 this key is the width of a query head including its rotary
 * part, in Megatron the width without the rotary part. A file that also has qk_nope_head_dim is one
 * of transformers 5, and its qk_head_dim is ignored. */
static gboolean
take_qk_head_dim (struct weft_hf_reader *r, const struct key *key, JsonNode *node, GError **error)
{
  if (json_object_has_member (r->object, "qk_nope_head_dim"))
    return TRUE;
  return take_field (r, key, node, error);
}

/* Reads the activation of the MLP. A family with gated MLPs accepts only its own activation.
 * config.json names that activation without the gate ("silu" means SwiGLU). */
static gboolean
take_activation (struct weft_hf_reader *r, const struct key *key, JsonNode *node, GError **error)
{
  static const struct {
    const char *name;
    gboolean gated;
    enum weft_activation word;
  } known[] = {
    { "silu", TRUE, WEFT_SWIGLU },           { "swish", TRUE, WEFT_SWIGLU },
    { "silu", TRUE, WEFT_QUICK_GEGLU },      { "gelu", TRUE, WEFT_GEGLU },
    { "gelu_new", TRUE, WEFT_GEGLU },        { "gelu_pytorch_tanh", TRUE, WEFT_GEGLU },
    { "gelu", FALSE, WEFT_GELU_ERF },        { "gelu_new", FALSE, WEFT_GELU },
    { "gelu_fast", FALSE, WEFT_GELU },       { "gelu_pytorch_tanh", FALSE, WEFT_GELU },
    { "gelu_python", FALSE, WEFT_GELU_ERF }, { "relu2", FALSE, WEFT_SQUARED_RELU },
    { "relu", FALSE, WEFT_RELU },
  };
  const gboolean gated = weft_activation_is_gated (r->own);
  const char *wanted = !gated ? "gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, relu or relu2"
                       : r->own == WEFT_GEGLU ? "gelu (this family has a gate)"
                                              : "silu (this family has a gate)";
  g_autofree char *text = value_text (node, WEFT_TYPE_WORD);

  if (!text)
    return wrong_kind (key->name, node, wanted, error);
  for (unsigned i = 0; i < G_N_ELEMENTS (known); i++)
    if (known[i].gated == gated && (!gated || known[i].word == r->own) &&
        strcmp (known[i].name, text) == 0)
      return weft_hf_assign (r, key->field, key->name, (union weft_value){ .i = known[i].word },
                             error);
  return weft_bad_input (error, "%s: found \"%s\", wanted %s", key->name, text, wanted);
}

/* Reads whether the MLP runs parallel to attention, so that both read the layer's input, or after
 * attention. */
static gboolean
take_parallel (struct weft_hf_reader *r, const struct key *key, JsonNode *node, GError **error)
{
  int parallel;

  if (!read_flag (key, node, &parallel, error))
    return FALSE;
  union weft_value value = { .i = parallel ? WEFT_RESIDUAL_PARALLEL : WEFT_RESIDUAL_SEQUENTIAL };
  return weft_hf_assign (r, key->field, key->name, value, error);
}

/* Reads a Boolean key for a variant of the architecture. Weft supports one of its two values and
 * refuses the other. */
static gboolean
take_flag (const struct key *key, JsonNode *node, gboolean wanted, GError **error)
{
  int found;

  if (!read_flag (key, node, &found, error))
    return FALSE;
  return found == wanted || weft_bad_input (error, "%s: found %s, wanted %s", key->name,
                                            found ? "true" : "false", wanted ? "true" : "false");
}

static gboolean
take_always (struct weft_hf_reader *r, const struct key *key, JsonNode *node, GError **error)
{
  (void) r;
  return take_flag (key, node, TRUE, error);
}

static gboolean
take_never (struct weft_hf_reader *r, const struct key *key, JsonNode *node, GError **error)
{
  (void) r;
  return take_flag (key, node, FALSE, error);
}

/* Checks that the embedding is as wide as the layers. Some OPT models have a narrower embedding and
 * a projection, which Weft does not support. */
static gboolean
take_embedding_width (struct weft_hf_reader *r, const struct key *key, JsonNode *node,
                      GError **error)
{
  int64_t width, hidden = 0;
  JsonNode *of = json_object_get_member (r->object, "hidden_size");

  if (!read_int (key, node, &width, error))
    return FALSE;
  if (of && JSON_NODE_HOLDS_VALUE (of))
    hidden = json_node_get_int (of);
  return width == hidden ||
         weft_bad_input (error, "%s: found %" G_GINT64_FORMAT ", wanted hidden_size, %"
                         G_GINT64_FORMAT ": embeddings are not projected here", key->name, width,
                         hidden);
}

/* Reads the rotary parameters of layers with a sliding window. transformers 5 has one object of
 * rope_parameters for each type of layer. */
static gboolean
take_local_rope (struct weft_hf_reader *r, const struct key *key, JsonNode *node, GError **error)
{
  JsonNode *base = NULL;

  if (JSON_NODE_HOLDS_OBJECT (node))
    base = json_object_get_member (json_node_get_object (node), "rope_theta");
  if (!base)
    return wrong_kind (key->name, node, "an object with rope_theta", error);
  return take_field (r, &(struct key){ .name = "rope_theta", .field = key->field }, base, error);
}

static gboolean
take_attention_bias (struct weft_hf_reader *r, const struct key *key, JsonNode *node,
                     GError **error)
{
  return read_flag (key, node, &r->attention_bias, error);
}

static gboolean
take_mlp_bias (struct weft_hf_reader *r, const struct key *key, JsonNode *node, GError **error)
{
  return read_flag (key, node, &r->mlp_bias, error);
}

static gboolean
take_use_window (struct weft_hf_reader *r, const struct key *key, JsonNode *node, GError **error)
{
  return read_flag (key, node, &r->use_window, error);
}

static gboolean
take_window_layers (struct weft_hf_reader *r, const struct key *key, JsonNode *node, GError **error)
{
  return read_int (key, node, &r->window_layers, error);
}

static gboolean
take_shared_experts (struct weft_hf_reader *r, const struct key *key, JsonNode *node,
                     GError **error)
{
  return read_int (key, node, &r->shared_experts, error);
}

static gboolean
take_normalised (struct weft_hf_reader *r, const struct key *key, JsonNode *node, GError **error)
{
  return read_flag (key, node, &r->normalised, error);
}

static gboolean
take_groups (struct weft_hf_reader *r, const struct key *key, JsonNode *node, GError **error)
{
  return read_int (key, node, &r->groups, error);
}

static gboolean
take_group_topk (struct weft_hf_reader *r, const struct key *key, JsonNode *node, GError **error)
{
  return read_int (key, node, &r->group_topk, error);
}

static gboolean
take_intermediate_size (struct weft_hf_reader *r, const struct key *key, JsonNode *node,
                        GError **error)
{
  struct key of_expert = { .name = key->name, .field = WEFT_MODEL_moe_ffn_hidden_size };
  return take_field (r, r->family->ways & WEFT_HF_EXPERT_WIDTH ? &of_expert : key, node, error);
}

/* Reads topk_method. Only "noaux_tc" has the correction bias; "greedy" ignores groups of
 * experts. */
static gboolean
take_topk_method (struct weft_hf_reader *r, const struct key *key, JsonNode *node, GError **error)
{
  g_autofree char *text = value_text (node, WEFT_TYPE_TEXT);

  if (!text)
    return wrong_kind (key->name, node, "the name of a method", error);
  r->greedy = strcmp (text, "greedy") == 0;
  union weft_value value = { .i = strcmp (text, "noaux_tc") == 0 };
  return weft_hf_assign (r, key->field, key->name, value, error);
}

/* Makes layer `first` and every `step`-th layer after it MoE layers. */
static gboolean
assign_expert_layers (struct weft_hf_reader *r, const char *key, int64_t first, int64_t step,
                      GError **error)
{
  return weft_hf_assign (r, WEFT_MODEL_moe_layer_freq, key, (union weft_value){ .i = step },
                         error) &&
         weft_hf_assign (r, WEFT_MODEL_moe_layer_offset, key, (union weft_value){ .i = first },
                         error);
}

/* Makes the last layer of every `step` layers an MoE layer. */
static gboolean
take_sparse_step (struct weft_hf_reader *r, const struct key *key, JsonNode *node, GError **error)
{
  union weft_value step;

  return read_value (&weft_model_table.field[WEFT_MODEL_moe_layer_freq], key->name, node, &step,
                     error) &&
         assign_expert_layers (r, key->name, step.i - 1, step.i, error);
}

static gboolean
take_expert_layers (struct weft_hf_reader *r, const struct key *key, JsonNode *node, GError **error)
{
  int64_t first = 0, step = 1, layer;

  if (!JSON_NODE_HOLDS_ARRAY (node))
    return wrong_kind (key->name, node, "an array of layer numbers", error);
  JsonArray *layers = json_node_get_array (node);
  unsigned n = json_array_get_length (layers);
  for (unsigned i = 0; i < n; i++) {
    if (!read_int (key, json_array_get_element (layers, i), &layer, error))
      return FALSE;
    if (i == 0)
      first = layer, step = layer + 1;
    else if (i == 1 && layer > first)
      step = layer - first;
    if (layer != first + i * step)
      return weft_bad_input (error,
                             "%s: found layer %" G_GINT64_FORMAT
                             " at place %u, wanted %" G_GINT64_FORMAT
                             ": expert layers must be evenly spaced",
                             key->name, layer, i, first + i * step);
  }
  return n == 0 || assign_expert_layers (r, key->name, first, step, error);
}

/* Reads an array with one number per layer: 1 if the layer has rotary positions, else 0. */
static gboolean
take_rope_layers (struct weft_hf_reader *r, const struct key *key, JsonNode *node, GError **error)
{
  int64_t turns, every = 0;

  if (!JSON_NODE_HOLDS_ARRAY (node))
    return wrong_kind (key->name, node, "an array of 0 and 1", error);
  JsonArray *layers = json_node_get_array (node);
  unsigned n = json_array_get_length (layers);
  for (unsigned i = 0; i < n; i++) {
    if (!read_int (key, json_array_get_element (layers, i), &turns, error))
      return FALSE;
    if (every == 0 && turns == 0)
      every = i + 1;
    if ((turns == 0) != (every > 0 && (i + 1) % every == 0))
      return weft_bad_input (error,
                             "%s: found %" G_GINT64_FORMAT
                             " in layer %u, wanted 0 in every n-th layer "
                             "and 1 in the others",
                             key->name, turns, i);
  }
  return n == 0 ||
         weft_hf_assign (r, key->field, key->name, (union weft_value){ .i = every }, error);
}

static gboolean
take_dense_layers (struct weft_hf_reader *r, const struct key *key, JsonNode *node, GError **error)
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
                             "layers must come first",
                             key->name, layer, i, i);
  }
  return n == 0 || weft_hf_assign (r, key->field, key->name, (union weft_value){ .i = n }, error);
}

void
weft_hf_report (struct weft_hf_reader *r, const char *key)
{
  if (r->unknown)
    g_ptr_array_add (r->unknown, g_strconcat (r->prefix, key, NULL));
}

/* Reads which layers have a sliding window or chunked attention. Weft supports the pattern in which
 * every n-th layer attends to the whole sequence. With any other pattern no layer gets a window,
 * and the key is reported as unknown. */
static gboolean
take_layer_types (struct weft_hf_reader *r, const struct key *key, JsonNode *node, GError **error)
{
  static const char wanted[] = "full_attention, sliding_attention or chunked_attention";
  gboolean regular = TRUE;

  if (!JSON_NODE_HOLDS_ARRAY (node))
    return wrong_kind (key->name, node, "an array of layer types", error);
  JsonArray *types = json_node_get_array (node);
  unsigned n = json_array_get_length (types), sliding = 0;
  for (unsigned i = 0; i < n; i++) {
    g_autofree char *type = value_text (json_array_get_element (types, i), WEFT_TYPE_TEXT);
    if (!type)
      return wrong_kind (key->name, json_array_get_element (types, i), wanted, error);
    gboolean full = strcmp (type, "full_attention") == 0;
    if (!full && strcmp (type, "sliding_attention") != 0 && strcmp (type, "chunked_attention") != 0)
      return weft_bad_input (error, "%s: found \"%s\" in layer %u, wanted %s", key->name, type, i,
                             wanted);
    sliding += !full;
    if (full && r->full_layers == 0)
      r->full_layers = i + 1;
    regular = regular && full == (r->full_layers > 0 && (i + 1) % r->full_layers == 0);
  }
  r->layer_window = regular && sliding > 0;
  if (!regular && sliding > 0)
    weft_hf_report (r, key->name);
  return TRUE;
}

static gboolean
take_object (struct weft_hf_reader *r, const struct key *key, JsonNode *node, GError **error)
{
  if (!JSON_NODE_HOLDS_OBJECT (node))
    return wrong_kind (key->name, node, "an object", error);
  g_autofree char *prefix = g_strconcat (r->prefix, key->name, ".", NULL);
  return weft_hf_walk (r, json_node_get_object (node), prefix, error);
}

/* Reads which rule scales the rotary frequencies: key `rope_type`, or its former name `type`.
 * Without these keys the rule is `other` if the object has a factor, else `none`. */
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

/* Whether the rule that scales rotary frequencies reads this number. Weft reads no numbers of rule
 * `other`. */
static gboolean
rope_has (const struct weft_hf_reader *r, enum weft_model_field field)
{
  return r->scaling == WEFT_ROTARY_LLAMA3 ||
         (r->scaling == WEFT_ROTARY_LINEAR && field == WEFT_MODEL_rotary_scaling_factor);
}

static gboolean
take_rope_number (struct weft_hf_reader *r, const struct key *key, JsonNode *node, GError **error)
{
  return !rope_has (r, key->field) || take_field (r, key, node, error);
}

static gboolean check_rope (const struct weft_hf_reader *r, const char *key, GError **error);

/* Reads the object rope_scaling (transformers 4) or rope_parameters (transformers 5). */
static gboolean
take_rope (struct weft_hf_reader *r, const struct key *key, JsonNode *node, GError **error)
{
  if (!JSON_NODE_HOLDS_OBJECT (node))
    return wrong_kind (key->name, node, "an object", error);
  if (!read_scaling (json_node_get_object (node), &r->scaling, error))
    return FALSE;
  union weft_value value = { .i = r->scaling };
  if (r->scaling != WEFT_ROTARY_NONE &&
      !weft_hf_assign (r, WEFT_MODEL_rotary_scaling, key->name, value, error))
    return FALSE;
  if (!take_object (r, key, node, error) || !check_rope (r, key->name, error))
    return FALSE;
  r->scaling = WEFT_ROTARY_NONE;
  return TRUE;
}

/* Keys of config.json that define the shape of the model, and whose names differ from the fields of
 * core/model.def that they set. Sources: configuration classes of huggingface/transformers 4 and 5
 * for the families in model_families.def. */
static const struct key keys[] = {
#define KEY(name, take, field)                                                                     \
  {                                                                                                \
    name, take_##take, WEFT_MODEL_##field                                                          \
  }
  KEY ("_source", field, source),
  KEY ("num_hidden_layers", field, num_layers),
  KEY ("n_layer", field, num_layers),
  KEY ("n_embd", field, hidden_size),
  KEY ("n_embed", field, hidden_size),
  KEY ("intermediate_size", intermediate_size, ffn_hidden_size),
  KEY ("intermediate_size_mlp", field, ffn_hidden_size),
  KEY ("n_inner", field, ffn_hidden_size),
  KEY ("ffn_dim", field, ffn_hidden_size),
  KEY ("n_head", field, num_attention_heads),
  KEY ("num_key_value_heads", field, num_query_groups),
  KEY ("head_dim", field, kv_channels),
  KEY ("n_positions", field, max_position_embeddings),
  KEY ("hidden_act", activation, activation),
  KEY ("hidden_activation", activation, activation),
  KEY ("activation_function", activation, activation),
  KEY ("tie_word_embeddings", field, share_embeddings_and_output_weights),
  KEY ("rms_norm_eps", field, norm_epsilon),
  KEY ("layer_norm_epsilon", field, norm_epsilon),
  KEY ("layer_norm_eps", field, norm_epsilon),
  KEY ("norm_eps", field, norm_epsilon),
  KEY ("rope_theta", field, rotary_base),
  KEY ("rotary_emb_base", field, rotary_base),
  KEY ("rope_local_base_freq", field, rotary_base_local),
  KEY ("sliding_attention", local_rope, rotary_base_local),
  KEY ("partial_rotary_factor", field, rotary_percent),
  KEY ("rotary_pct", field, rotary_percent),
  KEY ("use_parallel_residual", parallel, residual),
  KEY ("sliding_window_pattern", field, window_attn_skip_freq),
  KEY ("factor", rope_number, rotary_scaling_factor),
  KEY ("low_freq_factor", rope_number, rotary_low_freq_factor),
  KEY ("high_freq_factor", rope_number, rotary_high_freq_factor),
  KEY ("original_max_position_embeddings", rope_number, rotary_original_positions),
  KEY ("num_experts", field, num_moe_experts),
  KEY ("num_local_experts", field, num_moe_experts),
  KEY ("n_routed_experts", field, num_moe_experts),
  KEY ("num_experts_per_tok", field, moe_router_topk),
  KEY ("experts_per_token", field, moe_router_topk),
  KEY ("moe_intermediate_size", field, moe_ffn_hidden_size),
  KEY ("shared_expert_intermediate_size", field, moe_shared_expert_intermediate_size),
  KEY ("scoring_func", field, moe_router_score_function),
  KEY ("routed_scaling_factor", field, moe_router_topk_scaling_factor),
  KEY ("first_k_dense_replace", field, moe_first_dense_layers),
  KEY ("mlp_only_layers", dense_layers, moe_first_dense_layers),
  KEY ("qk_nope_head_dim", field, qk_head_dim),
  KEY ("qk_head_dim", qk_head_dim, qk_head_dim),
  KEY ("qk_rope_head_dim", field, qk_pos_emb_head_dim),
  KEY ("num_nextn_predict_layers", field, mtp_num_layers),
  KEY ("topk_method", topk_method, moe_router_enable_expert_bias),
  KEY ("use_qk_norm", field, qk_l2_norm),
  KEY ("no_rope_layer_interval", field, no_rope_freq),
  KEY ("no_rope_layers", rope_layers, no_rope_freq),
#undef KEY
  { .name = "word_embed_proj_dim", .take = take_embedding_width },
  { .name = "do_layer_norm_before", .take = take_always },
  { .name = "layer_norm_elementwise_affine", .take = take_always },
  { .name = "enable_bias", .take = take_always },
  { .name = "_remove_final_layer_norm", .take = take_never },
  { .name = "apply_residual_connection_post_layernorm", .take = take_never },
  { .name = "use_bidirectional_attention", .take = take_never },
  { .name = "n_shared_experts", .take = take_shared_experts },
  { .name = "norm_topk_prob", .take = take_normalised },
  { .name = "n_group", .take = take_groups },
  { .name = "topk_group", .take = take_group_topk },
  { .name = "decoder_sparse_step", .take = take_sparse_step },
  { .name = "interleave_moe_layer_step", .take = take_sparse_step },
  { .name = "moe_layers", .take = take_expert_layers },
  { .name = "attention_bias", .take = take_attention_bias },
  { .name = "mlp_bias", .take = take_mlp_bias },
  { .name = "use_sliding_window", .take = take_use_window },
  { .name = "max_window_layers", .take = take_window_layers },
  { .name = "layer_types", .take = take_layer_types },
  { .name = "text_config", .take = take_object },
  { .name = "rope_scaling", .take = take_rope },
  { .name = "rope_parameters", .take = take_rope },
  { .name = "full_attention", .take = take_rope },
};

/* Keys of config.json that are known and do not change the shape of the model. */
static const char *const ignored[] = {
#define IGNORED(name) name,
#include "core/model_ignored.def"
#undef IGNORED
};

static gboolean
check_rope (const struct weft_hf_reader *r, const char *key, GError **error)
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
take (struct weft_hf_reader *r, const char *name, JsonNode *node, GError **error)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (keys); i++)
    if (strcmp (keys[i].name, name) == 0)
      return keys[i].take (r, &keys[i], node, error);
  int f = weft_table_find (&weft_model_table, name);
  if (f >= 0 && weft_model_table.field[f].type != WEFT_TYPE_TEXT)
    return take_field (r, &(struct key){ .name = name, .field = f }, node, error);
  if (!is_ignored (name))
    weft_hf_report (r, name);
  return TRUE;
}

gboolean
weft_hf_walk (struct weft_hf_reader *r, JsonObject *object, const char *prefix, GError **error)
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

char *
weft_hf_spellings (enum weft_model_field f)
{
  GString *all = g_string_new (NULL);

  for (unsigned i = 0; i < G_N_ELEMENTS (keys); i++)
    if ((keys[i].take == take_field || keys[i].take == take_intermediate_size) &&
        keys[i].field == f)
      g_string_append_printf (all, "%s or ", keys[i].name);
  g_string_append (all, weft_model_table.field[f].name);
  return g_string_free (all, FALSE);
}
