/* Checkpoints: what one strategy has saved, another one loads bit for bit; a damaged or unfinished
 * checkpoint is never loaded. */
#include "kernels/float.h"
#include "tests/made/paper_exec.h"
#include "tests/runner/folder.h"
#include "train/checkpoint.h"
#include "train/crc32c.h"
#include "tests/runner/runner.h"
#include <errno.h>
#include <glib/gstdio.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define TIED "model=gpt2-nano precision=bf16 num_layers=4"
#define UNTIED "model=llama-nano precision=bf16 num_layers=4 vocab_size=251"
#define TIED_FP32 "model=gpt2-nano precision=fp32 num_layers=4"
#define UNTIED_FP32 "model=llama-nano precision=fp32 num_layers=4 vocab_size=251"
/* For hundreds of saves: every process that saves copies the pages of the state. */
#define SMALLEST                                                                                   \
  TIED " num_layers=1 hidden_size=16 num_attention_heads=2 num_query_groups=2 kv_channels=8 "      \
       "ffn_hidden_size=32"
#define SLICES "gpus=4 use_distributed_optimizer=true"

/* ------------------------------------------------------------------- directories */

/* Makes a folder in memory (/dev/shm), where fsync() costs nothing, for tests that save very
 * often. */
static int
make_dir_in_memory (void **dir)
{
  char *path = g_strdup ("/dev/shm/weft-checkpoint-XXXXXX");

  *dir = g_mkdtemp (path);
  if (*dir)
    return 0;
  g_free (path);
  return weft_test_folder_make (dir);
}

static int
compare_names (gconstpointer a, gconstpointer b)
{
  return strcmp (*(char *const *) a, *(char *const *) b);
}

/* Returns the names in a directory, sorted and separated by spaces. The caller frees the text. */
static char *
list (const char *path)
{
  g_autoptr (GPtrArray) names = g_ptr_array_new_with_free_func (g_free);
  g_autoptr (GDir) listing = g_dir_open (path, 0, NULL);
  const char *name;

  assert_non_null (listing);
  while ((name = g_dir_read_name (listing)))
    g_ptr_array_add (names, g_strdup (name));
  g_ptr_array_sort (names, compare_names);
  g_ptr_array_add (names, NULL);
  return g_strjoinv (" ", (char **) names->pdata);
}

static void
assert_list (const char *dir, const char *wanted)
{
  g_autofree char *found = list (dir);
  assert_string_equal (found, wanted);
}

static void
put_text (const char *dir, const char *name, const char *text)
{
  g_autofree char *path = g_build_filename (dir, name, NULL);
  g_autofree char *folder = g_path_get_dirname (path);

  assert_int_equal (g_mkdir_with_parents (folder, 0777), 0);
  assert_true (g_file_set_contents (path, text, -1, NULL));
}

static char *
get_text (const char *dir, const char *name)
{
  g_autofree char *path = g_build_filename (dir, name, NULL);
  char *text = NULL;

  assert_true (g_file_get_contents (path, &text, NULL, NULL));
  return text;
}

/* Changes one byte of a file, `from_end` bytes before its end. */
static void
flip_byte (const char *dir, const char *name, long from_end)
{
  g_autofree char *path = g_build_filename (dir, name, NULL);
  FILE *file = fopen (path, "r+b");

  assert_non_null (file);
  assert_int_equal (fseek (file, -from_end, SEEK_END), 0);
  int byte = fgetc (file);
  assert_int_equal (fseek (file, -from_end, SEEK_END), 0);
  fputc (byte ^ 0x10, file);
  assert_int_equal (fclose (file), 0);
}

/* ------------------------------------------------------------- saving and loading */

static struct weft_progress
progress_at (uint64_t step)
{
  return (struct weft_progress){ .step = step,
                                 .position = step * 8,
                                 .seed = 0xfedcba9876543210u,
                                 .data = G_MAXUINT64,
                                 .skipped = 2 };
}

static void
save (const struct paper_job *j, uint64_t step, const char *dir, uint32_t keep)
{
  g_autoptr (GError) error = NULL;
  struct weft_progress progress = progress_at (step);

  if (!weft_checkpoint_save (j->state, &j->plan->job, &progress, dir, keep, &error))
    fail_msg ("%s", error->message);
}

/* Loads a checkpoint and returns its step. *passed_over: notes about checkpoints that were passed
 * over; the caller frees the text. */
