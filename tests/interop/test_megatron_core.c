/* Fields of the configuration classes of Megatron-Core: what they mean, and what is refused. */
#include "core/base/error.h"
#include "interop/megatron_core.h"
#include "tests/made/imports.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"
#include <string.h>

static const struct weft_test_import how = { &weft_megatron_core, "core.json", 16, "" };

#define SHAPE                                                                                      \
  "\"GPTModel\": {\"vocab_size\": 1024, \"max_sequence_length\": 256}, "                           \
  "\"TransformerConfig\": {\"num_layers\": 8, \"hidden_size\": 512, \"num_attention_heads\": 8"

/* Asserts that a configuration with SHAPE and `members` (members of TransformerConfig, and possibly
 * further objects) sets a setting to a value. */
static void
assert_means (const char *members, const char *setting, const char *value)
{
  g_autofree char *text = g_strconcat ("{" SHAPE, members, "}", NULL);
  weft_test_means (&how, text, setting, value);
}

static void
assert_refused (const char *members, const char *part)
{
  g_autofree char *text = g_strconcat ("{" SHAPE, members, "}", NULL);
  weft_test_import_refused (&how, text, part);
}

static void
fields_have_the_defaults_of_their_classes (void **state)
{
  (void) state;
  assert_means ("}", "ffn_hidden_size", "2048");
  assert_means ("}", "num_query_groups", "8");
  assert_means ("}", "hidden_dropout", "0.1");
  assert_means ("}", "activation", "gelu_erf");
  assert_means ("}", "precision", "fp32");
  assert_means ("}", "add_bias_linear", "true");
  assert_means ("}", "batch_p2p_comm", "true");
  assert_means ("}", "attention_backend", "auto");
  assert_means ("}, \"OptimizerConfig\": {\"bf16\": true}", "precision", "fp32");
}

static void
fields_together_say_an_activation_and_a_precision (void **state)
{
  (void) state;
  assert_means (", \"gated_linear_unit\": true, \"activation_func\": "
                "\"torch.nn.functional.silu\"}",
                "activation", "swiglu");
  assert_means (", \"bias_activation_fusion\": true}", "activation", "gelu");
  assert_means (", \"bf16\": true, \"params_dtype\": \"torch.bfloat16\"}", "precision", "bf16");
  assert_means (", \"bf16\": true, \"pipeline_model_parallel_size\": 2, \"pipeline_dtype\": "
                "\"torch.bfloat16\"}",
                "pipeline_dtype", "none");
  assert_means ("}, \"DistributedDataParallelConfig\": {\"use_custom_fsdp\": true, "
                "\"use_distributed_optimizer\": true, \"data_parallel_sharding_strategy\": "
                "\"optim_grads\"}",
                "use_distributed_optimizer", "false"); /* the strategy shards instead */
  assert_means ("}, \"DistributedDataParallelConfig\": {\"bucket_size\": 1000000}", "bucket_size",
                "1000000");
}

static void
what_weft_does_not_have_is_refused_by_name (void **state)
{
  (void) state;
  assert_refused (", \"num_layer\": 2}", "unknown key TransformerConfig.num_layer; did you mean "
                                         "TransformerConfig.num_layers?");
  assert_refused (", \"fp32_residual_connection\": true}",
                  "TransformerConfig.fp32_residual_connection true changes a step");
  assert_refused (", \"activation_func\": \"torch.tanh\"}", "Weft has no such activation");
  assert_refused (", \"multi_latent_attention\": true}", "multi_latent_attention true changes");
  assert_refused (", \"hidden_size\": \"wide\"}", "core.json:");
}

static void
an_export_has_an_object_for_each_class (void **state)
{
  g_autoptr (GError) error = NULL;
  struct weft_job job;

  (void) state;
  assert_true (weft_test_job ("model=qwen3-8b topology=dgx-h100 gpus=16 global_batch_size=64"
                              " pipeline_model_parallel_size=2 use_distributed_optimizer=true",
                              &job, &error));
  g_autoptr (weft_interop_result) out = weft_export (&weft_megatron_core, &job, &error);
  g_autofree char *left_out = weft_export_left_out (out);
  assert_null (left_out);
  assert_non_null (strstr (out->text, "\"pipeline_dtype\" : \"torch.bfloat16\""));
  assert_non_null (strstr (out->text, "\"OptimizerConfig\" : {\n    \"bf16\" : true"));
  assert_non_null (strstr (out->text, "\"DistributedDataParallelConfig\" : {\n    "
                                      "\"use_distributed_optimizer\" : true\n  }"));
}

/* initialize_model_parallel() asserts that experts, which it also counts in a model without any,
 * have as many replicas as dense weights if the stages lie inside. The order of ranks is no field,
 * but an argument of this function. */
static void
stages_inside_replicas_need_the_size_of_idle_experts (void **state)
{
  static const char words[] = "model=gpt2 topology=dgx-h100 gpus=16 pipeline_model_parallel_size=2 "
                              "tensor_model_parallel_size=2 global_batch_size=8 "
                              "context_parallel_size=2 use_tp_pp_dp_mapping=";

  (void) state;
  for (int inside = 0; inside < 2; inside++) {
    g_autofree char *all = g_strconcat (words, inside ? "true" : "false", NULL);
    g_autoptr (GError) error = NULL;
    struct weft_job job;
    assert_true (weft_test_job (all, &job, &error));
    g_autoptr (weft_interop_result) out = weft_export (&weft_megatron_core, &job, &error);
    g_autofree char *left_out = weft_export_left_out (out);
    assert_null (left_out);
    assert_int_equal (strstr (out->text, "\"expert_tensor_parallel_size\" : 4") != NULL, inside);
    weft_test_means (&how, out->text, "expert_tensor_parallel_size", "none");
  }
  assert_means (", \"num_moe_experts\": 8, \"expert_tensor_parallel_size\": 1}",
                "expert_tensor_parallel_size", "1");
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (fields_have_the_defaults_of_their_classes),
  cmocka_unit_test (fields_together_say_an_activation_and_a_precision),
  cmocka_unit_test (what_weft_does_not_have_is_refused_by_name),
  cmocka_unit_test (an_export_has_an_object_for_each_class),
  cmocka_unit_test (stages_inside_replicas_need_the_size_of_idle_experts),
};

WEFT_TESTS (tests)
