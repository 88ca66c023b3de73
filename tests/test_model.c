/* Model shapes: published counts, every spelling of config.json, every way it can be wrong. */
#include "core/error.h"
#include "core/model.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

/* Exact counts are those of the published weight files; `close` ones are rounded by their paper. */
static const struct {
  const char *name;
  double parameters, close, active; /* close: relative; active: in 1e9 as published, 0 for all */
} published[] = {
  { "gpt2", 124439808, 0, 0 },
  { "gpt2-medium", 354823168, 0, 0 },
  { "gpt2-large", 774030080, 0, 0 },
  { "gpt2-xl", 1557611200, 0, 0 },
  { "gpt3-175b", 174600e6, 1e-4, 0 },
  { "megatron-22b", 22e9, 0.01, 0 },
  { "megatron-530b", 530e9, 0.01, 0 },
  { "megatron-1t", 1008e9, 1e-3, 0 },
  { "llama2-7b", 6738415616, 0, 0 },
  { "llama2-13b", 13015864320, 0, 0 },
  { "llama2-70b", 68976648192, 0, 0 },
  { "llama3-8b", 8030261248, 0, 0 },
  { "llama3-70b", 70553706496, 0, 0 },
  { "llama3.1-405b", 405853388800, 0, 0 },
  { "qwen2.5-0.5b", 494032768, 0, 0 },
  { "qwen2.5-1.5b", 1543714304, 0, 0 },
  { "qwen2.5-7b", 7615616512, 0, 0 },
  { "qwen3-8b", 8190735360, 0, 0 },
  { "qwen3-32b", 32762123264, 0, 0 },
  { "qwen3-30b-a3b", 30532122624, 0, 3.3 },
  { "qwen3-235b-a22b", 235093634560, 0, 22 },
  { "mixtral-8x7b", 46702792704, 0, 12.9 },
  { "mixtral-8x22b", 140630071296, 0, 39 },
  { "deepseek-v3", 671026419200, 0, 37 },
  { "nemotron4-15b", 3.2e9 + 12.5e9, 0.01, 0 },
  { "nemotron4-340b", 9.4e9 + 331.6e9, 1e-3, 0 },
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
    double found = weft_model_parameters (&model);
    double active = weft_model_active_parameters (&model) / 1e9;
    if (fabs (found - published[i].parameters) > published[i].close * published[i].parameters)
      fail_msg ("%s: %.0f, published %.0f", published[i].name, found, published[i].parameters);
    if (published[i].active > 0)
      assert_true (fabs (active / published[i].active - 1) < 0.02);
    else
      assert_true (weft_model_active_parameters (&model) == weft_model_parameters (&model));
  }
}

/* A bundled file without a row above, or one that says a key nothing reads, would go unseen. */
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
    assert_true (weft_model_check (&model, NULL));
    for (unsigned k = 0; k < G_N_ELEMENTS (published); k++)
      known = known || strcmp (published[k].name, names[i]) == 0;
    counted += known;
  }
  assert_int_equal (counted, G_N_ELEMENTS (published) + 3);
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
                   mixtral = load ("mixtral-nano");

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
  assert_true (deepseek.moe_router_bias);
}

#define LLAMA(more)                                                                                \
  "{\"model_type\":\"llama\",\"vocab_size\":1000,\"max_position_embeddings\":64,"                  \
  "\"hidden_size\":96,"                                                                            \
  "\"intermediate_size\":256,\"num_hidden_layers\":4,\"num_attention_heads\":12" more "}"

/* Equal but for what the file is called. */
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

/* transformers 5 writes the sum of both parts under the name Megatron gives to one of them. */
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

/* A plan needs no frequencies, so the file loads; the field tells who would train it. */
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
  { LLAMA (",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
           "\"high_freq_factor\":4,\"original_max_position_embeddings\":32}"),
    "low_freq_factor: found 4, wanted less than high_freq_factor, 4" },
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
    "t.json: num_attention_heads 12 does not divide by num_key_value_heads 5; wanted a multiple" },
  { "{\"model_type\":\"gpt2\",\"vocab_size\":9,\"n_positions\":8,\"n_embd\":100,\"n_layer\":1,"
    "\"n_head\":12}",
    "t.json: n_embd 100 does not divide by n_head 12; wanted a multiple" },
  { LLAMA (",\"head_dim\":7"), "head_dim: found 7, wanted an even width for rotary positions" },
  { LLAMA (",\"hidden_act\":\"gelu\""), "hidden_act: found \"gelu\", wanted silu" },
  { LLAMA (",\"attention_bias\":true"),
    "attention_bias is true but mlp_bias is false; wanted both" },
  { LLAMA (",\"num_experts\":8"),
    "num_experts is 8, but moe_router_topk is 0; wanted both or neither" },
  { LLAMA (",\"num_experts\":8,\"num_experts_per_tok\":9"),
    "num_experts_per_tok: found 9, wanted at most num_experts, 8" },
  { LLAMA (",\"decoder_sparse_step\":2"), "decoder_sparse_step: found 2, wanted 1" },
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

/* Every prefix of a file, and the file with each byte replaced, ends in a model or in an error. */
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
  union weft_model model = load ("gpt2");
  g_autoptr (GError) error = NULL;

  (void) state;
  model.seq_length = 2048;
  assert_false (weft_model_check (&model, &error));
  assert_string_equal (error->message,
                       "seq_length: found 2048, wanted at most max_position_embeddings, 1024");
  weft_table_defaults (&weft_model_table, model.at);
  assert_true (weft_model_check (&model, NULL));
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
}

/* DeepSeek states 671 billion for the main model; the tensors of its download, with the prediction
 * layer, take 688,574,839,360 bytes: FP8 matrices, bf16 tables (twice), routers, joint projection
 * and norms, and one fp32 scale per block of 128 x 128.  The layer's own count closes that sum. */
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
  /* arXiv:2104.04473 equation 3 without recomputation: all of attention, 72 instead of 96. */
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
  model.sliding_window = 4096; /* 4096 - 4096^2 / 16384 = 3072 keys on average, not 4096 */
  assert_true (fabs ((weft_model_flops_per_token (&model, TRUE) - n) / (full - n) - 0.75) < 1e-12);
  n = 6.0 * weft_model_matmul_parameters (&latent);
  double wanted = 3.0 * 61 * 128 * (192 + 128) * 163840;
  assert_true (fabs ((weft_model_flops_per_token (&latent, TRUE) - n) / wanted - 1) < 1e-9);
}

int
main (void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test (parameter_counts_are_the_published_ones),
    cmocka_unit_test (every_bundled_model_loads_clean_with_a_source),
    cmocka_unit_test (names_match_whatever_case_dashes_dots_and_underscores),
    cmocka_unit_test (the_nano_models_have_the_promised_shapes),
    cmocka_unit_test (families_mean_what_their_files_do_not_say),
    cmocka_unit_test (old_new_and_megatron_spellings_give_the_same_model),
    cmocka_unit_test (both_meanings_of_qk_head_dim_give_the_same_model),
    cmocka_unit_test (unknown_keys_are_reported_and_comments_are_not),
    cmocka_unit_test (a_window_counts_only_where_it_is_asked_for),
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
  };
  return cmocka_run_group_tests_name ("model", tests, NULL, NULL);
}
