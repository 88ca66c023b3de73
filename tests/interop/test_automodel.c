/* Recipes of NeMo Automodel: what they mean, and what is refused. */
#include "core/base/error.h"
#include "interop/automodel.h"
#include "tests/made/imports.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"
#include <string.h>

#define MODEL                                                                                      \
  "model: {torch_dtype: float32}\n"                                                                \
  "step_scheduler: {global_batch_size: 64, local_batch_size: 4}\n"

static const struct weft_test_import how = { &weft_automodel, "recipe.yaml", 16, MODEL };

static void
assert_means (const char *text, const char *setting, const char *value)
{
  weft_test_means (&how, text, setting, value);
}

static void
assert_refused (const char *text, const char *part)
{
  weft_test_import_refused (&how, text, part);
}

static void
strategies_have_the_defaults_of_their_classes (void **state)
{
  (void) state;
  assert_means ("", "distributed_config", "fsdp2");
  assert_means ("", "mp_policy_reduce_dtype", "bf16"); /* FSDP2Config.__post_init__ */
  assert_means ("", "clip_grad", "1");
  assert_means ("", "overlap_grad_reduce", "false");
  assert_means ("distributed: {strategy: megatron_fsdp}\n", "overlap_grad_reduce", "true");
  assert_means ("distributed: {strategy: megatron_fsdp}\n", "preserve_fp32_weights", "false");
  assert_means ("distributed: {strategy: megatron_fsdp, zero_dp_strategy: 2}\n",
                "data_parallel_sharding_strategy", "optim_grads");
  assert_means ("distributed: {strategy: ddp}\n", "distributed_config", "ddp");
}

static void
names_of_sizes_and_types_are_those_of_automodel (void **state)
{
  (void) state;
  assert_means ("distributed:\n  tp_size: 2\n  cp_size: none\n  dp_size: none\n",
                "tensor_model_parallel_size", "2");
  assert_means ("distributed:\n  mp_policy: {param_dtype: torch.bfloat16, reduce_dtype: float32}\n",
                "mp_policy_reduce_dtype", "fp32");
  assert_means ("distributed: {offload_policy: {pin_memory: False}}\n", "offload_policy", "cpu");
  assert_means ("distributed: {offload_policy: {pin_memory: False}}\n", "offload_policy_pin_memory",
                "false");
  assert_means ("distributed: {autocast_dtype: bfloat16}\n", "enable_autocast", "true");
  assert_means ("distributed: {activation_checkpointing: true}\n", "recompute_method", "uniform");
  assert_means ("dataset: {_target_: a.b, seq_len: 4096}\n", "seq_length", "4096");
  assert_means ("", "micro_batch_size", "4");
}

static void
a_local_batch_of_a_pipeline_is_all_of_its_microbatches (void **state)
{
  static const char stages[] =
      "step_scheduler: {global_batch_size: 64, local_batch_size: 16}\n"
      "model: {torch_dtype: float32}\n"
      "distributed:\n  pp_size: 4\n  pipeline: {pp_schedule: interleaved1f1b, "
      "pp_microbatch_size: 2}\n";
  static const struct weft_test_import plain = { &weft_automodel, "recipe.yaml", 16, "" };

  (void) state;
  weft_test_means (&plain, stages, "micro_batch_size", "2");
  weft_test_means (&plain, stages, "virtual_pipeline_model_parallel_size", "2");
}

static void
what_weft_does_not_have_is_refused_by_name (void **state)
{
  (void) state;
  assert_refused (MODEL "distributed: {tp_sizes: 2}\n",
                  "recipe.yaml:3: unknown key distributed.tp_sizes; did you mean "
                  "distributed.tp_size?");
  assert_refused ("step_scheduler: {global_batch_size: 64}\n", "weights are stored in bf16");
  assert_refused (MODEL "peft: {dim: 8}\n", "peft.* 8 changes a step");
  assert_refused (MODEL "packed_sequence: {packed_sequence_size: 4096}\n",
                  "packed_sequence.packed_sequence_size 4096 changes a step");
  assert_refused (MODEL "distributed: {mp_policy: {reduce_dtype: float32}}\n",
                  "has no param_dtype");
  assert_refused (MODEL "distributed: {strategy: deepspeed}\n", "wanted one of: fsdp2");
  assert_refused (MODEL "clip_grad_norm: {max_norm: 0}\n", "wanted a limit above 0");
}

static void
an_export_names_the_model_of_hugging_face (void **state)
{
  g_autoptr (GError) error = NULL;
  struct weft_job job;

  (void) state;
  assert_true (weft_test_job ("model=qwen3-8b topology=dgx-h100 gpus=16 stack=automodel"
                              " distributed_config=fsdp2 global_batch_size=64 micro_batch_size=2"
                              " make_vocab_size_divisible_by=1 mp_policy_output_dtype=bf16",
                              &job, &error));
  g_autoptr (weft_interop_result) out = weft_export (&weft_automodel, &job, &error);
  g_autofree char *left_out = weft_export_left_out (out);
  assert_null (left_out);
  assert_non_null (strstr (out->text, "The model of this strategy is Qwen/Qwen3-8B."));
  assert_non_null (strstr (out->text, "  mp_policy:\n    param_dtype: bfloat16\n"
                                      "    reduce_dtype: float32\n"));
  assert_non_null (strstr (out->text, "  local_batch_size: 2\n"));
  assert_non_null (strstr (out->launch, "--nnodes 2"));
}

static void
every_strategy_imports_to_a_legal_job (void **state)
{
  static const char *const strategies[] = { "fsdp2", "megatron_fsdp", "ddp" };
  struct weft_import_options options = { .gpus = 16 };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (strategies); i++) {
    g_autoptr (GError) error = NULL;
    g_autofree char *text = g_strdup_printf (MODEL "distributed: {strategy: %s}\n", strategies[i]);
    g_autoptr (weft_interop_result) in =
        weft_import (&weft_automodel, text, "recipe.yaml", &options, &error);
    struct weft_job job;
    assert_non_null (in);
    weft_settings_add (in->settings, "model", "config", "llama-nano", "test");
    weft_settings_add (in->settings, "cluster", "topology", "dgx-h100", "test");
    weft_settings_add (in->settings, "cluster", "gpus", "16", "test");
    if (!weft_job_build (in->settings, &job, &error))
      fail_msg ("%s: %s", strategies[i], error->message);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_strategy_imports_to_a_legal_job),
  cmocka_unit_test (strategies_have_the_defaults_of_their_classes),
  cmocka_unit_test (names_of_sizes_and_types_are_those_of_automodel),
  cmocka_unit_test (a_local_batch_of_a_pipeline_is_all_of_its_microbatches),
  cmocka_unit_test (what_weft_does_not_have_is_refused_by_name),
  cmocka_unit_test (an_export_names_the_model_of_hugging_face),
};

WEFT_TESTS (tests)
