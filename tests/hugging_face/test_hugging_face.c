/* Names and layouts of Hugging Face: each exported tensor has the name and shape of Hugging Face,
 * and export and import put every element in its place. The state here consists of plain arrays, so
 * that only names and layouts are tested; its tensors are those of a real program. */
#include "tests/made/random_job.h"
#include "train/hugging_face.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include <string.h>

/* ---------------------------------------------------------------- a state of arrays */

struct weft_state {
  enum weft_dtype dtype;
  union weft_model model;
  GArray *tensors;                        /* tensors of the state, struct weft_state_tensor */
  GPtrArray *values[WEFT_STATE_GRAD + 1]; /* values of each tensor, float * */
};

enum weft_dtype
weft_state_dtype (const weft_state *state)
{
  return state->dtype;
}

uint32_t
weft_state_count (const weft_state *state)
{
  return state->tensors->len;
}

const struct weft_state_tensor *
weft_state_at (const weft_state *state, uint32_t tensor)
{
  return &g_array_index (state->tensors, struct weft_state_tensor, tensor);
}

static float *
stretch (weft_state *state, uint32_t tensor, enum weft_state_kind kind, uint64_t first, uint64_t n)
{
  const struct weft_state_tensor *t = weft_state_at (state, tensor);

  assert_true (first + n <= t->rows * t->columns);
  return (float *) state->values[kind]->pdata[tensor] + first;
}

void
weft_state_read (weft_state *state, uint32_t tensor, enum weft_state_kind kind, uint64_t first,
                 uint64_t n, float *out)
{
  memcpy (out, stretch (state, tensor, kind, first, n), n * sizeof *out);
}

void
weft_state_write (weft_state *state, uint32_t tensor, enum weft_state_kind kind, uint64_t first,
                  uint64_t n, const float *in)
{
  memcpy (stretch (state, tensor, kind, first, n), in, n * sizeof *in);
}

gboolean
weft_state_quantise (weft_state *state, GError **error)
{
  (void) state, (void) error;
  return TRUE;
}

gboolean
weft_state_gather (weft_state *state, uint32_t tensor, GError **error)
{
  (void) state, (void) tensor, (void) error;
  return TRUE;
}

void
weft_state_drop_gathered (weft_state *state)
{
  (void) state;
}

gboolean
weft_state_go_on (const weft_state *state, GError **error)
{
  (void) state, (void) error;
  return TRUE;
}

struct weft_rendezvous *
weft_state_peers (const weft_state *state)
{
  (void) state;
  return NULL;
}

void
weft_state_free (weft_state *state)
{
  for (uint32_t i = 0; i < state->tensors->len; i++)
    g_free (g_array_index (state->tensors, struct weft_state_tensor, i).name);
  g_array_unref (state->tensors);
  for (unsigned k = 0; k < G_N_ELEMENTS (state->values); k++)
    g_ptr_array_unref (state->values[k]);
  g_free (state);
}

static void
add_tensor (weft_state *state, const weft_program *p, const struct weft_param *param)
{
  const char *name = p->name[param->name];
  struct weft_state_tensor t = { .param = g_intern_string (name),
                                 .layer = param->layer,
                                 .rows = param->rows,
                                 .columns = param->columns };

  t.name = param->layer == WEFT_NO_LAYER ? g_strdup (name)
                                         : g_strdup_printf ("layers.%u.%s", param->layer, name);
  g_array_append_val (state->tensors, t);
  for (unsigned k = 0; k < G_N_ELEMENTS (state->values); k++)
    g_ptr_array_add (state->values[k], g_new0 (float, t.rows *t.columns));
}

/* Returns a state with the tensors of the model `config`, all on one pipeline stage. All values are
 * 0. */
static weft_state *
state_of (const char *config)
{
  g_autoptr (weft_plan) plan = weft_test_plan ("model=%s topology=cpu gpus=1", config);
  weft_state *state = g_new0 (weft_state, 1);

  state->model = plan->job.model;
  state->dtype = WEFT_FP32;
  state->tensors = g_array_new (FALSE, FALSE, sizeof (struct weft_state_tensor));
  for (unsigned k = 0; k < G_N_ELEMENTS (state->values); k++)
    state->values[k] = g_ptr_array_new_with_free_func (g_free);
  for (uint32_t i = 0; i < plan->role[0]->n_param; i++)
    add_tensor (state, plan->role[0], &plan->role[0]->param[i]);
  return state;
}

/* -------------------------------------------------------------------------- models */

/* The settings of config.json that all models of this file share. */
#define SIZES                                                                                      \
  "\"vocab_size\":11,\"max_position_embeddings\":6,\"hidden_size\":8,\"num_hidden_layers\":2,"     \
  "\"num_attention_heads\":4,\"intermediate_size\":10"

#define EXPERTS                                                                                    \
  ",\"n_routed_experts\":2,\"num_experts_per_tok\":1,\"moe_intermediate_size\":6,"                 \
  "\"n_shared_experts\":1,"
