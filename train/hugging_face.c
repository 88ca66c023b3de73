/* The name table: one row per Hugging Face tensor. Import and export loop over it in
 * hugging_face_file.c. */
#include "train/hugging_face.h"
#include "core/base/error.h"
#include <string.h>

/* Which rows of the Weft tensor the Hugging Face tensor holds. */
enum share { ALL, QUERY, KEY, VALUE, GATE, UP };

/* Which rows have rotary pairs in another order in the Hugging Face tensor: none, the last rows of
 * each head, or the last rows of the tensor. */
enum rope_rows { NONE, OF_EACH_HEAD, LAST_OF_TENSOR };

/* Whether the row applies to any model, to models without a query latent, or to models with one
 * (q_lora_rank): the last query projection has another name with a latent. */
enum queries { ANY, WHOLE, LATENT };

/* '#' stands for the layer number, '@' for the expert number (rows of experts are stacked in the
 * Weft tensor). Rows for the same Weft tensor are listed in the order of its rows. */
struct row {
  const char *families; /* separated by spaces */
  const char *param, *theirs;
  enum share share;
  gboolean transposed;
  float shift;
  enum rope_rows rope;
  enum queries queries;
};

#define QWEN_MOE "qwen2_moe qwen3_moe"
#define DEEPSEEK "deepseek_v2 deepseek_v3"
#define GATED "llama qwen2 qwen3 mixtral " QWEN_MOE " " DEEPSEEK
#define LLAMAS GATED " nemotron"
#define FAMILIES "gpt2 " LLAMAS
#define EXPERT "model.layers.#.mlp.experts.@."
#define CONV1D .transposed = TRUE
#define LESS_ONE .shift = 1

/* Sources: huggingface/transformers modeling_gpt2.py, modeling_llama.py, modeling_qwen2.py,
 * modeling_qwen3.py, modeling_mixtral.py, modeling_qwen2_moe.py, modeling_qwen3_moe.py,
 * modeling_deepseek_v2.py and modeling_deepseek_v3.py (both rotate pairs of neighbours:
 * rope_interleave), and modeling_nemotron.py (NemotronLayerNorm1P adds one to its weight). Names of
 * multi-token prediction layers, which transformers ignores: README_WEIGHTS.md of
 * deepseek-ai/DeepSeek-V3. Weft reads mistral as llama, which has the same names. The biases of
 * llama's projections exist with attention_bias and mlp_bias. */
