/* model_hf.c - reads a Hugging Face config.json into the fields of model.def.
 *
 * Three tables say it all: what an architecture fixes (families), which keys carry shape (keys),
 * which do not (model_ignored.def).  A key is looked up in `keys`, then among the fields' own Megatron names,
 * then in `ignored`; keys that begin with an underscore are comments; the rest is reported. */
#include "core/base/conf.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_scan.h"
#include "core/job/model.h"
#include "core/base/suggest.h"
#include "core/base/units.h"
#include <string.h>

/* Real files have a few KiB. */
#define MOST_BYTES (4 << 20)

enum {
  UNSAID = -1,         /* of a flag */
  ASKS_FOR_WINDOW = 1, /* sliding_window holds only where use_sliding_window is true */
  EXPERT_WIDTH = 2,    /* intermediate_size is that of an expert, and one is shared */
};

/* What a model_type means without any key, and which fields its file must give. */
static const struct family {
  const char *model_type, *also; /* `also`: other model_types of the same shape, space separated */
  const char *fixed;             /* "field=value", space separated, the later wins */
  const char *wanted;            /* beyond what every family needs */
  unsigned ways;
} families[] = {
#define FAMILY(...) { __VA_ARGS__ },
#include "core/model_families.def"
#undef FAMILY
};

static const char wanted_by_all[] =
    "num_layers hidden_size num_attention_heads vocab_size max_position_embeddings";

struct reader {
  union weft_model *model;
  const struct family *family;
  GPtrArray *unknown;
  const char *typed[WEFT_N_MODEL_FIELD]; /* the key a field was read from; the JSON owns it */
  const char *prefix;                    /* "rope_parameters." inside it */
  JsonObject *object;                    /* the one being walked */
  enum weft_activation own;              /* the family's */
  enum weft_rotary_scaling scaling;      /* of the rope object being walked */
  int64_t shared_experts, window_layers, groups, group_topk, full_layers;
  int attention_bias, mlp_bias, use_window, layer_window, normalised; /* UNSAID, 0 or 1 */
  gboolean greedy;                                                    /* groups do not count */
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

/* A family with a gate has one function, and means the gated form of what it names. */
static gboolean
take_activation (struct reader *r, const struct key *key, JsonNode *node, GError **error)
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
  };
  const gboolean gated = r->own != WEFT_GELU && r->own != WEFT_SQUARED_RELU;
  const char *wanted = !gated ? "gelu, gelu_new, gelu_fast, gelu_pytorch_tanh or relu2"
                       : r->own == WEFT_GEGLU ? "gelu (this family has a gate)"
                                              : "silu (this family has a gate)";
  g_autofree char *text = value_text (node, WEFT_TYPE_WORD);

  if (!text)
    return wrong_kind (key->name, node, wanted, error);
  for (unsigned i = 0; i < G_N_ELEMENTS (known); i++)
    if (known[i].gated == gated && (!gated || known[i].word == r->own) &&
        strcmp (known[i].name, text) == 0)
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

static gboolean
take_normalised (struct reader *r, const struct key *key, JsonNode *node, GError **error)
{
  return read_flag (key, node, &r->normalised, error);
}

static gboolean
take_groups (struct reader *r, const struct key *key, JsonNode *node, GError **error)
{
  return read_int (key, node, &r->groups, error);
}

static gboolean
take_group_topk (struct reader *r, const struct key *key, JsonNode *node, GError **error)
{
  return read_int (key, node, &r->group_topk, error);
}

static gboolean
take_intermediate_size (struct reader *r, const struct key *key, JsonNode *node, GError **error)
{
  struct key of_expert = { .name = key->name, .field = WEFT_MODEL_moe_ffn_hidden_size };
  return take_field (r, r->family->ways & EXPERT_WIDTH ? &of_expert : key, node, error);
}

/* Only the bias-corrected choice of experts ("noaux_tc") has the bias; "greedy" knows no groups. */
static gboolean
take_topk_method (struct reader *r, const struct key *key, JsonNode *node, GError **error)
{
  g_autofree char *text = value_text (node, WEFT_TYPE_TEXT);

  if (!text)
    return wrong_kind (key->name, node, "the name of a method", error);
  r->greedy = strcmp (text, "greedy") == 0;
  union weft_value value = { .i = strcmp (text, "noaux_tc") == 0 };
  return assign (r, key->field, key->name, value, error);
}