static uint64_t
load (const struct paper_job *j, const char *path, char **passed_over)
{
  g_autoptr (GError) error = NULL;
  struct weft_progress found, wanted;

  if (!weft_checkpoint_load (j->state, &j->plan->job, path, &found, passed_over, &error))
    fail_msg ("%s", error->message);
  wanted = progress_at (found.step);
  assert_memory_equal (&found, &wanted, sizeof found);
  return found.step;
}

static uint64_t
load_quietly (const struct paper_job *j, const char *path)
{
  g_autofree char *passed_over = NULL;
  uint64_t step = load (j, path, &passed_over);

  assert_null (passed_over);
  return step;
}

/* Asserts that loading fails with a message that contains all words of `words`, and does not change
 * the state. */
static void
assert_refused (const struct paper_job *j, const char *path, const char *const *words)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *passed_over = NULL;
  struct weft_progress progress;
  struct paper_job before = *j;

  before.x = paper_open (j->plan);
  before.state = weft_state_new (before.x);
  paper_fill (before.state, 99);
  paper_fill (j->state, 99);
  assert_false (
      weft_checkpoint_load (j->state, &j->plan->job, path, &progress, &passed_over, &error));
  for (unsigned i = 0; words[i]; i++)
    if (!strstr (error->message, words[i]))
      fail_msg ("found \"%s\", wanted \"%s\" in it", error->message, words[i]);
  for (int kind = 0; kind < WEFT_N_STATE_KIND; kind++)
    paper_assert_equal (j->state, before.state, kind);
  weft_state_free (before.state);
  paper_close (before.x);
}
#define ASSERT_REFUSED(j, path, ...)                                                               \
  assert_refused (j, path, (const char *const[]){ __VA_ARGS__, NULL })

/* ---------------------------------------------------------------------- strategies */

static void
assert_moves (const char *model, const char *from, const char *to, const char *dir)
{
  struct paper_job a = paper_job_open (model, from), b = paper_job_open (model, to);

  paper_fill (a.state, 5);
  save (&a, 5, dir, 1);
  assert_int_equal (load_quietly (&b, dir), 5);
  for (int kind = 0; kind < WEFT_STATE_GRAD; kind++)
    paper_assert_equal (b.state, a.state, kind);
  paper_job_close (&a);
  paper_job_close (&b);
}

static void
every_strategy_loads_what_every_other_saved (void **dir)
{
  static const char *const models[] = { TIED, UNTIED, TIED_FP32, UNTIED_FP32 };

  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++)
    for (unsigned from = 0; from < G_N_ELEMENTS (paper_layouts); from++)
      for (unsigned to = 0; to < G_N_ELEMENTS (paper_layouts); to++)
        if ((from + to + m) % 5 == 0)
          assert_moves (models[m], paper_layouts[from], paper_layouts[to], *dir);
}

static void
a_model_moves_between_bf16_and_fp32_by_its_masters (void **dir)
{
  struct paper_job wide = paper_job_open (TIED_FP32, SLICES);
  struct paper_job narrow = paper_job_open (TIED, "gpus=2 pipeline_model_parallel_size=2");
  struct paper_job again = paper_job_open (TIED_FP32, "gpus=1");

  paper_fill (wide.state, 1);
  save (&wide, 1, *dir, 0);
  load_quietly (&narrow, *dir);
  paper_assert_equal (narrow.state, wide.state, WEFT_STATE_MASTER);
  paper_assert_equal (narrow.state, wide.state, WEFT_STATE_EXP_AVG_SQ);
  for (uint32_t i = 0; i < weft_state_count (wide.state); i++) {
    g_autofree float *master = paper_tensor (wide.state, i, WEFT_STATE_MASTER);
    g_autofree float *weight = paper_tensor (narrow.state, i, WEFT_STATE_WEIGHT);
    for (uint64_t e = 0; e < paper_elements (wide.state, i); e++)
      assert_true (weight[e] == weft_bf16_float (weft_bf16_round (master[e])));
  }
  save (&narrow, 2, *dir, 0);
  assert_int_equal (load_quietly (&again, *dir), 2);
  paper_assert_equal (again.state, wide.state, WEFT_STATE_WEIGHT);
  paper_job_close (&wide);
  paper_job_close (&narrow);
  paper_job_close (&again);
}

/* ----------------------------------------------------------------------- directory */