static const struct row rows[] = {
  { "gpt2", "embedding.weight", "transformer.wte.weight" },
  { "gpt2", "position.weight", "transformer.wpe.weight" },
  { "gpt2", "norm1.weight", "transformer.h.#.ln_1.weight" },
  { "gpt2", "norm1.bias", "transformer.h.#.ln_1.bias" },
  { "gpt2", "qkv.weight", "transformer.h.#.attn.c_attn.weight", CONV1D },
  { "gpt2", "qkv.bias", "transformer.h.#.attn.c_attn.bias" },
  { "gpt2", "proj.weight", "transformer.h.#.attn.c_proj.weight", CONV1D },
  { "gpt2", "proj.bias", "transformer.h.#.attn.c_proj.bias" },
  { "gpt2", "norm2.weight", "transformer.h.#.ln_2.weight" },
  { "gpt2", "norm2.bias", "transformer.h.#.ln_2.bias" },
  { "gpt2", "fc1.weight", "transformer.h.#.mlp.c_fc.weight", CONV1D },
  { "gpt2", "fc1.bias", "transformer.h.#.mlp.c_fc.bias" },
  { "gpt2", "fc2.weight", "transformer.h.#.mlp.c_proj.weight", CONV1D },
  { "gpt2", "fc2.bias", "transformer.h.#.mlp.c_proj.bias" },
  { "gpt2", "final_norm.weight", "transformer.ln_f.weight" },
  { "gpt2", "final_norm.bias", "transformer.ln_f.bias" },

  { LLAMAS, "embedding.weight", "model.embed_tokens.weight" },
  { GATED, "norm1.weight", "model.layers.#.input_layernorm.weight" },
  { "nemotron", "norm1.weight", "model.layers.#.input_layernorm.weight", LESS_ONE },
  { "nemotron", "norm1.bias", "model.layers.#.input_layernorm.bias" },
  { LLAMAS, "qkv.weight", "model.layers.#.self_attn.q_proj.weight", QUERY },
  { LLAMAS, "qkv.weight", "model.layers.#.self_attn.k_proj.weight", KEY },
  { LLAMAS, "qkv.weight", "model.layers.#.self_attn.v_proj.weight", VALUE },
  { LLAMAS, "qkv.bias", "model.layers.#.self_attn.q_proj.bias", QUERY },
  { LLAMAS, "qkv.bias", "model.layers.#.self_attn.k_proj.bias", KEY },
  { LLAMAS, "qkv.bias", "model.layers.#.self_attn.v_proj.bias", VALUE },
  { "qwen3 qwen3_moe", "q_norm.weight", "model.layers.#.self_attn.q_norm.weight" },
  { "qwen3 qwen3_moe", "k_norm.weight", "model.layers.#.self_attn.k_norm.weight" },
  { LLAMAS, "proj.weight", "model.layers.#.self_attn.o_proj.weight" },
  { LLAMAS, "proj.bias", "model.layers.#.self_attn.o_proj.bias" },
  { GATED, "norm2.weight", "model.layers.#.post_attention_layernorm.weight" },
  { "nemotron", "norm2.weight", "model.layers.#.post_attention_layernorm.weight", LESS_ONE },
  { "nemotron", "norm2.bias", "model.layers.#.post_attention_layernorm.bias" },
  { GATED, "fc1.weight", "model.layers.#.mlp.gate_proj.weight", GATE },
  { GATED, "fc1.weight", "model.layers.#.mlp.up_proj.weight", UP },
  { GATED, "fc1.bias", "model.layers.#.mlp.gate_proj.bias", GATE },
  { GATED, "fc1.bias", "model.layers.#.mlp.up_proj.bias", UP },
  { "nemotron", "fc1.weight", "model.layers.#.mlp.up_proj.weight" },
  { "nemotron", "fc1.bias", "model.layers.#.mlp.up_proj.bias" },
  { LLAMAS, "fc2.weight", "model.layers.#.mlp.down_proj.weight" },
  { LLAMAS, "fc2.bias", "model.layers.#.mlp.down_proj.bias" },
  { GATED, "final_norm.weight", "model.norm.weight" },
  { "nemotron", "final_norm.weight", "model.norm.weight", LESS_ONE },
  { "nemotron", "final_norm.bias", "model.norm.bias" },

  { "mixtral", "router.weight", "model.layers.#.block_sparse_moe.gate.weight" },
  { "mixtral", "experts.fc1.weight", "model.layers.#.block_sparse_moe.experts.@.w1.weight", GATE },
  { "mixtral", "experts.fc1.weight", "model.layers.#.block_sparse_moe.experts.@.w3.weight", UP },
  { "mixtral", "experts.fc2.weight", "model.layers.#.block_sparse_moe.experts.@.w2.weight" },
  { QWEN_MOE " " DEEPSEEK, "router.weight", "model.layers.#.mlp.gate.weight" },
  { QWEN_MOE " " DEEPSEEK, "experts.fc1.weight", EXPERT "gate_proj.weight", GATE },
  { QWEN_MOE " " DEEPSEEK, "experts.fc1.weight", EXPERT "up_proj.weight", UP },
  { QWEN_MOE " " DEEPSEEK, "experts.fc2.weight", EXPERT "down_proj.weight" },
  { "qwen2_moe", "shared.fc1.weight", "model.layers.#.mlp.shared_expert.gate_proj.weight", GATE },
  { "qwen2_moe", "shared.fc1.weight", "model.layers.#.mlp.shared_expert.up_proj.weight", UP },
  { "qwen2_moe", "shared.fc2.weight", "model.layers.#.mlp.shared_expert.down_proj.weight" },
  { "qwen2_moe", "shared.gate.weight", "model.layers.#.mlp.shared_expert_gate.weight" },
  { DEEPSEEK, "shared.fc1.weight", "model.layers.#.mlp.shared_experts.gate_proj.weight", GATE },
  { DEEPSEEK, "shared.fc1.weight", "model.layers.#.mlp.shared_experts.up_proj.weight", UP },
  { DEEPSEEK, "shared.fc2.weight", "model.layers.#.mlp.shared_experts.down_proj.weight" },
  { "deepseek_v3", WEFT_EXPERT_BIAS, "model.layers.#.mlp.gate.e_score_correction_bias" },

  { DEEPSEEK, "q_down.weight", "model.layers.#.self_attn.q_a_proj.weight" },
  { DEEPSEEK, "q_latent_norm.weight", "model.layers.#.self_attn.q_a_layernorm.weight" },
  { DEEPSEEK, "q_up.weight", "model.layers.#.self_attn.q_b_proj.weight", .rope = OF_EACH_HEAD,
    .queries = LATENT },
  { DEEPSEEK, "q_up.weight", "model.layers.#.self_attn.q_proj.weight", .rope = OF_EACH_HEAD,
    .queries = WHOLE },
  { DEEPSEEK, "kv_down.weight", "model.layers.#.self_attn.kv_a_proj_with_mqa.weight",
    .rope = LAST_OF_TENSOR },
  { DEEPSEEK, "kv_latent_norm.weight", "model.layers.#.self_attn.kv_a_layernorm.weight" },
  { DEEPSEEK, "kv_up.weight", "model.layers.#.self_attn.kv_b_proj.weight" },

  { "deepseek_v3", "mtp_words_norm.weight", "model.layers.#.enorm.weight" },
  { "deepseek_v3", "mtp_stream_norm.weight", "model.layers.#.hnorm.weight" },
  { "deepseek_v3", "mtp_proj.weight", "model.layers.#.eh_proj.weight" },
  { "deepseek_v3", "mtp_norm.weight", "model.layers.#.shared_head.norm.weight" },

  { FAMILIES, "head.weight", "lm_head.weight" },
};

