/* `weft train` as a shell runs it, with real numbers: the loss falls, and a run stops on request
 * and resumes. */
#define _GNU_SOURCE /* terminals */
#include "tests/runner/command.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include <fcntl.h>
#include <glib/gstdio.h>
#include <json-glib/json-glib.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define NANO "train --model gpt2-nano --data LICENSE "

/* ----------------------------------------------------------------------- lines */

/* Parses each line of --json into a JSON object. */
static GPtrArray *
parse_lines (const char *out)
{
  GPtrArray *lines = g_ptr_array_new_with_free_func ((GDestroyNotify) json_object_unref);
  g_auto (GStrv) texts = g_strsplit (out, "\n", -1);

  for (unsigned i = 0; texts[i] && *texts[i]; i++) {
    g_autoptr (JsonNode) node = json_from_string (texts[i], NULL);
    if (!node || !JSON_NODE_HOLDS_OBJECT (node))
      fail_msg ("no JSON object: %s", texts[i]);
    g_ptr_array_add (lines, json_node_dup_object (node));
  }
  return lines;
}

/* Runs `weft train --json`, requires status 0, and returns the lines of the output as JSON
 * objects. */
static GPtrArray *
train (const char *words, ...)
{
  va_list args;

  va_start (args, words);
  g_autofree char *all = g_strdup_vprintf (words, args);
  va_end (args);
  g_autofree char *line = g_strdup_printf (NANO "%s --json", all);
  struct answer a = weft_test_answer (line);
  if (a.status != 0)
    fail_msg ("weft %s: status %d\n%s", line, a.status, a.err);
  GPtrArray *lines = parse_lines (a.out);
  weft_test_answer_free (&a);
  return lines;
}

static JsonObject *
line_at (const GPtrArray *lines, unsigned i)
{
  assert_in_range (i, 0, lines->len - 1);
  return lines->pdata[i];
}

static double
real (const GPtrArray *lines, unsigned i, const char *member)
{
  assert_true (json_object_has_member (line_at (lines, i), member));
  return json_object_get_double_member (line_at (lines, i), member);
}

/* Asserts that n training steps of two runs have the same loss and gradient norm. --json prints
 * every digit, so equal numbers have equal bits. */
static void
assert_same_steps (const GPtrArray *a, unsigned first, const GPtrArray *b, unsigned n)
{
  static const char *const members[] = { "step", "loss", "grad_norm", "lr" };

  for (unsigned i = 0; i < n; i++)
    for (unsigned m = 0; m < G_N_ELEMENTS (members); m++) {
      double x = real (a, first + i, members[m]), y = real (b, i, members[m]);
      if (x != y)
        fail_msg ("line %u: %s is %.17g and %.17g", i, members[m], x, y);
    }
}

/* -------------------------------------------------------------------- learning */

/* The training data are the text of a licence, read as bytes. 256 equally likely bytes have a
 * loss of ln 256 = 5.545. A model that has learned only the byte frequencies of English text has
 * a loss that is 1.5 lower. */
static void
it_learns_the_licence (void **state)
{
  g_autoptr (GPtrArray) lines = train ("--steps 50");
  double late = 0; /* mean loss of the last ten steps */

  (void) state;
  assert_int_equal (lines->len, 51);
  assert_true (fabs (real (lines, 0, "loss") - log (256)) < 0.3);
  for (unsigned i = 40; i < 50; i++)
    late += real (lines, i, "loss") / 10;
  assert_true (late < 4);
  for (unsigned i = 0; i < 50; i++) {
    assert_int_equal (json_object_get_int_member (line_at (lines, i), "step"), i + 1);
    assert_true (real (lines, i, "grad_norm") > 0);
    assert_true (real (lines, i, "time_s") > 0);
    assert_true (real (lines, i, "tokens_per_s") > 0);
    assert_true (real (lines, i, "mfu") > 0);
    assert_false (json_object_get_boolean_member (line_at (lines, i), "skipped"));
  }
}

