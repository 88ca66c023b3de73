/* What protects a folder of checkpoints: the checksum of the manifest, a lock for one writer at a
 * time, the file `latest`, and the check that values are finite. */
#include "core/base/file.h"
#include "launch/rendezvous.h"
#include "tests/made/paper_exec.h"
#include "tests/runner/folder.h"
#include "tests/runner/processes.h"
#include "tests/runner/runner.h"
#include "train/checkpoint.h"
#include "train/checkpoint_dir.h"
#include "train/crc32c.h"
#include <fcntl.h>
#include <glib/gstdio.h>
#include <math.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SMALL "model=gpt2-nano precision=fp32 num_layers=1"

static struct weft_progress
progress_at (uint64_t step)
{
  return (struct weft_progress){ .step = step,
                                 .position = step * 8,
                                 .seed = 1234,
                                 .data = 77,
                                 .data_file = { 1000, 1700000000123456789u, 5, 6 },
                                 .loss_scale = { .scale = 65536, .good = 3 } };
}

static gboolean
try_save (const struct paper_job *j, uint64_t step, const char *dir, GError **error)
{
  struct weft_progress progress = progress_at (step);

  return weft_checkpoint_save (j->state, &j->plan->job, &progress, dir, 2, error);
}

/* Saves a checkpoint with values that depend on the step. */
static void
save (const struct paper_job *j, uint64_t step, const char *dir)
{
  g_autoptr (GError) error = NULL;

  paper_fill (j->state, (uint32_t) step);
  if (!try_save (j, step, dir, &error))
    fail_msg ("%s", error->message);
}

/* Loads a checkpoint and returns its step. *notes receives the notes of the load, or NULL; the
 * caller frees the text. */
static uint64_t
load (const struct paper_job *j, const char *path, char **notes)
{
  g_autoptr (GError) error = NULL;
  struct weft_progress found, wanted;

  if (!weft_checkpoint_load (j->state, &j->plan->job, path, &found, notes, &error))
    fail_msg ("%s", error->message);
  wanted = progress_at (found.step);
  assert_memory_equal (&found, &wanted, sizeof found);
  return found.step;
}

static void
assert_loads (const struct paper_job *j, const char *path, uint64_t step, const char *note)
{
  g_autofree char *notes = NULL;

  assert_int_equal (load (j, path, &notes), step);
  if (!note)
    assert_null (notes);
  else if (!notes || !strstr (notes, note))
    fail_msg ("found \"%s\", wanted \"%s\"", notes ? notes : "no note", note);
}

static void
assert_not_loaded (const struct paper_job *j, const char *path, const char *part)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *notes = NULL;
  struct weft_progress progress;

  assert_false (weft_checkpoint_load (j->state, &j->plan->job, path, &progress, &notes, &error));
  if (!strstr (error->message, part))
    fail_msg ("found \"%s\", wanted \"%s\" in it", error->message, part);
}

static char *
get_text (const char *dir, const char *name, gsize *length)
{
  g_autofree char *path = g_build_filename (dir, name, NULL);
  char *text = weft_file_read (path, WEFT_MANIFEST_MOST_BYTES, length, NULL);

  assert_non_null (text);
  return text;
}

static void
put_text (const char *dir, const char *name, const char *text)
{
  g_autofree char *path = g_build_filename (dir, name, NULL);

  assert_true (g_file_set_contents (path, text, -1, NULL));
}

/* -------------------------------------------------------------------- manifest */

static void
assert_refuses_flip (char *text, gsize length, gsize bit)
{
  text[bit / 8] ^= (char) (1 << bit % 8);
  g_autoptr (weft_manifest) m = weft_manifest_parse (text, length, NULL);
  if (m)
    fail_msg ("bit %u of byte %u (%c) may change", (unsigned) (bit % 8), (unsigned) (bit / 8),
              text[bit / 8]);
  text[bit / 8] ^= (char) (1 << bit % 8);
}

/* Flips bits of a manifest one at a time: every bit of the first members (the progress of the run)
 * and of the last 40 bytes (the checksum), and every 997th bit in between. Each flip must be
 * noticed. */
