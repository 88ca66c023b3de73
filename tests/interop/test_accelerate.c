/* Configurations of accelerate: what they mean, and what is refused. */
#include "core/base/error.h"
#include "interop/accelerate.h"
#include "tests/made/imports.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"
#include <string.h>

static const struct weft_test_import how = { &weft_accelerate, "default_config.yaml", 0, "" };

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

#define FSDP                                                                                       \
  "distributed_type: FSDP\nmixed_precision: 'bf16'\nnum_processes: 16\ndowncast_bf16: 'no'\n"      \
  "fsdp_config:\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"

static void
a_type_of_distribution_is_a_strategy (void **state)
{
  (void) state;
  assert_means (FSDP, "distributed_config", "fsdp2");
  assert_means (FSDP, "gpus", "16");
  assert_means (FSDP, "mp_policy_reduce_dtype", "bf16");
  assert_means (FSDP "  fsdp_activation_checkpointing: yes\n", "recompute_method", "uniform");
  assert_means (FSDP "  fsdp_offload_params: True\n", "offload_policy", "cpu");
  assert_means (FSDP "parallelism_config: {parallelism_config_tp_size: 2}\n",
                "tensor_model_parallel_size", "2");
  assert_means ("distributed_type: MULTI_GPU\nmixed_precision: bf16\n", "precision", "fp32");
  assert_means ("distributed_type: MULTI_GPU\nmixed_precision: bf16\n", "autocast_dtype", "bf16");
  assert_means ("distributed_type: MULTI_GPU\nfsdp_config: {}\n", "distributed_config", "ddp");
  assert_means ("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3, "
                "offload_optimizer_device: cpu}\n",
                "pin_cpu_grads", "false");
  assert_means ("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\n",
                "data_parallel_sharding_strategy", "optim_grads_params");
}

#define MEGATRON "distributed_type: MEGATRON_LM\nmixed_precision: bf16\nmegatron_lm_config:\n"

static void
sections_count_for_their_type_only (void **state)
{
  (void) state;
  assert_means (MEGATRON "  megatron_lm_tp_degree: 4\n  megatron_lm_sequence_parallelism: true\n",
                "sequence_parallel", "true");
  assert_means (MEGATRON "  megatron_lm_use_distributed_optimizer: true\n", "grad_reduce_in_fp32",
                "true");
  assert_means (MEGATRON "  megatron_lm_recompute_activations: true\n", "recompute_granularity",
                "selective");
  assert_means (MEGATRON "parallelism_config: {parallelism_config_tp_size: 2}\n",
                "tensor_model_parallel_size", "1");
}

static void
what_weft_does_not_have_is_refused_by_name (void **state)
{
  (void) state;
  assert_refused ("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\n",
                  "the model is one unit");
  assert_refused (FSDP "  fsdp_sharding_strategy: SHARD_GRAD_OP\n",
                  "fsdp_config.fsdp_sharding_strategy SHARD_GRAD_OP changes a step");
  assert_refused (FSDP "  fsdp_versio: 2\n",
                  "default_config.yaml:7: unknown key fsdp_config.fsdp_versio; did you mean "
                  "fsdp_config.fsdp_version?");
  assert_refused ("distributed_type: DEEPSPEED\n", "the stage is 2");
  assert_refused ("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 1}\n",
                  "with --from deepspeed");
  assert_refused ("distributed_type: XLA\n", "distributed_type XLA changes a step");
  assert_refused ("distributed_type: MULTI_GPU\nmixed_precision: fp16\n", "wanted no or bf16");
  assert_refused ("distributed_type: MULTI_GPU\nuse_cpu: true\n", "use_cpu true changes a step");
}

static void
an_export_multiplies_to_the_number_of_processes (void **state)
{
  g_autoptr (GError) error = NULL;
  struct weft_job job;

  (void) state;
  assert_true (weft_test_job ("model=qwen3-8b topology=dgx-h100 gpus=16 distributed_config=fsdp2"
                              " global_batch_size=64 tensor_model_parallel_size=2"
                              " make_vocab_size_divisible_by=1 mp_policy_reduce_dtype=bf16"
                              " mp_policy_output_dtype=bf16",
                              &job, &error));
  g_autoptr (weft_interop_result) out = weft_export (&weft_accelerate, &job, &error);
  g_autofree char *left_out = weft_export_left_out (out), *elsewhere = weft_export_elsewhere (out);
  assert_null (left_out);
  assert_non_null (strstr (out->text, "num_processes: 16\nnum_machines: 2\n"));
  assert_non_null (strstr (out->text, "parallelism_config_dp_shard_size: 8\n"));
  assert_non_null (strstr (elsewhere, "global_batch_size = 64"));
}

static void
every_type_imports_to_a_legal_job (void **state)
{
  static const char *const types[] = { FSDP, MEGATRON "  megatron_lm_tp_degree: 2\n",
                                       "distributed_type: MULTI_GPU\nmixed_precision: bf16\n",
                                       "distributed_type: DEEPSPEED\nmixed_precision: bf16\n"
                                       "deepspeed_config: {zero_stage: 3}\n" };
  struct weft_import_options options = { .gpus = 16 };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (types); i++) {
    g_autoptr (GError) error = NULL;
    g_autoptr (weft_interop_result) in =
        weft_import (&weft_accelerate, types[i], "default_config.yaml", &options, &error);
    struct weft_job job;
    if (!in)
      fail_msg ("%s: %s", types[i], error->message);
    weft_settings_add (in->settings, "model", "config", "llama-nano", "test");
    weft_settings_add (in->settings, "cluster", "topology", "dgx-h100", "test");
    weft_settings_add (in->settings, "cluster", "gpus", "16", "test");
    if (!weft_job_build (in->settings, &job, &error))
      fail_msg ("%s: %s", types[i], error->message);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_type_imports_to_a_legal_job),
  cmocka_unit_test (a_type_of_distribution_is_a_strategy),
  cmocka_unit_test (sections_count_for_their_type_only),
  cmocka_unit_test (what_weft_does_not_have_is_refused_by_name),
  cmocka_unit_test (an_export_multiplies_to_the_number_of_processes),
};

WEFT_TESTS (tests)