static void
the_last_line_says_what_was_allocated (void **state)
{
  g_autoptr (GPtrArray) lines =
      train ("--steps 2 --gpus 2 --pipeline-model-parallel-size 2 --global-batch-size 2");
  JsonObject *last = line_at (lines, 2);
  JsonArray *planned = json_object_get_array_member (last, "planned_bytes");
  JsonArray *allocated = json_object_get_array_member (last, "allocated_bytes");
  int64_t most = 0;

  (void) state;
  assert_true (json_object_get_boolean_member (last, "done"));
  assert_int_equal (json_object_get_int_member (last, "steps"), 2);
  assert_true (real (lines, 2, "final_loss") == real (lines, 1, "loss"));
  assert_int_equal (json_array_get_length (planned), 2);
  assert_int_equal (json_array_get_length (allocated), 2);
  for (unsigned role = 0; role < 2; role++) {
    int64_t bytes = json_array_get_int_element (allocated, role);
    assert_int_equal (bytes, json_array_get_int_element (planned, role));
    most = MAX (most, bytes);
  }
  assert_int_equal (json_object_get_int_member (line_at (lines, 0), "peak_bytes"), most);
}

static void
every_strategy_gives_the_same_numbers (void **state)
{
  static const char *const ways[] = {
    "--gpus 4",
    "--gpus 2 --pipeline-model-parallel-size 2",
    "--gpus 4 --pipeline-model-parallel-size 2 --use-distributed-optimizer --stress 5",
    "--gpus 1 --micro-batch-size 4 --threads 2",
  };
  g_autoptr (GPtrArray) one = train ("--steps 3 --global-batch-size 4 --gpus 1");

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (ways); i++) {
    g_autoptr (GPtrArray) other = train ("--steps 3 --global-batch-size 4 %s", ways[i]);
    assert_same_steps (one, 0, other, 3);
  }
}

static void
another_seed_gives_other_numbers_and_the_same_one_the_same (void **state)
{
  g_autoptr (GPtrArray) one = train ("--steps 2 --seed 1"), again = train ("--steps 2 --seed 1"),
                        other = train ("--steps 2 --seed 2");

  (void) state;
  assert_same_steps (one, 0, again, 2);
  assert_true (real (one, 0, "loss") != real (other, 0, "loss"));
}

/* Without shuffling, the first batches consist of the first tokens of the file. So a file that is
 * cut behind these tokens gives the same losses. */
static void
unshuffled_data_is_read_from_its_beginning (void **state)
{
  g_autofree char *part = g_build_filename (*state, "part.txt", NULL), *text = NULL;
  gsize length;

  assert_true (g_file_get_contents (WEFT_SOURCE_DIR "/LICENSE", &text, &length, NULL));
  assert_true (g_file_set_contents (part, text, 2 * 128 + 1, NULL));
  g_autoptr (GPtrArray) whole = train ("--steps 2 --no-shuffle");
  g_autofree char *words = g_strdup_printf (
      "train --model gpt2-nano --tokens-from %s --no-shuffle --steps 2 --json", part);
  struct answer a = weft_test_answer (words);
  assert_int_equal (a.status, 0);
  g_autoptr (GPtrArray) first = parse_lines (a.out);
  assert_same_steps (whole, 0, first, 2);
  weft_test_answer_free (&a);
}

/* --------------------------------------------------------------------- stopping */

static void
a_run_that_was_cut_gives_the_numbers_of_a_whole_one (void **state)
{
  const char *dir = *state;
  g_autoptr (GPtrArray) whole = train ("--steps 6 --global-batch-size 2"),
                        part = train ("--steps 3 --global-batch-size 2 --save %s", dir),
                        rest = train ("--steps 6 --global-batch-size 2 --load %s", dir),
                        elsewhere = train ("--steps 6 --global-batch-size 2 --load %s --gpus 2 "
                                           "--pipeline-model-parallel-size 2",
                                           dir);

  assert_same_steps (whole, 0, part, 3);
  assert_same_steps (whole, 3, rest, 3);
  assert_same_steps (whole, 3, elsewhere, 3);
}

