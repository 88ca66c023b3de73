/* How a training run ends: signals, losses that are NaN, folders with checkpoints of other runs,
 * data files that change during the run. */
#include "tests/made/scripted_run.h"
#include "train/checkpoint.h"
#include "train/checkpoint_dir.h"
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---------------------------------------------------------------------- signals */

static void
every_signal_that_asks_to_stop_saves (void **state)
{
  static const struct {
    int number;
    const char *said;
  } signals[] = { { SIGHUP, "interrupted after step 3 by SIGHUP; resume with --load" },
                  { SIGUSR1, "interrupted after step 3 by SIGUSR1; resume with --load" },
                  { SIGXFSZ, "interrupted after step 3 by SIGXFSZ; resume with --load" } };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (signals); i++) {
    struct run *r = run_saving (6);
    script.signal = signals[i].number;
    script.signal_at = 3;
    play_well (r);
    assert_true (r->result.interrupted);
    assert_saved (r, "3");
    assert_non_null (strstr (r->said->str, signals[i].said));
    run_free (r);
  }
}

/* nohup ignores SIGHUP, and a run must not change that. A parent process may also ignore SIGXFSZ,
 * so that a file that is too large gives the error EFBIG. SIGXFSZ must still stop the run. */
static void
only_sigxfsz_stops_a_run_that_ignores_it (void **state)
{
  static const int signals[] = { SIGHUP, SIGXFSZ };
  const struct sigaction ignore = { .sa_handler = SIG_IGN };
  struct sigaction before, after;

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (signals); i++) {
    struct run *r = run_new ("gpus=1");
    sigaction (signals[i], &ignore, &before);
    script.signal = signals[i];
    script.signal_at = 2;
    play_well (r);
    sigaction (signals[i], &before, &after);
    assert_int_equal (r->result.interrupted, signals[i] == SIGXFSZ);
    assert_true (after.sa_handler == SIG_IGN);
    run_free (r);
  }
}

/* A checkpoint exceeds the limit on file sizes. The run must fail with an error, and leave no part
 * of the checkpoint. */
static void
a_save_beyond_the_limit_of_files_is_an_error_without_leftovers (void **state)
{
  struct run *r = run_saving (6);
  struct rlimit before, small = { .rlim_cur = 50000 };
  g_autoptr (GDir) listing = NULL;

  (void) state;
  assert_int_equal (getrlimit (RLIMIT_FSIZE, &before), 0);
  small.rlim_max = before.rlim_max;
  assert_int_equal (setrlimit (RLIMIT_FSIZE, &small), 0);
  play (r);
  assert_int_equal (setrlimit (RLIMIT_FSIZE, &before), 0);
  assert_false (r->ok);
  assert_non_null (strstr (r->error->message, g_strerror (EFBIG)));
  assert_false (g_file_test (r->save, G_FILE_TEST_EXISTS));
  play_well (r);
  assert_saved (r, "6");
  run_free (r);
}

/* A signal while a checkpoint is loaded stops the run. The run must not save then, because its
 * weights are incomplete. */
static void
a_signal_ends_a_run_that_loads (void **state)
{
  struct run *r = run_saving (3);

  (void) state;
  play_well (r);
  r->options.load = r->save;
  r->options.steps = 6;
  play_well (r);
  /* number of writes to the memory of ranks when a checkpoint is loaded completely */
  uint32_t all = script.writes;
  script.signal = SIGTERM;
  script.signal_at_write = 1;
  r->options.steps = 9;
  play_well (r);
  assert_true (r->result.interrupted);
  assert_int_equal (script.n, 0);
  assert_in_range (script.writes, 1, all / 4);
  assert_non_null (strstr (r->said->str, "interrupted by SIGTERM while weights were loaded"));
  assert_saved (r, "3 6");
  run_free (r);
}

/* A signal while weights are initialised stops the run. The run must not save then, because its
 * weights are incomplete. */
static void
a_signal_ends_a_run_that_begins (void **state)
{
  struct run *r = run_saving (3);

  (void) state;
  script.signal = SIGUSR1;
  script.signal_at_write = 1;
  play_well (r);
  assert_true (r->result.interrupted);
  assert_int_equal (script.n, 0);
  assert_non_null (strstr (r->said->str, "interrupted by SIGUSR1 while weights were loaded"));
  assert_false (g_file_test (r->save, G_FILE_TEST_EXISTS));
  run_free (r);
}