static void
no_bit_of_a_manifest_may_change (void **dir)
{
  struct paper_job j = paper_job_open (SMALL, "gpus=1");
  gsize length;

  save (&j, 40, *dir);
  g_autofree char *text = get_text (*dir, "step-00000040/manifest.json", &length);
  gsize head = (gsize) (strstr (text, "\"model\"") - text), tail = length - 40;
  assert_in_range (head, 300, 600);
  for (gsize bit = 0; bit < 8 * length; bit += bit / 8 >= head && bit / 8 < tail ? 997 : 1)
    assert_refuses_flip (text, length, bit);
  g_autoptr (weft_manifest) m = weft_manifest_parse (text, length, NULL);
  assert_non_null (m);
  for (gsize cut = length - 60; cut < length; cut++)
    assert_null (weft_manifest_parse (text, cut, NULL));
  paper_job_close (&j);
}

/* Flips one bit of a file, calls `check`, and flips the bit back. */
static void
with_flip (const struct paper_job *j, const char *dir, const char *name, gsize bit,
           void (*check) (const struct paper_job *j, const char *dir))
{
  g_autofree char *path = g_build_filename (dir, name, NULL);
  char byte;
  int fd = g_open (path, O_RDWR | O_CLOEXEC, 0);

  assert_int_equal (pread (fd, &byte, 1, (off_t) (bit / 8)), 1);
  byte ^= (char) (1 << bit % 8);
  assert_int_equal (pwrite (fd, &byte, 1, (off_t) (bit / 8)), 1);
  check (j, dir);
  byte ^= (char) (1 << bit % 8);
  assert_int_equal (pwrite (fd, &byte, 1, (off_t) (bit / 8)), 1);
  close (fd);
}

/* Checks that loading fails, or restores exactly the state that was saved in step 40. */
static void
check_step_40 (const struct paper_job *j, const char *dir)
{
  struct paper_job saved = paper_job_open (SMALL, "gpus=1");
  g_autofree char *notes = NULL;
  struct weft_progress found, wanted = progress_at (40);

  paper_fill (j->state, 1);
  if (weft_checkpoint_load (j->state, &j->plan->job, dir, &found, &notes, NULL)) {
    paper_fill (saved.state, 40);
    assert_memory_equal (&found, &wanted, sizeof found);
    for (int kind = WEFT_STATE_MASTER; kind < WEFT_STATE_GRAD; kind++)
      paper_assert_equal (j->state, saved.state, kind);
  }
  paper_job_close (&saved);
}

/* Flips bits of a shard (a safetensors file) one at a time: many bits of the header, which states
 * where values are, and few of the data. Loading must fail, or return the saved state, as after a
 * flip in the member `format` or in the padding. */
static void
no_bit_of_a_shard_changes_what_is_loaded (void **dir)
{
  struct paper_job j = paper_job_open (SMALL, "gpus=1");
  gsize length;
  uint64_t header;

  save (&j, 40, *dir);
  g_autofree char *shard = get_text (*dir, "step-00000040/shard-0.safetensors", &length);
  memcpy (&header, shard, sizeof header);
  for (gsize bit = 0; bit < 8 * length; bit += bit / 8 < header + 8 ? 61 : 1000003)
    with_flip (&j, *dir, "step-00000040/shard-0.safetensors", bit, check_step_40);
  paper_job_close (&j);
}

/* The folder has checkpoints of steps 40 and 41. Loading must restore step 41, or another step with
 * a note that says so. */
static void
check_41_or_told (const struct paper_job *j, const char *dir)
{
  g_autofree char *notes = NULL;

  if (load (j, dir, &notes) != 41 && !notes)
    fail_msg ("another checkpoint was loaded without a word");
}

static void
no_bit_of_latest_changes_silently_what_is_loaded (void **dir)
{
  struct paper_job j = paper_job_open (SMALL, "gpus=1");

  save (&j, 40, *dir);
  save (&j, 41, *dir);
  for (gsize bit = 0; bit < 8 * strlen ("step-00000041\n"); bit++)
    with_flip (&j, *dir, "latest", bit, check_41_or_told);
  paper_job_close (&j);
}

static void
a_checkpoint_under_the_name_of_another_step_is_refused (void **dir)
{
  struct paper_job j = paper_job_open (SMALL, "gpus=1");
  g_autofree char *forty = weft_checkpoint_path (*dir, 40);
  g_autofree char *fifty = weft_checkpoint_path (*dir, 50);
  g_autofree char *other = g_build_filename (*dir, "mine", NULL);

  save (&j, 40, *dir);
  assert_int_equal (g_rename (forty, fifty), 0);
  assert_not_loaded (&j, fifty, "step: found 40, wanted 50, the name of its directory");
  assert_not_loaded (&j, *dir, "found no complete checkpoint");
  assert_int_equal (g_rename (fifty, other), 0);
  assert_loads (&j, other, 40, NULL);
  paper_job_close (&j);
}

