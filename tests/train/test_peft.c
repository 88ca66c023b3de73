/* LoRA adapters in the files of Hugging Face PEFT: names, shapes, and that an import restores every
 * bit under another strategy. */
#include "tests/made/real_job.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include "train/peft.h"
#include "train/safetensors.h"
#include <string.h>

#define JOB(model)                                                                                 \
  "topology=cpu global_batch_size=4 lora_dim=2 lora_alpha=8 model=" WEFT_SOURCE_DIR                \
  "/tests/vectors/" model "/config.json "

static const char *const models[] = { JOB ("gpt2"), JOB ("llama"), JOB ("gpt_neox") };

static real_job *
trained (const char *model, const char *strategy)
{
  g_autofree char *words = g_strconcat (model, strategy, NULL);
  real_job *job = real_job_open (words, NULL);

  weft_state_init (job->state, 5);
  real_job_step (job);
  return job;
}

static void export(real_job *job, const char *folder)
{
  g_autoptr (GError) error = NULL;

  if (!weft_peft_export (job->state, &job->plan->job, folder, &error))
    fail_msg ("%s", error->message);
}

static void
adapters_come_back_under_another_strategy (void **state)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (models); i++) {
    g_autofree char *to = g_build_filename (*state, "adapter", NULL);
    g_autoptr (GError) error = NULL;
    g_autoptr (real_job) one = trained (models[i], "gpus=2 tensor_model_parallel_size=2 "
                                                   "use_distributed_optimizer=true");
    g_autofree char *words = g_strconcat (models[i], "gpus=1", NULL);
    g_autoptr (real_job) other = real_job_open (words, NULL);
    export(one, to);
    weft_state_init (other->state, 5);
    if (!weft_peft_import (other->state, &other->plan->job, to, &error))
      fail_msg ("%s", error->message);
    assert_null (real_other_tensor (one->state, other->state, WEFT_STATE_MASTER));
  }
}

/* q_proj, k_proj and v_proj share A; each has its rows of B. */
static void
files_have_the_names_of_peft (void **state)
{
  static const struct {
    const char *name;
    uint64_t rows, columns;
  } wanted[] = {
    { "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", 2, 0 },
    { "base_model.model.model.layers.0.self_attn.k_proj.lora_B.weight", 0, 2 },
    { "base_model.model.model.layers.1.mlp.up_proj.lora_B.weight", 0, 2 },
    { "base_model.model.model.layers.1.mlp.down_proj.lora_A.weight", 2, 0 },
  };
  const char *folder = *state;
  g_autofree char *path = g_build_filename (folder, "adapter_model.safetensors", NULL);
  g_autofree char *config = g_build_filename (folder, "adapter_config.json", NULL);
  g_autofree char *text = NULL;
  g_autoptr (real_job) job = trained (models[1], "gpus=1");

  export(job, folder);
  g_autoptr (weft_safetensors) file = weft_safetensors_open (path, NULL);
  assert_non_null (file);
  for (unsigned i = 0; i < G_N_ELEMENTS (wanted); i++) {
    const struct weft_tensor *t = weft_safetensors_find (file, wanted[i].name);
    if (!t)
      fail_msg ("no tensor %s", wanted[i].name);
    assert_int_equal (t->n_dim, 2);
    assert_true (t->dim[0] == wanted[i].rows || wanted[i].rows == 0);
    assert_true (t->dim[1] == wanted[i].columns || wanted[i].columns == 0);
  }
  assert_true (g_file_get_contents (config, &text, NULL, NULL));
  assert_non_null (strstr (text, "\"peft_type\" : \"LORA\""));
  assert_non_null (strstr (text, "\"self_attn.q_proj\""));
  assert_non_null (strstr (text, "\"mlp.down_proj\""));
}

/* Replaces a word of the configuration and expects an import that says `wanted`. */
static void
refused (real_job *job, const char *folder, const char *const change[2], const char *wanted)
{
  g_autofree char *config = g_build_filename (folder, "adapter_config.json", NULL);
  g_autofree char *text = NULL;
  g_autoptr (GError) error = NULL;

  assert_true (g_file_get_contents (config, &text, NULL, NULL));
  g_autoptr (GString) changed = g_string_new (text);
  assert_int_equal (g_string_replace (changed, change[0], change[1], 0), 1);
  assert_true (g_file_set_contents (config, changed->str, -1, NULL));
  assert_false (weft_peft_import (job->state, &job->plan->job, folder, &error));
  if (!strstr (error->message, wanted))
    fail_msg ("found \"%s\", wanted \"%s\"", error->message, wanted);
  assert_true (g_file_set_contents (config, text, -1, NULL));
}

static void
another_configuration_is_refused (void **state)
{
  const char *folder = *state;
  g_autoptr (real_job) job = trained (models[0], "gpus=1");

  export(job, folder);
  refused (job, folder, (const char *const[]){ "\"r\" : 2", "\"r\" : 4" }, "r: found 4, wanted 2");
  refused (job, folder, (const char *const[]){ "\"lora_alpha\" : 8", "\"lora_alpha\" : \"8\"" },
           "lora_alpha: found a string, wanted 8");
  refused (job, folder, (const char *const[]){ "\"use_dora\" : false", "\"use_dora\" : true" },
           "use_dora: found true, wanted false");
  refused (job, folder, (const char *const[]){ "LORA", "IA3" },
           "peft_type: found \"IA3\", wanted \"LORA\"");
}

#define IN_FOLDER(test)                                                                            \
  cmocka_unit_test_setup_teardown (test, weft_test_folder_make, weft_test_folder_remove)

static const struct CMUnitTest tests[] = {
  IN_FOLDER (adapters_come_back_under_another_strategy),
  IN_FOLDER (files_have_the_names_of_peft),
  IN_FOLDER (another_configuration_is_refused),
};

WEFT_TESTS (tests)
