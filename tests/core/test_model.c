/* Models: published parameter counts, every spelling of the keys of config.json, and errors of
 * bad files. */
#include "core/base/error.h"
#include "core/job/model.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

/* Published parameter counts. If `close` is 0, Weft must count exactly the parameters of the
 * published weight files. Otherwise the publication (paper or model card) rounds, and Weft's count
 * must agree within `close`; another test checks the exact number. OUTSIDE: the published number of
 * active parameters does not include the embedding. */
enum counted { ALL, OUTSIDE };
static const struct {
  const char *name;
  double parameters, close; /* largest relative error of Weft's count; 0: the count must be exact */
  /* published number of active parameters; 0: the model has no inactive parameters */
  double active;
  double active_close;
  enum counted embedding;
} published[] = {
  { "gpt2", 124439808, 0, 0, 0, ALL },
  { "gpt2-medium", 354823168, 0, 0, 0, ALL },
  { "gpt2-large", 774030080, 0, 0, 0, ALL },
  { "gpt2-xl", 1557611200, 0, 0, 0, ALL },
  { "gpt3-175b", 174600e6, 1e-4, 0, 0, ALL },
  { "megatron-22b", 22e9, 0.01, 0, 0, ALL },
  { "megatron-530b", 530e9, 0.01, 0, 0, ALL },
  { "megatron-1t", 1008e9, 1e-3, 0, 0, ALL },
  { "llama2-7b", 6738415616, 0, 0, 0, ALL },
  { "llama2-13b", 13015864320, 0, 0, 0, ALL },
  { "llama2-70b", 68976648192, 0, 0, 0, ALL },
  { "llama3-8b", 8030261248, 0, 0, 0, ALL },
  { "llama3-70b", 70553706496, 0, 0, 0, ALL },
  { "llama3.1-8b", 8030261248, 0, 0, 0, ALL },
  { "llama3.1-70b", 70553706496, 0, 0, 0, ALL },
  { "llama3.1-405b", 405853388800, 0, 0, 0, ALL },
  { "llama-4-maverick", 400e9, 0.002, 17e9, 0.015, ALL }, /* 400B and 17B in Meta's model card */
  { "llama-4-scout", 109e9, 0.012, 17e9, 0.015, ALL }, /* 109B with vision, 17B */
  { "qwen1.5-moe-a2.7b", 14315784192, 0, 2.7e9, 0.01, ALL },
  { "qwen2.5-0.5b", 494032768, 0, 0, 0, ALL },
  { "qwen2.5-1.5b", 1543714304, 0, 0, 0, ALL },
  { "qwen2.5-7b", 7615616512, 0, 0, 0, ALL },
  /* Qwen's weight file stores the tied head a second time, which Weft does not count */
  { "qwen3-0.6b", 751632384 - 151936 * 1024, 0, 0, 0, ALL },
  { "qwen3-1.7b", 2031739904 - 151936 * 2048, 0, 0, 0, ALL },
  { "qwen3-4b", 4022468096, 0, 0, 0, ALL },
  { "qwen3-8b", 8190735360, 0, 0, 0, ALL },
  { "qwen3-14b", 14768307200, 0, 0, 0, ALL },
  { "qwen3-32b", 32762123264, 0, 0, 0, ALL },
  { "qwen3-30b-a3b", 30532122624, 0, 3.3e9, 0.02, ALL },
  { "qwen3-235b-a22b", 235093634560, 0, 22e9, 0.02, ALL },
  { "mixtral-8x7b", 46702792704, 0, 12.9e9, 0.01, ALL },
  { "mixtral-8x22b", 140630071296, 0, 39e9, 0.01, ALL },
  { "deepseek-v2", 235741434880, 0, 21e9, 0.01, OUTSIDE },
  { "deepseek-v2-lite", 15706484224, 0, 2.4e9, 0.025, OUTSIDE },
  { "deepseek-v3", 671026419200, 0, 37e9, 0.02, ALL },
  { "kimi-k2", 1.04e12, 0.015, 32.6e9, 0.01, ALL },        /* arXiv:2507.20534 table 2 */
  { "gpt-oss-20b", 20.91e9, 5e-4, 3.61e9, 1e-3, OUTSIDE }, /* arXiv:2508.10925 table 1 */
  { "gpt-oss-120b", 116.83e9, 5e-4, 5.13e9, 1e-3, OUTSIDE },
  /* xAI publishes 25 % as active; two of eight experts and attention are 26 %. */
  { "grok-1-314b", 314e9, 0.006, 0.25 * 314e9, 0.07, ALL },
  { "gemma2-9b", 9241705984, 0, 0, 0, ALL },
  { "gemma3-1b", 999885952, 0, 0, 0, ALL },
  { "gpt-neox-20b", 20554567680, 0, 0, 0, ALL },
  { "olmo2-7b", 7298617344, 0, 0, 0, ALL },
  { "phi3-mini", 3821079552, 0, 0, 0, ALL },
  { "opt-6.7b", 6658473984, 0, 0, 0, ALL },
  { "bloom-7b1", 7069016064, 0, 0, 0, ALL },
  { "bloom-176b", 176247271424, 0, 0, 0, ALL },
  { "glm4-9b", 9400279040, 0, 0, 0, ALL },
  { "smollm3-3b", 3075098624, 0, 0, 0, ALL },
  { "nemotron4-15b", 3.2e9 + 12.5e9, 0.01, 0, 0, ALL },
  { "nemotron4-340b", 9.4e9 + 331.6e9, 1e-3, 0, 0, ALL },
};

static union weft_model
load (const char *name)
{
  union weft_model model;
  g_autoptr (GError) error = NULL;

  if (!weft_model_load (name, &model, NULL, &error))
    fail_msg ("%s", error->message);
  return model;
}

static union weft_model
parse (const char *json)
{
  union weft_model model;
  g_autoptr (GError) error = NULL;

  if (!weft_model_parse (json, -1, "t.json", &model, NULL, &error))
    fail_msg ("%s", error->message);
  return model;
}

static void
parameter_counts_are_the_published_ones (void **state)
{
  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (published); i++) {
    union weft_model model = load (published[i].name);
    double found = weft_model_parameters (&model), active = weft_model_active_parameters (&model);
    if (fabs (found - published[i].parameters) > published[i].close * published[i].parameters)
      fail_msg ("%s: %.0f, published %.0f", published[i].name, found, published[i].parameters);
    if (published[i].embedding == OUTSIDE)
      active -= (double) model.vocab_size * model.hidden_size;
    double wanted = published[i].active > 0 ? published[i].active : found;
    if (fabs (active / wanted - 1) > published[i].active_close)
      fail_msg ("%s: %.0f active, published %.0f", published[i].name, active, wanted);
  }
}