/* Rewrites the manifest of a checkpoint in schema 1, which has no checksum. */
static void
write_schema_1 (const char *dir, uint64_t step)
{
  g_autofree char *path = weft_checkpoint_path (dir, step);
  gsize length;
  g_autofree char *text = get_text (path, "manifest.json", &length);
  char *end = strrchr (text, ','), *data = strstr (text, " \"data_file\""), *after;

  assert_true (end && data);
  *end = '\0';
  after = strstr (data, " \"skipped\"");
  after = after ? after : strstr (data, " \"loss_scale\"");
  assert_non_null (after);
  *data = '\0';
  g_auto (GStrv) head = g_strsplit (text, "checkpoint/2", 2);
  g_autofree char *first = g_strjoinv ("checkpoint/1", head);
  g_autofree char *whole = g_strconcat (first, after, "\n}", NULL);
  put_text (path, "manifest.json", whole);
}

static void
a_checkpoint_without_the_new_members_loads_with_a_note (void **dir)
{
  struct paper_job j = paper_job_open (SMALL, "gpus=1"), other = paper_job_open (SMALL, "gpus=2");
  g_autoptr (GError) error = NULL;
  g_autofree char *notes = NULL;
  struct weft_progress found, wanted = progress_at (40);

  save (&j, 40, *dir);
  write_schema_1 (*dir, 40);
  assert_true (
      weft_checkpoint_load (other.state, &other.plan->job, *dir, &found, &notes, &error));
  wanted.data_file = (struct weft_data_mark){ 0 };
  assert_memory_equal (&found, &wanted, sizeof found);
  assert_non_null (strstr (notes, "an older format (weft.checkpoint/1)"));
  paper_assert_equal (other.state, j.state, WEFT_STATE_MASTER);
  paper_job_close (&j);
  paper_job_close (&other);
}

static void
a_manifest_without_its_checksum_is_refused (void **dir)
{
  struct paper_job j = paper_job_open (SMALL, "gpus=1");
  gsize length;

  save (&j, 40, *dir);
  g_autofree char *text = get_text (*dir, "step-00000040/manifest.json", &length);
  *strrchr (text, ',') = '\0';
  g_autofree char *cut = g_strconcat (text, "\n}", NULL);
  assert_null (weft_manifest_parse (cut, strlen (cut), NULL));
  paper_job_close (&j);
}

/* -------------------------------------------------------------------- directory */

/* Saves checkpoints of steps 60, 100 and 70, in this order, as a run does that reached step 100 and
 * was then resumed from step 60. Step 100 belongs to the abandoned part of the run. */
static struct paper_job
rolled_back (const char *dir)
{
  struct paper_job j = paper_job_open (SMALL, "gpus=1");

  save (&j, 60, dir);
  save (&j, 100, dir);
  save (&j, 70, dir);
  return j;
}

static void
after_a_rollback_the_newest_is_what_latest_names (void **dir)
{
  struct paper_job j = rolled_back (*dir);
  g_autofree char *newest = weft_checkpoint_newest (*dir);
  g_autofree char *hundred = weft_checkpoint_path (*dir, 100);

  assert_true (g_str_has_suffix (newest, "step-00000070"));
  assert_loads (&j, *dir, 70, "loaded step 70, because the file latest names step 70; to continue "
                              "from step 100, give its directory");
  assert_loads (&j, hundred, 100, NULL);
  save (&j, 110, *dir);
  assert_loads (&j, *dir, 110, NULL);
  paper_job_close (&j);
}

static void
without_latest_the_highest_step_is_the_newest (void **dir)
{
  static const char *const texts[] = { "", "step-7", "../step-00000060", "step-00000060 and more" };
  struct paper_job j = rolled_back (*dir);
  g_autofree char *latest = g_build_filename (*dir, "latest", NULL);

  for (unsigned i = 0; i < G_N_ELEMENTS (texts); i++) {
    put_text (*dir, "latest", texts[i]);
    assert_loads (&j, *dir, 100, NULL);
  }
  assert_int_equal (g_remove (latest), 0);
  assert_loads (&j, *dir, 100, NULL);
  assert_int_equal (mkfifo (latest, 0600), 0);
  assert_loads (&j, *dir, 100, NULL);
  paper_job_close (&j);
}