static void
a_directory_holds_steps_and_the_name_of_the_latest (void **dir)
{
  struct paper_job j = paper_job_open (TIED, SLICES);
  g_autofree char *step = g_build_filename (*dir, "step-00000012", NULL);

  paper_fill (j.state, 0);
  save (&j, 12, *dir, 0);
  assert_list (*dir, "latest step-00000012");
  assert_list (step, "manifest.json shard-0.safetensors shard-1.safetensors shard-2.safetensors "
                     "shard-3.safetensors");
  g_autofree char *latest = get_text (*dir, "latest");
  assert_string_equal (latest, "step-00000012\n");
  g_autofree char *newest = weft_checkpoint_newest (*dir);
  assert_string_equal (newest, step);
  paper_job_close (&j);
}

static void
only_the_newest_are_kept (void **dir)
{
  struct paper_job j = paper_job_open (TIED, "gpus=1");

  paper_fill (j.state, 0);
  for (uint64_t step = 1; step <= 4; step++)
    save (&j, step, *dir, 2);
  assert_list (*dir, "latest step-00000003 step-00000004");
  save (&j, 5, *dir, 0);
  assert_list (*dir, "latest step-00000003 step-00000004 step-00000005");
  paper_job_close (&j);
}

static void
what_was_just_saved_is_kept_though_later_steps_lie_beside_it (void **dir)
{
  struct paper_job j = paper_job_open (TIED, "gpus=1");

  paper_fill (j.state, 0);
  save (&j, 100, *dir, 0);
  save (&j, 60, *dir, 1);
  assert_list (*dir, "latest step-00000060 step-00000100");
  paper_job_close (&j);
}

static void
a_damaged_checkpoint_does_not_count_among_those_kept (void **dir)
{
  struct paper_job j = paper_job_open (TIED, "gpus=1");
  g_autofree char *manifest = g_build_filename (*dir, "step-00000002", "manifest.json", NULL);

  paper_fill (j.state, 0);
  save (&j, 1, *dir, 0);
  save (&j, 2, *dir, 0);
  assert_int_equal (g_remove (manifest), 0);
  save (&j, 3, *dir, 2);
  assert_list (*dir, "latest step-00000001 step-00000002 step-00000003");
  paper_job_close (&j);
}

static void
saving_a_step_again_replaces_it (void **dir)
{
  struct paper_job j = paper_job_open (UNTIED, SLICES), other = paper_job_open (UNTIED, "gpus=1");

  paper_fill (j.state, 0);
  save (&j, 7, *dir, 0);
  paper_fill (j.state, 1);
  save (&j, 7, *dir, 0);
  assert_list (*dir, "latest step-00000007");
  load_quietly (&other, *dir);
  paper_assert_equal (other.state, j.state, WEFT_STATE_MASTER);
  paper_job_close (&j);
  paper_job_close (&other);
}

static void
leftovers_of_dead_processes_go_with_the_next_save (void **dir)
{
  struct paper_job j = paper_job_open (TIED, "gpus=1");

  put_text (*dir, ".step-00000009.tmp-1-00000000/shard-0.safetensors", "half");
  put_text (*dir, ".step-00000009.tmp-1-00000000-old/manifest.json", "old");
  put_text (*dir, ".other/file", "somebody's");
  paper_fill (j.state, 0);
  save (&j, 10, *dir, 1);
  assert_list (*dir, ".other latest step-00000010");
  paper_job_close (&j);
}

/* -------------------------------------------------------------------------- damage */

/* Saves checkpoints of steps 1 and 2 into `dir`. Returns the job. */
static struct paper_job
two_steps (const char *dir)
{
  struct paper_job j = paper_job_open (UNTIED, SLICES);

  for (uint32_t step = 1; step <= 2; step++) {
    paper_fill (j.state, step);
    save (&j, step, dir, 0);
  }
  return j;
}

/* Step 2 is damaged. Asserts that loading step 2 fails with a message that contains these words.
 * Loading the folder must fall back to step 1, and *passed_over must then contain these words. */
static void
assert_passed_over (struct paper_job *j, const char *dir, const char *word, const char *more)
{
  g_autofree char *two = g_build_filename (dir, "step-00000002", NULL), *passed_over = NULL;
  struct paper_job one = paper_job_open (UNTIED, "gpus=1");

  ASSERT_REFUSED (j, two, word, more, "the newest complete checkpoint beside it is",
                  "step-00000001");
  assert_int_equal (load (j, dir, &passed_over), 1);
  assert_non_null (passed_over);
  assert_non_null (strstr (passed_over, word));
  assert_non_null (strstr (passed_over, more));
  paper_fill (one.state, 1);
  paper_assert_equal (j->state, one.state, WEFT_STATE_MASTER);
  paper_assert_equal (j->state, one.state, WEFT_STATE_WEIGHT);
  paper_job_close (&one);
  paper_job_close (j);
}