#define LATENTS ",\"kv_lora_rank\":5,\"qk_nope_head_dim\":2,\"qk_rope_head_dim\":4,\"v_head_dim\":3"

/* Every family with tensor names: the keys of its config.json besides SIZES, and the expected
 * tensors of a model with two layers. Each tensor is "name rows columns" in the layout of Hugging
 * Face, in the order of Weft's tensors; # is the number of the layer. */
static const struct {
  const char *family, *keys, *ends, *layer, *last;
} families[] = {
  { "gpt2", "", "transformer.wte.weight 11 8;transformer.wpe.weight 6 8",
    "transformer.h.#.ln_1.weight 8;transformer.h.#.ln_1.bias 8;"
    "transformer.h.#.attn.c_attn.weight 8 24;transformer.h.#.attn.c_attn.bias 24;"
    "transformer.h.#.attn.c_proj.weight 8 8;transformer.h.#.attn.c_proj.bias 8;"
    "transformer.h.#.ln_2.weight 8;transformer.h.#.ln_2.bias 8;"
    "transformer.h.#.mlp.c_fc.weight 8 10;transformer.h.#.mlp.c_fc.bias 10;"
    "transformer.h.#.mlp.c_proj.weight 10 8;transformer.h.#.mlp.c_proj.bias 8",
    "transformer.ln_f.weight 8;transformer.ln_f.bias 8" },
#define LAYERS "model.layers.#."
  { "llama", ",\"num_key_value_heads\":2", "model.embed_tokens.weight 11 8",
    LAYERS "input_layernorm.weight 8;" LAYERS "self_attn.q_proj.weight 8 8;" LAYERS
           "self_attn.k_proj.weight 4 8;" LAYERS "self_attn.v_proj.weight 4 8;" LAYERS
           "self_attn.o_proj.weight 8 8;" LAYERS "post_attention_layernorm.weight 8;" LAYERS
           "mlp.gate_proj.weight 10 8;" LAYERS "mlp.up_proj.weight 10 8;" LAYERS
           "mlp.down_proj.weight 8 10",
    "model.norm.weight 8;lm_head.weight 11 8" },
  { "mistral", ",\"num_key_value_heads\":4,\"attention_bias\":true,\"mlp_bias\":true",
    "model.embed_tokens.weight 11 8",
    LAYERS "input_layernorm.weight 8;" LAYERS "self_attn.q_proj.weight 8 8;" LAYERS
           "self_attn.k_proj.weight 8 8;" LAYERS "self_attn.v_proj.weight 8 8;" LAYERS
           "self_attn.q_proj.bias 8;" LAYERS "self_attn.k_proj.bias 8;" LAYERS
           "self_attn.v_proj.bias 8;" LAYERS "self_attn.o_proj.weight 8 8;" LAYERS
           "self_attn.o_proj.bias 8;" LAYERS "post_attention_layernorm.weight 8;" LAYERS
           "mlp.gate_proj.weight 10 8;" LAYERS "mlp.up_proj.weight 10 8;" LAYERS
           "mlp.gate_proj.bias 10;" LAYERS "mlp.up_proj.bias 10;" LAYERS
           "mlp.down_proj.weight 8 10;" LAYERS "mlp.down_proj.bias 8",
    "model.norm.weight 8;lm_head.weight 11 8" },
  { "qwen2", ",\"num_key_value_heads\":1,\"tie_word_embeddings\":true",
    "model.embed_tokens.weight 11 8",
    LAYERS "input_layernorm.weight 8;" LAYERS "self_attn.q_proj.weight 8 8;" LAYERS
           "self_attn.k_proj.weight 2 8;" LAYERS "self_attn.v_proj.weight 2 8;" LAYERS
           "self_attn.q_proj.bias 8;" LAYERS "self_attn.k_proj.bias 2;" LAYERS
           "self_attn.v_proj.bias 2;" LAYERS "self_attn.o_proj.weight 8 8;" LAYERS
           "post_attention_layernorm.weight 8;" LAYERS "mlp.gate_proj.weight 10 8;" LAYERS
           "mlp.up_proj.weight 10 8;" LAYERS "mlp.down_proj.weight 8 10",
    "model.norm.weight 8" },
  { "qwen3", ",\"num_key_value_heads\":2,\"head_dim\":6", "model.embed_tokens.weight 11 8",
    LAYERS "input_layernorm.weight 8;" LAYERS "self_attn.q_proj.weight 24 8;" LAYERS
           "self_attn.k_proj.weight 12 8;" LAYERS "self_attn.v_proj.weight 12 8;" LAYERS
           "self_attn.q_norm.weight 6;" LAYERS "self_attn.k_norm.weight 6;" LAYERS
           "self_attn.o_proj.weight 8 24;" LAYERS "post_attention_layernorm.weight 8;" LAYERS
           "mlp.gate_proj.weight 10 8;" LAYERS "mlp.up_proj.weight 10 8;" LAYERS
           "mlp.down_proj.weight 8 10",
    "model.norm.weight 8;lm_head.weight 11 8" },
  { "nemotron", ",\"num_key_value_heads\":2,\"head_dim\":4,\"hidden_act\":\"relu2\"",
    "model.embed_tokens.weight 11 8",
    LAYERS "input_layernorm.weight 8;" LAYERS "input_layernorm.bias 8;" LAYERS
           "self_attn.q_proj.weight 16 8;" LAYERS "self_attn.k_proj.weight 8 8;" LAYERS
           "self_attn.v_proj.weight 8 8;" LAYERS "self_attn.o_proj.weight 8 16;" LAYERS
           "post_attention_layernorm.weight 8;" LAYERS "post_attention_layernorm.bias 8;" LAYERS
           "mlp.up_proj.weight 10 8;" LAYERS "mlp.down_proj.weight 8 10",
    "model.norm.weight 8;model.norm.bias 8;lm_head.weight 11 8" },
  { "mixtral", ",\"num_key_value_heads\":2,\"num_local_experts\":2,\"num_experts_per_tok\":1",
    "model.embed_tokens.weight 11 8",
    LAYERS
    "input_layernorm.weight 8;" LAYERS "self_attn.q_proj.weight 8 8;" LAYERS
    "self_attn.k_proj.weight 4 8;" LAYERS "self_attn.v_proj.weight 4 8;" LAYERS
    "self_attn.o_proj.weight 8 8;" LAYERS "post_attention_layernorm.weight 8;" LAYERS
    "block_sparse_moe.gate.weight 2 8;" LAYERS "block_sparse_moe.experts.0.w1.weight 10 8;" LAYERS
    "block_sparse_moe.experts.0.w3.weight 10 8;" LAYERS
    "block_sparse_moe.experts.1.w1.weight 10 8;" LAYERS
    "block_sparse_moe.experts.1.w3.weight 10 8;" LAYERS
    "block_sparse_moe.experts.0.w2.weight 8 10;" LAYERS "block_sparse_moe.experts.1.w2.weight 8 10",
    "model.norm.weight 8;lm_head.weight 11 8" },
  { "qwen3_moe",
    ",\"num_key_value_heads\":2,\"head_dim\":2,\"num_experts\":2,\"num_experts_per_tok\":1,"
    "\"moe_intermediate_size\":6",
    "model.embed_tokens.weight 11 8",
    LAYERS "input_layernorm.weight 8;" LAYERS "self_attn.q_proj.weight 8 8;" LAYERS
           "self_attn.k_proj.weight 4 8;" LAYERS "self_attn.v_proj.weight 4 8;" LAYERS
           "self_attn.q_norm.weight 2;" LAYERS "self_attn.k_norm.weight 2;" LAYERS
           "self_attn.o_proj.weight 8 8;" LAYERS "post_attention_layernorm.weight 8;" LAYERS
           "mlp.gate.weight 2 8;" LAYERS "mlp.experts.0.gate_proj.weight 6 8;" LAYERS
           "mlp.experts.0.up_proj.weight 6 8;" LAYERS "mlp.experts.1.gate_proj.weight 6 8;" LAYERS
           "mlp.experts.1.up_proj.weight 6 8;" LAYERS "mlp.experts.0.down_proj.weight 8 6;" LAYERS
           "mlp.experts.1.down_proj.weight 8 6",
    "model.norm.weight 8;lm_head.weight 11 8" },
#define ROUTED                                                                                     \
  LAYERS "mlp.gate.weight 2 8;" LAYERS "mlp.experts.0.gate_proj.weight 6 8;" LAYERS                \
         "mlp.experts.0.up_proj.weight 6 8;" LAYERS "mlp.experts.1.gate_proj.weight 6 8;" LAYERS   \
         "mlp.experts.1.up_proj.weight 6 8;" LAYERS "mlp.experts.0.down_proj.weight 8 6;" LAYERS   \
         "mlp.experts.1.down_proj.weight 8 6;"
#define DEEPSEEK                                                                                   \
  LAYERS "input_layernorm.weight 8;" LAYERS "self_attn.o_proj.weight 8 12;"
#define LATENT_KEYS                                                                                \
  LAYERS "self_attn.kv_a_proj_with_mqa.weight 9 8;" LAYERS                                         \
         "self_attn.kv_a_layernorm.weight 5;" LAYERS "self_attn.kv_b_proj.weight 20 5;" LAYERS     \
         "post_attention_layernorm.weight 8;"
#define SHARED                                                                                     \
  LAYERS "mlp.shared_experts.gate_proj.weight 6 8;" LAYERS                                         \
         "mlp.shared_experts.up_proj.weight 6 8;" LAYERS "mlp.shared_experts.down_proj.weight 8 6"
  { "qwen2_moe",
    ",\"num_experts\":2,\"num_experts_per_tok\":1,\"moe_intermediate_size\":6,"
    "\"shared_expert_intermediate_size\":4",
    "model.embed_tokens.weight 11 8",
    LAYERS "input_layernorm.weight 8;" LAYERS "self_attn.q_proj.weight 8 8;" LAYERS
           "self_attn.k_proj.weight 8 8;" LAYERS "self_attn.v_proj.weight 8 8;" LAYERS
           "self_attn.q_proj.bias 8;" LAYERS "self_attn.k_proj.bias 8;" LAYERS
           "self_attn.v_proj.bias 8;" LAYERS "self_attn.o_proj.weight 8 8;" LAYERS
           "post_attention_layernorm.weight 8;" ROUTED LAYERS
           "mlp.shared_expert.gate_proj.weight 4 8;" LAYERS
           "mlp.shared_expert.up_proj.weight 4 8;" LAYERS
           "mlp.shared_expert.down_proj.weight 8 4;" LAYERS "mlp.shared_expert_gate.weight 1 8",
    "model.norm.weight 8;lm_head.weight 11 8" },
  { "deepseek_v2", EXPERTS "\"q_lora_rank\":null,\"topk_method\":\"greedy\"" LATENTS,
    "model.embed_tokens.weight 11 8",
    DEEPSEEK LAYERS "self_attn.q_proj.weight 24 8;" LATENT_KEYS ROUTED SHARED,
    "model.norm.weight 8;lm_head.weight 11 8" },
  { "deepseek_v3", EXPERTS "\"q_lora_rank\":3,\"topk_method\":\"noaux_tc\"" LATENTS,
    "model.embed_tokens.weight 11 8",
    DEEPSEEK LAYERS "self_attn.q_a_proj.weight 3 8;" LAYERS
                    "self_attn.q_a_layernorm.weight 3;" LAYERS
                    "self_attn.q_b_proj.weight 24 3;" LATENT_KEYS ROUTED SHARED,
    "model.norm.weight 8;lm_head.weight 11 8" },
#undef SHARED
#undef LATENT_KEYS
#undef DEEPSEEK
#undef ROUTED
#undef LAYERS
};

