/* Output files of commands: a file is written completely or not at all, and a command never
 * overwrites a file that it reads. */
#include "tests/runner/command.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include <glib/gstdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIM "sim --model gpt2-nano --topology cpu "
#define TRAIN "train --model gpt2-nano --steps 1 "

static char *
in (void *const *state, const char *name)
{
  return g_build_filename (*state, name, NULL);
}

static char *
put (void *const *state, const char *name, const char *text)
{
  char *path = in (state, name);

  assert_true (g_file_set_contents (path, text, -1, NULL));
  return path;
}

static void
assert_text (const char *path, const char *wanted)
{
  g_autofree char *text = NULL;

  assert_true (g_file_get_contents (path, &text, NULL, NULL));
  assert_string_equal (text, wanted);
}

/* Asserts that a command is refused with a message that contains `part`. `path` replaces each @
 * in `words`. */
static void
assert_refused (const char *words, const char *path, const char *part)
{
  g_auto (GStrv) parts = g_strsplit (words, "@", -1);
  g_autofree char *line = g_strjoinv (path, parts);

  weft_test_refused (line, 2, part);
}

static int
count_names (void *const *state)
{
  g_autoptr (GDir) listing = g_dir_open (*state, 0, NULL);
  int n = 0;

  while (g_dir_read_name (listing))
    n++;
  return n;
}

/* ----------------------------------------------------------------------- inputs */

static const char job_text[] = "[model]\nconfig = gpt2-nano\n[cluster]\ntopology = cpu\n";

static void
a_job_file_is_not_overwritten (void **state)
{
  static const char *const lines[] = {
    "sim @ --trace @",        "sim @ --timeline @",
    "sim @ --html @",         "train @ --data LICENSE --steps 1 --trace @",
    "measure @ --output @",   "train @ --data LICENSE --steps 1 --export-safetensors @",
    "train @ --data LICENSE --steps 1 --dump-gradients @",
  };
  g_autofree char *job = put (state, "job.ini", job_text);

  for (unsigned i = 0; i < G_N_ELEMENTS (lines); i++) {
    assert_refused (lines[i], job, "is an input of this command");
    assert_text (job, job_text);
  }
}

static void
files_that_settings_name_are_not_overwritten (void **state)
{
  g_autofree char *text = NULL;

  assert_true (g_file_get_contents (WEFT_SOURCE_DIR "/models/gpt2-nano.json", &text, NULL, NULL));
  g_autofree char *model = put (state, "model.json", text);
  assert_refused ("sim --model @ --topology cpu --html @", model, "is an input of this command");
  assert_text (model, text);
  g_autofree char *link = in (state, "link");
  g_autofree char *words =
      g_strdup_printf ("sim --model %s --topology cpu --html %s", model, link);
  assert_int_equal (symlink ("model.json", link), 0);
  weft_test_refused (words, 2, "is an input of this command");
  assert_text (model, text);
}

static void
data_and_weights_are_not_overwritten (void **state)
{
  g_autofree char *text = NULL, *weights = in (state, "model.safetensors");

  assert_true (g_file_get_contents ("LICENSE", &text, NULL, NULL));
  g_autofree char *data = put (state, "data.txt", text);
  assert_refused (TRAIN "--data @ --trace @", data, "is an input of this command");
  assert_refused (TRAIN "--data @ --export-safetensors @", data, "is an input of this command");
  assert_text (data, text);
  g_autofree char *words =
      g_strdup_printf (TRAIN "--data LICENSE --export-safetensors %s", weights);
  struct answer a = weft_test_answer (words);
  assert_int_equal (a.status, 0);
  weft_test_answer_free (&a);
  assert_refused (TRAIN "--data LICENSE --init-safetensors @ --export-safetensors @", weights,
                  "is an input of this command");
  assert_refused (TRAIN "--data LICENSE --init-safetensors @ --export-safetensors "
                        "@/model.safetensors",
                  *state, "is an input of this command");
}

static void
files_of_a_checkpoint_are_not_overwritten (void **state)
{
  static const char *const names[] = { "latest", "step-00000001/manifest.json",
                                       "step-00000001/new.json" };
  g_autofree char *words = g_strdup_printf (TRAIN "--data LICENSE --save %s", (char *) *state);
  struct answer a = weft_test_answer (words);

  assert_int_equal (a.status, 0);
  weft_test_answer_free (&a);
  for (unsigned i = 0; i < G_N_ELEMENTS (names); i++) {
    g_autofree char *path = in (state, names[i]);
    g_autofree char *line = g_strdup_printf (
        "train --model gpt2-nano --data LICENSE --steps 2 --load %s --trace %s", (char *) *state,
        path);
    weft_test_refused (line, 2, "is a file of a checkpoint");
  }
}

static void
two_outputs_are_two_files (void **state)
{
  g_autofree char *path = in (state, "out.json");

  assert_refused (SIM "--trace @ --timeline @", path, "is also the file of --trace");
  assert_false (g_file_test (path, G_FILE_TEST_EXISTS));
  struct answer a = weft_test_answer (SIM "--trace /dev/null --timeline /dev/null");
  assert_int_equal (a.status, 0);
  weft_test_answer_free (&a);
}

