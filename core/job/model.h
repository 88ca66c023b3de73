/* model.h - the shape of a decoder-only transformer: settings, parameter counts, FLOPs.
 *
 * Counts are exact. In the formulas below, N is the number of parameters as the model's authors
 * count them, without padding of the vocabulary. */
#pragma once
#include "core/base/field.h"
#include "core/base/words.h"

enum weft_model_field {
#define FIELD_TEXT(name, ...) WEFT_MODEL_##name,
#define FIELD_INT(name, ...) WEFT_MODEL_##name,
#define FIELD_WORD(name, ...) WEFT_MODEL_##name,
#define FIELD_BOOL(name, ...) WEFT_MODEL_##name,
#define FIELD_REAL(name, ...) WEFT_MODEL_##name,
#include "core/model.def"
  WEFT_N_MODEL_FIELD
};

union weft_model {
  struct {
#define FIELD_TEXT(name, ...) int64_t name;
#define FIELD_INT(name, ...) int64_t name;
#define FIELD_WORD(name, ...) int64_t name;
#define FIELD_BOOL(name, ...) int64_t name;
#define FIELD_REAL(name, ...) double name;
#include "core/model.def"
  };
  union weft_value at[WEFT_N_MODEL_FIELD];
};
_Static_assert (sizeof (union weft_model) == 8 * WEFT_N_MODEL_FIELD, "every field is 8 bytes");

extern const struct weft_table weft_model_table;

/* Reads a Hugging Face config.json: a path, its folder (with a slash), or a bundled name
 * ("llama3-8b"; case, dashes, dots and underscores are ignored). seq_length defaults to
 * max_position_embeddings. Accepts keys of transformers 4 and 5 and Megatron's names; keys that
 * begin with an underscore are comments, except that "_source" sets `source`. Unknown keys are
 * appended to `unknown` if it is not NULL (char *, owned by the array). Errors name file, key,
 * value found and value wanted. */
gboolean weft_model_load (const char *name_or_path, union weft_model *model, GPtrArray *unknown,
                          GError **error);

/* Like weft_model_load(), for a text of `length` bytes (-1: up to its NUL). `file_name` is used in
 * messages and gives the model its name. */
gboolean weft_model_parse (const char *json, gssize length, const char *file_name,
                           union weft_model *model, GPtrArray *unknown, GError **error);

/* Computes settings that were not given and follow from others, then checks for settings that
 * contradict each other (heads and groups, experts without top-k, ...). typed[f] is the name
 * under which field f was given (NULL: not given), for messages. Defaults: num_query_groups =
 * num_attention_heads, kv_channels = hidden_size / num_attention_heads, ffn_hidden_size = 4
 * hidden_size, moe_ffn_hidden_size = ffn_hidden_size; max_position_embeddings and seq_length
 * default to each other. In multi-latent attention every head has its own keys and values, and
 * kv_channels is always qk_head_dim + qk_pos_emb_head_dim. */
gboolean weft_model_complete (union weft_model *model, const char *const *typed, GError **error);

/* Names of bundled models, sorted, NULL-terminated. The caller frees with g_strfreev(). */
char **weft_model_names (void);

/* Number of all parameters, and number of parameters that one token uses: top-k of the experts, but
 * the whole embedding. Both include embedding, learned positions, every weight and bias of
 * attention, MLP, experts, shared experts and router with its correction bias, all norms, and the
 * head unless it is tied to the embedding. Both exclude multi-token prediction layers, as published
 * counts do. */
uint64_t weft_model_parameters (const union weft_model *model);
uint64_t weft_model_active_parameters (const union weft_model *model);

/* Parameters of the multi-token prediction layers. Each has one transformer layer like the last
 * layer of the model, a projection of (2 h, h) and three norms. Embedding and head are shared with
 * the main model and not counted. */
uint64_t weft_model_mtp_parameters (const union weft_model *model);

/* Whether the first projection of an MLP has two matrices, gate and up (swiglu, geglu). */
gboolean weft_activation_is_gated (enum weft_activation activation);
gboolean weft_model_is_gated (const union weft_model *model);

/* Output columns of the first MLP projection for each input column of the second: 2 if the MLP is
 * gated, else 1. */
static inline uint64_t
weft_model_wide (const union weft_model *model)
{
  return weft_model_is_gated (model) ? 2 : 1;
}

/* Properties of layer `layer` (from 0). Multi-token prediction layers have numbers from num_layers
 * on and are like the last layer.
 *
 * is_moe    has experts: not one of the leading dense layers, and number moe_layer_offset of every
 *           moe_layer_freq layers
 * has_rope  uses rotary positions: not the last of every no_rope_freq layers
 * is_local  has a window; its rotary base is rotary_base_local
 * window    sliding window: tokens a query sees, including itself; 0: no limit
 * chunk     chunked attention: tokens per chunk; 0: the whole sequence. The last of every
 *           window_attn_skip_freq layers has neither window nor chunks */
gboolean weft_model_layer_is_moe (const union weft_model *model, int64_t layer);
gboolean weft_model_layer_has_rope (const union weft_model *model, int64_t layer);
gboolean weft_model_layer_is_local (const union weft_model *model, int64_t layer);
int64_t weft_model_layer_window (const union weft_model *model, int64_t layer);
int64_t weft_model_layer_chunk (const union weft_model *model, int64_t layer);

/* Whether two layers have all of these properties in common. */
gboolean weft_model_layers_are_alike (const union weft_model *model, int64_t a, int64_t b);

/* Number of MoE layers. Multi-token prediction layers are not counted. */
int64_t weft_model_moe_layers (const union weft_model *model);

/* Number of parameters in the matrix products that a training token passes through: attention,
 * router, MLP or top-k experts, output head. Each multi-token prediction layer adds all of these
 * and its projection. Embedding lookup, norms and biases are not counted. This number is N in 6 N
 * FLOPs per token. */
uint64_t weft_model_matmul_parameters (const union weft_model *model);

/* Model FLOPs per training token (forward and backward, without recompute): per layer 6 N + 6 a d s
 * with the causal half of attention, 12 a d s with all of it (conventions of Megatron-LM and PaLM;
 * a heads of width d, s tokens). With a sliding window of w < s tokens, s becomes w, and 2 w - w^2
 * / s in the causal count; with n chunks of c and a rest of r tokens, (n c^2 + r^2) / s in both. If
 * keys and values differ in width, d is their mean. */
double weft_model_flops_per_token (const union weft_model *model, gboolean causal);
