/* Job configurations of torchtitan: what they mean, and what is refused. */
#include "core/base/error.h"
#include "interop/torchtitan.h"
#include "tests/made/imports.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"
#include <string.h>

#define MODEL "[model]\nname = \"qwen3\"\nflavor = \"8B\"\n"

static const struct weft_test_import how = { &weft_torchtitan, "job.toml", 32, MODEL };

static char *
imported (const char *text, const char *setting)
{
  return weft_test_imported (&how, text, setting);
}

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
a_flavor_is_a_bundled_model (void **state)
{
  (void) state;
  assert_means ("", "num_layers", "36");
  assert_means ("", "qk_layernorm", "true");
  g_autofree char *scaling =
      imported ("[model]\nname = \"llama3\"\nflavor = \"8B\"\n", "rotary_scaling");
  assert_string_equal (scaling, "llama3");
  assert_refused ("[model]\nflavor = \"9B\"\n", "llama3 9B is none of the models that Weft knows");
}

static void
settings_that_no_key_gives_have_the_defaults_of_torchtitan (void **state)
{
  (void) state;
  assert_means ("", "distributed_config", "fsdp2");
  assert_means ("", "micro_batch_size", "8");
  assert_means ("", "global_batch_size", "none");
  assert_means ("", "seq_length", "2048");
  assert_means ("", "mp_policy_output_dtype", "bf16");
  assert_means ("", "defer_fsdp_grad_sync", "false");
  assert_means ("", "recompute_method", "block"); /* every second layer */
  assert_means ("", "recompute_num_layers", "18");
  assert_means ("[activation_checkpoint]\nmode = \"full\"\n", "recompute_method", "uniform");
  assert_means ("[activation_checkpoint]\nmode = \"none\"\n", "recompute_granularity", "none");
  assert_means ("[parallelism]\ntensor_parallel_degree = 2\n", "sequence_parallel", "true");
}

static void
a_local_batch_of_a_pipeline_is_all_of_its_microbatches (void **state)
{
  static const char stages[] = "[training]\nlocal_batch_size = 16\n[parallelism]\n"
                               "pipeline_parallel_degree = 4\n"
                               "pipeline_parallel_schedule = \"Interleaved1F1B\"\n";

  (void) state;
  assert_means (stages, "micro_batch_size", "1");
  assert_means (stages, "global_batch_size", "128"); /* 32 GPUs, 4 stages: 8 replicas */
  assert_means (stages, "virtual_pipeline_model_parallel_size", "2");
  assert_means (stages, "account_for_loss_in_pipeline_split", "true");
  assert_refused (MODEL "[training]\nlocal_batch_size = 16\n[parallelism]\n"
                        "pipeline_parallel_degree = 4\n",
                  "depends on the number of GPUs");
  assert_refused (MODEL "[training]\nlocal_batch_size = 4\nglobal_batch_size = 64\n[parallelism]\n"
                        "pipeline_parallel_degree = 4\ndata_parallel_shard_degree = 8\n",
                  "Weft has no passes one after the other");
}

static void
what_weft_does_not_have_is_refused_by_name (void **state)
{
  (void) state;
  assert_refused (MODEL "[parallelism]\ntensor_parallel_degre = 2\n",
                  "job.toml:5: unknown key parallelism.tensor_parallel_degre; did you mean "
                  "parallelism.tensor_parallel_degree?");
  assert_refused (MODEL "[parallelism]\nfsdp_reshard_after_forward = \"never\"\n",
                  "parallelism.fsdp_reshard_after_forward never changes a step");
  assert_refused (MODEL "converters = [\"float8\"]\n", "model.converters float8 changes a step");
  assert_refused (MODEL "[training]\nseq_len = \"long\"\n",
                  "found \"long\", wanted a whole number");
  assert_refused (MODEL "[activation_checkpoint]\nselective_ac_option = \"op\"\n",
                  "wanted a number: every n-th layer");
  assert_refused (MODEL "[parallelism]\npipeline_parallel_schedule = \"ZB\"\n",
                  "wanted one of 1F1B, Interleaved1F1B");
  assert_refused (MODEL "[parallelism]\ndata_parallel_replicate_degree = 2\n"
                        "data_parallel_shard_degree = 1\n",
                  "DDP under autocast");
  assert_refused ("[model\n", "job.toml: ");
  assert_refused (MODEL "when = 2026-01-01\n", "job.toml:4: model.when: wanted a text");
}

static void
an_export_is_a_table_for_each_class (void **state)
{
  g_autoptr (GError) error = NULL;
  struct weft_job job;

  (void) state;
  assert_true (weft_test_job (
      "model=qwen3-8b topology=dgx-h100 gpus=32 stack=torchtitan distributed_config=fsdp2"
      " global_batch_size=128 mp_policy_output_dtype=bf16 patch_is_packed_sequence=true"
      " tensor_model_parallel_size=2 sequence_parallel=true pipeline_model_parallel_size=2"
      " dp_replicate_size=2 make_vocab_size_divisible_by=1",
      &job, &error));
  g_autoptr (weft_interop_result) out = weft_export (&weft_torchtitan, &job, &error);
  g_autofree char *left_out = weft_export_left_out (out);
  assert_null (left_out);
  assert_non_null (
      strstr (out->text, "\n[model]\nname = \"qwen3\"\nflavor = \"8B\"\n\n[training]\n"));
  assert_non_null (strstr (out->text, "local_batch_size = 16\n")); /* 128 over 8 replicas */
  assert_non_null (strstr (out->text, "data_parallel_replicate_degree = 2\n"));
  assert_non_null (strstr (out->text, "pipeline_parallel_first_stage_less_layers = 0\n"));
  assert_non_null (strstr (out->text, "[activation_checkpoint]\nmode = \"none\"\n"));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_flavor_is_a_bundled_model),
  cmocka_unit_test (settings_that_no_key_gives_have_the_defaults_of_torchtitan),
  cmocka_unit_test (a_local_batch_of_a_pipeline_is_all_of_its_microbatches),
  cmocka_unit_test (what_weft_does_not_have_is_refused_by_name),
  cmocka_unit_test (an_export_is_a_table_for_each_class),
};

WEFT_TESTS (tests)
