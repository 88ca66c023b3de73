/* A training run saves after every step; the test kills the run at random moments and resumes it
 * from its checkpoints. After the last kill the run trains to its end. Its checkpoints must then
 * have the same bytes as those of a run that was never killed, and no other file may be left.
 * Arguments: SEED [KILLS]. */
#include "tests/attack/tiny.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#define KILLS 25
#define MOST_SECONDS 60
#define RUN TINY " --save-interval 1 --steps "

/* Asserts that two folders hold the same files with the same bytes. */
static void
assert_same_folders (const char *dir, const char *a, const char *b)
{
  g_autofree char *one = attack_path (dir, a), *two = attack_path (dir, b);
  g_autoptr (GPtrArray) ours = tiny_files (one), theirs = tiny_files (two);

  for (guint i = 0; i < MAX (ours->len, theirs->len); i++) {
    assert_true (i < ours->len && i < theirs->len);
    assert_string_equal (ours->pdata[i], theirs->pdata[i]);
    g_autofree char *left = g_build_filename (one, ours->pdata[i], NULL);
    g_autofree char *right = g_build_filename (two, theirs->pdata[i], NULL), *x = NULL, *y = NULL;
    gsize nx, ny;
    assert_true (g_file_get_contents (left, &x, &nx, NULL));
    assert_true (g_file_get_contents (right, &y, &ny, NULL));
    if (nx != ny || memcmp (x, y, nx) != 0)
      fail_msg ("%s differs", left);
  }
}

/* Whether a folder contains a checkpoint to resume from. The file `latest` does not prove this:
 * the first save writes `latest`, and a kill may come before the folder of this save is renamed
 * to its final name. */
static gboolean
has_checkpoint (const char *dir, const char *name)
{
  g_autofree char *path = attack_path (dir, name);
  g_autoptr (GDir) folder = g_dir_open (path, 0, NULL);
  const char *entry = NULL;

  while (folder && (entry = g_dir_read_name (folder)) && !g_str_has_prefix (entry, "step-"))
    ;
  return entry != NULL;
}

static char *
run_words (const char *dir, const char *steps)
{
  return g_strconcat (RUN, steps, " --save cut", has_checkpoint (dir, "cut") ? " --load cut" : "",
                      NULL);
}

/* Starts the run and kills it after `microseconds`. TRUE: the signal ended the run; FALSE: the run
 * had ended before the signal. */
static gboolean
kill_after (const char *dir, gulong microseconds)
{
  g_autofree char *words = run_words (dir, "24");
  g_auto (GStrv) argv = g_strsplit (words, " ", -1);
  pid_t child = attack_start (dir, argv);
  int status;

  g_usleep (microseconds);
  kill (child, SIGKILL);
  assert_int_equal (waitpid (child, &status, 0), child);
  if (WIFEXITED (status) && WEXITSTATUS (status) != 0) {
    g_autofree char *path = g_build_filename (dir, "err", NULL), *err = NULL;
    g_file_get_contents (path, &err, NULL, NULL);
    fail_msg ("resumed after a kill: status %d: %s", WEXITSTATUS (status), err);
  }
  return WIFSIGNALED (status);
}

/* Kills a run up to `most` times, then lets it end and compares its checkpoints with those of the
 * undisturbed run, which took `whole` microseconds. Returns the number of kills. */
static uint32_t
disturb (const char *dir, GRand *rand, gulong whole, uint32_t most)
{
  g_autofree char *cut = attack_path (dir, "cut");
  uint32_t kills = 0;

  weft_test_remove (cut);
  while (kills < most && kill_after (dir, (gulong) g_rand_int_range (rand, 0, (gint32) whole)))
    kills++;
  g_autofree char *words = run_words (dir, "25");
  struct attack_run last = attack_words (dir, MOST_SECONDS, "%s", words);
  if (last.end != ATTACK_DONE)
    attack_print (&last, words);
  assert_int_equal (last.end, ATTACK_DONE);
  attack_run_clear (&last);
  assert_same_folders (dir, "whole", "cut");
  return kills;
}

static void
a_run_that_is_killed_ends_with_the_bytes_of_an_undisturbed_one (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (attack_drawn.seed);
  const char *dir = *state;
  uint32_t n = attack_count (KILLS), kills = 0, runs = 0;

  attack_folder_fill (dir);
  gint64 begin = g_get_monotonic_time ();
  struct attack_run whole = attack_words (dir, MOST_SECONDS, RUN "25 --save whole");
  gint64 end = g_get_monotonic_time ();
  assert_int_equal (whole.end, ATTACK_DONE);
  for (; kills < n; runs++)
    kills += MAX (1, disturb (dir, rand, (gulong) (end - begin), MIN (8, n - kills)));
  print_message ("seed %u: %u kills in %u runs\n", attack_drawn.seed, kills, runs);
  attack_run_clear (&whole);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test_setup_teardown (a_run_that_is_killed_ends_with_the_bytes_of_an_undisturbed_one,
                                   weft_test_folder_make, weft_test_folder_remove),
};

WEFT_TESTS (tests, .begin = attack_begin, .seconds = 13)
