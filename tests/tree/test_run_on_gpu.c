/* tests/gpu/run.sh on a machine without a GPU: it reports every part as skipped and writes the
 * results document that bench/results/README.md describes. Then dry runs with doubles of all
 * programs (tests/doubles/gpu_machine.sh), in which parts fault, hang, exceed their limit or miss
 * a library: every other part still gives its results. bench/torch_twin.py, which trains the same
 * model in PyTorch for comparison, must compute the same parameters and FLOPs as Weft. */
#include "core/job/job.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include <glib/gstdio.h>
#include <json-glib/json-glib.h>
#include <math.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
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
  assert_string_equal (json_object_get_string_member (root, "schema"), "weft.gpu/2");
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
  assert_string_equal (json_object_get_string_member (part_at (parser, 0), "status"), "failed");
  assert_true (count_of (parser, "parts") >= 3);
  for (guint i = 1; i < count_of (parser, "parts"); i++) {
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

/* ------------------------------------------------------------------------------ dry runs */

/* Makes a folder as tests/gpu/pack.sh does, in which all programs are doubles. */
static void
make_pack (const char *folder)
{
  static const char *const doubles[] = { "bin/weft",  "bin/test_gpu", "bin/bench_cuda",
                                         "nvidia-smi", "ncu",          "compute-sanitizer",
                                         "python3" };
  g_autofree char *command = g_strdup_printf (
      "sh -c 'mkdir -p %s/bin %s/share/weft %s/seen; "
      "cp -r %s/tests/gpu/run.sh %s/tests/gpu/contact %s; cp -r %s/models %s/share/weft; "
      "touch %s/torch_twin.py %s/LICENSE'",
      folder, folder, folder, WEFT_SOURCE_DIR, WEFT_SOURCE_DIR, folder, WEFT_SOURCE_DIR, folder,
      folder, folder);
  int status = -1;

  assert_true (g_spawn_command_line_sync (command, NULL, NULL, &status, NULL) && status == 0);
  for (unsigned i = 0; i < G_N_ELEMENTS (doubles); i++) {
    g_autofree char *link = g_build_filename (folder, doubles[i], NULL);
    if (!g_file_test (link, G_FILE_TEST_IS_SYMLINK))
      assert_int_equal (symlink (WEFT_SOURCE_DIR "/tests/doubles/gpu_machine.sh", link), 0);
  }
}

/* The interpreter itself, not a script of a version manager, which would change PATH. */
static char *
real_python (void)
{
  char *out = NULL;

  assert_true (g_spawn_command_line_sync ("python3 -c 'import sys; print(sys.executable)'", &out,
                                          NULL, NULL, NULL));
  return g_strstrip (out);
}

/* Runs all parts, or those that `flags` name, with faults as gpu_machine.sh describes. `seen`: keep
 * the document that each part finds. Returns the document; the caller frees it. */
static JsonParser *
dry_run (const char *folder, const char *faults, const char *flags, gboolean seen)
{
  g_autofree char *python = real_python ();
  g_autofree char *json = g_build_filename (folder, "results/h200.json", NULL);
  g_autofree char *kept = seen ? g_build_filename (folder, "seen", NULL) : g_strdup ("");
  g_autofree char *command = g_strdup_printf (
      "sh -c 'FAULTS=\"%s\" SEEN=\"%s\" RESULTS=%s/results PATH=\"%s:$PATH\" %s -S -B "
      "%s/contact/main.py --tiny %s %s/results'",
      faults, kept, folder, folder, python, folder, flags, folder);
  g_autofree char *said = NULL;
  JsonParser *parser = json_parser_new ();

  assert_true (g_spawn_command_line_sync (command, NULL, &said, NULL, NULL));
  if (!json_parser_load_from_file (parser, json, NULL))
    fail_msg ("%s", said);
  return parser;
}

static JsonObject *
root_of (JsonParser *parser)
{
  return json_node_get_object (json_parser_get_root (parser));
}

/* The last record of a part; NULL: it has none. */
static JsonObject *
record_of (JsonParser *parser, const char *name)
{
  JsonObject *found = NULL;

  for (guint i = 0; i < count_of (parser, "parts"); i++)
    if (g_str_equal (json_object_get_string_member (part_at (parser, i), "part"), name))
      found = part_at (parser, i);
  return found;
}

static void
assert_record (JsonParser *parser, const char *name, const char *status, const char *way)
{
  JsonObject *record = record_of (parser, name);

  if (!record)
    fail_msg ("%s has no record", name);
  if (!g_str_equal (json_object_get_string_member (record, "status"), status))
    fail_msg ("%s: found %s (%s), wanted %s", name,
              json_object_get_string_member (record, "status"),
              json_object_get_string_member (record, "said"), status);
  if (way)
    assert_string_equal (json_object_get_string_member (record, "way"), way);
}

/* The number of elements of an array of the document whose member has this text. */
static guint
count_where (JsonParser *parser, const char *array, const char *member, const char *text)
{
  JsonArray *rows = json_object_get_array_member (root_of (parser), array);
  guint n = 0;

  for (guint i = 0; i < json_array_get_length (rows); i++) {
    JsonObject *row = json_array_get_object_element (rows, i);
    n += json_object_has_member (row, member) &&
         g_str_equal (json_object_get_string_member (row, member), text);
  }
  return n;
}

static guint
files_in (const char *folder, const char *name)
{
  g_autofree char *path = g_build_filename (folder, name, NULL);
  g_autoptr (GDir) dir = g_dir_open (path, 0, NULL);
  guint n = 0;

  while (dir && g_dir_read_name (dir))
    n++;
  return n;
}

/* Every document that a part has found is complete. */
static void
assert_documents_are_valid (const char *folder)
{
  g_autofree char *seen = g_build_filename (folder, "seen", NULL);
  g_autoptr (GDir) dir = g_dir_open (seen, 0, NULL);
  const char *name;

  assert_true (files_in (folder, "seen") > 20);
  while ((name = g_dir_read_name (dir))) {
    g_autofree char *path = g_build_filename (seen, name, NULL);
    g_autoptr (JsonParser) parser = json_parser_new ();
    g_autoptr (GError) error = NULL;
    if (!json_parser_load_from_file (parser, path, &error))
      fail_msg ("the document before %s: %s", name, error->message);
    assert_true (json_object_has_member (root_of (parser), "training"));
  }
}

static void
a_dry_run_gives_every_result (void **state)
{
  static const char *const lists[] = { "libraries", "ceilings",  "training", "kernels",
                                       "counters",  "products" };

  make_pack (*state);
  g_autoptr (JsonParser) parser = dry_run (*state, "", "", TRUE);
  for (guint i = 0; i < count_of (parser, "parts"); i++)
    assert_record (parser, json_object_get_string_member (part_at (parser, i), "part"), "passed",
                   NULL);
  assert_true (count_of (parser, "parts") > 20);
  for (unsigned i = 0; i < G_N_ELEMENTS (lists); i++)
    if (count_of (parser, lists[i]) == 0)
      fail_msg ("%s is empty", lists[i]);
  JsonArray *rows = json_object_get_array_member (root_of (parser), "training");
  JsonObject *row = json_array_get_object_element (rows, 0);
  assert_true (json_object_get_double_member (row, "weft_of_torch") > 0);
  JsonObject *clocks =
      json_object_get_object_member (json_object_get_object_member (row, "weft"), "clocks");
  JsonObject *limits = json_object_get_object_member (clocks, "limited_by");
  assert_int_equal (json_object_get_int_member (limits, "power cap"), 1);
  assert_true (files_in (*state, "results") <= 8); /* run.sh promises at most eight files */
  assert_documents_are_valid (*state);
}

/* Returns FAULTS for the parts `list`: in turn g, every third part faults, and the next exceeds its
 * limit. */
static char *
faults_of_turn (char **list, guint turn)
{
  g_autoptr (GString) faults = g_string_new (" ");

  for (guint i = 0; list[i]; i++)
    if (*list[i] && i % 3 != (turn + 2) % 3)
      g_string_append_printf (faults, "%s:%s ", list[i], i % 3 == turn ? "fault" : "late");
  return g_string_free (g_steal_pointer (&faults), FALSE);
}

/* Names of all parts, as --list prints them. */
static char **
list_parts (const char *folder)
{
  g_autofree char *command = g_strdup_printf (
      "sh -c 'PATH=\"%s:$PATH\" bash %s/run.sh --tiny --list | cut -d\" \" -f1'", folder, folder);
  g_autofree char *out = NULL;
  g_autofree char *python = g_build_filename (folder, "python3", NULL);

  assert_int_equal (g_unlink (python), 0); /* removes the double: run.sh needs the real python3 */
  assert_true (g_spawn_command_line_sync (command, &out, NULL, NULL, NULL));
  make_pack (folder);
  return g_strsplit (g_strstrip (out), "\n", -1);
}

static void
whichever_part_fails_all_others_give_their_results (void **state)
{
  make_pack (*state);
  g_auto (GStrv) list = list_parts (*state);

  assert_true (g_strv_length (list) > 20);
  for (guint turn = 0; turn < 3; turn++) {
    g_autofree char *faults = faults_of_turn (list, turn);
    g_autoptr (JsonParser) parser = dry_run (*state, faults, "", FALSE);
    for (guint i = 0; list[i]; i++) {
      g_autofree char *fault = g_strdup_printf (" %s:fault ", list[i]);
      g_autofree char *late = g_strdup_printf (" %s:late ", list[i]);
      assert_record (parser, list[i],
                     strstr (faults, fault)  ? "failed"
                     : strstr (faults, late) ? "late"
                                             : "passed",
                     NULL);
    }
  }
}

/* A kernel that faults or hangs loses its own row only. What failed runs again: with launches that
 * wait, and under compute-sanitizer. */
static void
a_kernel_that_faults_or_hangs_loses_one_row (void **state)
{
  make_pack (*state);
  g_autoptr (JsonParser) parser =
      dry_run (*state, "attention:fault norm:hang test_gpu_kernels:fault",
               "--run A --limits 0.1", FALSE);
  assert_record (parser, "attention-gpt2-nano", "failed", NULL);
  /* two models, each as it is and with WEFT_WARPGROUPS=producer */
  assert_int_equal (count_where (parser, "kernels", "status", "failed"), 4);
  assert_int_equal (count_where (parser, "kernels", "status", "late"), 4);
  assert_int_equal (count_where (parser, "kernels", "by", "weft"), 4 * 3);
  assert_record (parser, "test_gpu_kernels-blocking", "failed", NULL);
  assert_record (parser, "sanitizer-test-attention", "passed", NULL);
  assert_record (parser, "sanitizer-gpt2-nano-norm", "passed", NULL);
}

static void
programs_that_hang_are_ended (void **state)
{
  make_pack (*state);
  g_autoptr (JsonParser) parser =
      dry_run (*state, "libraries:hang nano:hang ncu-adam:hang gpt2-nano-measure:library",
               "--limits 0.1 --only libraries,nano,gpt2-nano,ncu-adam,gpt2-nano-measure,"
               "gpt2-nano-torch",
               FALSE);
  assert_record (parser, "libraries", "late", NULL);
  assert_record (parser, "nano", "late", "fused");
  assert_record (parser, "gpt2-nano", "passed", "default");
  assert_record (parser, "ncu-adam", "late", NULL);
  assert_record (parser, "gpt2-nano-measure", "failed", "fused");
  assert_non_null (
      strstr (json_object_get_string_member (record_of (parser, "gpt2-nano-measure"), "said"),
              "libnccl.so.2"));
  assert_record (parser, "gpt2-nano-torch", "passed", NULL);
}

/* The word of the way that the last part used. */
static const char *
way_of (JsonParser *parser)
{
  return json_object_get_string_member (
      json_object_get_object_member (root_of (parser), "way"), "used");
}

static void
a_fault_of_own_attention_is_gone_around_and_named (void **state)
{
  const char *few = "--only nano,gpt2-nano,gpt2-nano-flash";

  make_pack (*state);
  g_autoptr (JsonParser) tiles = dry_run (*state, "nano:default gpt2-nano:default", few, FALSE);
  assert_string_equal (way_of (tiles), "no-warpgroups");
  assert_record (tiles, "gpt2-nano-flash", "passed", "no-warpgroups");
  g_autoptr (JsonParser) fused = dry_run (*state, "nano:own gpt2-nano:own", few, FALSE);
  assert_string_equal (way_of (fused), "fused");
  assert_record (fused, "gpt2-nano", "passed", "fused");
  /* the last way that is about own attention */
  assert_record (fused, "gpt2-nano-flash", "passed", "no-warpgroups");
}

/* Choices of algorithms come back in an archive, and a later run begins with them. */
static void
a_later_run_begins_with_the_choices_of_the_first (void **state)
{
  g_autofree char *document = g_build_filename (*state, "results/h200.json", NULL);

  make_pack (*state);
  for (guint run = 1; run <= 2; run++) {
    g_autoptr (JsonParser) parser = dry_run (*state, "", "--only nano", FALSE);
    assert_int_equal (count_of (parser, "products"), run);
    assert_int_equal (g_unlink (document), 0);
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
  IN_FOLDER (a_dry_run_gives_every_result),
  IN_FOLDER (whichever_part_fails_all_others_give_their_results),
  IN_FOLDER (a_kernel_that_faults_or_hangs_loses_one_row),
  IN_FOLDER (programs_that_hang_are_ended),
  IN_FOLDER (a_fault_of_own_attention_is_gone_around_and_named),
  IN_FOLDER (a_later_run_begins_with_the_choices_of_the_first),
  cmocka_unit_test (an_unknown_flag_is_bad_usage),
  cmocka_unit_test (the_twin_counts_parameters_and_flops_as_weft_does),
};

WEFT_TESTS (tests, .seconds = 45)
