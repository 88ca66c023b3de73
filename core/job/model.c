#include "core/job/model.h"
#include "core/base/error.h"
#include <math.h>

static const struct weft_field fields[] = {
#define FIELD_TEXT(id, def_, aliases_, doc_)                                                       \
  { .name = #id, .type = WEFT_TYPE_TEXT, .def = def_, .aliases = aliases_, .doc = doc_, FIXED },
#define FIELD_INT(id, def_, lo_, hi_, aliases_, doc_)                                              \
  { .name = #id,                                                                                   \
    .type = WEFT_TYPE_INT,                                                                         \
    .def = def_,                                                                                   \
    .lo = lo_,                                                                                     \
    .hi = hi_,                                                                                     \
    .aliases = aliases_,                                                                           \
    .doc = doc_,                                                                                   \
    FIXED },
#define FIELD_WORD(id, def_, words_, aliases_, doc_)                                               \
  { .name = #id,                                                                                   \
    .type = WEFT_TYPE_WORD,                                                                        \
    .def = def_,                                                                                   \
    .words = words_,                                                                               \
    .aliases = aliases_,                                                                           \
    .doc = doc_,                                                                                   \
    FIXED },
#define FIELD_BOOL(id, def_, aliases_, doc_)                                                       \
  { .name = #id, .type = WEFT_TYPE_BOOL, .def = def_, .aliases = aliases_, .doc = doc_, FIXED },
#define FIELD_REAL(id, def_, lo_, hi_, unit_, aliases_, doc_)                                      \
  { .name = #id,                                                                                   \
    .type = WEFT_TYPE_REAL,                                                                        \
    .def = def_,                                                                                   \
    .lo = lo_,                                                                                     \
    .hi = hi_,                                                                                     \
    .aliases = aliases_,                                                                           \
    .doc = doc_,                                                                                   \
    FIXED },
#define FIXED .unit = "", .source = "", .affects = "program memory"
#include "core/model.def"
#undef FIXED
};

const struct weft_table weft_model_table = { "model field", fields, G_N_ELEMENTS (fields) };

/* Type of counts: the count of 4096 layers with 65536 experts overflows 64 bits before check_size()
 * can refuse the model. */
typedef unsigned __int128 wide;

/* A double represents counts up to 2^53 exactly. Later estimates with these counts are doubles. */
#define MOST_PARAMETERS ((wide) 1 << 53)

gboolean
weft_activation_is_gated (enum weft_activation activation)
{
#define UP_PROJECTIONS(id, text, doc, ups, ...) ups,
  static const uint8_t ups[] = { WEFT_ACTIVATION_LIST (UP_PROJECTIONS) };

  return ups[activation] == 2;
}

gboolean
weft_model_is_gated (const union weft_model *model)
{
  return weft_activation_is_gated ((enum weft_activation) model->activation);
}

/* Number of matrices in the first projection of an MLP: 2 (gate and up) or 1 (up). */
static unsigned
projections_up (const union weft_model *m)
{
  return weft_model_is_gated (m) ? 2 : 1;
}

static wide
norm_size (const union weft_model *m, int64_t width)
{
  return (wide) width * (m->normalization == WEFT_LAYERNORM ? 2 : 1);
}

/* Width of a value head. The width of a query or key head is kv_channels. */
static int64_t
value_width (const union weft_model *m)
{
  return m->kv_lora_rank ? m->v_head_dim : m->kv_channels;
}

static wide
latent_weights (const union weft_model *m)
{
  wide h = m->hidden_size, a = m->num_attention_heads, query = a * m->kv_channels;
  wide down = h * (m->kv_lora_rank + m->qk_pos_emb_head_dim);
  wide up = a * m->kv_lora_rank * (m->qk_head_dim + m->v_head_dim);

  query *= m->q_lora_rank ? m->q_lora_rank : m->hidden_size;
  return query + h * m->q_lora_rank + down + up + a * m->v_head_dim * h;
}

/* Parameters of the norms of queries and keys in one layer. */
static wide
head_norms (const union weft_model *m)
{
  if (!m->qk_layernorm_whole)
    return 2 * norm_size (m, m->kv_channels);
  return norm_size (m, m->num_attention_heads * m->kv_channels) +
         norm_size (m, m->num_query_groups * m->kv_channels);
}

static wide
qkv_width (const union weft_model *m)
{
  return (wide) (m->num_attention_heads + 2 * m->num_query_groups) * m->kv_channels;
}

static wide
attention_weights (const union weft_model *m)
{
  wide h = m->hidden_size;
  if (m->kv_lora_rank)
    return latent_weights (m);
  return h * qkv_width (m) + h * m->num_attention_heads * m->kv_channels;
}

/* Parameters of attention other than matrices: biases, sinks and norms. */
static wide
attention_vectors (const union weft_model *m)
{
  wide sinks = m->softmax_type == WEFT_SOFTMAX_LEARNABLE ? m->num_attention_heads : 0;

  if (m->kv_lora_rank)
    return sinks + norm_size (m, m->q_lora_rank) + norm_size (m, m->kv_lora_rank);
  return sinks + (m->add_qkv_bias ? qkv_width (m) : 0) + (m->add_bias_linear ? m->hidden_size : 0) +
         (m->qk_layernorm ? head_norms (m) : 0);
}

static wide
mlp_weights (const union weft_model *m, int64_t width)
{
  return (wide) (projections_up (m) + 1) * m->hidden_size * width;
}

static wide
mlp_vectors (const union weft_model *m, int64_t width)
{
  if (!m->add_bias_linear || width == 0)
    return 0;
  return (wide) projections_up (m) * width + m->hidden_size;
}

/* Number of weights of one layer. `moe`: whether the layer has experts. If so, the result counts
 * attention, router and shared expert, and `experts` routed experts. */
static wide
layer_weights (const union weft_model *m, gboolean moe, int64_t experts)
{
  if (!moe)
    return attention_weights (m) + mlp_weights (m, m->ffn_hidden_size);
  return attention_weights (m) + (wide) m->hidden_size * m->num_moe_experts +
         experts * mlp_weights (m, m->moe_ffn_hidden_size) +
         mlp_weights (m, m->moe_shared_expert_intermediate_size) +
         (m->moe_shared_expert_gate ? m->hidden_size : 0);
}

/* Parameters of the router that are not in its matrix: one bias and one correction bias per
 * expert. */
static wide
router_vectors (const union weft_model *m)
{
  return (wide) (m->add_bias_linear + m->moe_router_enable_expert_bias) * m->num_moe_experts;
}

static wide
layer_norms (const union weft_model *m)
{
  unsigned halves = m->residual == WEFT_RESIDUAL_ONE_NORM ? 1 : 2;
  unsigned each = m->norm_placement == WEFT_NORM_SANDWICH ? 2 : 1;

  return halves * each * norm_size (m, m->hidden_size);
}

static wide
layer_vectors (const union weft_model *m, gboolean moe, int64_t experts)
{
  wide vectors = attention_vectors (m) + layer_norms (m);

  if (!moe)
    return vectors + mlp_vectors (m, m->ffn_hidden_size);
  return vectors + router_vectors (m) + experts * mlp_vectors (m, m->moe_ffn_hidden_size) +
         mlp_vectors (m, m->moe_shared_expert_intermediate_size);
}

gboolean
weft_model_layer_is_moe (const union weft_model *model, int64_t layer)
{
  layer = MIN (layer, model->num_layers - 1);
  return model->num_moe_experts > 0 && layer >= model->moe_first_dense_layers &&
         layer % model->moe_layer_freq == model->moe_layer_offset;
}

/* Whether `layer` (from 0) is the last layer of a group of `n` consecutive layers; FALSE for n =
 * 0. */
static gboolean
is_last_of (const union weft_model *m, int64_t layer, int64_t n)
{
  return n > 0 && (MIN (layer, m->num_layers - 1) + 1) % n == 0;
}

gboolean
weft_model_layer_has_rope (const union weft_model *model, int64_t layer)
{
  return model->position_embedding_type == WEFT_ROPE &&
         !is_last_of (model, layer, model->no_rope_freq);
}

gboolean
weft_model_layer_is_local (const union weft_model *model, int64_t layer)
{
  return model->rotary_base_local > 0 && weft_model_layer_window (model, layer) > 0;
}

int64_t
weft_model_layer_window (const union weft_model *model, int64_t layer)
{
  return is_last_of (model, layer, model->window_attn_skip_freq) ? 0 : model->sliding_window;
}

int64_t
weft_model_layer_chunk (const union weft_model *model, int64_t layer)
{
  return is_last_of (model, layer, model->window_attn_skip_freq) ? 0 : model->attention_chunk_size;
}

gboolean
weft_model_layers_are_alike (const union weft_model *m, int64_t a, int64_t b)
{
  return weft_model_layer_is_moe (m, a) == weft_model_layer_is_moe (m, b) &&
         weft_model_layer_has_rope (m, a) == weft_model_layer_has_rope (m, b) &&
         weft_model_layer_is_local (m, a) == weft_model_layer_is_local (m, b) &&
         weft_model_layer_window (m, a) == weft_model_layer_window (m, b) &&
         weft_model_layer_chunk (m, a) == weft_model_layer_chunk (m, b);
}

int64_t
weft_model_moe_layers (const union weft_model *model)
{
  int64_t n = 0;
  for (int64_t layer = 0; layer < model->num_layers; layer++)
    n += weft_model_layer_is_moe (model, layer);
  return n;
}

static wide
all_weights (const union weft_model *m, int64_t experts)
{
  wide moe = weft_model_moe_layers (m), dense = m->num_layers - moe;
  return dense * layer_weights (m, FALSE, 0) + moe * layer_weights (m, TRUE, experts);
}

static wide
all_parameters (const union weft_model *m, int64_t experts)
{
  wide moe = weft_model_moe_layers (m), dense = m->num_layers - moe;
  wide vectors = dense * layer_vectors (m, FALSE, 0) + moe * layer_vectors (m, TRUE, experts);
  wide rows = (wide) m->vocab_size * (m->share_embeddings_and_output_weights ? 1 : 2);

  if (m->position_embedding_type == WEFT_LEARNED)
    rows += m->max_position_embeddings + m->position_offset;
  return rows * m->hidden_size + all_weights (m, experts) + vectors +
         (1 + m->embedding_layernorm) * norm_size (m, m->hidden_size);
}

uint64_t
weft_model_parameters (const union weft_model *model)
{
  return all_parameters (model, model->num_moe_experts);
}

uint64_t
weft_model_active_parameters (const union weft_model *model)
{
  return all_parameters (model, model->moe_router_topk);
}

static wide
mtp_parameters (const union weft_model *m)
{
  gboolean moe = weft_model_layer_is_moe (m, m->num_layers);
  wide layer =
      layer_weights (m, moe, m->num_moe_experts) + layer_vectors (m, moe, m->num_moe_experts);
  wide joint = (wide) 2 * m->hidden_size * m->hidden_size + 3 * norm_size (m, m->hidden_size);

  return m->mtp_num_layers * (layer + joint);
}

uint64_t
weft_model_mtp_parameters (const union weft_model *model)
{
  return mtp_parameters (model);
}

uint64_t
weft_model_matmul_parameters (const union weft_model *model)
{
  gboolean moe = weft_model_layer_is_moe (model, model->num_layers);
  wide h = model->hidden_size, head = model->vocab_size * h;
  wide more = layer_weights (model, moe, model->moe_router_topk) + 2 * h * h + head;

  return all_weights (model, model->moe_router_topk) + head + model->mtp_num_layers * more;
}

/* Mean number of keys that a query of this layer attends to. With `causal`, keys that the causal
 * mask hides are not counted. */
static double
keys_per_query (const union weft_model *m, int64_t layer, gboolean causal)
{
  double s = m->seq_length, w = weft_model_layer_window (m, layer);
  double c = weft_model_layer_chunk (m, layer);

  if (c > 0 && c < s) {
    double n = floor (s / c), rest = s - n * c, all = (n * c * c + rest * rest) / s;
    return causal ? all / 2 : all;
  }
  if (w == 0 || w > s)
    w = s;
  return causal ? w - w * w / (2 * s) : w;
}

double
weft_model_flops_per_token (const union weft_model *model, gboolean causal)
{
  double widths = model->kv_channels + value_width (model), keys = 0;

  for (int64_t layer = 0; layer < model->num_layers + model->mtp_num_layers; layer++)
    keys += keys_per_query (model, layer, causal);
  return 6.0 * weft_model_matmul_parameters (model) +
         6.0 * widths * model->num_attention_heads * keys;
}

/* The name under which the user gave a field (an alias or a Hugging Face key); else the name of the
 * field. */
static const char *
spelled (const char *const *typed, enum weft_model_field field)
{
  return typed && typed[field] ? typed[field] : fields[field].name;
}

/* Checks that field `whole` is a multiple of field `part`. A value 0 of field `part` is
 * accepted. */
static gboolean
divides (const union weft_model *m, const char *const *typed, enum weft_model_field part,
         enum weft_model_field whole, GError **error)
{
  int64_t n = m->at[whole].i, d = m->at[part].i;

  if (d == 0 || n % d == 0)
    return TRUE;
  return weft_bad_input (error,
                         "%s %" G_GINT64_FORMAT " is not a multiple of %s %" G_GINT64_FORMAT,
                         spelled (typed, whole), n, spelled (typed, part), d);
}

static gboolean
at_most (const union weft_model *m, const char *const *typed, enum weft_model_field field,
         enum weft_model_field limit, GError **error)
{
  g_autofree char *what = weft_field_counts (&weft_model_table.field[field]);

  if (m->at[field].i <= m->at[limit].i)
    return TRUE;
  return weft_bad_input (
      error, "%s: found %" G_GINT64_FORMAT ", wanted at most %s, %" G_GINT64_FORMAT "%s",
      spelled (typed, field), m->at[field].i, spelled (typed, limit), m->at[limit].i, what);
}

/* Checks that field `needed` is not 0 if field `field` is not 0. */
static gboolean
comes_with (const union weft_model *m, const char *const *typed, enum weft_model_field field,
            enum weft_model_field needed, GError **error)
{
  if (m->at[field].i == 0 || m->at[needed].i != 0)
    return TRUE;
  return weft_bad_input (error, "%s is %" G_GINT64_FORMAT ", but %s is 0; wanted both or neither",
                         spelled (typed, field), m->at[field].i, spelled (typed, needed));
}

/* Conditions on two fields that every model satisfies. */
static const struct {
  gboolean (*holds) (const union weft_model *m, const char *const *typed, enum weft_model_field a,
                     enum weft_model_field b, GError **error);
  enum weft_model_field a, b;
} relations[] = {
#define RELATION(holds, a, b)                                                                      \
  {                                                                                                \
    holds, WEFT_MODEL_##a, WEFT_MODEL_##b                                                          \
  }
  RELATION (divides, num_query_groups, num_attention_heads),
  RELATION (at_most, moe_first_dense_layers, num_layers),
  RELATION (comes_with, num_moe_experts, moe_router_topk),
  RELATION (comes_with, num_moe_experts, moe_ffn_hidden_size),
  RELATION (comes_with, moe_router_topk, num_moe_experts),
  RELATION (comes_with, moe_shared_expert_intermediate_size, num_moe_experts),
  RELATION (at_most, moe_router_topk, num_moe_experts),
  RELATION (comes_with, moe_shared_expert_gate, moe_shared_expert_intermediate_size),
  RELATION (comes_with, moe_router_enable_expert_bias, num_moe_experts),
  RELATION (comes_with, moe_router_num_groups, moe_router_group_topk),
  RELATION (comes_with, moe_router_group_topk, moe_router_num_groups),
  RELATION (divides, moe_router_num_groups, num_moe_experts),
  RELATION (at_most, moe_router_group_topk, moe_router_num_groups),
  RELATION (divides, moe_router_group_topk, moe_router_topk),
  RELATION (comes_with, kv_lora_rank, qk_head_dim),
  RELATION (comes_with, kv_lora_rank, qk_pos_emb_head_dim),
  RELATION (comes_with, kv_lora_rank, v_head_dim),
  RELATION (comes_with, q_lora_rank, kv_lora_rank),
  RELATION (comes_with, qk_layernorm_whole, qk_layernorm),
#undef RELATION
};

static gboolean
check_relations (const union weft_model *m, const char *const *typed, GError **error)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (relations); i++)
    if (!relations[i].holds (m, typed, relations[i].a, relations[i].b, error))
      return FALSE;
  return TRUE;
}