/* Experts in layer `first` and every `step`-th from there. */
static gboolean
assign_expert_layers (struct reader *r, const char *key, int64_t first, int64_t step,
                      GError **error)
{
  return assign (r, WEFT_MODEL_moe_layer_freq, key, (union weft_value){ .i = step }, error) &&
         assign (r, WEFT_MODEL_moe_layer_offset, key, (union weft_value){ .i = first }, error);
}

/* The last of every so many layers has experts. */
static gboolean
take_sparse_step (struct reader *r, const struct key *key, JsonNode *node, GError **error)
{
  union weft_value step;

  return read_value (&weft_model_table.field[WEFT_MODEL_moe_layer_freq], key->name, node, &step,
                     error) &&
         assign_expert_layers (r, key->name, step.i - 1, step.i, error);
}

static gboolean
take_expert_layers (struct reader *r, const struct key *key, JsonNode *node, GError **error)
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
                             ": experts every so many layers",
                             key->name, layer, i, first + i * step);
  }
  return n == 0 || assign_expert_layers (r, key->name, first, step, error);
}

/* 1 with rotary positions, 0 without. */
static gboolean
take_rope_layers (struct reader *r, const struct key *key, JsonNode *node, GError **error)
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
                             " in layer %u, wanted a 0 in the last of "
                             "every so many layers and 1 in the others",
                             key->name, turns, i);
  }
  return n == 0 || assign (r, key->field, key->name, (union weft_value){ .i = every }, error);
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

/* Layers with a window (or chunks) among layers without: where those are not every n-th, all count
 * as without, and the key is reported. */
static gboolean
take_layer_types (struct reader *r, const struct key *key, JsonNode *node, GError **error)
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
  KEY ("intermediate_size", intermediate_size, ffn_hidden_size),
  KEY ("intermediate_size_mlp", field, ffn_hidden_size),
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
};

/* Known, and without effect on the shape. */
static const char *const ignored[] = {
#define IGNORED(name) name,
#include "core/model_ignored.def"
#undef IGNORED
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
  const union weft_model *m = r->model;
  gboolean attention = r->attention_bias == UNSAID ? m->add_bias_linear : r->attention_bias;
  gboolean mlp = r->mlp_bias == UNSAID ? m->add_bias_linear : r->mlp_bias;

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
  gboolean asks = r->family->ways & ASKS_FOR_WINDOW;
  gboolean on = r->use_window == UNSAID ? !asks : asked;

  if (on && asked && r->window_layers > 0) {
    on = FALSE;
    if (r->window_layers < r->model->num_layers && r->layer_window == UNSAID)
      report (r, "max_window_layers");
  }
  if (r->layer_window != UNSAID) {
    on = r->layer_window;
    r->model->window_attn_skip_freq = r->full_layers;
  }
  if (!on)
    r->model->sliding_window = r->model->attention_chunk_size = r->model->window_attn_skip_freq = 0;
}

/* norm_topk_prob: the weights of the chosen experts add up to one, as those of a softmax over the
 * chosen do, and as sigmoids always do here. */
static gboolean
finish_router (struct reader *r, GError **error)
{
  union weft_model *m = r->model;

  if (r->groups > 1 && !r->greedy) {
    m->moe_router_num_groups = r->groups;
    m->moe_router_group_topk = r->group_topk;
  }
  if (r->normalised == UNSAID)
    return TRUE;
  if (m->moe_router_score_function == WEFT_SCORE_SOFTMAX)
    m->moe_router_pre_softmax = !r->normalised;
  else if (!r->normalised)
    return weft_bad_input (error,
                           "norm_topk_prob: found false, wanted true with scores by sigmoid");
  return TRUE;
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
    if ((keys[i].take == take_field || keys[i].take == take_intermediate_size) &&
        keys[i].field == f)
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
                      .layer_window = UNSAID,
                      .normalised = UNSAID };

  r.family = find_family (root, error);
  if (!r.family)
    return FALSE;
  apply_fixed (r.family, model);
  r.own = model->activation;
  r.shared_experts = r.family->ways & EXPERT_WIDTH ? 1 : 0;
  if (!walk (&r, root, "", error) || !check_given (&r, wanted_by_all, error) ||
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
    return weft_bad_input (error,
                           " found %" G_GSIZE_FORMAT " bytes, wanted a config.json of at most %d",
                           length, MOST_BYTES);
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