/* Models whose published parameter count is rounded: Weft's count must be this exact number. For
 * three models the number is also computed by hand from the shapes of the tensors: attention,
 * router and experts of each layer, norms, and embedding and head (vocabulary times hidden size;
 * one tensor in grok, which ties them). */
static void
counts_that_are_published_rounded_are_those_of_the_architecture (void **state)
{
  static const struct {
    const char *name;
    uint64_t all, active;
  } exact[] = {
    { "kimi-k2", 1026408232448, 32861500928 },
    { "gpt-oss-20b", 20914757184, 4187440704 },
    { "gpt-oss-120b", 116829156672, 5711982912 },
    { "grok-1-314b", 315684820992, 83756587008 },
    { "llama-4-maverick", 400711848960, 17184691200 },
    { "llama-4-scout", 107769861120, 17172894720 },
    { "deepseek-v2", 235741434880, 21375800320 },
    { "deepseek-v2-lite", 15706484224, 2661150208 },
  };
  uint64_t oss =
      2880 * 4096 * 2 + 4096 + 2880 + 2 * (2880 * 512 + 512) + 64; /* q, o, k, v, sinks */
  uint64_t oss_expert = 2880 * 5760 + 5760 + 2880 * 2880 + 2880, oss_ends = 2 * 201088 * 2880;
  uint64_t grok = 2 * 6144 * 6144 + 2 * 6144 * 1024 + 6144 * 8 + 4 * 6144;

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (exact); i++) {
    union weft_model model = load (exact[i].name);
    assert_int_equal (weft_model_parameters (&model), exact[i].all);
    assert_int_equal (weft_model_active_parameters (&model), exact[i].active);
  }
  assert_int_equal (exact[1].all,
                    24 * (oss + 2 * 2880 + 32 * (2880 + 1 + oss_expert)) + oss_ends + 2880);
  assert_int_equal (exact[2].all,
                    36 * (oss + 2 * 2880 + 128 * (2880 + 1 + oss_expert)) + oss_ends + 2880);
  assert_int_equal (exact[3].all, 64 * (grok + 8ull * 3 * 6144 * 32768) + 131072 * 6144 + 6144);
}

/* The weight files of Llama 4 contain a vision tower, which Weft does not build: patches of 14 x
 * 14 x 3, 34 layers of width 1408 with an MLP of 5632, two linear layers to 4096 and one to
 * 5120. Weft's count plus the tower must be the count of the files. */
static void
a_vision_tower_closes_the_published_size_of_llama_4 (void **state)
{
  union weft_model maverick = load ("llama-4-maverick"), scout = load ("llama-4-scout");
  uint64_t h = 1408, f = 5632, attention = 4 * (h * h + h), mlp = h * f + f + f * h + h;
  uint64_t tower = 588 * h + h + 577 * h + 4 * h + 34 * (attention + mlp + 4 * h) + f * 4096 +
                   4096 * 4096 + 4096 * 5120;

  (void) state;
  assert_int_equal (weft_model_parameters (&maverick) + tower, 401583781376);
  assert_int_equal (weft_model_parameters (&scout) + tower, 108641793536);
}

/* Every bundled model except the nano models must have a row in the table of published counts.
 * No bundled file contains a key that Weft does not know. */
static void
every_bundled_model_loads_clean_with_a_source (void **state)
{
  g_auto (GStrv) names = weft_model_names ();
  unsigned counted = 0;

  (void) state;
  for (unsigned i = 0; names[i]; i++) {
    union weft_model model;
    g_autoptr (GPtrArray) unknown = g_ptr_array_new_with_free_func (g_free);
    g_autoptr (GError) error = NULL;
    gboolean known = g_str_has_suffix (names[i], "-nano");
    assert_true (weft_model_load (names[i], &model, unknown, &error));
    assert_int_equal (unknown->len, 0);
    assert_string_equal (g_quark_to_string (model.name), names[i]);
    assert_true (strlen (g_quark_to_string (model.source)) > 20);
    for (unsigned k = 0; k < G_N_ELEMENTS (published); k++)
      known = known || strcmp (published[k].name, names[i]) == 0;
    counted += known;
  }
  assert_int_equal (counted, G_N_ELEMENTS (published) + 7);
}

static void
names_match_whatever_case_dashes_dots_and_underscores (void **state)
{
  static const char *const spellings[] = { "LLaMA3_8B", "llama-3-8b", "Llama3.8B",
                                           "models/llama3-8b.json" };
  union weft_model model, wanted = load ("llama3-8b");
  g_autoptr (GError) error = NULL;

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (spellings); i++) {
    model = load (spellings[i]);
    assert_memory_equal (&model, &wanted, sizeof model);
  }
  assert_false (weft_model_load ("llama3-9b", &model, NULL, &error));
  assert_non_null (strstr (error->message, "did you mean llama3-8b"));
  assert_int_equal (weft_error_exit_status (error), 2);
}

static void
the_nano_models_have_the_promised_shapes (void **state)
{
  union weft_model gpt = load ("gpt2-nano"), llama = load ("llama-nano"),
                   mixtral = load ("mixtral-nano"), deepseek = load ("deepseek-nano");

  (void) state;
  assert_int_equal (gpt.num_layers, 8);
  assert_int_equal (gpt.hidden_size, 64);
  assert_int_equal (gpt.num_attention_heads, 8);
  assert_int_equal (gpt.ffn_hidden_size, 256);
  assert_int_equal (gpt.seq_length, 128);
  assert_int_equal (gpt.vocab_size, 256);
  assert_true (gpt.share_embeddings_and_output_weights);
  assert_int_equal (llama.num_query_groups, 4);
  assert_int_equal (llama.kv_channels, 8);
  assert_int_equal (llama.ffn_hidden_size, 192);
  assert_false (llama.share_embeddings_and_output_weights);
  assert_int_equal (mixtral.num_moe_experts, 8);
  assert_int_equal (mixtral.moe_router_topk, 2);
  assert_int_equal (mixtral.moe_ffn_hidden_size, 192);
  assert_int_equal (deepseek.seq_length, 64);
  assert_int_equal (deepseek.kv_channels, 16);
  assert_int_equal (deepseek.num_moe_experts, 8);
  assert_int_equal (deepseek.moe_router_topk, 2);
  assert_int_equal (deepseek.moe_shared_expert_intermediate_size, 32);
  assert_int_equal (weft_model_moe_layers (&deepseek), 7);
  assert_int_equal (deepseek.mtp_num_layers, 1);
}