/* Checks that the head width is even for rotary embedding, and that learned positions cover the
 * sequence length. */
static gboolean
check_positions (const union weft_model *m, const char *const *typed, GError **error)
{
  if (m->position_embedding_type == WEFT_LEARNED)
    return at_most (m, typed, WEFT_MODEL_seq_length, WEFT_MODEL_max_position_embeddings, error);
  if (m->position_embedding_type == WEFT_ALIBI)
    return TRUE;
  if (m->kv_channels % 2)
    return weft_bad_input (
        error, "%s: found %" G_GINT64_FORMAT ", wanted an even width for rotary positions",
        spelled (typed, WEFT_MODEL_kv_channels), m->kv_channels);
  if (m->rotary_scaling != WEFT_ROTARY_LLAMA3 ||
      m->rotary_low_freq_factor <= m->rotary_high_freq_factor)
    return TRUE;
  return weft_bad_input (
      error, "%s: found %g, wanted at most %s, %g",
      spelled (typed, WEFT_MODEL_rotary_low_freq_factor), m->rotary_low_freq_factor,
      spelled (typed, WEFT_MODEL_rotary_high_freq_factor), m->rotary_high_freq_factor);
}

static gboolean
check_latent (const union weft_model *m, const char *const *typed, GError **error)
{
  if (!m->kv_lora_rank)
    return TRUE;
  if (m->add_qkv_bias || m->add_bias_linear || m->qk_layernorm || m->qk_l2_norm)
    return weft_bad_input (error,
                           "%s is %" G_GINT64_FORMAT ": multi-latent attention has neither biases "
                           "nor per-head norms here",
                           spelled (typed, WEFT_MODEL_kv_lora_rank), m->kv_lora_rank);
  if (m->num_query_groups != m->num_attention_heads)
    return weft_bad_input (error,
                           "%s: found %" G_GINT64_FORMAT " groups, wanted %" G_GINT64_FORMAT
                           " (all heads) with multi-latent attention",
                           spelled (typed, WEFT_MODEL_num_query_groups), m->num_query_groups,
                           m->num_attention_heads);
  return TRUE;
}