static weft_state *
make_state (const char *folder, const char *json)
{
  g_autofree char *path = g_build_filename (folder, "config.json", NULL);

  assert_true (g_file_set_contents (path, json, -1, NULL));
  return state_of (path);
}

static weft_state *
family_state (const char *folder, unsigned f)
{
  g_autofree char *json =
      g_strdup_printf ("{\"model_type\":\"%s\"," SIZES "%s}", families[f].family, families[f].keys);
  return make_state (folder, json);
}

/* Gives every element a value that identifies its tensor and position. `coarse`: only values that
 * are exact in bf16, from 1 to 1.97 in steps of 1/64. */
static void
fill (weft_state *state, enum weft_state_kind kind, gboolean coarse)
{
  for (uint32_t t = 0; t < weft_state_count (state); t++) {
    const struct weft_state_tensor *tensor = weft_state_at (state, t);
    float *value = state->values[kind]->pdata[t];
    for (uint64_t i = 0; i < tensor->rows * tensor->columns; i++)
      value[i] = coarse ? 1 + (i * 7 + t * 13) % 63 / 64.0f : t * 0x1p-8f + i * 0x1p-24f;
  }
}

static void
assert_same_values (weft_state *a, enum weft_state_kind kind_a, weft_state *b,
                    enum weft_state_kind kind_b)
{
  for (uint32_t t = 0; t < weft_state_count (a); t++) {
    const struct weft_state_tensor *tensor = weft_state_at (a, t);
    if (memcmp (a->values[kind_a]->pdata[t], b->values[kind_b]->pdata[t],
                tensor->rows * tensor->columns * sizeof (float)))
      fail_msg ("%s is not what it was", tensor->name);
  }
}