static void
families_mean_what_their_files_do_not_say (void **state)
{
  union weft_model gpt = load ("gpt2"), qwen2 = load ("qwen2.5-7b"), qwen3 = load ("qwen3-8b");
  union weft_model nemotron = load ("nemotron4-340b"), deepseek = load ("deepseek-v3");

  (void) state;
  assert_int_equal (gpt.position_embedding_type, WEFT_LEARNED);
  assert_int_equal (gpt.normalization, WEFT_LAYERNORM);
  assert_int_equal (gpt.activation, WEFT_GELU);
  assert_true (gpt.add_bias_linear && gpt.add_qkv_bias);
  assert_true (qwen2.add_qkv_bias && !qwen2.add_bias_linear && !qwen2.qk_layernorm);
  assert_true (qwen3.qk_layernorm && !qwen3.add_qkv_bias);
  assert_int_equal (nemotron.activation, WEFT_SQUARED_RELU);
  assert_int_equal (nemotron.normalization, WEFT_LAYERNORM);
  assert_true (nemotron.rotary_percent == 0.5 && !nemotron.add_bias_linear);
  assert_int_equal (deepseek.kv_channels, 192);
  assert_int_equal (deepseek.moe_shared_expert_intermediate_size, 2048);
  assert_true (deepseek.moe_router_enable_expert_bias);
  assert_int_equal (deepseek.moe_router_score_function, WEFT_SCORE_SIGMOID);
}

/* Decoder families differ from Llama in the placement of norms, windows, soft caps, biases ... Weft
 * must set these features from each family's config.json. */
static void
decoders_have_the_traits_of_their_families (void **state)
{
  union weft_model gemma2 = load ("gemma2-9b"), gemma3 = load ("gemma3-1b"),
                   neox = load ("gpt-neox-20b"), olmo = load ("olmo2-7b"), opt = load ("opt-6.7b"),
                   bloom = load ("bloom-7b1"), glm = load ("glm4-9b"), smol = load ("smollm3-3b");

  (void) state;
  assert_int_equal (gemma2.norm_placement, WEFT_NORM_SANDWICH);
  assert_int_equal (gemma2.activation, WEFT_GEGLU);
  assert_true (gemma2.attn_logit_softcapping == 50 && gemma2.final_logit_softcapping == 30);
  assert_true (gemma2.query_pre_attn_scalar == 256 && gemma2.embedding_multiplier == 0);
  for (int64_t layer = 0; layer < 42; layer++)
    assert_int_equal (weft_model_layer_window (&gemma2, layer), layer % 2 ? 0 : 4096);
  for (int64_t layer = 0; layer < 26; layer++) {
    assert_int_equal (weft_model_layer_window (&gemma3, layer), layer % 6 == 5 ? 0 : 512);
    assert_true (weft_model_layer_is_local (&gemma3, layer) == (layer % 6 != 5));
  }
  assert_true (gemma3.rotary_base == 1e6 && gemma3.rotary_base_local == 1e4);
  assert_true (gemma3.attn_logit_softcapping == 0 && gemma3.final_logit_softcapping == 0);
  assert_int_equal (neox.residual, WEFT_RESIDUAL_PARALLEL);
  assert_true (neox.rotary_percent == 0.25 && neox.add_qkv_bias && neox.add_bias_linear);
  assert_int_equal (neox.activation, WEFT_GELU); /* from "gelu_fast" in config.json */
  assert_int_equal (olmo.norm_placement, WEFT_NORM_POST);
  assert_true (olmo.qk_layernorm && olmo.qk_layernorm_whole);
  assert_int_equal (opt.activation, WEFT_RELU);
  assert_int_equal (opt.position_offset, 2);
  assert_int_equal (bloom.position_embedding_type, WEFT_ALIBI);
  assert_true (bloom.embedding_layernorm && bloom.seq_length == 2048);
  assert_true (glm.add_qkv_bias && !glm.add_bias_linear && glm.rotary_percent == 0.5);
  assert_int_equal (glm.norm_placement, WEFT_NORM_SANDWICH);
  for (int64_t layer = 0; layer < 36; layer++)
    assert_true (weft_model_layer_has_rope (&smol, layer) == (layer % 4 != 3));
}

/* Routers of MoE families: config.json must set those flags of Megatron-Core that do what the
 * routing code of the family in Hugging Face does. */
static void
routers_are_those_of_their_families (void **state)
{
  static const struct {
    const char *name;
    int64_t score, pre, groups, group_topk, bias, gate;
    double scale;
  } routers[] = {
    { "mixtral-8x7b", WEFT_SCORE_SOFTMAX, 0, 0, 0, 0, 0, 1 },
    { "qwen1.5-moe-a2.7b", WEFT_SCORE_SOFTMAX, 1, 0, 0, 0, 1, 1 },
    { "qwen3-30b-a3b", WEFT_SCORE_SOFTMAX, 0, 0, 0, 0, 0, 1 },
    { "qwen3-235b-a22b", WEFT_SCORE_SOFTMAX, 0, 0, 0, 0, 0, 1 },
    { "deepseek-v2", WEFT_SCORE_SOFTMAX, 1, 8, 3, 0, 0, 16 },
    { "deepseek-v2-lite", WEFT_SCORE_SOFTMAX, 1, 0, 0, 0, 0, 1 },
    { "deepseek-v3", WEFT_SCORE_SIGMOID, 0, 8, 4, 1, 0, 2.5 },
    { "deepseek-nano", WEFT_SCORE_SIGMOID, 0, 2, 1, 1, 0, 2.5 },
    { "kimi-k2", WEFT_SCORE_SIGMOID, 0, 0, 0, 1, 0, 2.827 },
    { "gpt-oss-20b", WEFT_SCORE_SOFTMAX, 0, 0, 0, 0, 0, 1 },
    { "grok-1-314b", WEFT_SCORE_SOFTMAX, 1, 0, 0, 0, 0, 1 },
    { "llama-4-scout", WEFT_SCORE_SIGMOID, 0, 0, 0, 0, 0, 1 },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (routers); i++) {
    union weft_model m = load (routers[i].name);
    if (m.moe_router_score_function != routers[i].score ||
        m.moe_router_pre_softmax != routers[i].pre ||
        m.moe_router_num_groups != routers[i].groups ||
        m.moe_router_group_topk != routers[i].group_topk ||
        m.moe_router_enable_expert_bias != routers[i].bias ||
        m.moe_shared_expert_gate != routers[i].gate ||
        m.moe_router_topk_scaling_factor != routers[i].scale)
      fail_msg ("%s", routers[i].name);
  }
}

