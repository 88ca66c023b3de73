/* Configurations of DeepSpeed: what they mean, what is refused, and what an export leaves to the
 * training program. */
#include "core/base/error.h"
#include "interop/deepspeed.h"
#include "tests/made/imports.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"
#include <string.h>

static const struct weft_test_import how = { &weft_deepspeed, "ds.json", 16, "" };

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

#define BATCH "\"train_micro_batch_size_per_gpu\": 2, "

static void
two_sizes_of_the_batch_say_the_third (void **state)
{
  (void) state;
  assert_means ("{\"train_batch_size\": 64, \"gradient_accumulation_steps\": 2}",
                "micro_batch_size", "2");
  assert_means ("{" BATCH "\"gradient_accumulation_steps\": 4}", "global_batch_size", "128");
  assert_means ("{" BATCH "\"train_batch_size\": \"auto\"}", "global_batch_size", "32");
  assert_means ("{" BATCH "\"sequence_parallel_size\": 2}", "global_batch_size", "16");
}

static void
stages_of_zero_are_strategies (void **state)
{
  static const char three[] = "{" BATCH "\"zero_optimization\": {\"stage\": 3, "
                              "\"stage3_prefetch_bucket_size\": 2e7}, \"bf16\": {\"enabled\": "
                              "true}}";

  (void) state;
  assert_means ("{" BATCH "\"fp16\": {\"enabled\": true}}", "use_distributed_optimizer", "false");
  assert_means ("{" BATCH "\"fp16\": {\"enabled\": true}}", "initial_loss_scale", "65536");
  assert_means ("{" BATCH "\"zero_optimization\": {\"stage\": 1}}", "use_distributed_optimizer",
                "true");
  assert_means ("{" BATCH "\"zero_optimization\": {\"stage\": 1}}", "bucket_size", "500000000");
  assert_means ("{" BATCH "\"zero_optimization\": {\"stage\": 1}}", "overlap_grad_reduce", "false");
  assert_means (three, "data_parallel_sharding_strategy", "optim_grads_params");
  assert_means (three, "suggested_communication_unit_size", "40000000");
  assert_means (three, "overlap_param_gather", "true");
  assert_means (three, "clip_grad", "0");
  assert_means ("{" BATCH "\"zero_optimization\": {\"stage\": 1, \"offload_optimizer\": "
                "{\"device\": \"cpu\", \"pin_memory\": true}}}",
                "pin_cpu_grads", "true");
}

static void
what_weft_does_not_have_is_refused_by_name (void **state)
{
  (void) state;
  assert_refused ("{\n" BATCH "\n\"zero_optimization\": {\n\"stag\": 3}}",
                  "ds.json:4: unknown key zero_optimization.stag; did you mean "
                  "zero_optimization.stage?");
  assert_refused ("{" BATCH "\"elastic\": {}}", "unknown key elastic");
  assert_refused ("{" BATCH "\"zero_optimization\": {\"zero_hpz_partition_size\": 8}}",
                  "zero_optimization.zero_hpz_partition_size 8 changes a step");
  assert_refused ("{" BATCH "\"zero_optimization\": {\"offload_param\": {\"device\": \"nvme\"}}}",
                  "offload_param.device nvme changes a step");
  assert_refused ("{" BATCH "\"sparse_attention\": {\"mode\": \"fixed\"}}", "sparse_attention");
  assert_refused ("{" BATCH "\"zero_optimization\": {\"stage\": 2}}", "overlap_comm = true");
  assert_refused ("{" BATCH "\"bf16\": {\"enabled\": true}}", "no fp32 master of bf16 weights");
  assert_refused ("{" BATCH "\"zero_optimization\": {\"stage\": 4}}", "wanted one of: 0 1 2 3");
  assert_refused ("{" BATCH "\"communication_data_type\": \"bf16\"}", "both must be equal");
  assert_refused ("[1]", "ds.json: found an array, wanted an object");
  assert_refused ("{" BATCH "\"train_batch_size\": 1, \"train_batch_size\": 2}", "ds.json:");
  assert_refused ("{", "ds.json:");
}

static void
an_export_leaves_the_model_to_the_training_program (void **state)
{
  g_autoptr (GError) error = NULL;
  struct weft_job job;

  (void) state;
  assert_true (weft_test_job ("model=llama-nano topology=dgx-h100 gpus=16 stack=deepspeed"
                              " distributed_config=megatron_ddp use_distributed_optimizer=true"
                              " bucket_size=1e7 global_batch_size=64"
                              " attention_backend=unfused recompute_granularity=selective",
                              &job, &error));
  g_autoptr (weft_interop_result) out = weft_export (&weft_deepspeed, &job, &error);
  g_autofree char *left_out = weft_export_left_out (out), *elsewhere = weft_export_elsewhere (out);
  assert_null (left_out);
  assert_non_null (strstr (elsewhere, "attention_backend = unfused"));
  assert_non_null (strstr (out->launch, "--num_nodes 2 --num_gpus 8 "));
  assert_non_null (strstr (out->text, "\"gradient_accumulation_steps\" : 4,"));
  assert_non_null (strstr (out->text, "\"stage\" : 1,\n    \"reduce_bucket_size\" : 10000000"));
  assert_null (strstr (out->text, "attention"));
}

/* The first strategy of the stack "deepspeed" is Megatron-FSDP's. */
static void
an_import_names_the_strategy_whatever_the_stack (void **state)
{
  g_autoptr (GError) error = NULL;
  struct weft_import_options options = { .gpus = 16 };
  struct weft_job job;

  (void) state;
  g_autoptr (weft_interop_result) in = weft_import (
      &weft_deepspeed,
      "{" BATCH "\"zero_optimization\": {\"stage\": 1}, \"bf16\": {\"enabled\": true}}", "ds.json",
      &options, &error);
  assert_non_null (in);
  assert_true (
      g_ptr_array_find_with_equal_func (in->elsewhere, "attention_backend", g_str_equal, NULL));
  weft_settings_add (in->settings, "model", "config", "llama-nano", "test");
  weft_settings_add (in->settings, "cluster", "topology", "dgx-h100", "test");
  weft_settings_add (in->settings, "cluster", "gpus", "16", "test");
  assert_true (weft_job_build (in->settings, &job, &error));
  assert_int_equal (job.strategy.distributed_config, WEFT_MEGATRON_DDP);
  assert_int_equal (job.train.global_batch_size, 32);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (two_sizes_of_the_batch_say_the_third),
  cmocka_unit_test (stages_of_zero_are_strategies),
  cmocka_unit_test (what_weft_does_not_have_is_refused_by_name),
  cmocka_unit_test (an_export_leaves_the_model_to_the_training_program),
  cmocka_unit_test (an_import_names_the_strategy_whatever_the_stack),
};

WEFT_TESTS (tests)