static void
a_truncated_shard_is_refused (void **dir)
{
  struct paper_job j = two_steps (*dir);
  g_autofree char *shard = g_build_filename (*dir, "step-00000002", "shard-1.safetensors", NULL);
  struct stat whole;

  assert_int_equal (stat (shard, &whole), 0);
  assert_int_equal (truncate (shard, 1000), 0);
  g_autofree char *sizes =
      g_strdup_printf ("found 1000 bytes, wanted the %ld of the manifest", (long) whole.st_size);
  assert_passed_over (&j, *dir, "shard-1.safetensors", sizes);
}

static void
a_flipped_byte_is_refused (void **dir)
{
  struct paper_job j = two_steps (*dir);

  flip_byte (*dir, "step-00000002/shard-2.safetensors", 5000);
  assert_passed_over (&j, *dir, "shard-2.safetensors: ", "is damaged: found checksum");
}

static void
a_flipped_byte_of_a_header_is_refused (void **dir)
{
  struct paper_job j = two_steps (*dir);
  g_autofree char *shard = g_build_filename (*dir, "step-00000002", "shard-3.safetensors", NULL);
  struct stat whole;

  assert_int_equal (stat (shard, &whole), 0);
  flip_byte (*dir, "step-00000002/shard-3.safetensors", whole.st_size - 100);
  assert_passed_over (&j, *dir, "step-00000002", "shard-3.safetensors");
}

static void
a_missing_shard_is_refused (void **dir)
{
  struct paper_job j = two_steps (*dir);
  g_autofree char *shard = g_build_filename (*dir, "step-00000002", "shard-0.safetensors", NULL);

  assert_int_equal (g_remove (shard), 0);
  assert_passed_over (&j, *dir, "shard-0.safetensors", "No such file");
}

static void
a_missing_manifest_is_refused (void **dir)
{
  struct paper_job j = two_steps (*dir);
  g_autofree char *manifest = g_build_filename (*dir, "step-00000002", "manifest.json", NULL);

  assert_int_equal (g_remove (manifest), 0);
  assert_passed_over (&j, *dir, "manifest.json", "No such file");
}

static void
a_manifest_that_is_a_pipe_is_refused_without_waiting (void **dir)
{
  struct paper_job j = two_steps (*dir);
  g_autofree char *manifest = g_build_filename (*dir, "step-00000002", "manifest.json", NULL);

  assert_int_equal (g_remove (manifest), 0);
  assert_int_equal (mkfifo (manifest, 0600), 0);
  assert_passed_over (&j, *dir, "manifest.json", "wanted a file");
}

static void
a_manifest_that_is_too_large_is_refused_unread (void **dir)
{
  struct paper_job j = two_steps (*dir);
  g_autofree char *manifest = g_build_filename (*dir, "step-00000002", "manifest.json", NULL);

  assert_int_equal (truncate (manifest, (off_t) 1 << 40), 0);
  assert_passed_over (&j, *dir, "manifest.json", "found 1099511627776 bytes, wanted at most");
}

/* Replaces a text in the manifest of step 2, and gives the manifest schema 1, which has no
 * checksum. Otherwise the wrong checksum would be the reason of every refusal. */
static void
edit_manifest (const char *dir, const char *what, const char *by)
{
  g_autofree char *text = get_text (dir, "step-00000002/manifest.json");
  text[strlen (text) - strlen (",\n \"crc32c\" : \"01234567\"\n}")] = '\0';
  g_auto (GStrv) schema = g_strsplit (text, "weft.checkpoint/2", 2);
  g_autofree char *old = g_strjoinv ("weft.checkpoint/1", schema);
  g_auto (GStrv) parts = g_strsplit (old, what, 2);

  assert_int_equal (g_strv_length (parts), 2);
  g_autofree char *edited = g_strconcat (parts[0], by, parts[1], "\n}", NULL);
  put_text (dir, "step-00000002/manifest.json", edited);
}