/* Layers of one model that differ. gpt-oss: every second layer has full attention instead of a
 * window. Llama 4: every fourth layer has full attention without positions. Llama 4 Maverick:
 * every second layer has experts, starting with the second. */
static void
layers_differ_as_their_files_say (void **state)
{
  union weft_model oss = load ("gpt-oss-120b"), maverick = load ("llama-4-maverick"),
                   scout = load ("llama-4-scout");

  (void) state;
  for (int64_t layer = 0; layer < 36; layer++)
    assert_int_equal (weft_model_layer_window (&oss, layer), layer % 2 ? 0 : 128);
  assert_true (oss.add_bias_linear && oss.add_qkv_bias && oss.activation == WEFT_QUICK_GEGLU);
  assert_true (oss.activation_func_clamp_value == 7 && oss.glu_linear_offset == 1);
  assert_int_equal (oss.softmax_type, WEFT_SOFTMAX_LEARNABLE);
  for (int64_t layer = 0; layer < 48; layer++) {
    assert_int_equal (weft_model_layer_chunk (&scout, layer), layer % 4 == 3 ? 0 : 8192);
    assert_true (weft_model_layer_has_rope (&scout, layer) == (layer % 4 != 3));
    assert_true (weft_model_layer_is_moe (&maverick, layer) == (layer % 2 == 1));
    assert_true (weft_model_layer_is_moe (&scout, layer));
  }
  assert_int_equal (maverick.ffn_hidden_size, 16384);
  assert_int_equal (maverick.moe_ffn_hidden_size, 8192);
  assert_int_equal (maverick.moe_shared_expert_intermediate_size, 8192);
  assert_true (scout.qk_l2_norm && !maverick.qk_l2_norm);
}

#define LLAMA(more)                                                                                \
  "{\"model_type\":\"llama\",\"vocab_size\":1000,\"max_position_embeddings\":64,"                  \
  "\"hidden_size\":96,"                                                                            \
  "\"intermediate_size\":256,\"num_hidden_layers\":4,\"num_attention_heads\":12" more "}"

/* Asserts that both models are equal in every field. */
static void
assert_same_model (union weft_model a, union weft_model b)
{
  assert_memory_equal (&a, &b, sizeof a);
}

static void
old_new_and_megatron_spellings_give_the_same_model (void **state)
{
  (void) state;
  union weft_model old = parse (LLAMA (",\"torch_dtype\":\"bfloat16\",\"rope_theta\":5e5"));
  assert_true (old.rotary_base == 5e5);
  assert_same_model (old, parse (LLAMA (",\"dtype\":\"bfloat16\",\"rope_parameters\":"
                                        "{\"rope_theta\":500000,\"rope_type\":\"default\"}")));
  assert_same_model (old, parse ("{\"model_type\":\"vision\",\"text_config\":" LLAMA (
                              ",\"rotary_base\":5e5") "}"));
  assert_same_model (old,
                     parse ("{\"architectures\":[\"LlamaForCausalLM\"],\"n_layer\":4,\"n_head\":12,"
                            "\"n_embd\":96,\"n_inner\":256,\"n_positions\":64,\"vocab_size\":1000,"
                            "\"rope_theta\":5e5}"));
  assert_same_model (
      old, parse ("{\"model_type\":\"mistral\",\"num_layers\":4,\"num_attention_heads\":12,"
                  "\"hidden_size\":96,\"ffn_hidden_size\":256,\"seq_length\":64,"
                  "\"max_position_embeddings\":64,\"vocab_size\":1000,"
                  "\"num_query_groups\":12,\"rotary_base\":5e5}"));
}

/* qk_head_dim in config.json has two meanings. transformers 5 writes the width of a whole query
 * head, Megatron only the part without rotary positions. Both files must give the same model. */
static void
both_meanings_of_qk_head_dim_give_the_same_model (void **state)
{
#define LATENT(more)                                                                               \
  "{\"model_type\":\"deepseek_v3\",\"vocab_size\":1000,\"max_position_embeddings\":64,"            \
  "\"hidden_size\":96,\"intermediate_size\":256,\"num_hidden_layers\":4,"                          \
  "\"num_attention_heads\":12,"                                                                    \
  "\"kv_lora_rank\":32,\"qk_rope_head_dim\":4,\"v_head_dim\":8,\"n_routed_experts\":4,"            \
  "\"num_experts_per_tok\":2,\"moe_intermediate_size\":16" more "}"
  union weft_model old = parse (LATENT (",\"qk_nope_head_dim\":8"));

  (void) state;
  assert_int_equal (old.kv_channels, 12);
  assert_same_model (old,
                     parse (LATENT (",\"qk_nope_head_dim\":8,\"qk_head_dim\":12,\"head_dim\":4")));
  assert_same_model (old, parse (LATENT (",\"qk_head_dim\":8")));
#undef LATENT
}

static void
unknown_keys_are_reported_and_comments_are_not (void **state)
{
  union weft_model model;
  g_autoptr (GPtrArray) unknown = g_ptr_array_new_with_free_func (g_free);

  (void) state;
  assert_true (weft_model_parse (LLAMA (",\"_note\":[1],\"use_cache\":true,\"hidden_sise\":3,"
                                        "\"head_dim\":null,\"rope_parameters\":{\"new\":1}"),
                                 -1, "t.json", &model, unknown, NULL));
  assert_int_equal (unknown->len, 2);
  assert_string_equal (unknown->pdata[0], "hidden_sise");
  assert_string_equal (unknown->pdata[1], "rope_parameters.new");
}

static void
a_window_counts_only_where_it_is_asked_for (void **state)
{
  g_autoptr (GPtrArray) unknown = g_ptr_array_new_with_free_func (g_free);
  union weft_model model;

  (void) state;
#define QWEN(more)                                                                                 \
  "{\"model_type\":\"qwen2\",\"vocab_size\":1000,\"max_position_embeddings\":64,"                  \
  "\"hidden_size\":96,\"intermediate_size\":256,\"num_hidden_layers\":4,"                          \
  "\"num_attention_heads\":12,\"sliding_window\":16" more "}"
  assert_int_equal (parse (LLAMA (",\"sliding_window\":16")).sliding_window, 16);
  assert_int_equal (parse (QWEN ("")).sliding_window, 0);
  assert_int_equal (parse (QWEN (",\"use_sliding_window\":false")).sliding_window, 0);
  assert_int_equal (parse (QWEN (",\"use_sliding_window\":true")).sliding_window, 16);
  assert_int_equal (
      parse (QWEN (",\"use_sliding_window\":true,\"max_window_layers\":4")).sliding_window, 0);
  assert_true (weft_model_parse (QWEN (",\"use_sliding_window\":true,\"max_window_layers\":2"), -1,
                                 "t.json", &model, unknown, NULL));
  assert_int_equal (model.sliding_window, 0);
  assert_string_equal (unknown->pdata[0], "max_window_layers");
#undef QWEN
}