/* ------------------------------------------------------------------------ links */

static void
a_link_into_another_folder_is_not_followed (void **state)
{
  g_autofree char *folder = in (state, "folder"), *link = in (state, "folder/link");
  g_autofree char *outside = put (state, "outside", "mine");
  g_autofree char *missing = in (state, "folder/missing"), *beside = in (state, "beside");

  assert_int_equal (g_mkdir (folder, 0777), 0);
  assert_int_equal (symlink ("../outside", link), 0);
  assert_int_equal (symlink ("../not-there", missing), 0);
  assert_refused (SIM "--html @", link, "found a link to ");
  assert_refused (SIM "--html @", missing, "found a link to ../not-there");
  assert_refused (TRAIN "--data LICENSE --export-safetensors @", link, "found a link to ");
  assert_text (outside, "mine");
  assert_int_equal (symlink ("outside", beside), 0);
  g_autofree char *words = g_strdup_printf (SIM "--html %s", beside), *text = NULL;
  struct answer a = weft_test_answer (words);
  assert_int_equal (a.status, 0);
  weft_test_answer_free (&a);
  assert_true (g_file_test (beside, G_FILE_TEST_IS_SYMLINK));
  assert_true (g_file_get_contents (outside, &text, NULL, NULL));
  assert_non_null (strstr (text, "<html"));
}

/* ----------------------------------------------------------------------- writing */

static void
an_existing_file_is_replaced_with_its_permissions (void **state)
{
  g_autofree char *path = put (state, "page.html", "old"), *text = NULL;
  g_autofree char *words = g_strdup_printf (SIM "--html %s", path);
  struct stat found;

  assert_int_equal (g_chmod (path, 0640), 0);
  struct answer a = weft_test_answer (words);
  assert_int_equal (a.status, 0);
  weft_test_answer_free (&a);
  assert_true (g_file_get_contents (path, &text, NULL, NULL));
  assert_non_null (strstr (text, "<html"));
  assert_int_equal (stat (path, &found), 0);
  assert_int_equal (found.st_mode & 07777, 0640);
  assert_int_equal (count_names (state), 1);
}

static void
stdout_and_pipes_are_written_in_place (void **state)
{
  g_autofree char *path = in (state, "trace.json"), *text = NULL;
  g_autofree char *line = g_strdup_printf (
      "sh -c '" WEFT_BINARY " " SIM "--trace /dev/stderr 2>%s >/dev/null; " WEFT_BINARY " " SIM
      "--trace /dev/stderr 2>&1 >/dev/null | grep -q traceEvents'",
      path);
  int status;

  assert_true (g_spawn_command_line_sync (line, NULL, NULL, &status, NULL));
  assert_int_equal (status, 0);
  assert_true (g_file_get_contents (path, &text, NULL, NULL));
  assert_non_null (strstr (text, "traceEvents"));
}

/* The new file exceeds the size limit of the process (ulimit -f). The old file stays unchanged, no
 * temporary file is left, and the message names the reason. */
static void
a_file_that_cannot_be_completed_stays_as_it_was (void **state)
{
  static const char *const flags[] = { "--trace", "--html", "--timeline" };
  g_autofree char *path = put (state, "out.json", "old");

  for (unsigned i = 0; i < G_N_ELEMENTS (flags); i++) {
    g_autofree char *line =
        g_strdup_printf ("sh -c 'ulimit -f 1; exec " WEFT_BINARY " " SIM "%s %s'", flags[i], path);
    g_autofree char *err = NULL, *out = NULL;
    int status;
    assert_true (g_spawn_command_line_sync (line, &out, &err, &status, NULL));
    assert_true (WIFEXITED (status) && WEXITSTATUS (status) == 1);
    assert_non_null (strstr (err, "out.json: File too large"));
    assert_text (path, "old");
    assert_int_equal (count_names (state), 1);
  }
}

#define IN_FOLDER(test)                                                                            \
  cmocka_unit_test_setup_teardown (test, weft_test_folder_make, weft_test_folder_remove)
static void
a_dash_is_an_input_once_and_no_output (void **state)
{
  (void) state;
  assert_refused (SIM "--trace -", "", "--trace -: is no file (expected a file, such as /dev/stdo");
  assert_refused ("export --model gpt2-nano --topology cpu --for weft --output -", "",
                  "-: is no file");
  assert_refused ("compare - -", "", "found - twice");
}

static const struct CMUnitTest tests[] = {
  IN_FOLDER (a_job_file_is_not_overwritten),
  IN_FOLDER (files_that_settings_name_are_not_overwritten),
  IN_FOLDER (data_and_weights_are_not_overwritten),
  IN_FOLDER (files_of_a_checkpoint_are_not_overwritten),
  IN_FOLDER (two_outputs_are_two_files),
  IN_FOLDER (a_link_into_another_folder_is_not_followed),
  IN_FOLDER (an_existing_file_is_replaced_with_its_permissions),
  IN_FOLDER (stdout_and_pipes_are_written_in_place),
  cmocka_unit_test (a_dash_is_an_input_once_and_no_output),
  IN_FOLDER (a_file_that_cannot_be_completed_stays_as_it_was),
};

WEFT_TESTS (tests, .set_up = weft_test_enter_tree)
