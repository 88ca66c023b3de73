/* Names: one row for each of their tensors.  The import and export that follow them are in
 * hugging_face_file.c. */
#include "train/hugging_face.h"
#include "core/base/error.h"
#include <string.h>

/* Which rows of ours one of theirs is. */
enum share { ALL, QUERY, KEY, VALUE, GATE, UP };

/* '#' is the number of the layer, '@' that of an expert, whose rows stand together.  Rows of one of our tensors stand in the order of its rows. */
struct row {
  const char *families; /* space separated */
  const char *param, *theirs;
  enum share share;
  gboolean transposed;
  float shift;
};

#define FAMILIES "gpt2 llama qwen2 qwen3 nemotron mixtral qwen3_moe"
#define GATED "llama qwen2 qwen3 mixtral qwen3_moe"
#define LLAMAS GATED " nemotron"
#define CONV1D .transposed = TRUE
#define LESS_ONE .shift = 1

/* Sources: huggingface/transformers modeling_gpt2.py, modeling_llama.py, modeling_qwen2.py,
 * modeling_qwen3.py, modeling_mixtral.py, modeling_qwen3_moe.py and modeling_nemotron.py (whose NemotronLayerNorm1P adds one to its weight).
 * mistral is llama to us and has llama's names.  The biases of llama's projections come with
 * attention_bias and mlp_bias. */
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
  { "qwen3_moe", "router.weight", "model.layers.#.mlp.gate.weight" },
  { "qwen3_moe", "experts.fc1.weight", "model.layers.#.mlp.experts.@.gate_proj.weight", GATE },
  { "qwen3_moe", "experts.fc1.weight", "model.layers.#.mlp.experts.@.up_proj.weight", UP },
  { "qwen3_moe", "experts.fc2.weight", "model.layers.#.mlp.experts.@.down_proj.weight" },

  { FAMILIES, "head.weight", "lm_head.weight" },
};

static gboolean
is_among (const char *word, const char *words)
{
  g_auto (GStrv) list = g_strsplit (words, " ", -1);
  return g_strv_contains ((const char *const *) list, word);
}

/* A mark becomes a number. */
static char *
with_number (const char *pattern, char sign, uint32_t number)
{
  const char *mark = strchr (pattern, sign);

  if (!mark)
    return g_strdup (pattern);
  return g_strdup_printf ("%.*s%u%s", (int) (mark - pattern), pattern, number, mark + 1);
}

/* "q_proj" of layer 3. */
static char *
their_name (const char *pattern, uint32_t layer, uint32_t expert)
{
  g_autofree char *of_layer = with_number (pattern, '#', layer);

  return with_number (of_layer, '@', expert);
}

/* Experts whose rows a tensor of ours has one after the other. */
static uint32_t
n_experts (const union weft_model *m, const struct weft_state_tensor *tensor)
{
  return g_str_has_prefix (tensor->param, "experts.") ? (uint32_t) m->num_moe_experts : 1;
}

static void
set_rows (const union weft_model *m, const struct weft_state_tensor *tensor, enum share share,
          struct weft_hf_piece *piece)
{
  uint32_t experts = n_experts (m, tensor);
  uint64_t q = (uint64_t) m->num_attention_heads * m->kv_channels;
  uint64_t kv = (uint64_t) m->num_query_groups * m->kv_channels;
  uint64_t up = experts > 1 ? m->moe_ffn_hidden_size : m->ffn_hidden_size;
  const uint64_t first[] = { [KEY] = q, [VALUE] = q + kv, [UP] = up };
  const uint64_t count[] = { tensor->rows / experts, q, kv, kv, up, up };

  piece->first_row = first[share];
  piece->rows = count[share];
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
  piece.first_row += expert * (tensor->rows / n_experts (model, tensor));
  g_array_append_val (pieces, piece);
}

/* Each row of ours is in one piece: an MLP without a gate, for one, does not fit llama's names. */
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
      if (strcmp (rows[i].param, tensor->param) == 0 && is_among (family, rows[i].families))
        add_piece (pieces, &rows[i], model, tensor, expert);
  return check_rows (pieces, family, tensor, error) ? g_steal_pointer (&pieces) : NULL;
}