static char *
export_to (const char *folder, weft_state *state, enum weft_state_kind kind)
{
  char *path = g_build_filename (folder, "model.safetensors", NULL);
  g_autoptr (GError) error = NULL;

  if (!weft_hf_export (state, &state->model, kind, path, &error))
    fail_msg ("%s", error->message);
  return path;
}

static char *
import_good (weft_state *state, const char *path)
{
  g_autoptr (GError) error = NULL;
  char *unused = NULL;

  if (!weft_hf_import (state, &state->model, path, &unused, &error))
    fail_msg ("%s", error->message);
  return unused;
}

/* -------------------------------------------------------------------------- names */

static void
append_lines (GString *all, const char *lines, int layer)
{
  g_auto (GStrv) line = g_strsplit (lines, ";", -1);
  g_autofree char *number = g_strdup_printf ("%d", layer);

  for (unsigned i = 0; line[i]; i++) {
    g_auto (GStrv) part = g_strsplit (line[i], "#", 2);
    g_autofree char *name = g_strjoinv (number, part);
    g_string_append_printf (all, "%s\n", name);
  }
}

/* Returns the contents of a safetensors file, one line "name rows columns" per tensor, in the order
 * of the data. The caller frees the text. */
static char *
contents (const char *path)
{
  g_autoptr (weft_safetensors) file = weft_safetensors_open (path, NULL);
  GString *all = g_string_new (NULL);

  assert_non_null (file);
  assert_string_equal (weft_safetensors_metadata (file, "format"), "pt");
  for (uint32_t i = 0; i < weft_safetensors_count (file); i++) {
    const struct weft_tensor *t = weft_safetensors_at (file, i);
    g_string_append (all, t->name);
    for (uint32_t d = 0; d < t->n_dim; d++)
      g_string_append_printf (all, " %u", (unsigned) t->dim[d]);
    g_string_append_c (all, '\n');
  }
  return g_string_free (all, FALSE);
}