static void
a_newer_schema_is_refused (void **dir)
{
  struct paper_job j = two_steps (*dir);

  edit_manifest (*dir, "weft.checkpoint/1", "weft.checkpoint/3");
  assert_passed_over (&j, *dir, "found \"weft.checkpoint/3\", wanted \"weft.checkpoint/2\"",
                      "another version of Weft");
}

static void
a_manifest_that_is_cut_off_is_refused (void **dir)
{
  struct paper_job j = two_steps (*dir);
  g_autofree char *manifest = g_build_filename (*dir, "step-00000002", "manifest.json", NULL);

  assert_int_equal (truncate (manifest, 3000), 0);
  assert_passed_over (&j, *dir, "manifest.json", "found the end of the file");
}

static void
a_manifest_with_a_hole_is_refused (void **dir)
{
  struct paper_job j = two_steps (*dir);

  edit_manifest (*dir, "\"kind\" : \"exp_avg\"", "\"kind\" : \"exp_avg_sq\"");
  assert_passed_over (&j, *dir, "embedding.weight", "elements of exp_avg, wanted");
}

static void
a_save_that_cannot_say_what_is_latest_leaves_nothing_half_done (void **dir)
{
  struct paper_job j = paper_job_open (TIED_FP32, "gpus=1");
  struct weft_progress progress = progress_at (1);
  g_autoptr (GError) error = NULL;

  paper_fill (j.state, 0);
  put_text (*dir, "latest/it", "is a folder");
  assert_false (weft_checkpoint_save (j.state, &j.plan->job, &progress, *dir, 0, &error));
  assert_non_null (strstr (error->message, "latest"));
  assert_list (*dir, "latest step-00000001");
  paper_job_close (&j);
}

static void
a_directory_without_a_complete_checkpoint_says_why (void **dir)
{
  struct paper_job j = two_steps (*dir);
  g_autofree char *empty = g_build_filename (*dir, "empty", NULL);

  flip_byte (*dir, "step-00000001/shard-0.safetensors", 1);
  flip_byte (*dir, "step-00000002/shard-0.safetensors", 1);
  ASSERT_REFUSED (&j, *dir, "found no complete checkpoint", "step-00000001", "step-00000002");
  ASSERT_REFUSED (&j, empty, "found no complete checkpoint");
  paper_job_close (&j);
}

/* ------------------------------------------------------------------- other models */

static void
another_model_is_refused (void **dir)
{
  struct paper_job saved = two_steps (*dir);
  struct paper_job deeper =
      paper_job_open ("model=llama-nano precision=bf16 num_layers=5 vocab_size=251", "gpus=1");
  struct paper_job shallower =
      paper_job_open ("model=llama-nano precision=bf16 num_layers=3 vocab_size=251", "gpus=1");
  struct paper_job wider =
      paper_job_open ("model=llama-nano precision=bf16 num_layers=4 vocab_size=252", "gpus=1");
  struct paper_job heads = paper_job_open (UNTIED " num_attention_heads=4 num_query_groups=2 "
                                                  "kv_channels=16",
                                           "gpus=1");

  ASSERT_REFUSED (&deeper, *dir, "of another model", "found no tensor layers.4.norm1.weight");
  ASSERT_REFUSED (&shallower, *dir, "of another model", "found tensor layers.3.norm1.weight");
  ASSERT_REFUSED (&wider, *dir, "of another model",
                  "found embedding.weight as 251 x 64 elements, wanted 252 x 64 elements");
  ASSERT_REFUSED (&heads, *dir, "of another model", "found num_attention_heads = 8",
                  "wanted num_attention_heads = 4");
  paper_job_close (&saved);
  paper_job_close (&deeper);
  paper_job_close (&shallower);
  paper_job_close (&wider);
  paper_job_close (&heads);
}

/* ----------------------------------------------------------------- sudden deaths */

/* Saves one checkpoint after the other, from step `first` on, until the process is killed. The
 * saved numbers depend on the step. */
static void
save_for_ever (const char *dir, uint64_t first)
{
  struct paper_job j = paper_job_open (TIED, SLICES);

  for (uint64_t i = 0;; i++) {
    /* Each step is saved twice: the second save replaces the first. */
    struct weft_progress progress = progress_at (first + i / 2);
    paper_fill (j.state, progress.step);
    if (!weft_checkpoint_save (j.state, &j.plan->job, &progress, dir, 2, NULL))
      _exit (1);
  }
}

/* Starts a process that saves, waits until it has published a checkpoint, and kills it after a
 * random time. */