/* Starts a run of a million steps, waits for its third line and sends the signal to the process.
 * For SIGPIPE, closes the reading end of the run's stdout instead. */
static struct answer
interrupt (const char *dir, int signal)
{
  g_autofree char *line =
      g_strdup_printf (WEFT_BINARY " " NANO "--steps 1000000 --save %s --json", dir);
  g_auto (GStrv) argv = g_strsplit (line, " ", -1);
  struct answer a = { NULL, NULL, 0 };
  GPid pid;
  int out;

  assert_true (g_spawn_async_with_pipes (WEFT_SOURCE_DIR, argv, NULL,
                                         G_SPAWN_DO_NOT_REAP_CHILD | G_SPAWN_STDERR_TO_DEV_NULL,
                                         NULL, NULL, &pid, NULL, &out, NULL, NULL));
  g_autoptr (GIOChannel) channel = g_io_channel_unix_new (out);
  g_io_channel_set_close_on_unref (channel, TRUE);
  g_autoptr (GString) text = g_string_new (NULL);
  char *read = NULL;
  for (unsigned n = 0;
       g_io_channel_read_line (channel, &read, NULL, NULL, NULL) == G_IO_STATUS_NORMAL; n++) {
    g_string_append (text, read);
    g_free (read);
    if (n == 2 && signal == SIGPIPE)
      break;
    if (n == 2)
      kill (pid, signal);
  }
  g_io_channel_shutdown (channel, FALSE, NULL);
  waitpid (pid, &a.status, 0);
  assert_true (WIFEXITED (a.status));
  a.status = WEXITSTATUS (a.status);
  a.out = g_string_free (g_steal_pointer (&text), FALSE);
  return a;
}

static void
a_signal_saves_and_ends_with_75_and_the_run_goes_on (void **state)
{
  const char *dir = *state;
  struct answer a = interrupt (dir, SIGTERM);
  g_autoptr (GPtrArray) before = parse_lines (a.out);
  unsigned done = before->len - 1;

  assert_int_equal (a.status, 75);
  assert_false (json_object_get_boolean_member (line_at (before, done), "done"));
  assert_int_equal (json_object_get_int_member (line_at (before, done), "steps"), done);
  g_autoptr (GPtrArray) after = train ("--load %s --steps %u", dir, done + 2);
  g_autoptr (GPtrArray) whole = train ("--steps %u", done + 2);
  assert_int_equal (after->len, 3);
  assert_same_steps (whole, done, after, 2);
  weft_test_answer_free (&a);
}

/* If stdout is closed, the run saves a checkpoint and ends, as after a signal. Example: in `weft
 * train | tee`, Ctrl-C ends `tee` first. */
static void
who_reads_no_more_ends_a_run_as_a_signal_does (void **state)
{
  const char *dir = *state;
  struct answer a = interrupt (dir, SIGPIPE);
  g_autofree char *latest = g_build_filename (dir, "latest", NULL);

  assert_int_equal (a.status, 75);
  assert_true (g_file_test (latest, G_FILE_TEST_EXISTS));
  weft_test_answer_free (&a);
}

static void
a_seed_that_differs_from_the_checkpoint_is_refused (void **state)
{
  const char *dir = *state;
  g_autoptr (GPtrArray) lines = train ("--steps 1 --save %s", dir);
  g_autofree char *words = g_strdup_printf (NANO "--load %s --steps 2 --seed 5", dir);

  assert_int_equal (lines->len, 2);
  weft_test_refused (words, 2, "found 5, wanted 1234");
}

/* ----------------------------------------------------------------------- files */