static void
each_family_has_its_names_and_shapes (void **folder)
{
  for (unsigned f = 0; f < G_N_ELEMENTS (families); f++) {
    weft_state *state = family_state (*folder, f);
    g_autofree char *path = export_to (*folder, state, WEFT_STATE_WEIGHT);
    g_autofree char *found = contents (path);
    g_autoptr (GString) wanted = g_string_new (NULL);
    append_lines (wanted, families[f].ends, 0);
    append_lines (wanted, families[f].layer, 0);
    append_lines (wanted, families[f].layer, 1);
    append_lines (wanted, families[f].last, 0);
    assert_string_equal (found, wanted->str);
    weft_state_free (state);
  }
}

static void
pieces_cut_each_tensor_into_all_its_rows (void **folder)
{
  for (unsigned f = 0; f < G_N_ELEMENTS (families); f++) {
    weft_state *state = family_state (*folder, f);
    for (uint32_t t = 0; t < weft_state_count (state); t++) {
      const struct weft_state_tensor *tensor = weft_state_at (state, t);
      g_autoptr (GArray) pieces = weft_hf_pieces (&state->model, tensor, NULL);
      uint64_t row = 0;
      for (uint32_t i = 0; i < pieces->len; i++) {
        const struct weft_hf_piece *piece = &g_array_index (pieces, struct weft_hf_piece, i);
        assert_int_equal (piece->first_row, row);
        assert_int_equal (piece->columns, tensor->columns);
        row += piece->rows;
      }
      assert_int_equal (row, tensor->rows);
    }
    weft_state_free (state);
  }
}

static void
a_family_without_names_is_told_which_have_some (void **folder)
{
  weft_state *state = family_state (*folder, 1);
  g_autoptr (GError) error = NULL, odd = NULL, nameless = NULL;

  union weft_model model = state->model;
  model.family = g_quark_from_string ("gpt_oss");
  assert_null (weft_hf_pieces (&model, weft_state_at (state, 0), &error));
  assert_non_null (
      strstr (error->message, "found \"gpt_oss\", wanted one of gpt2, llama, mixtral"));
  model = state->model;
  model.ffn_hidden_size = 5;
  assert_false (weft_hf_import (state, &model, "none", NULL, &odd));
  assert_non_null (strstr (
      odd->message, "layers.0.fc1.weight: found 20 rows, wanted the 10 rows of model family"));
  model.family = g_quark_from_string ("gpt2");
  struct weft_state_tensor norm = {
    .name = "q", .param = "q_norm.weight", .rows = 2, .columns = 1
  };
  assert_null (weft_hf_pieces (&model, &norm, &nameless));
  assert_non_null (strstr (nameless->message, "q: model family gpt2 has no name for it"));
  weft_state_free (state);
}

/* ------------------------------------------------------------------------- values */

static void
what_is_exported_imports_to_the_same_bits (void **folder)
{
  for (unsigned f = 0; f < G_N_ELEMENTS (families); f++)
    for (int bf16 = 0; bf16 < 2; bf16++) {
      weft_state *from = family_state (*folder, f), *to = family_state (*folder, f);
      gboolean shifted = strcmp (families[f].family, "nemotron") == 0;
      from->dtype = bf16 ? WEFT_BF16 : WEFT_FP32;
      fill (from, WEFT_STATE_WEIGHT, bf16 || shifted);
      g_autofree char *path = export_to (*folder, from, WEFT_STATE_WEIGHT);
      g_autoptr (weft_safetensors) file = weft_safetensors_open (path, NULL);
      assert_int_equal (weft_safetensors_at (file, 0)->type,
                        bf16 ? WEFT_TENSOR_BF16 : WEFT_TENSOR_F32);
      assert_null (import_good (to, path));
      assert_same_values (from, WEFT_STATE_WEIGHT, to, WEFT_STATE_WEIGHT);
      assert_same_values (from, WEFT_STATE_WEIGHT, to, WEFT_STATE_MASTER);
      weft_state_free (from);
      weft_state_free (to);
    }
}