static void
kill_a_saver (const char *dir, uint64_t first, GRand *rand)
{
  g_autofree char *latest = g_build_filename (dir, "latest", NULL);
  pid_t child = fork ();
  int status;

  assert_true (child >= 0);
  if (child == 0)
    save_for_ever (dir, first);
  while (!g_file_test (latest, G_FILE_TEST_EXISTS) && waitpid (child, &status, WNOHANG) == 0)
    g_usleep (1000);
  g_usleep (g_rand_int_range (rand, 0, 200000));
  assert_int_equal (kill (child, SIGKILL), 0);
  assert_int_equal (waitpid (child, &status, 0), child);
  assert_true (WIFSIGNALED (status) && WTERMSIG (status) == SIGKILL);
}

/* Loads the folder, checks that the state is exactly the state that was saved in one of the steps,
 * and returns this step. */
static uint64_t
assert_some_step (struct paper_job *j, struct paper_job *model, const char *dir)
{
  uint64_t step = load_quietly (j, dir);

  paper_fill (model->state, step);
  for (int kind = 0; kind < WEFT_STATE_GRAD; kind++)
    paper_assert_equal (j->state, model->state, kind);
  return step;
}

/* The environment variable WEFT_KILLS sets the number of kills of this test. */
static void
a_save_killed_at_any_moment_leaves_a_complete_checkpoint (void **dir)
{
  const char *wanted = g_getenv ("WEFT_KILLS");
  uint64_t kills = wanted ? g_ascii_strtoull (wanted, NULL, 10) : 5;
  g_autoptr (GRand) rand = g_rand_new_with_seed (1);
  struct paper_job j = paper_job_open (TIED, "gpus=1"), model = paper_job_open (TIED, "gpus=1");
  uint64_t step = 0;

  for (uint64_t i = 0; i < kills; i++) {
    kill_a_saver (*dir, step + 1, rand);
    step = assert_some_step (&j, &model, *dir);
  }
  paper_fill (j.state, 0);
  save (&j, 1000000, *dir, 1);
  assert_list (*dir, "latest step-01000000");
  paper_job_close (&j);
  paper_job_close (&model);
}

/* Starts a child process that saves step `step` and is traced (ptrace), so that it stops at every
 * system call. Returns 0 on a machine that permits no tracing. */
static pid_t
start_stepping (const struct paper_job *j, uint64_t step, const char *dir)
{
  struct weft_progress progress = progress_at (step);
  pid_t child = fork ();
  int status;

  assert_true (child >= 0);
  if (child == 0) {
    if (ptrace (PTRACE_TRACEME, 0, NULL, NULL) || raise (SIGSTOP))
      _exit (77);
    _exit (!weft_checkpoint_save (j->state, &j->plan->job, &progress, dir, 1, NULL));
  }
  assert_int_equal (waitpid (child, &status, 0), child);
  if (!WIFSTOPPED (status) ||
      ptrace (PTRACE_SETOPTIONS, child, NULL, (void *) PTRACE_O_TRACESYSGOOD) != 0)
    return 0;
  return child;
}

/* Whether a system call leaves all files as they are. */
static gboolean
leaves_files (uint64_t call)
{
  static const uint64_t known[] = { SYS_brk,   SYS_mmap,       SYS_munmap,     SYS_mprotect,
                                    SYS_futex, SYS_newfstatat, SYS_getdents64, SYS_read,
                                    SYS_close, SYS_fcntl,      SYS_lseek };

  for (unsigned i = 0; i < G_N_ELEMENTS (known); i++)
    if (known[i] == call)
      return TRUE;
  return FALSE;
}

/* Lets the traced child execute one more system call; sets `call` to its number. Returns FALSE if
 * the child has ended. */
static gboolean
step_call (pid_t child, uint64_t *call)
{
  struct __ptrace_syscall_info about = { 0 };
  int status;

  while (about.op != PTRACE_SYSCALL_INFO_EXIT) {
    ptrace (PTRACE_SYSCALL, child, NULL, NULL);
    assert_int_equal (waitpid (child, &status, 0), child);
    if (WIFEXITED (status)) {
      assert_int_equal (WEXITSTATUS (status), 0);
      return FALSE;
    }
    assert_true (ptrace (PTRACE_GET_SYSCALL_INFO, child, (void *) sizeof about, &about) > 0);
    if (about.op == PTRACE_SYSCALL_INFO_ENTRY)
      *call = about.entry.nr;
  }
  return TRUE;
}