static gboolean
is_among (const char *word, const char *words)
{
  g_auto (GStrv) list = g_strsplit (words, " ", -1);
  return g_strv_contains ((const char *const *) list, word);
}

/* Replaces a placeholder by a number. */
static char *
with_number (const char *pattern, char sign, uint32_t number)
{
  const char *mark = strchr (pattern, sign);

  if (!mark)
    return g_strdup (pattern);
  return g_strdup_printf ("%.*s%u%s", (int) (mark - pattern), pattern, number, mark + 1);
}

/* The Hugging Face name for one layer and expert: "model.layers.3.self_attn.q_proj.weight". */
static char *
their_name (const char *pattern, uint32_t layer, uint32_t expert)
{
  g_autofree char *of_layer = with_number (pattern, '#', layer);

  return with_number (of_layer, '@', expert);
}

/* Number of experts whose rows are stacked in a Weft tensor; 1 outside experts. */
static uint32_t
n_experts (const union weft_model *m, const struct weft_state_tensor *tensor)
{
  return g_str_has_prefix (tensor->param, "experts.") ? (uint32_t) m->num_moe_experts : 1;
}

/* Intermediate width of the MLP that a tensor belongs to. */
static uint64_t
mlp_width (const union weft_model *m, const char *param)
{
  if (g_str_has_prefix (param, "experts."))
    return (uint64_t) m->moe_ffn_hidden_size;
  return (uint64_t) (g_str_has_prefix (param, "shared.") ? m->moe_shared_expert_intermediate_size
                                                         : m->ffn_hidden_size);
}

static void
set_rows (const union weft_model *m, const struct weft_state_tensor *tensor, enum share share,
          struct weft_hf_piece *piece)
{
  uint64_t q = (uint64_t) m->num_attention_heads * m->kv_channels;
  uint64_t kv = (uint64_t) m->num_query_groups * m->kv_channels;
  uint64_t up = mlp_width (m, tensor->param);
  const uint64_t first[] = { [KEY] = q, [VALUE] = q + kv, [UP] = up };
  const uint64_t count[] = { tensor->rows / n_experts (m, tensor), q, kv, kv, up, up };

  piece->first_row = first[share];
  piece->rows = count[share];
}

static void
set_rope (const union weft_model *m, enum rope_rows rope, struct weft_hf_piece *piece)
{
  const uint64_t offset[] = {
    [OF_EACH_HEAD] = (uint64_t) m->qk_head_dim, [LAST_OF_TENSOR] = (uint64_t) m->kv_lora_rank
  };

  piece->rope_offset = rope == NONE ? 0 : offset[rope];
  piece->rope_rows = rope == NONE ? 0 : (uint64_t) m->qk_pos_emb_head_dim;
}

