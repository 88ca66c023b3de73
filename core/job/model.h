/* model.h - the shape of a decoder-only transformer: fields, parameters, FLOPs.
 *
 * Sizes are exact.  N below counts parameters as the model's authors do (no vocabulary padding). */
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

/* Reads a Hugging Face config.json: a path, the folder it is in (with a slash), or a bundled
 * name ("llama3-8b"; case, dashes, dots and underscores do not count).  seq_length becomes
 * max_position_embeddings unless the file has it.  Keys of transformers 4 and 5 and Megatron's
 * names are read; keys that begin with an underscore are comments, but "_source" fills `source`.
 * Unknown keys are appended to `unknown` when it is given (element type char *, owned by the
 * array): they are reported, never silently dropped.  Errors name file, key, what was found and
 * what was wanted. */
gboolean weft_model_load (const char *name_or_path, union weft_model *model, GPtrArray *unknown,
                          GError **error);
gboolean weft_model_parse (const char *json, gssize length, const char *file_name,
                           union weft_model *model, GPtrArray *unknown, GError **error);

/* Fields that contradict each other (heads and groups, experts without top-k, ...). */
gboolean weft_model_check (const union weft_model *model, GError **error);

/* Fills what follows from other fields and was not given, then checks.  typed[f] is the name
 * field f was given under, NULL where it was not; messages use those names.  Without their own
 * value num_query_groups is num_attention_heads, kv_channels is hidden_size /
 * num_attention_heads, ffn_hidden_size is four times hidden_size, moe_ffn_hidden_size is
 * ffn_hidden_size, and of max_position_embeddings and seq_length one follows the other.  Under
 * multi-latent attention every head has its own keys and values, and kv_channels is always
 * qk_head_dim + qk_pos_emb_head_dim. */
gboolean weft_model_complete (union weft_model *model, const char *const *typed, GError **error);

/* Bundled models, sorted.  NULL-terminated, caller frees with g_strfreev. */
char **weft_model_names (void);

/* All parameters, and those one token uses (top-k of the experts; the whole embedding counts).
 * Counted: embedding, learned positions, every weight and bias of attention, MLP, experts,
 * shared experts and router with its correction bias, all norms, the head unless it is tied.
 * Multi-token prediction layers are not counted: authors publish the main model without them. */
uint64_t weft_model_parameters (const union weft_model *model);
uint64_t weft_model_active_parameters (const union weft_model *model);

/* What the multi-token prediction layers add: each is one more transformer layer like the last, a
 * projection of (2 h, h) and three norms; embedding and head are the main model's. */
uint64_t weft_model_mtp_parameters (const union weft_model *model);

/* The first projection of an MLP makes a gate and what the gate multiplies. */
gboolean weft_activation_is_gated (enum weft_activation activation);
gboolean weft_model_is_gated (const union weft_model *model);

/* Columns that the first map of an MLP makes for each that the second takes. */
static inline uint64_t
weft_model_wide (const union weft_model *model)
{
  return weft_model_is_gated (model) ? 2 : 1;
}

/* What layer `layer` (from 0) is.  A prediction layer has the number num_layers and is like the
 * last.
 *
 * is_moe    has experts: not one of the leading dense ones, and moe_layer_offset of every
 *           moe_layer_freq
 * has_rope  knows positions: not the last of every no_rope_freq
 * is_local  rotary positions turn by rotary_base_local: it has a window
 * window    tokens a query sees, itself among them; 0 is all before it
 * chunk     tokens of a stretch out of which no query sees; 0 is the whole sequence.  Of every
 *           window_attn_skip_freq layers the last has neither window nor chunk */
gboolean weft_model_layer_is_moe (const union weft_model *model, int64_t layer);
gboolean weft_model_layer_has_rope (const union weft_model *model, int64_t layer);
gboolean weft_model_layer_is_local (const union weft_model *model, int64_t layer);
int64_t weft_model_layer_window (const union weft_model *model, int64_t layer);
int64_t weft_model_layer_chunk (const union weft_model *model, int64_t layer);

/* How many layers have experts, without prediction layers. */
int64_t weft_model_moe_layers (const union weft_model *model);

/* Parameters of the matrix products a trained token passes (attention, router, MLP or top-k
 * experts, output head, all of these and a joint projection again in each prediction layer; no
 * embedding look-up, norms or biases): the N of 6N FLOPs per token. */
uint64_t weft_model_matmul_parameters (const union weft_model *model);

/* Model FLOPs of one trained token (forward and backward, no recompute): 6 N + 6 a d s for each
 * layer with the causal half of attention counted, 12 a d s with all of it (Megatron-LM's and
 * PaLM's conventions; a heads of width d, s tokens).  In a layer with a window of w < s tokens s
 * becomes w, and 2 w - w^2 / s in the causal count; with chunks of c, n of them and r tokens more,
 * (n c^2 + r^2) / s in both; where keys and values differ in width d is their mean. */
double weft_model_flops_per_token (const union weft_model *model, gboolean causal);