/* Lets the traced child execute more than `*calls` system calls, up to the next after which files
 * can differ: of the writes that follow each other every fifth (`./weft test --long`: all). Sets
 * `*calls` to their number. Returns FALSE if the child has ended before. */
static gboolean
step_calls (pid_t child, uint32_t *calls)
{
  const uint32_t until = *calls + 1;
  uint32_t writes = weft_tests_cases (5, 1);
  uint64_t call = 0;

  for (*calls = 0; step_call (child, &call);) {
    ++*calls;
    if (*calls >= until && !leaves_files (call) && (call != SYS_write || --writes == 0))
      return TRUE;
  }
  return FALSE;
}

/* Starts a child that saves `step`, and kills it after more than `*calls` system calls, as
 * step_calls() counts them. Returns FALSE if the child has ended before. */
static gboolean
dies_after (const struct paper_job *j, uint32_t *calls, uint64_t step, const char *dir)
{
  pid_t child = start_stepping (j, step, dir);

  if (!child) /* skipped on a machine that permits no tracing (ptrace) */
    skip ();
  if (!step_calls (child, calls))
    return FALSE;
  kill (child, SIGKILL);
  assert_int_equal (waitpid (child, NULL, 0), child);
  return TRUE;
}

static gboolean
begin_alike (weft_state *a, weft_state *b)
{
  float x, y;

  weft_state_read (a, 0, WEFT_STATE_MASTER, 0, 1, &x);
  weft_state_read (b, 0, WEFT_STATE_MASTER, 0, 1, &y);
  return x == y;
}

/* Step `first` was saved with the numbers 1. Then children save step `second` with the numbers 2,
 * and each child is killed after another number of system calls. After every kill, one of the two
 * checkpoints must load. */
static void
kill_after_every_call (const char *dir, uint64_t first, uint64_t second)
{
  struct paper_job j = paper_job_open (SMALLEST, "gpus=2");
  struct paper_job found = paper_job_open (SMALLEST, "gpus=1");
  gboolean dies = TRUE;
  uint32_t calls = 0, kills = 0;

  for (; dies; kills++) {
    weft_test_remove (dir);
    paper_fill (j.state, 1);
    save (&j, first, dir, 1);
    paper_fill (j.state, 2);
    dies = dies_after (&j, &calls, second, dir);
    uint64_t step = load_quietly (&found, dir);
    gboolean replaced = begin_alike (found.state, j.state);
    assert_true (dies || replaced);
    assert_int_equal (step, replaced ? second : first);
    if (!replaced)
      paper_fill (j.state, 1);
    for (int kind = 0; kind < WEFT_STATE_GRAD; kind++)
      paper_assert_equal (found.state, j.state, kind);
  }
  assert_in_range (kills, 20, calls);
  paper_job_close (&j);
  paper_job_close (&found);
}

static void
a_save_killed_after_any_system_call_leaves_the_one_before_or_itself (void **dir)
{
  kill_after_every_call (*dir, 1, 2);
}

static void
saving_a_step_again_killed_after_any_system_call_leaves_one_of_both (void **dir)
{
  kill_after_every_call (*dir, 1, 1);
}

/* A limit on file sizes makes write() fail as a full disk does. */
static void
a_full_disk_is_reported_and_harms_nothing (void **dir)
{
  struct paper_job j = two_steps (*dir);
  struct rlimit before, small = { 400000, 400000 };
  struct weft_progress progress = progress_at (3);
  g_autoptr (GError) error = NULL;

  assert_int_equal (getrlimit (RLIMIT_FSIZE, &before), 0);
  small.rlim_max = before.rlim_max;
  signal (SIGXFSZ, SIG_IGN);
  assert_int_equal (setrlimit (RLIMIT_FSIZE, &small), 0);
  gboolean saved = weft_checkpoint_save (j.state, &j.plan->job, &progress, *dir, 1, &error);
  assert_int_equal (setrlimit (RLIMIT_FSIZE, &before), 0);
  signal (SIGXFSZ, SIG_DFL);
  assert_false (saved);
  assert_non_null (strstr (error->message, g_strerror (EFBIG)));
  assert_list (*dir, "latest step-00000001 step-00000002");
  assert_int_equal (load_quietly (&j, *dir), 2);
  paper_job_close (&j);
}