/* config.json may list a type for each layer. If every n-th layer has full attention, the list
 * is read as this pattern. Any other list is reported, and the model is counted as if no layer
 * had a window. */
static void
types_of_layers_make_a_pattern_or_are_reported (void **state)
{
  g_autoptr (GPtrArray) unknown = g_ptr_array_new_with_free_func (g_free);
  union weft_model model;

#define TYPES(a, b, c, d)                                                                          \
  LLAMA (",\"sliding_window\":16,\"layer_types\":[\"" a "_attention\",\"" b "_attention\",\"" c    \
         "_attention\",\"" d "_attention\"]")
  (void) state;
  model = parse (TYPES ("sliding", "full", "sliding", "full"));
  assert_true (model.sliding_window == 16 && model.window_attn_skip_freq == 2);
  model = parse (TYPES ("sliding", "sliding", "sliding", "full"));
  assert_true (model.sliding_window == 16 && model.window_attn_skip_freq == 4);
  model = parse (TYPES ("sliding", "sliding", "sliding", "sliding"));
  assert_true (model.sliding_window == 16 && model.window_attn_skip_freq == 0);
  model = parse (TYPES ("full", "full", "full", "full"));
  assert_true (model.sliding_window == 0 && model.window_attn_skip_freq == 0);
  assert_true (weft_model_parse (TYPES ("full", "sliding", "full", "full"), -1, "t.json", &model,
                                 unknown, NULL));
  assert_true (model.sliding_window == 0 && model.window_attn_skip_freq == 0);
  assert_string_equal (unknown->pdata[0], "layer_types");
#undef TYPES
}

#define LLAMA3_RULE                                                                                \
  "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"                               \
  "\"original_max_position_embeddings\":32"

static void
stretched_positions_are_read_in_old_and_new_spelling (void **state)
{
  union weft_model plain = parse (LLAMA (",\"rope_theta\":5e5"));
  union weft_model old =
      parse (LLAMA (",\"rope_theta\":5e5,\"rope_scaling\":{\"type\":\"llama3\"," LLAMA3_RULE "}"));

  (void) state;
  assert_int_equal (plain.rotary_scaling, WEFT_ROTARY_NONE);
  assert_true (plain.rotary_scaling_factor == 1);
  assert_int_equal (old.rotary_scaling, WEFT_ROTARY_LLAMA3);
  assert_true (old.rotary_scaling_factor == 8 && old.rotary_low_freq_factor == 1);
  assert_true (old.rotary_high_freq_factor == 4 && old.rotary_original_positions == 32);
  assert_same_model (old, parse (LLAMA (",\"rope_parameters\":{" LLAMA3_RULE
                                        ",\"rope_theta\":5e5,\"rope_type\":\"llama3\"}")));
  assert_same_model (plain, parse (LLAMA (",\"rope_theta\":5e5,\"rope_scaling\":null")));
  assert_same_model (
      plain, parse (LLAMA (",\"rope_theta\":5e5,\"rope_scaling\":{\"rope_type\":\"default\"}")));
  union weft_model linear = parse (LLAMA (",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}"));
  assert_int_equal (linear.rotary_scaling, WEFT_ROTARY_LINEAR);
  assert_true (linear.rotary_scaling_factor == 2);
  assert_int_equal (load ("llama3.1-405b").rotary_scaling, WEFT_ROTARY_LLAMA3);
}

/* A config.json with an unknown rule for rotary frequencies loads, because plans do not need the
 * frequencies. The model is marked, so that training refuses it. */
static void
a_rule_that_is_not_known_loads_and_is_marked (void **state)
{
  static const char *const rules[] = {
    "{\"type\":\"yarn\",\"factor\":40,\"beta_fast\":32,\"mscale\":1.0}",
    "{\"rope_type\":\"dynamic\",\"factor\":2.0,\"type\":\"default\"}",
    "{\"rope_type\":\"longrope\",\"short_factor\":[1,2],\"long_factor\":[3,4]}",
    "{\"factor\":0.5}",
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (rules); i++) {
    g_autofree char *json = g_strdup_printf (LLAMA (",\"rope_scaling\":%s"), rules[i]);
    union weft_model model = parse (json);
    assert_int_equal (model.rotary_scaling, WEFT_ROTARY_OTHER);
    assert_true (model.rotary_scaling_factor == 1);
  }
}