/* ----------------------------------------------------------------------- losses */

static void
a_run_whose_last_loss_is_no_number_has_failed (void **state)
{
  struct run *r = run_saving (6);
  g_autofree char *weights = g_build_filename (r->dir, "weights", NULL);

  (void) state;
  script.nan_from = 5;
  r->options.save_interval = 4;
  r->options.export_safetensors = weights;
  play_badly (r, "step 6: the loss is nan");
  assert_saved (r, "4");
  assert_false (g_file_test (weights, G_FILE_TEST_EXISTS));
  run_free (r);
}

static void
a_run_whose_last_evaluation_is_no_number_has_failed (void **state)
{
  struct run *r = run_new ("gpus=1");

  (void) state;
  script.nan_from = 7; /* step call 7 is the evaluation after training step 6 */
  r->options.eval_interval = 6;
  r->options.eval_batches = 1;
  r->options.eval_share = 0.2;
  play_badly (r, "step 6: the loss of the evaluation is nan");
  run_free (r);
}

/* The update of step 4 makes a weight NaN. The loss of step 4 is computed before the update, so
 * this loss is finite. The weights must not be saved all the same. */
static void
spoilt_weights_are_not_saved (void **state)
{
  struct run *r = run_saving (6);

  (void) state;
  r->options.save_interval = 2;
  script.spoil_at = 4;
  play_badly (r, "not saved: element 0 of ");
  assert_saved (r, "2");
  run_free (r);
}

/* ------------------------------------------------------------------- directories */

static char *locked_dir;

/* Tries to lock the folder of the run, as a second process would. Stores the error in
 * `locked_dir`. */
static void
try_to_lock (const char *path)
{
  g_autoptr (GError) error = NULL;

  assert_null (weft_checkpoint_lock_new (path, NULL, &error));
  g_free (locked_dir);
  locked_dir = g_strdup (error->message);
}

static void
a_directory_is_locked_before_its_first_checkpoint (void **state)
{
  struct run *r = run_saving (6);

  (void) state;
  script.act_at = 2;
  script.act = try_to_lock;
  script.path = r->save;
  play_well (r);
  assert_non_null (strstr (locked_dir, "another run saves into this directory (process "));
  g_clear_pointer (&locked_dir, g_free);
  assert_saved (r, "6");
  weft_checkpoint_lock *lock = weft_checkpoint_lock_new (r->save, NULL, NULL);
  play_badly (r, "another run saves into this directory");
  assert_int_equal (script.n, 0);
  weft_checkpoint_lock_free (lock);
  run_free (r);
}

static void
a_rollback_goes_on_where_it_was (void **state)
{
  struct run *r = run_saving (6);
  g_autofree char *second = weft_checkpoint_path (r->save, 2);

  (void) state;
  r->options.save_interval = 2;
  play_well (r);
  assert_saved (r, "2 4 6");
  r->options.load = second;
  r->options.steps = 3;
  r->options.save_interval = 0;
  play_well (r);
  r->options.load = r->save;
  r->options.steps = 5;
  play_well (r);
  assert_int_equal (line_at (r, 0)->step, 4);
  assert_non_null (strstr (r->said->str, "because the file latest names step 3"));
  assert_saved (r, "2 3 4 5 6");
  run_free (r);
}

/* ------------------------------------------------------------------------- data */

static void
cut_short (const char *path)
{
  assert_int_equal (truncate (path, 100), 0);
}

static void
cut_to_nothing (const char *path)
{
  assert_int_equal (truncate (path, 0), 0);
}

static void
data_that_becomes_shorter_costs_no_step (void **state)
{
  static void (*const acts[]) (const char *) = { cut_short, cut_to_nothing };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (acts); i++) {
    struct run *r = run_saving (20);
    script.act_at = 4;
    script.act = acts[i];
    script.path = r->data;
    play_badly (r, "became shorter than the 641 bytes that it had when it was opened; stopped "
                   "after step 4, saved in ");
    assert_int_equal (script.n, 4);
    assert_saved (r, "4");
    write_tokens (r->data, 0);
    r->options.load = r->save;
    r->options.steps = 6;
    play_well (r);
    assert_int_equal (line_at (r, 0)->step, 5);
    run_free (r);
  }
}

/* The token file is cut while the first batch of an evaluation runs, so reading the second batch
 * fails. No finished training step may be lost. */
