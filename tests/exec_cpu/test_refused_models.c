/* Models with settings that Weft's kernels do not compute: they are planned and simulated, but
 * training refuses them. */
#include "exec_cpu/exec_cpu.h"
#include "exec_sim/exec_sim.h"
#include "tests/runner/folder.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"
#include <string.h>
#include <sys/wait.h>

#define SIZES                                                                                      \
  "\"vocab_size\":256,\"max_position_embeddings\":16,\"hidden_size\":16,\"num_hidden_layers\":2,"  \
  "\"num_attention_heads\":4,\"intermediate_size\":24"

/* A config.json that other software accepts, the begin of the error message, and the flag with
 * which the model can be trained. */
static const struct {
  const char *json, *message, *instead;
} odd[] = {
  { "{\"model_type\":\"qwen2\"," SIZES ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0,"
    "\"original_max_position_embeddings\":8}}",
    "rotary_scaling (rope_scaling of a config.json): found other, wanted none, linear or llama3",
    "rotary_scaling=none" },
  { "{\"model_type\":\"llama\"," SIZES ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2.0}}",
    "rotary_scaling (rope_scaling of a config.json): found other",
    "rotary_scaling=linear rotary_scaling_factor=2" },
  { "{\"model_type\":\"llama\"," SIZES ",\"activation\":\"quick_geglu\"}",
    "activation: found quick_geglu, wanted any other", "activation=swiglu" },
};

static char *
write_model (const char *folder, unsigned i)
{
  char *path = g_build_filename (folder, "config.json", NULL);

  assert_true (g_file_set_contents (path, odd[i].json, -1, NULL));
  return path;
}

static void
models_that_kernels_cannot_compute_are_refused_by_name (void **folder)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (odd); i++) {
    g_autofree char *path = write_model (*folder, i);
    g_autoptr (weft_plan) plan = weft_test_plan ("topology=cpu gpus=2 model=%s", path);
    g_autoptr (weft_plan) good =
        weft_test_plan ("topology=cpu gpus=2 model=%s %s", path, odd[i].instead);
    const struct weft_exec_options options = { 0 };
    g_autoptr (GError) error = NULL;
    assert_null (weft_exec_cpu.open (plan, &options, &error));
    if (!g_str_has_prefix (error->message, odd[i].message))
      fail_msg ("found:  %s\nwanted: %s", error->message, odd[i].message);
    weft_exec *x = weft_exec_cpu.open (good, &options, NULL);
    assert_non_null (x);
    weft_exec_cpu.close (x);
  }
}

static void
they_are_simulated_all_the_same (void **folder)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (odd); i++) {
    g_autofree char *path = write_model (*folder, i);
    g_autoptr (weft_plan) plan = weft_test_plan ("topology=cpu gpus=2 model=%s", path);
    g_autoptr (weft_plan) good =
        weft_test_plan ("topology=cpu gpus=2 model=%s %s", path, odd[i].instead);
    const struct weft_exec_options options = { 0 };
    g_autoptr (weft_timeline) t = weft_exec_run (&weft_exec_sim, plan, &options, NULL);
    g_autoptr (weft_timeline) same = weft_exec_run (&weft_exec_sim, good, &options, NULL);
    assert_non_null (t);
    /* The activation function of the model is not fused into a matmul, as gelu is, so the step may
     * be slower. */
    assert_true (t->seconds >= same->seconds && t->seconds < 1.5 * same->seconds);
  }
}

/* `weft train` ends with status 2 before the first step, and its message names the setting. */
static void
training_says_so (void **folder)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (odd); i++) {
    g_autofree char *path = write_model (*folder, i), *out = NULL, *err = NULL;
    const char *argv[] = { WEFT_BINARY, "train",   "--model", path, "--data",
                           "README.md", "--steps", "1",       NULL };
    int status;
    assert_true (g_spawn_sync (WEFT_SOURCE_DIR, (char **) argv, NULL, G_SPAWN_DEFAULT, NULL, NULL,
                               &out, &err, &status, NULL));
    assert_true (WIFEXITED (status));
    assert_int_equal (WEXITSTATUS (status), 2);
    assert_string_equal (out, "");
    if (!strstr (err, odd[i].message))
      fail_msg ("found:  %s\nwanted: %s", err, odd[i].message);
  }
}

#define TEST(name)                                                                                 \
  cmocka_unit_test_setup_teardown (name, weft_test_folder_make, weft_test_folder_remove)
static const struct CMUnitTest tests[] = {
  TEST (models_that_kernels_cannot_compute_are_refused_by_name),
  TEST (they_are_simulated_all_the_same),
  TEST (training_says_so),
};

WEFT_TESTS (tests)