/* `latest` names step 80, whose save did not finish. Loading must choose step 70, the next lower
 * step of this run, and not step 100, which belongs to an abandoned run. */
static void
an_unfinished_latest_stands_for_the_step_below_it (void **dir)
{
  struct paper_job j = rolled_back (*dir);

  put_text (*dir, "latest", "step-00000080\n");
  assert_loads (&j, *dir, 70, "names step 80");
  paper_job_close (&j);
}

static void
a_damaged_latest_is_passed_over_for_the_step_below_it (void **dir)
{
  struct paper_job j = rolled_back (*dir);
  g_autofree char *manifest = g_build_filename (*dir, "step-00000070", "manifest.json", NULL);
  g_autofree char *notes = NULL;

  assert_int_equal (truncate (manifest, 100), 0);
  assert_int_equal (load (&j, *dir, &notes), 60);
  assert_non_null (strstr (notes, "step-00000070/manifest.json"));
  assert_non_null (strstr (notes, "to continue from step 100"));
  paper_job_close (&j);
}

/* The run keeps its last two checkpoints. Step 100 belongs to an abandoned run: it is not counted
 * among the two, and not deleted. */
static void
checkpoints_of_higher_steps_do_not_push_out_those_of_this_run (void **dir)
{
  struct paper_job j = rolled_back (*dir);
  g_autoptr (GArray) steps = NULL;

  save (&j, 80, *dir);
  steps = weft_checkpoint_steps (*dir);
  assert_int_equal (steps->len, 3);
  assert_int_equal (g_array_index (steps, uint64_t, 0), 100);
  assert_int_equal (g_array_index (steps, uint64_t, 1), 80);
  assert_int_equal (g_array_index (steps, uint64_t, 2), 70);
  paper_job_close (&j);
}

/* ------------------------------------------------------------------------- lock */

/* A second process that holds the lock of the folder. It exits when the test closes the pipe
 * `to`. */
struct writer {
  pid_t pid;
  int to;
};

static struct writer
start_writer (const char *dir)
{
  int to[2], from[2];
  char byte;

  assert_true (pipe (to) == 0 && pipe (from) == 0);
  struct writer w = { fork (), to[1] };
  assert_true (w.pid >= 0);
  if (w.pid == 0) {
    close (to[1]);
    weft_checkpoint_lock *lock = weft_checkpoint_lock_new (dir, NULL, NULL);
    _exit (!lock || write (from[1], "x", 1) != 1 || read (to[0], &byte, 1) != 0);
  }
  close (to[0]);
  close (from[1]);
  assert_int_equal (read (from[0], &byte, 1), 1);
  close (from[0]);
  return w;
}

static void
end_writer (struct writer w)
{
  int status;

  close (w.to);
  assert_int_equal (waitpid (w.pid, &status, 0), w.pid);
  assert_true (WIFEXITED (status) && WEXITSTATUS (status) == 0);
}

static void
a_second_writer_is_refused_and_told_of_the_first (void **dir)
{
  struct paper_job j = paper_job_open (SMALL, "gpus=1");
  struct writer w = start_writer (*dir);
  g_autofree char *who = g_strdup_printf ("(process %d on %s)", (int) w.pid, g_get_host_name ());
  g_autoptr (GError) error = NULL;

  paper_fill (j.state, 1);
  assert_false (try_save (&j, 1, *dir, &error));
  assert_non_null (strstr (error->message, "another run saves into this directory"));
  assert_non_null (strstr (error->message, who));
  assert_null (weft_checkpoint_newest (*dir));
  end_writer (w); /* the writer exits without releasing its lock */
  save (&j, 1, *dir);
  g_autofree char *left = g_build_filename (*dir, ".lock", NULL);
  assert_false (g_file_test (left, G_FILE_TEST_EXISTS));
  paper_job_close (&j);
}