/* The second run imports the exported weights. Its learning rate is 0, so its losses are those
 * of the exported weights. */
static void
weights_that_are_exported_come_back (void **state)
{
  g_autofree char *file = g_build_filename (*state, "model.safetensors", NULL);
  g_autoptr (GPtrArray) out = train ("--steps 4 --global-batch-size 2 --eval-interval 4 "
                                     "--export-safetensors %s",
                                     file),
                        back = train ("--steps 1 --global-batch-size 2 --eval-interval 1 --lr 0 "
                                      "--init-safetensors %s --gpus 2",
                                      file);

  assert_true (real (out, 4, "eval_loss") == real (back, 1, "eval_loss"));
}

static void
gradients_and_timelines_are_written_when_asked_for (void **state)
{
  g_autofree char *gradients = g_build_filename (*state, "gradients.safetensors", NULL);
  g_autofree char *trace = g_build_filename (*state, "trace.json", NULL);
  g_autofree char *timeline = g_build_filename (*state, "timeline.json", NULL), *text = NULL;
  g_autofree char *words = g_strdup_printf ("compare %s %s", timeline, timeline);
  g_autoptr (GPtrArray) lines =
      train ("--steps 2 --dump-gradients %s --trace %s --timeline %s", gradients, trace, timeline);
  GStatBuf found;

  assert_int_equal (lines->len, 3);
  assert_int_equal (g_stat (gradients, &found), 0);
  /* weights are exported in fp32, and the model has more than 400,000 parameters */
  assert_true (found.st_size > 4 * 400000);
  assert_true (g_file_get_contents (trace, &text, NULL, NULL));
  assert_non_null (strstr (text, "traceEvents"));
  struct answer same = weft_test_answer (words);
  assert_int_equal (same.status, 0);
  weft_test_answer_free (&same);
}

static void
weights_are_exported_though_no_checkpoint_could_be_written (void **state)
{
  const char *dir = *state;
  g_autofree char *words = g_strdup_printf (
      NANO "--steps 1 --save %s --export-safetensors %s/weights.safetensors", dir, dir);
  g_autofree char *latest = g_build_filename (dir, "latest", NULL);
  g_autofree char *weights = g_build_filename (dir, "weights.safetensors", NULL);

  /* a folder that has the name of a file which `weft train` writes */
  assert_int_equal (g_mkdir (latest, 0777), 0);
  struct answer a = weft_test_answer (words);
  assert_int_equal (a.status, 1);
  assert_non_null (strstr (a.err, latest));
  assert_true (g_file_test (weights, G_FILE_TEST_IS_REGULAR));
  weft_test_answer_free (&a);
}

/* ----------------------------------------------------------------------- words */

static void
bad_input_ends_with_2_and_names_what_was_found (void **state)
{
  static const char *const cases[][2] = {
    { "train --model gpt2-nano", "--data FILE is missing" },
    { NANO "--data nowhere.txt", "nowhere.txt" },
    { NANO "--tokens-from x", "exclude each other" },
    { NANO "--steps 0", "--steps: found \"0\"" },
    { NANO "--lr fast", "--lr: found \"fast\"" },
    { NANO "--lr 1e-3 --min-lr 1", "--min-lr: found 1" },
    { NANO "--beta1 1", "--beta1: found \"1\"" },
    { NANO "--executor gpu", "--executor: found \"gpu\", wanted cpu, cuda or auto" },
    { NANO "--graph", "--graph: not available with executor cpu (expected --executor cuda)" },
    { NANO "--ranks-per-gpu 2", "--ranks-per-gpu: not available with executor cpu" },
    { NANO "--executor abacus", "--executor: found \"abacus\"" },
    { NANO "--gpus 4 --ranks-per-process 2", "--ranks-per-process: found \"2\"" },
    { NANO "--save-interval 5", "--save-interval needs --save DIR" },
    { NANO "--save README.md", "README.md is not a folder" },
    { NANO "--save README.md/below/it", "README.md is not a folder" },
    { NANO "--trace=", "--trace: empty name (expected a file)" },
    { NANO "--trace nowhere/step.json", "nowhere is not a folder" },
    { NANO "--timeline nowhere/step.json", "nowhere is not a folder" },
    { NANO "--export-safetensors docs", "is a folder (expected a file)" },
    { NANO "--dump-gradients nowhere/g.safetensors", "nowhere is not a folder" },
    { NANO "--stepps 5", "did you mean --steps?" },
    { NANO "--load a --init-safetensors b", "wanted one source of weights" },
    { NANO "--load nowhere", "nowhere" },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++)
    weft_test_refused (cases[i][0], 2, cases[i][1]);
}