static const struct {
  const char *json, *message;
} bad[] = {
  { LLAMA (",\"rope_scaling\":2"), "rope_scaling: found a number, wanted an object" },
  { LLAMA (",\"rope_scaling\":{\"type\":1}"), "type: found a number, wanted the name of a rule" },
  { LLAMA (",\"rope_scaling\":{\"type\":\"linear\"}"),
    "rope_scaling: found no factor, wanted it with rope_type linear" },
  { LLAMA (",\"rope_parameters\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
           "\"original_max_position_embeddings\":32}"),
    "rope_parameters: found no high_freq_factor, wanted it with rope_type llama3" },
  { LLAMA (",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}"),
    "factor: found \"0\", wanted 1..1e6" },
  { LLAMA (",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":5,"
           "\"high_freq_factor\":4,\"original_max_position_embeddings\":32}"),
    "low_freq_factor: found 5, wanted at most high_freq_factor, 4" },
  { LLAMA (",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},"
           "\"rope_parameters\":{\"rope_type\":\"yarn\"}"),
    "rope_scaling is linear but rope_parameters is other" },
  { "", "t.json: found nothing at the top, wanted an object" },
  { "[1]", "t.json: found an array at the top, wanted an object" },
  { "12", "t.json: found a number at the top, wanted an object" },
  { "{\n  \"a\": 1,\n  \"b\" 2\n}", "t.json:3:" },
  { "{\n \"a\": NaN}", "t.json:2:7: found 'N', wanted JSON" },
  { "{\"a\": 1", "t.json:1:8: found the end of the file, wanted a closing bracket" },
  { "{\"a", "t.json:1:4: found the end of the file, wanted a closing quote" },
  { "{} {}", "t.json:1:4: found '{', wanted nothing after the last bracket" },
  { "{\"a\": {\"b\": 1},\n \"c\": {\"b\": 1, \"\\u0062\": 2}}",
    "found the key \"b\" twice, wanted it once" },
  { "{\"a\": 0x10}", "t.json:1:8: found 'x', wanted JSON" },
  { "{\"a\": 010}", "t.json:1:7: found '0', wanted a number without leading zeros" },
  { "{\"model_type\":\"llama\"} // note", "t.json:1:24: found '/', wanted nothing" },
  { "{\"hidden_size\": 18446744073709551712}", "wanted a whole number of at most 18 digits" },
  { "{}", "t.json: model_type is missing; wanted one of gpt2, llama, mistral," },
  { "{\"model_type\":\"lama\"}", "model_type: found \"lama\", wanted one of gpt2, llama" },
  { "{\"model_type\":\"lama\"}", "did you mean llama?" },
  { "{\"model_type\":\"llama\"}", "t.json: missing key: model_type llama wants num_hidden_layers "
                                  "or n_layer or num_layers (tran" },
  { "{\"model_type\":\"mixtral\",\"vocab_size\":9,\"n_positions\":8,\"n_embd\":8,\"n_layer\":1,"
    "\"n_head\":1,\"n_inner\":8}",
    "model_type mixtral wants num_experts or num_local_experts or" },
  { LLAMA (",\"num_layers\":\"4\""),
    "t.json: num_layers: found a string, wanted a whole number 1..4096" },
  { LLAMA (",\"num_layers\":true"),
    "num_layers: found true or false, wanted a whole number 1..4096" },
  { LLAMA (",\"num_layers\":{}"), "num_layers: found an object, wanted a whole number" },
  { LLAMA (",\"mlp_bias\":1"), "mlp_bias: found a number, wanted true|false" },
  { LLAMA (",\"layer_types\":\"full\""),
    "layer_types: found a string, wanted an array of layer types" },
  { LLAMA (",\"layer_types\":[\"linear_attention\"]"),
    "found \"linear_attention\" in layer 0, wanted full" },
  { LLAMA (",\"n_layer\":-5"), "n_layer: found \"-5\", wanted 1..4096" },
  { LLAMA (",\"n_layer\":3.7"), "n_layer: found \"3.7\", wanted 1..4096" },
  { LLAMA (",\"n_layer\":1e400"), "n_layer: found \"inf\", wanted 1..4096" },
  { LLAMA (",\"rope_theta\":0"), "rope_theta: found \"0\", wanted 1..1e12" },
  { LLAMA (",\"n_layer\":5"),
    "num_hidden_layers is 4 but n_layer is 5; wanted one value for num_layers" },
  { LLAMA (",\"num_key_value_heads\":5"),
    "t.json: num_attention_heads 12 is not a multiple of num_key_value_heads 5" },
  { "{\"model_type\":\"gpt2\",\"vocab_size\":9,\"n_positions\":8,\"n_embd\":100,\"n_layer\":1,"
    "\"n_head\":12}",
    "t.json: n_embd 100 is not a multiple of n_head 12" },
  { LLAMA (",\"head_dim\":7"), "head_dim: found 7, wanted an even width for rotary positions" },
  { LLAMA (",\"hidden_act\":\"gelu\""), "hidden_act: found \"gelu\", wanted silu" },
  { LLAMA (",\"attention_bias\":true"),
    "attention_bias is true but mlp_bias is false; wanted both" },
  { LLAMA (",\"num_experts\":8"),
    "num_experts is 8, but moe_router_topk is 0; wanted both or neither" },
  { LLAMA (",\"num_experts\":8,\"num_experts_per_tok\":9"),
    "num_experts_per_tok: found 9, wanted at most num_experts, 8" },
  { LLAMA (",\"decoder_sparse_step\":0"), "decoder_sparse_step: found \"0\", wanted 1..4096" },
  { LLAMA (",\"moe_layers\":[1,3,4]"),
    "moe_layers: found layer 4 at place 2, wanted 5: expert layers must be evenly spaced" },
  { LLAMA (",\"moe_layers\":[4,8]"),
    "moe_layers: found 4 layers, wanted less than moe_layers, 4 layers" },
  { LLAMA (",\"no_rope_layers\":[1,0,1,1]"),
    "no_rope_layers: found 1 in layer 3, wanted 0 in every n-th layer" },
  { LLAMA (",\"sliding_window\":8,\"attention_chunk_size\":8"),
    "sliding_window is 8 tokens and attention_chunk_size is 8 tokens; wanted one of them" },
  { LLAMA (",\"window_attn_skip_freq\":2"),
    "window_attn_skip_freq is 2, but sliding_window is 0 and so is attention_chunk_size" },
  { LLAMA (",\"num_experts\":8,\"num_experts_per_tok\":2,\"scoring_func\":\"sigmoid\","
           "\"norm_topk_prob\":false"),
    "norm_topk_prob: found false, wanted true with scores by sigmoid" },
  { LLAMA (",\"num_experts\":8,\"num_experts_per_tok\":2,\"topk_method\":\"noaux_tc\""),
    "moe_router_score_function: found softmax, wanted sigmoid with topk_method" },
  { LLAMA (",\"num_experts\":8,\"num_experts_per_tok\":6,\"n_group\":4,\"topk_group\":2"),
    "num_experts_per_tok: found 6, wanted at most the 4 experts of moe_router_group_topk groups" },
  { LLAMA (",\"num_experts\":8,\"num_experts_per_tok\":2,\"n_group\":3,\"topk_group\":1"),
    "num_experts 8 is not a multiple of moe_router_num_groups 3" },
  { LLAMA (",\"mlp_only_layers\":[0,2]"), "mlp_only_layers: found layer 2 at place 1, wanted 1" },
  { LLAMA (",\"q_lora_rank\":8"), "q_lora_rank is 8, but kv_lora_rank is 0" },
  { "{\"model_type\":\"llama\",\"vocab_size\":9,\"n_positions\":8,\"n_embd\":1048576,"
    "\"n_layer\":4096,"
    "\"n_head\":1024,\"n_inner\":4194304}",
    "t.json: n_layer 4096 and n_embd 1048576 make a model of 7.2e+16 parameters; wanted at most "
    "2^53" },
  { "{\"model_type\":\"llama\",\"vocab_size\":9,\"n_positions\":8,\"n_embd\":1048576,"
    "\"n_layer\":4096,"
    "\"n_head\":1024,\"n_inner\":4194304,\"num_experts\":65536,\"num_experts_per_tok\":1,"
    "\"num_nextn_predict_layers\":64}",
    "wanted at most 2^53" },
};