/* Returns element (row, column) of a tensor of a safetensors file, in the layout of the file. */
static float
theirs (const weft_safetensors *file, const char *name, uint64_t row, uint64_t column)
{
  const struct weft_tensor *t = weft_safetensors_find (file, name);
  float value;

  assert_non_null (t);
  assert_true (weft_safetensors_floats (file, t, row * (t->n_dim > 1 ? t->dim[1] : 1) + column, 1,
                                        &value, NULL));
  return value;
}

static float
ours (weft_state *state, const char *name, uint64_t row, uint64_t column)
{
  for (uint32_t t = 0; t < weft_state_count (state); t++)
    if (strcmp (weft_state_at (state, t)->name, name) == 0)
      return *stretch (state, t, WEFT_STATE_WEIGHT,
                       row * weft_state_at (state, t)->columns + column, 1);
  fail_msg ("no tensor %s", name);
  return 0;
}

static void
gpt2_is_transposed_and_llama_is_cut (void **folder)
{
  weft_state *gpt2 = family_state (*folder, 0), *llama = family_state (*folder, 1);

  fill (gpt2, WEFT_STATE_WEIGHT, FALSE);
  fill (llama, WEFT_STATE_WEIGHT, FALSE);
  g_autofree char *path = export_to (*folder, gpt2, WEFT_STATE_WEIGHT);
  g_autoptr (weft_safetensors) a = weft_safetensors_open (path, NULL);
  for (unsigned row = 0; row < 24; row++)
    for (unsigned column = 0; column < 8; column++)
      assert_true (theirs (a, "transformer.h.1.attn.c_attn.weight", column, row) ==
                   ours (gpt2, "layers.1.qkv.weight", row, column));
  assert_true (theirs (a, "transformer.wpe.weight", 5, 2) == ours (gpt2, "position.weight", 5, 2));
  g_autofree char *again = export_to (*folder, llama, WEFT_STATE_WEIGHT);
  g_autoptr (weft_safetensors) b = weft_safetensors_open (again, NULL);
  assert_true (theirs (b, "model.layers.1.self_attn.q_proj.weight", 7, 3) ==
               ours (llama, "layers.1.qkv.weight", 7, 3));
  assert_true (theirs (b, "model.layers.1.self_attn.k_proj.weight", 3, 3) ==
               ours (llama, "layers.1.qkv.weight", 11, 3));
  assert_true (theirs (b, "model.layers.1.self_attn.v_proj.weight", 0, 7) ==
               ours (llama, "layers.1.qkv.weight", 12, 7));
  assert_true (theirs (b, "model.layers.0.mlp.gate_proj.weight", 9, 1) ==
               ours (llama, "layers.0.fc1.weight", 9, 1));
  assert_true (theirs (b, "model.layers.0.mlp.up_proj.weight", 0, 1) ==
               ours (llama, "layers.0.fc1.weight", 10, 1));
  weft_state_free (gpt2);
  weft_state_free (llama);
}

static void
nemotron_keeps_norm_weights_less_one_but_not_gradients (void **folder)
{
  static const char norm[] = "model.layers.0.input_layernorm.weight";
  weft_state *state = family_state (*folder, 5);

  fill (state, WEFT_STATE_WEIGHT, TRUE);
  fill (state, WEFT_STATE_GRAD, TRUE);
  g_autofree char *path = export_to (*folder, state, WEFT_STATE_WEIGHT);
  g_autoptr (weft_safetensors) weights = weft_safetensors_open (path, NULL);
  assert_true (theirs (weights, norm, 3, 0) == ours (state, "layers.0.norm1.weight", 3, 0) - 1);
  assert_true (theirs (weights, "model.norm.weight", 3, 0) ==
               ours (state, "final_norm.weight", 3, 0) - 1);
  assert_true (theirs (weights, "model.norm.bias", 3, 0) == ours (state, "final_norm.bias", 3, 0));
  g_autofree char *again = export_to (*folder, state, WEFT_STATE_GRAD);
  g_autoptr (weft_safetensors) gradients = weft_safetensors_open (again, NULL);
  assert_true (theirs (gradients, norm, 3, 0) == ours (state, "layers.0.norm1.weight", 3, 0));
  weft_state_free (state);
}

/* Export and import copy or transpose a matrix block by block. The matrices of this test have
 * several blocks, and the last block is smaller. */