/* An existing file without write permission is refused. Root may write to every file, so the test
 * is skipped for root. */
static void
a_file_that_cannot_be_written_is_refused_before_the_first_step (void **state)
{
  if (geteuid () == 0)
    skip ();
  g_autofree char *path = g_build_filename (*state, "step.json", NULL);
  g_autofree char *words = g_strdup_printf (NANO "--trace %s", path);
  assert_true (g_file_set_contents (path, "", 0, NULL) && g_chmod (path, 0444) == 0);
  weft_test_refused (words, 2, "step.json: cannot be written");
}

static void
what_does_not_fit_ends_with_3_before_it_is_allocated (void **state)
{
  (void) state;
  weft_test_refused ("train --model llama2-70b --data README.md", 3, "of topology cpu");
  weft_test_refused (NANO "--gpu-memory 1MB", 3, "device memory of the largest rank");
}

/* An unreadable file is refused before the plan is made. The test shows this with a model that does
 * not fit in memory: planning the model would take long and end with another error. */
static void
files_are_checked_before_the_plan_is_made (void **state)
{
#define LARGE "train --model llama2-70b --data "
  (void) state;
  weft_test_refused (LARGE "/no/such/data", 2, "/no/such/data: cannot be opened: No such file");
  weft_test_refused (LARGE "tests", 2, "tests");
  weft_test_refused (LARGE "README.md --load /no/such/run", 2,
                     "--load /no/such/run: cannot be opened: No such file");
  weft_test_refused (LARGE "README.md --init-safetensors /no/such/model", 2,
                     "--init-safetensors /no/such/model: cannot be opened: No such file");
}

static void
people_get_a_line_for_every_step (void **state)
{
  struct answer a = weft_test_answer (NANO "--steps 2");

  (void) state;
  assert_int_equal (a.status, 0);
  assert_non_null (strstr (a.out, "step 1/2  loss 5."));
  assert_non_null (strstr (a.out, "\nstep 2/2  loss 5."));
  assert_null (strchr (a.out, '\033'));
  assert_non_null (strstr (a.out, "\ndone after step 2, loss "));
  assert_non_null (strstr (a.err, "weft: gpt2-nano"));
  assert_non_null (strstr (a.err, "fp32"));
  weft_test_answer_free (&a);
}

/* Returns what a terminal of `columns` columns receives. The output is short enough for the
 * terminal's buffer, so it is read after the run has ended. */