static void
a_lock_saves_often_and_leaves_no_empty_directory (void **dir)
{
  struct paper_job j = paper_job_open (SMALL, "gpus=1");
  g_autofree char *inner = g_build_filename (*dir, "new", NULL);
  g_autoptr (GError) error = NULL;

  weft_checkpoint_lock *lock = weft_checkpoint_lock_new (inner, NULL, &error);
  assert_true (weft_checkpoint_lock_held (lock));
  weft_checkpoint_lock_free (lock);
  assert_false (g_file_test (inner, G_FILE_TEST_EXISTS));
  lock = weft_checkpoint_lock_new (inner, NULL, &error);
  paper_fill (j.state, 1);
  for (uint64_t step = 1; step < 4; step++) {
    struct weft_progress progress = progress_at (step);
    assert_true (
        weft_checkpoint_save_held (j.state, &j.plan->job, &progress, lock, 0, &error));
    assert_false (try_save (&j, 9, inner, NULL));
  }
  weft_checkpoint_lock_free (lock);
  g_autoptr (GArray) steps = weft_checkpoint_steps (inner);
  assert_int_equal (steps->len, 3);
  save (&j, 9, inner);
  paper_job_close (&j);
}

static void
a_folder_of_a_save_has_a_plain_name (void **unused)
{
  static const char *const wrong[] = { "",
                                       "step-00000001",
                                       ".step-1/../../home",
                                       "/.step-1",
                                       "../.step-00000001.tmp-1",
                                       ".step-00000001.tmp-1/" };

  (void) unused;
  assert_true (weft_checkpoint_is_hidden (".step-00000001.tmp-17-0123abcd"));
  for (unsigned i = 0; i < G_N_ELEMENTS (wrong); i++)
    assert_false (weft_checkpoint_is_hidden (wrong[i]));
}

/* Process 0 of a job names a folder outside of the folder of checkpoints. The other processes must
 * refuse to write there. */
static gpointer
name_another_folder (gpointer place)
{
  weft_rendezvous *r = weft_rendezvous_open (place, NULL);
  g_autoptr (GBytes) name = g_bytes_new_static ("../outside", strlen ("../outside"));
  GPtrArray *all =
      r ? weft_rendezvous_all_gather (r, "the folder of a checkpoint", name, 10, NULL) : NULL;

  g_clear_pointer (&all, g_ptr_array_unref);
  weft_rendezvous_close (r);
  return NULL;
}

static void
a_folder_of_a_save_is_inside_the_directory (void **dir)
{
  struct paper_job j = paper_job_open (SMALL, "gpus=2");
  struct weft_rendezvous_place place[2] = { { .host = "127.0.0.1",
                                              .port = free_port (),
                                              .token = "the job",
                                              .n = 2,
                                              .ranks_each = 1,
                                              .seconds = 10 } };
  g_autofree char *outside = g_build_filename (*dir, "outside", NULL);
  g_autofree char *inside = g_build_filename (*dir, "checkpoints", NULL);
  uint8_t away[2] = { 1, 0 };
  g_autoptr (GError) error = NULL;

  place[1] = place[0];
  place[1].process = 1;
  assert_true (g_mkdir (outside, 0777) == 0 && g_mkdir (inside, 0777) == 0);
  GThread *first = g_thread_new ("process", name_another_folder, &place[0]);
  j.x->peers = weft_rendezvous_open (&place[1], NULL);
  j.x->away = away;
  assert_non_null (j.x->peers);
  paper_fill (j.state, 1);
  assert_false (try_save (&j, 1, inside, &error));
  assert_non_null (strstr (error->message, "found a malformed name of a folder from rank 0"));
  /* the folder outside is still empty: rmdir() deletes it */
  assert_int_equal (g_rmdir (outside), 0);
  weft_rendezvous_close (j.x->peers);
  g_thread_join (first);
  paper_job_close (&j);
}

/* ----------------------------------------------------------------------- values */

static void
spoil (const struct paper_job *j, enum weft_state_kind kind, float value)
{
  weft_state_write (j->state, 1, kind, 7, 1, &value);
}