static void
large_tensors_pass_in_blocks (void **folder)
{
  static const char config[] =
      "{\"model_type\":\"gpt2\",\"vocab_size\":2100,\"n_positions\":4,\"n_embd\":512,"
      "\"n_layer\":1,\"n_head\":4,\"n_inner\":4104}";
  weft_state *from = make_state (*folder, config), *to = make_state (*folder, config);

  fill (from, WEFT_STATE_WEIGHT, FALSE);
  g_autofree char *path = export_to (*folder, from, WEFT_STATE_WEIGHT);
  assert_null (import_good (to, path));
  assert_same_values (from, WEFT_STATE_WEIGHT, to, WEFT_STATE_WEIGHT);
  g_autoptr (weft_safetensors) file = weft_safetensors_open (path, NULL);
  assert_true (theirs (file, "transformer.h.0.mlp.c_fc.weight", 511, 4103) ==
               ours (from, "layers.0.fc1.weight", 4103, 511));
  assert_true (theirs (file, "transformer.h.0.mlp.c_proj.weight", 4100, 17) ==
               ours (from, "layers.0.fc2.weight", 17, 4100));
  weft_state_free (from);
  weft_state_free (to);
}

static void
gradients_are_written_as_floats (void **folder)
{
  weft_state *state = family_state (*folder, 3);

  state->dtype = WEFT_BF16;
  fill (state, WEFT_STATE_GRAD, FALSE);
  g_autofree char *path = export_to (*folder, state, WEFT_STATE_GRAD);
  weft_state *to = family_state (*folder, 3);
  g_autoptr (weft_safetensors) file = weft_safetensors_open (path, NULL);
  assert_int_equal (weft_safetensors_at (file, 3)->type, WEFT_TENSOR_F32);
  assert_null (import_good (to, path));
  assert_same_values (state, WEFT_STATE_GRAD, to, WEFT_STATE_WEIGHT);
  weft_state_free (state);
  weft_state_free (to);
}

/* ---------------------------------------------------------------- files of others */

/* Rewrites a safetensors file: removes `prefix` from all names, adds the tensors `more` (names
 * separated by spaces, one element each), and leaves out the tensor `without`. */
static void
rewrite (const char *path, const char *prefix, const char *more, const char *without)
{
  g_autoptr (weft_safetensors) file = weft_safetensors_open (path, NULL);
  weft_safetensors_writer *w = weft_safetensors_writer_new (path);
  g_auto (GStrv) added = g_strsplit (more, " ", -1);
  float one = 1;

  for (uint32_t i = 0; i < weft_safetensors_count (file); i++) {
    const struct weft_tensor *t = weft_safetensors_at (file, i);
    gboolean bare = g_str_has_prefix (t->name, prefix);
    if (strcmp (t->name, without))
      weft_safetensors_declare (w, t->name + (bare ? strlen (prefix) : 0), t->type, t->n_dim,
                                t->dim);
  }
  for (unsigned i = 0; added[i]; i++)
    weft_safetensors_declare (w, added[i], WEFT_TENSOR_F32, 0, NULL);
  for (uint32_t i = 0; i < weft_safetensors_count (file); i++) {
    const struct weft_tensor *t = weft_safetensors_at (file, i);
    if (strcmp (t->name, without))
      assert_true (
          weft_safetensors_put (w, weft_safetensors_data (file, t), t->end - t->begin, NULL));
  }
  for (unsigned i = 0; added[i]; i++)
    assert_true (weft_safetensors_put (w, &one, sizeof one, NULL));
  assert_true (weft_safetensors_close (w, NULL));
}

/* Published gpt2 files have names without the prefix "transformer.", and contain buffers
 * (attention masks) beside the weights. An import finds the weights, and does not report the
 * known buffers as unused. */
static void
files_of_the_bare_model_are_found_and_buffers_are_no_news (void **folder)
{
  weft_state *from = family_state (*folder, 0), *to = family_state (*folder, 0);

  fill (from, WEFT_STATE_WEIGHT, FALSE);
  g_autofree char *path = export_to (*folder, from, WEFT_STATE_WEIGHT);
  rewrite (path, "transformer.", "h.0.attn.bias h.1.attn.masked_bias lm_head.weight", "");
  assert_null (import_good (to, path));
  assert_same_values (from, WEFT_STATE_WEIGHT, to, WEFT_STATE_WEIGHT);
  rewrite (path, "transformer.", "h.2.ln_1.weight score.weight", "");
  g_autofree char *unused = import_good (to, path);
  assert_string_equal (unused, "h.2.ln_1.weight, score.weight");
  weft_state_free (from);
  weft_state_free (to);
}

static void
assert_import_fails (weft_state *state, const char *path, const char *message)
{
  g_autoptr (GError) error = NULL;
  char *unused = NULL;

  assert_false (weft_hf_import (state, &state->model, path, &unused, &error));
  if (!strstr (error->message, message))
    fail_msg ("found:  %s\nwanted: %s", error->message, message);
  assert_null (unused);
}