static void
a_directory_that_cannot_be_made_is_reported (void **dir)
{
  struct paper_job j = paper_job_open (TIED, "gpus=1");
  struct weft_progress progress = progress_at (1);
  g_autofree char *below = g_build_filename (*dir, "file", "below", NULL);
  g_autoptr (GError) error = NULL;

  put_text (*dir, "file", "in the way");
  assert_false (weft_checkpoint_save (j.state, &j.plan->job, &progress, below, 0, &error));
  assert_non_null (strstr (error->message, below));
  paper_job_close (&j);
}

/* ----------------------------------------------------------------------- checksums */

/* Checks a CRC-32C function with the check value of the catalogue of CRCs and with the vectors of
 * RFC 3720, B.4. */
static void
assert_standard (const struct weft_crc32c *crc)
{
  uint8_t zeros[32] = { 0 }, ones[32], rising[32];

  for (int i = 0; i < 32; i++) {
    ones[i] = 0xff;
    rising[i] = i;
  }
  assert_int_equal (weft_crc32c (crc, 0, "123456789", 9), 0xe3069283);
  assert_int_equal (weft_crc32c (crc, 0, zeros, 32), 0x8a9136aa);
  assert_int_equal (weft_crc32c (crc, 0, ones, 32), 0x62a8ab43);
  for (size_t cut = 0; cut <= 32; cut++) {
    uint32_t begun = weft_crc32c (crc, 0, rising, cut);
    assert_int_equal (weft_crc32c (crc, begun, rising + cut, 32 - cut), 0x46dd794e);
  }
}

static void
crc32c_is_that_of_the_standard_with_the_processors_instruction_or_without (void **unused)
{
  struct weft_crc32c crc;

  (void) unused;
  weft_crc32c_init (&crc);
  assert_standard (&crc);
  crc.instruction = false;
  assert_standard (&crc);
}

#define IN_A_DIR(test)                                                                             \
  cmocka_unit_test_setup_teardown (test, weft_test_folder_make, weft_test_folder_remove)
#define IN_MEMORY(test)                                                                            \
  cmocka_unit_test_setup_teardown (test, make_dir_in_memory, weft_test_folder_remove)

static const struct CMUnitTest tests[] = {
  IN_MEMORY (every_strategy_loads_what_every_other_saved),
  IN_A_DIR (a_model_moves_between_bf16_and_fp32_by_its_masters),
  IN_A_DIR (a_directory_holds_steps_and_the_name_of_the_latest),
  IN_A_DIR (only_the_newest_are_kept),
  IN_A_DIR (what_was_just_saved_is_kept_though_later_steps_lie_beside_it),
  IN_A_DIR (a_damaged_checkpoint_does_not_count_among_those_kept),
  IN_A_DIR (saving_a_step_again_replaces_it),
  IN_A_DIR (leftovers_of_dead_processes_go_with_the_next_save),
  IN_A_DIR (a_truncated_shard_is_refused),
  IN_A_DIR (a_flipped_byte_is_refused),
  IN_A_DIR (a_flipped_byte_of_a_header_is_refused),
  IN_A_DIR (a_missing_shard_is_refused),
  IN_A_DIR (a_missing_manifest_is_refused),
  IN_A_DIR (a_manifest_that_is_a_pipe_is_refused_without_waiting),
  IN_A_DIR (a_manifest_that_is_too_large_is_refused_unread),
  IN_A_DIR (a_newer_schema_is_refused),
  IN_A_DIR (a_manifest_that_is_cut_off_is_refused),
  IN_A_DIR (a_manifest_with_a_hole_is_refused),
  IN_A_DIR (a_save_that_cannot_say_what_is_latest_leaves_nothing_half_done),
  IN_A_DIR (a_directory_without_a_complete_checkpoint_says_why),
  IN_A_DIR (another_model_is_refused),
  IN_A_DIR (a_save_killed_at_any_moment_leaves_a_complete_checkpoint),
  IN_MEMORY (a_save_killed_after_any_system_call_leaves_the_one_before_or_itself),
  IN_MEMORY (saving_a_step_again_killed_after_any_system_call_leaves_one_of_both),
  IN_A_DIR (a_full_disk_is_reported_and_harms_nothing),
  IN_A_DIR (a_directory_that_cannot_be_made_is_reported),
  cmocka_unit_test (crc32c_is_that_of_the_standard_with_the_processors_instruction_or_without),
};

WEFT_TESTS (tests, .seconds = 9)
