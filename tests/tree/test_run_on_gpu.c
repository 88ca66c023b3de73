/* tests/gpu/run.sh on a machine without a GPU: it reports every part as skipped and writes the
 * results document that bench/results/README.md describes. bench/torch_twin.py, which trains the
 * same model in PyTorch for comparison, must compute the same numbers of parameters and FLOPs as
 * Weft. */
#include "core/job/job.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include <glib/gstdio.h>
#include <json-glib/json-glib.h>
#include <math.h>
#include <sys/wait.h>
#define NO_GPU "#!/bin/sh\necho 'no devices were found'\nexit 6\n"
#define H100 "#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 580.159.04, 81559, 1980, 2619, 700.00'\n"

/* Runs run.sh with the program `smi` in place of nvidia-smi. Loads the results document into
 * `parser`; returns the exit status. */
static int
run_script (const char *folder, const char *smi, const char *flags, const char *document,
            JsonParser *parser)
{
  g_autofree char *tool = g_build_filename (folder, "nvidia-smi", NULL);
  g_autofree char *json = g_build_filename (folder, "results", document, NULL);
  g_autofree char *command = g_strdup_printf (
      "bash -c 'PATH=\"%s:$PATH\" \"%s/tests/gpu/run.sh\" --build \"%s\" %s \"%s/results\"'",
      folder, WEFT_SOURCE_DIR, WEFT_BUILD_DIR, flags, folder);
  g_autofree char *out = NULL, *said = NULL;
  g_autoptr (GError) error = NULL;
  int status = -1;

  assert_true (g_file_set_contents (tool, smi, -1, NULL));
  assert_int_equal (g_chmod (tool, 0755), 0);
  assert_true (g_spawn_command_line_sync (command, &out, &said, &status, &error));
  assert_true (WIFEXITED (status));
  if (!json_parser_load_from_file (parser, json, &error))
    fail_msg ("%s\n%s", error->message, said);
  return WEXITSTATUS (status);
}

static JsonObject *
part_at (JsonParser *parser, guint i)
{
  JsonObject *root = json_node_get_object (json_parser_get_root (parser));
  return json_array_get_object_element (json_object_get_array_member (root, "parts"), i);
}

static guint
count_of (JsonParser *parser, const char *member)
{
  JsonObject *root = json_node_get_object (json_parser_get_root (parser));
  return json_array_get_length (json_object_get_array_member (root, member));
}

static void
without_a_gpu_every_part_is_skipped_and_says_why (void **state)
{
  g_autoptr (JsonParser) parser = json_parser_new ();

  assert_int_equal (run_script (*state, NO_GPU, "", "h200.json", parser), 3);
  JsonObject *root = json_node_get_object (json_parser_get_root (parser));
  assert_string_equal (json_object_get_string_member (root, "schema"), "weft.gpu/1");
  assert_true (json_object_get_null_member (root, "gpu"));
  assert_string_equal (json_object_get_string_member (root, "why"), "no devices were found");
  assert_int_equal (count_of (parser, "training"), 3);
  assert_true (count_of (parser, "parts") > 10);
  for (guint i = 0; i < count_of (parser, "parts"); i++) {
    JsonObject *part = part_at (parser, i);
    assert_string_equal (json_object_get_string_member (part, "status"), "skipped");
    assert_string_equal (json_object_get_string_member (part, "said"),
                         "no GPU: no devices were found");
  }
}

/* With --anyway, run.sh also runs the training parts on a machine without a GPU. These parts pass
 * if the machine has a GPU, and fail otherwise. */
static void
parts_that_are_run_anyway_end_and_have_a_status (void **state)
{
  g_autoptr (JsonParser) parser = json_parser_new ();

  assert_int_equal (run_script (*state, NO_GPU,
                                "--anyway --tiny --only device,gpt2-nano,gpt2-nano-graph",
                                "h200.json", parser),
                    3);
  assert_int_equal (count_of (parser, "parts"), 3);
  assert_string_equal (json_object_get_string_member (part_at (parser, 0), "status"), "failed");
  for (guint i = 1; i < 3; i++) {
    JsonObject *part = part_at (parser, i);
    gboolean passed = g_str_equal (json_object_get_string_member (part, "status"), "passed");
    assert_true (passed || json_object_get_int_member (part, "exit") != 0);
    assert_true (passed || *json_object_get_string_member (part, "said"));
  }
}

/* tests/gpu/run.sh trains smaller batches and fewer layers on a GPU with 80 GB than on one with 141
 * GB. The training rows of the results document contain the trained sizes. */