static void
piece_clear (struct weft_hf_piece *piece)
{
  g_free (piece->name);
}

static void
add_piece (GArray *pieces, const struct row *row, const union weft_model *model,
           const struct weft_state_tensor *tensor, uint32_t expert)
{
  struct weft_hf_piece piece = { .name = their_name (row->theirs, tensor->layer, expert),
                                 .columns = tensor->columns,
                                 .transposed = row->transposed,
                                 .vector = tensor->columns == 1,
                                 .shift = row->shift };

  set_rows (model, tensor, row->share, &piece);
  set_rope (model, row->rope, &piece);
  piece.first_row += expert * (tensor->rows / n_experts (model, tensor));
  g_array_append_val (pieces, piece);
}

static gboolean
is_of (const struct row *row, const char *param, const union weft_model *model)
{
  enum queries queries = model->q_lora_rank > 0 ? LATENT : WHOLE;

  return strcmp (row->param, param) == 0 &&
         is_among (g_quark_to_string ((GQuark) model->family), row->families) &&
         (row->queries == ANY || row->queries == queries);
}

/* Whether a row gets rotary embedding; `j` is its number among the rotary rows of its head. */
static gboolean
is_rope_row (const struct weft_hf_piece *piece, uint64_t row, uint64_t *j)
{
  uint64_t at = piece->rope_rows > 0 ? row % (piece->rope_offset + piece->rope_rows) : 0;

  *j = at - piece->rope_offset;
  return piece->rope_rows > 0 && at >= piece->rope_offset;
}

uint64_t
weft_hf_their_row (const struct weft_hf_piece *piece, uint64_t row)
{
  uint64_t half = piece->rope_rows / 2, j;

  if (!is_rope_row (piece, row, &j))
    return row;
  return row - j + (j < half ? 2 * j : 2 * (j - half) + 1);
}

uint64_t
weft_hf_our_row (const struct weft_hf_piece *piece, uint64_t row)
{
  uint64_t j;

  return is_rope_row (piece, row, &j) ? row - j + j / 2 + j % 2 * (piece->rope_rows / 2) : row;
}

/* Checks that each row of the tensor is in exactly one piece: an MLP without a gate, for example,
 * does not match llama's names. */
static gboolean
check_rows (const GArray *pieces, const char *family, const struct weft_state_tensor *tensor,
            GError **error)
{
  uint64_t next = 0;

  for (uint32_t i = 0; i < pieces->len; i++) {
    const struct weft_hf_piece *piece = &g_array_index (pieces, struct weft_hf_piece, i);
    g_assert (piece->first_row == next);
    next += piece->rows;
  }
  if (next == tensor->rows)
    return TRUE;
  if (next == 0)
    return weft_bad_input (error, "%s: model family %s has no name for it", tensor->name, family);
  return weft_bad_input (error,
                         "%s: found %" G_GUINT64_FORMAT " rows, wanted the %" G_GUINT64_FORMAT
                         " of model family %s",
                         tensor->name, tensor->rows, next, family);
}

GArray *
weft_hf_pieces (const union weft_model *model, const struct weft_state_tensor *tensor,
                GError **error)
{
  const char *family = g_quark_to_string ((GQuark) model->family);
  g_autoptr (GArray) pieces = g_array_new (FALSE, FALSE, sizeof (struct weft_hf_piece));

  g_array_set_clear_func (pieces, (GDestroyNotify) piece_clear);
  if (!family || !is_among (family, FAMILIES)) {
    weft_bad_input (error,
                    "model family: found \"%s\", wanted one of " FAMILIES
                    " to name tensors as Hugging Face does",
                    family ? family : "");
    return NULL;
  }
  for (uint32_t expert = 0; expert < n_experts (model, tensor); expert++)
    for (unsigned i = 0; i < G_N_ELEMENTS (rows); i++)
      if (is_of (&rows[i], tensor->param, model))
        add_piece (pieces, &rows[i], model, tensor, expert);
  return check_rows (pieces, family, tensor, error) ? g_steal_pointer (&pieces) : NULL;
}