/* Refuses combinations of model features that no published architecture has. */
static gboolean
check_traits (const union weft_model *m, const char *const *typed, GError **error)
{
  gboolean parallel = m->residual != WEFT_RESIDUAL_SEQUENTIAL;

  if (parallel && m->norm_placement != WEFT_NORM_PRE)
    return weft_bad_input (error, "%s: found %s, wanted pre with %s = %s",
                           spelled (typed, WEFT_MODEL_norm_placement),
                           weft_placement_words[m->norm_placement],
                           spelled (typed, WEFT_MODEL_residual), weft_residual_words[m->residual]);
  if (m->position_offset && m->position_embedding_type != WEFT_LEARNED)
    return weft_bad_input (error, "%s is %" G_GINT64_FORMAT ", but %s is %s; wanted learned",
                           spelled (typed, WEFT_MODEL_position_offset), m->position_offset,
                           spelled (typed, WEFT_MODEL_position_embedding_type),
                           weft_position_words[m->position_embedding_type]);
  return TRUE;
}

/* Checks the fields that say which layers have experts, windows or rotary positions. */
static gboolean
check_pattern (const union weft_model *m, const char *const *typed, GError **error)
{
  if (m->moe_layer_offset >= m->moe_layer_freq)
    return weft_bad_input (error,
                           "%s: found %" G_GINT64_FORMAT
                           " layers, wanted less than %s, %" G_GINT64_FORMAT " layers",
                           spelled (typed, WEFT_MODEL_moe_layer_offset), m->moe_layer_offset,
                           spelled (typed, WEFT_MODEL_moe_layer_freq), m->moe_layer_freq);
  if (m->sliding_window && m->attention_chunk_size)
    return weft_bad_input (error,
                           "%s is %" G_GINT64_FORMAT " tokens and %s is %" G_GINT64_FORMAT
                           " tokens; wanted one of them, a window or chunks",
                           spelled (typed, WEFT_MODEL_sliding_window), m->sliding_window,
                           spelled (typed, WEFT_MODEL_attention_chunk_size),
                           m->attention_chunk_size);
  if (m->window_attn_skip_freq && !m->sliding_window && !m->attention_chunk_size)
    return weft_bad_input (error,
                           "%s is %" G_GINT64_FORMAT ", but %s is 0 and so is %s; wanted one of "
                           "them, or none of the three",
                           spelled (typed, WEFT_MODEL_window_attn_skip_freq),
                           m->window_attn_skip_freq, spelled (typed, WEFT_MODEL_sliding_window),
                           spelled (typed, WEFT_MODEL_attention_chunk_size));
  return TRUE;
}