static void
values_that_are_not_finite_are_not_saved (void **dir)
{
  struct paper_job j = paper_job_open (SMALL, "gpus=2 use_distributed_optimizer=true");
  static const struct {
    enum weft_state_kind kind;
    float value;
  } wrong[] = { { WEFT_STATE_MASTER, NAN },
                { WEFT_STATE_MASTER, -INFINITY },
                { WEFT_STATE_EXP_AVG, NAN },
                { WEFT_STATE_EXP_AVG_SQ, NAN } };

  save (&j, 1, *dir);
  for (unsigned i = 0; i < G_N_ELEMENTS (wrong); i++) {
    g_autoptr (GError) error = NULL;
    paper_fill (j.state, 2);
    spoil (&j, wrong[i].kind, wrong[i].value);
    assert_false (try_save (&j, 2, *dir, &error));
    assert_non_null (strstr (error->message, "not saved: element 7 of "));
    assert_loads (&j, *dir, 1, NULL);
  }
  paper_fill (j.state, 2);
  spoil (&j, WEFT_STATE_EXP_AVG_SQ, INFINITY);
  assert_true (try_save (&j, 2, *dir, NULL));
  assert_loads (&j, *dir, 2, NULL);
  paper_job_close (&j);
}

/* Writes NaN into a shard and computes the checksums of the shard again, as a writer would that
 * does not check values. */
static void
plant_nan (const char *dir, uint64_t step)
{
  g_autofree char *path = weft_checkpoint_path (dir, step);
  g_autofree char *shard = g_build_filename (path, "shard-0.safetensors", NULL), *bytes = NULL;
  g_autoptr (weft_manifest) m = weft_checkpoint_manifest (path, NULL);
  struct weft_manifest_chunk *c = weft_manifest_chunk (m, 0);
  const float nan_value = NAN;
  struct weft_crc32c crc;
  uint64_t header;
  gsize length;

  assert_true (g_file_get_contents (shard, &bytes, &length, NULL));
  memcpy (&header, bytes, sizeof header);
  char *data = bytes + sizeof header + header + c->offset;
  memcpy (data + 5 * sizeof nan_value, &nan_value, sizeof nan_value);
  weft_crc32c_init (&crc);
  c->crc = weft_crc32c (&crc, 0, data, weft_manifest_chunk_bytes (c));
  assert_true (g_file_set_contents (shard, bytes, (gssize) length, NULL));
  g_autofree char *text = weft_manifest_print (m);
  put_text (path, "manifest.json", text);
}

static void
a_checkpoint_with_nan_is_refused_and_an_older_one_taken (void **dir)
{
  struct paper_job j = paper_job_open (SMALL, "gpus=1");
  g_autofree char *two = weft_checkpoint_path (*dir, 2);

  save (&j, 1, *dir);
  save (&j, 2, *dir);
  plant_nan (*dir, 2);
  assert_not_loaded (&j, two, "is nan, wanted a finite number");
  assert_loads (&j, *dir, 1, "is nan, wanted a finite number");
  paper_job_close (&j);
}

#define IN_A_DIR(test)                                                                             \
  cmocka_unit_test_setup_teardown (test, weft_test_folder_make, weft_test_folder_remove)

static const struct CMUnitTest tests[] = {
  IN_A_DIR (no_bit_of_a_manifest_may_change),
  IN_A_DIR (no_bit_of_a_shard_changes_what_is_loaded),
  IN_A_DIR (no_bit_of_latest_changes_silently_what_is_loaded),
  IN_A_DIR (a_checkpoint_under_the_name_of_another_step_is_refused),
  IN_A_DIR (a_checkpoint_without_the_new_members_loads_with_a_note),
  IN_A_DIR (a_manifest_without_its_checksum_is_refused),
  IN_A_DIR (after_a_rollback_the_newest_is_what_latest_names),
  IN_A_DIR (without_latest_the_highest_step_is_the_newest),
  IN_A_DIR (an_unfinished_latest_stands_for_the_step_below_it),
  IN_A_DIR (a_damaged_latest_is_passed_over_for_the_step_below_it),
  IN_A_DIR (checkpoints_of_higher_steps_do_not_push_out_those_of_this_run),
  IN_A_DIR (a_second_writer_is_refused_and_told_of_the_first),
  IN_A_DIR (a_lock_saves_often_and_leaves_no_empty_directory),
  cmocka_unit_test (a_folder_of_a_save_has_a_plain_name),
  IN_A_DIR (a_folder_of_a_save_is_inside_the_directory),
  IN_A_DIR (values_that_are_not_finite_are_not_saved),
  IN_A_DIR (a_checkpoint_with_nan_is_refused_and_an_older_one_taken),
};

WEFT_TESTS (tests, .seconds = 5)