static void
bad_input_is_refused_with_what_was_found_and_wanted (void **state)
{
  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (bad); i++) {
    union weft_model model;
    g_autoptr (GError) error = NULL;
    if (weft_model_parse (bad[i].json, -1, "t.json", &model, NULL, &error))
      fail_msg ("accepted: %s", bad[i].json);
    if (!strstr (error->message, bad[i].message) || !g_str_has_prefix (error->message, "t.json:"))
      fail_msg ("%s\n  found:  %s\n  wanted: %s", bad[i].json, error->message, bad[i].message);
    assert_int_equal (weft_error_exit_status (error), 2);
  }
}

static void
refused (const char *json, gssize length, const char *message)
{
  union weft_model model;
  g_autoptr (GError) error = NULL;

  assert_false (weft_model_parse (json, length, "t.json", &model, NULL, &error));
  if (!strstr (error->message, message))
    fail_msg ("%s", error->message);
}

static void
bombs_and_raw_bytes_are_refused_not_parsed (void **state)
{
  enum { N = 1000000 };
  g_autofree char *deep = g_strnfill (N, '[');
  g_autofree char *hidden = g_strdup_printf ("{\"a\": \"]]]\\\"\", \"b\": %s", deep);
  g_autofree char *big = g_strnfill (5 << 20, ' ');

  (void) state;
  refused (deep, N, "t.json:1:33: found '[', wanted at most 32 levels");
  refused (hidden, -1, "wanted at most 32 levels");
  refused (big, -1, "wanted a config.json of at most");
  refused ("{\"a\0b\": 1}", 10, "t.json:1:4: found byte 0x00, wanted text");
  refused ("{\"a\": 1}\0", 9, "found byte 0x00");
  refused ("{\"a\xff\": 1}", -1, "t.json:");
  refused ("\"\\", 2, "wanted a closing quote");
}

/* Parses every prefix of a config.json, and the file with any byte replaced: each gives a model or
 * an error. */
static void
damaged_files_never_crash (void **state)
{
  static const char good[] =
      LLAMA (",\"rope_parameters\":{\"rope_theta\":1e4},\"layer_types\":[\"x\"]");
  static const char bytes[] = "\"[{}]:,-9e\\";

  (void) state;
  for (size_t i = 0; i < sizeof good - 1; i++) {
    union weft_model model;
    g_autofree char *text = g_strdup (good);
    assert_false (weft_model_parse (good, i, "t.json", &model, NULL, NULL));
    for (size_t k = 0; k < sizeof bytes - 1; k++) {
      g_autoptr (GError) error = NULL;
      text[i] = bytes[k];
      assert_true (weft_model_parse (text, -1, "t.json", &model, NULL, &error) || error);
    }
  }
}

static void
contradicting_fields_are_refused_under_their_own_names (void **state)
{
  const char *typed[WEFT_N_MODEL_FIELD];
  union weft_model model = load ("gpt2");
  g_autoptr (GError) error = NULL;

  (void) state;
  for (unsigned f = 0; f < WEFT_N_MODEL_FIELD; f++)
    typed[f] = weft_model_table.field[f].name;
  model.seq_length = 2048;
  assert_false (weft_model_complete (&model, typed, &error));
  assert_string_equal (error->message,
                       "seq_length: found 2048, wanted at most max_position_embeddings, 1024 "
                       "(tokens in one training sequence)");
  weft_table_defaults (&weft_model_table, model.at);
  assert_true (weft_model_complete (&model, typed, NULL));
}

static void
fields_that_were_not_given_follow_from_those_that_were (void **state)
{
  const char *typed[WEFT_N_MODEL_FIELD] = { [WEFT_MODEL_seq_length] = "seq_length" };
  union weft_model model;

  (void) state;
  weft_table_defaults (&weft_model_table, model.at);
  model.hidden_size = 768;
  model.num_attention_heads = 12;
  model.seq_length = 4096;
  assert_true (weft_model_complete (&model, typed, NULL));
  assert_int_equal (model.num_query_groups, 12);
  assert_int_equal (model.kv_channels, 64);
  assert_int_equal (model.ffn_hidden_size, 3072);
  assert_int_equal (model.max_position_embeddings, 4096);
}

static void
experts_begin_after_the_dense_layers_and_come_every_nth (void **state)
{
  union weft_model model = load ("deepseek-v3");

  (void) state;
  assert_false (weft_model_layer_is_moe (&model, 2));
  assert_true (weft_model_layer_is_moe (&model, 3));
  assert_int_equal (weft_model_moe_layers (&model), 58);
  model.moe_layer_freq = 2;
  assert_false (weft_model_layer_is_moe (&model, 3));
  assert_int_equal (weft_model_moe_layers (&model), 29);
  model.moe_layer_offset = 1;
  assert_true (weft_model_layer_is_moe (&model, 3));
  assert_int_equal (weft_model_moe_layers (&model), 29);
  assert_true (weft_model_layer_is_moe (&model, 61) == weft_model_layer_is_moe (&model, 60));
}

/* DeepSeek states 671 billion parameters without the prediction layer; the weight files with this
 * layer take 688,574,839,360 bytes: fp8 matrices; bf16 embedding and head (twice), routers, joint
 * projection and norms; one fp32 scale per block of 128 x 128. Weft's tensors must give both
 * numbers. */
static void
the_prediction_layer_closes_the_published_size_of_deepseek_v3 (void **state)
{
  union weft_model model = load ("deepseek-v3");
  double h = model.hidden_size, tables = 2.0 * model.vocab_size * h;
  double bf16 = 2 * tables + 59 * 256 * h + 2 * h * h;
  double all =
      weft_model_parameters (&model) + (double) weft_model_mtp_parameters (&model) + tables;

  (void) state;
  assert_true (fabs ((all + bf16 + 4 * (all - bf16) / 16384) / 688574839360.0 - 1) < 1e-5);
}

static void
flops_follow_both_published_conventions (void **state)
{
  union weft_model model = load ("gpt3-175b");
  double b = 1, s = 2048, L = 96, h = 12288, V = 50257;
  /* FLOPs per step, arXiv:2104.04473, equation 3. The paper's factor 96 includes recompute; without
   * recompute the factor is 72. Attention is counted without the causal mask. */
  double paper = 72 * b * s * L * h * h * (1 + s / (6 * h) + V / (12 * L * h));

  (void) state;
  assert_true (fabs (weft_model_flops_per_token (&model, FALSE) * s / paper - 1) < 1e-12);
  double attention = 6 * L * h * s;
  assert_true (fabs (weft_model_flops_per_token (&model, FALSE) -
                     weft_model_flops_per_token (&model, TRUE) - attention) < 1e-6 * attention);
}