/* Checks the router. The correction bias requires sigmoid scores: with a softmax over all experts
 * it would change the weight of every expert. */
static gboolean
check_router (const union weft_model *m, const char *const *typed, GError **error)
{
  int64_t groups = m->moe_router_num_groups;

  if (m->moe_router_enable_expert_bias && m->moe_router_score_function != WEFT_SCORE_SIGMOID)
    return weft_bad_input (error, "%s: found %s, wanted sigmoid with %s",
                           spelled (typed, WEFT_MODEL_moe_router_score_function),
                           weft_score_words[m->moe_router_score_function],
                           spelled (typed, WEFT_MODEL_moe_router_enable_expert_bias));
  if (groups && m->moe_router_topk > m->num_moe_experts / groups * m->moe_router_group_topk)
    return weft_bad_input (error,
                           "%s: found %" G_GINT64_FORMAT ", wanted at most the %" G_GINT64_FORMAT
                           " experts of %s groups",
                           spelled (typed, WEFT_MODEL_moe_router_topk), m->moe_router_topk,
                           m->num_moe_experts / groups * m->moe_router_group_topk,
                           spelled (typed, WEFT_MODEL_moe_router_group_topk));
  return TRUE;
}

static gboolean
check_size (const union weft_model *m, const char *const *typed, GError **error)
{
  wide n = all_parameters (m, m->num_moe_experts) + mtp_parameters (m);

  if (n <= MOST_PARAMETERS)
    return TRUE;
  return weft_bad_input (error,
                         "%s %" G_GINT64_FORMAT " and %s %" G_GINT64_FORMAT
                         " make a model of %.2g parameters; wanted at most 2^53 parameters",
                         spelled (typed, WEFT_MODEL_num_layers), m->num_layers,
                         spelled (typed, WEFT_MODEL_hidden_size), m->hidden_size, (double) n);
}