static void
data_that_is_cut_in_an_evaluation_costs_no_step (void **state)
{
  struct run *r = run_saving (20);

  (void) state;
  script.act_at = 6;
  script.act = cut_to_nothing;
  script.path = r->data;
  r->options.eval_interval = 5;
  r->options.eval_batches = 2;
  r->options.eval_share = 0.2;
  play_badly (r, "tokens.txt: found 0 bytes, wanted the 641 that it had when it was "
                 "opened: the file became shorter");
  assert_saved (r, "5");
  run_free (r);
}

/* Replaces a byte of the file without changing its size. */
static void
overwrite (const char *path, long offset)
{
  FILE *file = fopen (path, "r+b");

  assert_non_null (file);
  assert_int_equal (fseek (file, offset, SEEK_SET), 0);
  assert_int_equal (fputc ('!', file), '!');
  assert_int_equal (fclose (file), 0);
}

static void
overwrite_beginning (const char *path)
{
  overwrite (path, 0);
}

static void
data_that_is_written_during_a_run_is_told_once (void **state)
{
  struct run *r = run_new ("gpus=1");

  (void) state;
  script.act_at = 3;
  script.act = overwrite_beginning;
  script.path = r->data;
  play_well (r);
  const char *first = strstr (r->said->str, "was written while it was read, after step 3");
  assert_non_null (first);
  assert_null (strstr (first + 1, "was written while it was read"));
  assert_int_equal (script.n, 6);
  run_free (r);
}

/* Writes a file of 200,001 tokens. A checkpoint stores checksums of both ends of the token file,
 * and a fingerprint of every 200th token. */
static void
write_many_tokens (const char *path)
{
  g_autofree char *bytes = g_malloc (200001);

  memset (bytes, 'a', 200001);
  assert_true (g_file_set_contents (path, bytes, 200001, NULL));
}

static void
data_that_was_changed_in_place_is_noticed_on_resume (void **state)
{
  static const struct {
    long at; /* position in the file of the byte that is overwritten */
    const char *said;
  } changes[] = {
    { 3, "is not the data that" },
    { 199990, "is not the data that" },
    { 100007, "its ends and samples of its tokens are the same, other tokens may not be" },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (changes); i++) {
    struct run *r = run_saving (2);
    write_many_tokens (r->data);
    play_well (r);
    r->options.load = r->save;
    r->options.steps = 3;
    play_well (r);
    assert_null (strstr (r->said->str, "warning"));
    overwrite (r->data, changes[i].at);
    r->options.steps = 4;
    play_well (r);
    if (!strstr (r->said->str, changes[i].said))
      fail_msg ("found \"%s\", wanted \"%s\"", r->said->str, changes[i].said);
    r->options.steps = 5;
    play_well (r);
    assert_null (strstr (r->said->str, "warning"));
    run_free (r);
  }
}

static void
data_of_another_size_is_told_with_both_sizes (void **state)
{
  struct run *r = run_saving (2);

  (void) state;
  play_well (r);
  write_many_tokens (r->data);
  r->options.load = r->save;
  r->options.steps = 3;
  play_well (r);
  assert_non_null (strstr (r->said->str, "found 200001 bytes, wanted 641"));
  run_free (r);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_signal_that_asks_to_stop_saves),
  cmocka_unit_test (only_sigxfsz_stops_a_run_that_ignores_it),
  cmocka_unit_test (a_save_beyond_the_limit_of_files_is_an_error_without_leftovers),
  cmocka_unit_test (a_signal_ends_a_run_that_loads),
  cmocka_unit_test (a_signal_ends_a_run_that_begins),
  cmocka_unit_test (a_run_whose_last_loss_is_no_number_has_failed),
  cmocka_unit_test (a_run_whose_last_evaluation_is_no_number_has_failed),
  cmocka_unit_test (spoilt_weights_are_not_saved),
  cmocka_unit_test (a_directory_is_locked_before_its_first_checkpoint),
  cmocka_unit_test (a_rollback_goes_on_where_it_was),
  cmocka_unit_test (data_that_becomes_shorter_costs_no_step),
  cmocka_unit_test (data_that_is_cut_in_an_evaluation_costs_no_step),
  cmocka_unit_test (data_that_is_written_during_a_run_is_told_once),
  cmocka_unit_test (data_that_was_changed_in_place_is_noticed_on_resume),
  cmocka_unit_test (data_of_another_size_is_told_with_both_sizes),
};

WEFT_TESTS (tests)