static void
a_window_and_latent_widths_change_only_attention_flops (void **state)
{
  union weft_model model = load ("llama3-8b"), latent = load ("deepseek-v3");
  double n = 6.0 * weft_model_matmul_parameters (&model);
  double full = weft_model_flops_per_token (&model, TRUE);

  (void) state;
  model.sliding_window = 8192;
  assert_true (weft_model_flops_per_token (&model, TRUE) == full);
  /* on average, a query of the window has 4096 - 4096^2 / 16384 = 3072 keys, not 4096 */
  model.sliding_window = 4096;
  assert_true (fabs ((weft_model_flops_per_token (&model, TRUE) - n) / (full - n) - 0.75) < 1e-12);
  n = 6.0 * weft_model_matmul_parameters (&latent);
  /* attention FLOPs per token: 61 layers and one prediction layer with 128 heads, whose queries
   * have width 192 and whose values have width 128 */
  double wanted = 3.0 * 62 * 128 * (192 + 128) * 163840;
  assert_true (fabs ((weft_model_flops_per_token (&latent, TRUE) - n) / wanted - 1) < 1e-9);
}

/* A prediction layer in DeepSeek-V3: each weight of its matmuls adds 6 FLOPs per token. */
static void
products_of_a_prediction_layer_are_counted (void **state)
{
  union weft_model model = load ("deepseek-v3"), without = model;
  double h = 7168, expert = 3 * h * 2048, head = 129280 * h;
  double latent = h * 1536 + 1536 * 128 * 192 + h * 576 + 512 * 128 * 256 + 128 * 128 * h;
  double moe = latent + h * 256 + 9 * expert, dense = latent + 3 * h * 18432;

  (void) state;
  assert_true (weft_model_matmul_parameters (&model) ==
               3 * dense + 58 * moe + head + (moe + 2 * h * h + head));
  without.mtp_num_layers = 0;
  double more =
      weft_model_flops_per_token (&model, TRUE) - weft_model_flops_per_token (&without, TRUE);
  double wanted = 6 * (moe + 2 * h * h + head) + 3.0 * 128 * (192 + 128) * 163840;
  assert_true (fabs (more / wanted - 1) < 1e-9);
  assert_true (weft_model_parameters (&model) == weft_model_parameters (&without));
}

/* gpt-oss-20b with 4096 tokens. In 12 layers with a window of 128, a query has on average 128 - 2
 * keys, because the first 128 queries have fewer keys. In the 12 other layers a query has on
 * average half of 4096 keys. */
static void
windows_count_in_their_own_layers (void **state)
{
  union weft_model oss = load ("gpt-oss-20b"), scout = load ("llama-4-scout");
  double keys;

  (void) state;
  oss.seq_length = 4096;
  keys = (weft_model_flops_per_token (&oss, TRUE) - 6.0 * weft_model_matmul_parameters (&oss)) /
         (6.0 * 64 * (64 + 64));
  assert_true (fabs (keys - 12 * (128 - 2) - 12 * 2048) < 1e-3);
  /* chunked attention over 20000 tokens: two chunks of 8192 and one of 3616 */
  scout.seq_length = 20000;
  keys = (weft_model_flops_per_token (&scout, TRUE) - 6.0 * weft_model_matmul_parameters (&scout)) /
         (6.0 * 40 * (128 + 128));
  double chunked = (2 * 8192.0 * 8192 + 3616.0 * 3616) / 2 / 20000;
  assert_true (fabs (keys - 36 * chunked - 12 * 10000) < 1e-2);
}

/* FLOPs of MoE models count only the experts that a token is routed to: Mixtral 8x7B by hand. */
static void
flops_count_the_experts_a_token_visits (void **state)
{
  union weft_model model = load ("mixtral-8x7b");
  double h = 4096, attention = h * (h + 2 * 1024) + h * h, expert = 3 * h * 14336;

  (void) state;
  assert_true (weft_model_matmul_parameters (&model) ==
               32 * (attention + 8 * h + 2 * expert) + 32000 * h);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (parameter_counts_are_the_published_ones),
  cmocka_unit_test (counts_that_are_published_rounded_are_those_of_the_architecture),
  cmocka_unit_test (a_vision_tower_closes_the_published_size_of_llama_4),
  cmocka_unit_test (every_bundled_model_loads_clean_with_a_source),
  cmocka_unit_test (names_match_whatever_case_dashes_dots_and_underscores),
  cmocka_unit_test (the_nano_models_have_the_promised_shapes),
  cmocka_unit_test (families_mean_what_their_files_do_not_say),
  cmocka_unit_test (decoders_have_the_traits_of_their_families),
  cmocka_unit_test (routers_are_those_of_their_families),
  cmocka_unit_test (layers_differ_as_their_files_say),
  cmocka_unit_test (old_new_and_megatron_spellings_give_the_same_model),
  cmocka_unit_test (both_meanings_of_qk_head_dim_give_the_same_model),
  cmocka_unit_test (unknown_keys_are_reported_and_comments_are_not),
  cmocka_unit_test (a_window_counts_only_where_it_is_asked_for),
  cmocka_unit_test (types_of_layers_make_a_pattern_or_are_reported),
  cmocka_unit_test (stretched_positions_are_read_in_old_and_new_spelling),
  cmocka_unit_test (a_rule_that_is_not_known_loads_and_is_marked),
  cmocka_unit_test (bad_input_is_refused_with_what_was_found_and_wanted),
  cmocka_unit_test (bombs_and_raw_bytes_are_refused_not_parsed),
  cmocka_unit_test (damaged_files_never_crash),
  cmocka_unit_test (contradicting_fields_are_refused_under_their_own_names),
  cmocka_unit_test (fields_that_were_not_given_follow_from_those_that_were),
  cmocka_unit_test (experts_begin_after_the_dense_layers_and_come_every_nth),
  cmocka_unit_test (the_prediction_layer_closes_the_published_size_of_deepseek_v3),
  cmocka_unit_test (flops_follow_both_published_conventions),
  cmocka_unit_test (a_window_and_latent_widths_change_only_attention_flops),
  cmocka_unit_test (products_of_a_prediction_layer_are_counted),
  cmocka_unit_test (windows_count_in_their_own_layers),
  cmocka_unit_test (flops_count_the_experts_a_token_visits),
};

WEFT_TESTS (tests)