static void
what_does_not_fit_is_refused_before_anything_is_written (void **folder)
{
  weft_state *from = family_state (*folder, 1), *to = family_state (*folder, 1);
  weft_state *untouched = family_state (*folder, 1);

  fill (from, WEFT_STATE_WEIGHT, FALSE);
  g_autofree char *path = export_to (*folder, from, WEFT_STATE_WEIGHT);
  rewrite (path, "model.", "", "lm_head.weight");
  assert_import_fails (to, path,
                       "model.safetensors: found no tensor lm_head.weight, wanted it for head");
  rewrite (path, "model.", "lm_head.weight", "");
  assert_import_fails (to, path, "tensor lm_head.weight: found shape [], wanted [11, 8]");
  weft_safetensors_writer *w = weft_safetensors_writer_new (path);
  weft_safetensors_declare (w, "model.embed_tokens.weight", WEFT_TENSOR_F32, 2,
                            (const uint64_t[]){ 12, 0 });
  assert_true (weft_safetensors_close (w, NULL));
  assert_import_fails (to, path,
                       "tensor model.embed_tokens.weight: found shape [12, 0], wanted [11,");
  w = weft_safetensors_writer_new (path);
  weft_safetensors_declare (w, "embed_tokens.weight", WEFT_TENSOR_I8, 2,
                            (const uint64_t[]){ 11, 8 });
  assert_true (weft_safetensors_put (w,
                                     "0123456789012345678901234567890123456789012345678901234"
                                     "567890123456789012345678901234567",
                                     88, NULL));
  assert_true (weft_safetensors_close (w, NULL));
  assert_import_fails (to, path, "tensor embed_tokens.weight: found type I8, wanted F32");
  w = weft_safetensors_writer_new (path);
  weft_safetensors_declare_metadata (w, "format", "flax");
  assert_true (weft_safetensors_close (w, NULL));
  assert_import_fails (to, path, "model.safetensors: found format flax, wanted pt");
  assert_same_values (to, WEFT_STATE_WEIGHT, untouched, WEFT_STATE_WEIGHT);
  weft_state_free (from);
  weft_state_free (to);
  weft_state_free (untouched);
}

static void
a_file_that_cannot_be_written_is_told (void **folder)
{
  weft_state *state = family_state (*folder, 1);
  g_autofree char *path = g_build_filename (*folder, "no", "model.safetensors", NULL);
  g_autoptr (GError) error = NULL;

  assert_false (weft_hf_export (state, &state->model, WEFT_STATE_WEIGHT, path, &error));
  assert_non_null (strstr (error->message, "cannot be made: No such file or directory"));
  weft_state_free (state);
}

/* Imports the safetensors files of tests/vectors, which PyTorch has written: no tensor is
 * missing or unused. */
static void
files_of_other_software_are_read_whole (void **folder)
{
  static const char *const models[] = { "gpt2", "llama", "qwen2", "qwen3" };

  for (unsigned i = 0; i < G_N_ELEMENTS (models); i++) {
    g_autofree char *config =
        g_build_filename (WEFT_SOURCE_DIR, "tests", "vectors", models[i], "config.json", NULL);
    g_autofree char *path = g_build_filename (WEFT_SOURCE_DIR, "tests", "vectors", models[i], NULL);
    weft_state *state = state_of (config);
    assert_null (import_good (state, path));
    g_autofree char *copy = export_to (*folder, state, WEFT_STATE_WEIGHT);
    g_autoptr (weft_safetensors) wanted = weft_safetensors_open (path, NULL);
    g_autoptr (weft_safetensors) found = weft_safetensors_open (copy, NULL);
    assert_int_equal (weft_safetensors_count (found), weft_safetensors_count (wanted));
    for (uint32_t t = 0; t < weft_safetensors_count (wanted); t++) {
      const struct weft_tensor *a = weft_safetensors_at (wanted, t);
      const struct weft_tensor *b = weft_safetensors_find (found, a->name);
      assert_non_null (b);
      assert_memory_equal (weft_safetensors_data (wanted, a), weft_safetensors_data (found, b),
                           a->end - a->begin);
    }
    weft_state_free (state);
  }
}

#define TEST(name)                                                                                 \
  cmocka_unit_test_setup_teardown (name, weft_test_folder_make, weft_test_folder_remove)
static const struct CMUnitTest tests[] = {
  TEST (each_family_has_its_names_and_shapes),
  TEST (pieces_cut_each_tensor_into_all_its_rows),
  TEST (a_family_without_names_is_told_which_have_some),
  TEST (what_is_exported_imports_to_the_same_bits),
  TEST (gpt2_is_transposed_and_llama_is_cut),
  TEST (nemotron_keeps_norm_weights_less_one_but_not_gradients),
  TEST (large_tensors_pass_in_blocks),
  TEST (gradients_are_written_as_floats),
  TEST (files_of_the_bare_model_are_found_and_buffers_are_no_news),
  TEST (what_does_not_fit_is_refused_before_anything_is_written),
  TEST (a_file_that_cannot_be_written_is_told),
  TEST (files_of_other_software_are_read_whole),
};

WEFT_TESTS (tests)