static char *
on_terminal (const char *words, unsigned short columns)
{
  struct winsize size = { .ws_row = 24, .ws_col = columns };
  int master = posix_openpt (O_RDWR | O_NOCTTY), status = -1;
  g_autofree char *line = g_strdup_printf ("%s %s", WEFT_BINARY, words);
  g_auto (GStrv) argv = g_strsplit (line, " ", -1);
  char *text = g_new0 (char, 4096);
  size_t used = 0;
  GPid pid;

  assert_true (master >= 0 && grantpt (master) == 0 && unlockpt (master) == 0);
  const char *name = ptsname (master);
  assert_non_null (name);
  int slave = open (name, O_RDWR | O_NOCTTY);
  assert_true (slave >= 0);
  assert_int_equal (ioctl (slave, TIOCSWINSZ, &size), 0);
  assert_true (g_spawn_async_with_fds (WEFT_SOURCE_DIR, argv, NULL,
                                       G_SPAWN_DO_NOT_REAP_CHILD | G_SPAWN_STDERR_TO_DEV_NULL, NULL,
                                       NULL, &pid, -1, slave, -1, NULL));
  assert_int_equal (waitpid (pid, &status, 0), pid);
  assert_int_equal (status, 0);
  /* With the other end closed, read() fails after the last bytes. With an open end, read() would
   * wait for more output. */
  close (slave);
  for (ssize_t n = 1; n > 0 && used < 4095; used += n > 0 ? (size_t) n : 0)
    n = read (master, text + used, 4095 - used);
  assert_true (used > 0);
  close (master);
  return text;
}

static void
lines_fit_a_narrow_terminal (void **state)
{
  g_autofree char *wide = on_terminal (NANO "--steps 2", 200);
  g_autofree char *narrow = on_terminal (NANO "--steps 2", 40);

  (void) state;
  assert_non_null (strstr (wide, "  norm "));
  assert_non_null (strstr (wide, "tokens/s"));
  assert_non_null (strstr (narrow, "step 2/2  loss 5."));
  assert_non_null (strstr (narrow, "  eta "));
  assert_null (strstr (narrow, "  norm "));
  assert_null (strstr (narrow, "tokens/s"));
}

static void
lists_leave_out_the_columns_that_do_not_fit (void **state)
{
  static const char *const lists[] = { "topologies", "stacks" };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (lists); i++) {
    g_autofree char *narrow = on_terminal (lists[i], 80);
    g_auto (GStrv) lines = g_strsplit (narrow, "\r\n", -1);
    assert_non_null (strstr (narrow, "not shown on this terminal: "));
    for (char **line = lines; *line; line++)
      if (strlen (*line) > 80)
        fail_msg ("weft %s: %zu columns: %s", lists[i], strlen (*line), *line);
  }
}

#define IN_FOLDER(test)                                                                            \
  cmocka_unit_test_setup_teardown (test, weft_test_folder_make, weft_test_folder_remove)
static const struct CMUnitTest tests[] = {
  cmocka_unit_test (it_learns_the_licence),
  cmocka_unit_test (the_last_line_says_what_was_allocated),
  cmocka_unit_test (every_strategy_gives_the_same_numbers),
  cmocka_unit_test (another_seed_gives_other_numbers_and_the_same_one_the_same),
  IN_FOLDER (unshuffled_data_is_read_from_its_beginning),
  IN_FOLDER (a_run_that_was_cut_gives_the_numbers_of_a_whole_one),
  IN_FOLDER (a_signal_saves_and_ends_with_75_and_the_run_goes_on),
  IN_FOLDER (who_reads_no_more_ends_a_run_as_a_signal_does),
  IN_FOLDER (a_seed_that_differs_from_the_checkpoint_is_refused),
  IN_FOLDER (weights_that_are_exported_come_back),
  IN_FOLDER (gradients_and_timelines_are_written_when_asked_for),
  IN_FOLDER (weights_are_exported_though_no_checkpoint_could_be_written),
  cmocka_unit_test (bad_input_ends_with_2_and_names_what_was_found),
  IN_FOLDER (a_file_that_cannot_be_written_is_refused_before_the_first_step),
  cmocka_unit_test (what_does_not_fit_ends_with_3_before_it_is_allocated),
  cmocka_unit_test (files_are_checked_before_the_plan_is_made),
  cmocka_unit_test (people_get_a_line_for_every_step),
  cmocka_unit_test (lines_fit_a_narrow_terminal),
  cmocka_unit_test (lists_leave_out_the_columns_that_do_not_fit),
};

WEFT_TESTS (tests, .seconds = 5, .set_up = weft_test_enter_tree)