static gboolean
check (const union weft_model *m, const char *const *typed, GError **error)
{
  return check_relations (m, typed, error) && check_positions (m, typed, error) &&
         check_latent (m, typed, error) && check_pattern (m, typed, error) &&
         check_traits (m, typed, error) && check_router (m, typed, error) &&
         check_size (m, typed, error);
}

static gboolean
complete_heads (union weft_model *m, const char *const *typed, GError **error)
{
  gboolean latent = m->kv_lora_rank > 0;

  if (latent || !typed[WEFT_MODEL_num_query_groups])
    m->num_query_groups = m->num_attention_heads;
  if (latent)
    m->kv_channels = m->qk_head_dim + m->qk_pos_emb_head_dim;
  if (latent || typed[WEFT_MODEL_kv_channels])
    return TRUE;
  m->kv_channels = m->hidden_size / m->num_attention_heads;
  return divides (m, typed, WEFT_MODEL_num_attention_heads, WEFT_MODEL_hidden_size, error);
}

gboolean
weft_model_complete (union weft_model *model, const char *const *typed, GError **error)
{
  if (!complete_heads (model, typed, error))
    return FALSE;
  if (!typed[WEFT_MODEL_ffn_hidden_size])
    model->ffn_hidden_size = 4 * model->hidden_size;
  if (!typed[WEFT_MODEL_moe_ffn_hidden_size] && model->num_moe_experts)
    model->moe_ffn_hidden_size = model->ffn_hidden_size;
  if (!typed[WEFT_MODEL_seq_length])
    model->seq_length = model->max_position_embeddings;
  else if (!typed[WEFT_MODEL_max_position_embeddings])
    model->max_position_embeddings = model->seq_length;
  return check (model, typed, error);
}