static void
batches_and_layers_follow_the_memory_of_the_gpu (void **state)
{
  static const struct {
    const char *model, *layers;
    int64_t micro;
  } rows[] = { { "gpt2", "all", 64 }, { "qwen2.5-1.5b", "all", 8 }, { "llama2-7b", "14", 1 } };
  g_autoptr (JsonParser) parser = json_parser_new ();

  assert_int_equal (run_script (*state, H100, "--only device", "h100.json", parser), 0);
  JsonObject *root = json_node_get_object (json_parser_get_root (parser));
  JsonObject *gpu = json_object_get_object_member (root, "gpu");
  assert_string_equal (json_object_get_string_member (gpu, "name"), "NVIDIA H100 80GB HBM3");
  assert_int_equal (json_object_get_int_member (gpu, "memory_mib"), 81559);
  assert_int_equal (count_of (parser, "parts"), 1);
  assert_int_equal (count_of (parser, "training"), G_N_ELEMENTS (rows));
  for (unsigned i = 0; i < G_N_ELEMENTS (rows); i++) {
    JsonObject *row =
        json_array_get_object_element (json_object_get_array_member (root, "training"), i);
    assert_string_equal (json_object_get_string_member (row, "model"), rows[i].model);
    assert_string_equal (json_object_get_string_member (row, "layers"), rows[i].layers);
    assert_int_equal (json_object_get_int_member (row, "micro_batch_size"), rows[i].micro);
  }
}

static void
an_unknown_flag_is_bad_usage (void **state)
{
  int status = -1;
  (void) state;

  assert_true (g_spawn_command_line_sync (WEFT_SOURCE_DIR "/tests/gpu/run.sh --nonsense", NULL,
                                          NULL, &status, NULL));
  assert_int_equal (WEXITSTATUS (status), 2);
}

/* -------------------------------------------------------------------- bench/torch_twin.py */

static void
the_twin_counts_parameters_and_flops_as_weft_does (void **state)
{
  static const struct {
    const char *name, *layers;
  } rows[] = {
    { "gpt2", "12" }, { "qwen2.5-1.5b", "28" }, { "llama2-7b", "14" }, { "llama3-8b", "32" }
  };
  g_autofree char *python = g_find_program_in_path ("python3");
  (void) state;

  if (!python)
    skip ();
  for (unsigned i = 0; i < G_N_ELEMENTS (rows); i++) {
    g_autofree char *command =
        g_strdup_printf ("%s %s/bench/torch_twin.py --config %s/models/%s.json --seq-length 512 "
                         "--num-layers %s --describe",
                         python, WEFT_SOURCE_DIR, WEFT_SOURCE_DIR, rows[i].name, rows[i].layers);
    g_autoptr (weft_settings) settings = weft_settings_new ();
    g_autoptr (JsonParser) parser = json_parser_new ();
    g_autofree char *out = NULL;
    struct weft_job job;
    weft_settings_add (settings, "model", "config", rows[i].name, "test");
    weft_settings_add (settings, "model", "num_layers", rows[i].layers, "test");
    weft_settings_add (settings, "model", "seq_length", "512", "test");
    weft_settings_add (settings, "cluster", "topology", "hgx-h200", "test");
    assert_true (weft_job_build (settings, &job, NULL));
    assert_true (g_spawn_command_line_sync (command, &out, NULL, NULL, NULL));
    assert_true (json_parser_load_from_data (parser, out, -1, NULL));
    JsonObject *twin = json_node_get_object (json_parser_get_root (parser));
    assert_int_equal (json_object_get_int_member (twin, "parameters"),
                      weft_model_parameters (&job.model));
    double flops = weft_model_flops_per_token (&job.model, TRUE);
    double told = json_object_get_double_member (twin, "flops_per_token");
    if (!(fabs (told - flops) <= 1e-9 * flops))
      fail_msg ("%s: found %g FLOPs a token, wanted %g", rows[i].name, told, flops);
  }
}

#define IN_FOLDER(test)                                                                            \
  cmocka_unit_test_setup_teardown (test, weft_test_folder_make, weft_test_folder_remove)

static const struct CMUnitTest tests[] = {
  IN_FOLDER (without_a_gpu_every_part_is_skipped_and_says_why),
  IN_FOLDER (parts_that_are_run_anyway_end_and_have_a_status),
  IN_FOLDER (batches_and_layers_follow_the_memory_of_the_gpu),
  cmocka_unit_test (an_unknown_flag_is_bad_usage),
  cmocka_unit_test (the_twin_counts_parameters_and_flops_as_weft_does),
};

WEFT_TESTS (tests)
