/* Saving a checkpoint: build a manifest without checksums, write the shard files, write the
 * manifest, then rename the directory. */
#define _GNU_SOURCE /* renameat2 */
#include "train/checkpoint.h"
#include "core/base/error.h"
#include "kernels/float.h"
#include "launch/rendezvous.h"
#include "train/checkpoint_dir.h"
#include "train/crc32c.h"
#include "train/durable.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Number of elements that are copied at a time: 4 MiB as floats. */
#define BLOCK 1048576u

struct save {
  weft_state *state;
  const weft_checkpoint_lock *lock;
  const char *dir;
  weft_manifest *m;
  GArray *rows; /* by file: the number of the rank whose chunks the file contains */
  char *temporary, *final;
  struct weft_crc32c crc;
  float *block;
  uint16_t *raw;
};

/* --------------------------------------------------------------------------- plan */

static void
add_chunk (weft_manifest *m, struct weft_manifest_chunk c)
{
  c.offset = weft_manifest_file (m, c.file)->bytes;
  weft_manifest_file (m, c.file)->bytes += weft_manifest_chunk_bytes (&c);
  g_array_append_val (m->chunks, c);
}

/* Adds the chunks of a run of elements: the rest of a row, whole rows, and the beginning of a row.
 * A run with several lines is one chunk. */
static void
add_chunks (weft_manifest *m, struct weft_manifest_chunk c, const struct weft_state_run *run)
{
  uint64_t width = weft_manifest_tensor (m, c.tensor)->columns, first = run->first, n = run->n;

  while (n > 0) {
    gboolean whole = first % width == 0 && n >= width;
    c.row = first / width;
    c.column = first % width;
    c.rows = whole ? n / width : 1;
    c.columns = whole ? width : MIN (n, width - c.column);
    first += c.rows * c.columns;
    n -= c.rows * c.columns;
    c.rows *= run->lines;
    add_chunk (m, c);
  }
}

/* Index of the shard file for the chunks of a rank. The first call for a rank adds the file to the
 * manifest. */
static uint64_t
file_of (weft_manifest *m, GArray *rows, uint32_t row)
{
  for (uint32_t i = 0; i < rows->len; i++)
    if (g_array_index (rows, uint32_t, i) == row)
      return i;
  struct weft_manifest_file file = { g_strdup_printf ("shard-%u.safetensors", row), 0 };
  g_array_append_val (rows, row);
  g_array_append_val (m->files, file);
  return m->files->len - 1;
}

/* The type of the elements of a kind, except of weights. */
static enum weft_tensor_type
type_of (enum weft_state_kind kind)
{
  return weft_manifest_is_bytes (kind) ? WEFT_TENSOR_U8 : WEFT_TENSOR_F32;
}

static void
plan_tensor (weft_manifest *m, const weft_state *state, uint32_t tensor, GArray *rows)
{
  uint32_t n_runs;
  const struct weft_state_run *run = weft_state_runs (state, tensor, &n_runs);
  enum weft_dtype dtype = weft_state_at (state, tensor)->dtype;
  gboolean rounded = dtype == WEFT_BF16 || dtype == WEFT_FP16;
  enum weft_tensor_type type = dtype == WEFT_FP16 ? WEFT_TENSOR_F16 : WEFT_TENSOR_BF16;

  for (int kind = rounded ? WEFT_STATE_WEIGHT : WEFT_STATE_MASTER; kind < WEFT_STATE_GRAD; kind++)
    for (uint32_t i = 0; i < n_runs && weft_state_keeps (state, tensor, kind); i++) {
      struct weft_manifest_chunk c = { .tensor = tensor,
                                       .kind = kind,
                                       .type = kind == WEFT_STATE_WEIGHT ? type : type_of (kind),
                                       .file = file_of (m, rows, run[i].row) };
      add_chunks (m, c, &run[i]);
    }
}

static weft_manifest *
plan (const weft_state *state, const struct weft_job *job, const struct weft_progress *progress,
      GArray *rows)
{
  weft_manifest *m = weft_manifest_new ();

  m->progress = *progress;
  m->model = weft_manifest_model (job);
  m->job = weft_job_print (job);
  for (uint32_t i = 0; i < weft_state_count (state); i++) {
    const struct weft_state_tensor *t = weft_state_at (state, i);
    struct weft_manifest_tensor row = { g_strdup (t->name), t->rows, t->columns };
    g_array_append_val (m->tensors, row);
    plan_tensor (m, state, i, rows);
  }
  return m;
}

/* -------------------------------------------------------------------------- files */

static void
declare (weft_safetensors_writer *w, const weft_manifest *m, const struct weft_manifest_chunk *c)
{
  g_autofree char *name = weft_manifest_chunk_name (m, c);
  weft_safetensors_declare (w, name, c->type, 2, (const uint64_t[]){ c->rows, c->columns });
}

gboolean
weft_checkpoint_accepts (enum weft_state_kind kind, float value)
{
  gboolean moment = kind > WEFT_STATE_MASTER && kind < WEFT_STATE_GRAD;
  return moment ? !isnan (value) : isfinite (value);
}

/* Checks n values of a tensor, from element `first` on. */
static gboolean
check_values (const struct save *s, const struct weft_manifest_chunk *c, uint64_t first, uint64_t n,
              GError **error)
{
  for (uint64_t i = 0; i < n; i++)
    if (!weft_checkpoint_accepts (c->kind, s->block[i]))
      return weft_run_error (error,
                             "%s: not saved: element %" G_GUINT64_FORMAT " of %s (%s) is %g",
                             s->final, first + i, weft_manifest_tensor (s->m, c->tensor)->name,
                             weft_state_kind_words[c->kind], (double) s->block[i]);
  return TRUE;
}

/* Writes a contiguous run of a tensor's elements and continues the checksum of the chunk. */
static gboolean
write_run (struct save *s, weft_safetensors_writer *w, struct weft_manifest_chunk *c,
           const struct weft_state_run *run, GError **error)
{
  uint32_t size = weft_tensor_type_bytes[c->type];

  for (uint64_t left = run->n, first = run->first, n; left > 0; left -= n, first += n) {
    const void *data = s->block;
    n = MIN (left, BLOCK);
    weft_state_read (s->state, c->tensor, c->kind, first, n, s->block);
    if (!check_values (s, c, first, n, error))
      return FALSE;
    if (c->type != WEFT_TENSOR_F32) {
      weft_store (s->raw,
                  c->type == WEFT_TENSOR_U8    ? WEFT_UINT8
                  : c->type == WEFT_TENSOR_F16 ? WEFT_FP16
                                               : WEFT_BF16,
                  0, n, s->block);
      data = s->raw;
    }
    c->crc = weft_crc32c (&s->crc, c->crc, data, n * size);
    if (!weft_safetensors_put (w, data, n * size, error))
      return FALSE;
  }
  return TRUE;
}

/* Writes a chunk: in one run of elements if it consists of whole tensor rows, else row by row. */
static gboolean
write_chunk (struct save *s, weft_safetensors_writer *w, struct weft_manifest_chunk *c,
             GError **error)
{
  uint64_t width = weft_manifest_tensor (s->m, c->tensor)->columns;
  uint64_t lines = c->columns == width ? 1 : c->rows, n = c->rows * c->columns / lines;

  for (uint64_t line = 0; line < lines; line++) {
    struct weft_state_run run = { .first = (c->row + line) * width + c->column, .n = n };
    if (!write_run (s, w, c, &run, error))
      return FALSE;
  }
  return TRUE;
}

static gboolean
write_file (struct save *s, uint32_t file, GError **error)
{
  struct weft_manifest_file *row = weft_manifest_file (s->m, file);
  g_autofree char *path = g_build_filename (s->temporary, row->name, NULL);
  weft_safetensors_writer *w = weft_safetensors_writer_new (path);
  struct stat written;

  weft_safetensors_declare_metadata (w, "format", "pt");
  for (uint32_t i = 0; i < s->m->chunks->len; i++)
    if (weft_manifest_chunk (s->m, i)->file == file)
      declare (w, s->m, weft_manifest_chunk (s->m, i));
  for (uint32_t i = 0; i < s->m->chunks->len; i++) {
    struct weft_manifest_chunk *c = weft_manifest_chunk (s->m, i);
    if (c->file == file && !write_chunk (s, w, c, error)) {
      weft_safetensors_abandon (w);
      return FALSE;
    }
  }
  if (!weft_safetensors_close (w, error))
    return FALSE;
  if (stat (path, &written))
    return weft_failed_path (path, error);
  row->bytes = written.st_size;
  return TRUE;
}

static gboolean
write_manifest (struct save *s, GError **error)
{
  g_autofree char *path = g_build_filename (s->temporary, WEFT_MANIFEST_NAME, NULL);
  g_autofree char *text = weft_manifest_print (s->m);

  if (strlen (text) > WEFT_MANIFEST_MOST_BYTES)
    return weft_run_error (
        error, "%s: found %" G_GSIZE_FORMAT " bytes of manifest, wanted at most %u bytes", path,
        strlen (text), WEFT_MANIFEST_MOST_BYTES);
  return weft_write_synced (path, text, error) && weft_sync_path (s->temporary, error);
}

static gboolean
is_here (const struct save *s, uint32_t file)
{
  return weft_state_has (s->state, g_array_index (s->rows, uint32_t, file));
}

static gboolean
write_files (struct save *s, GError **error)
{
  for (uint32_t i = 0; i < s->m->files->len; i++)
    if (is_here (s, i) && !write_file (s, i, error))
      return FALSE;
  return TRUE;
}

/* ---------------------------------------------------------------------- several processes */

/* Whether this is the process of rank 0, which makes the directory and writes the manifest. */
static gboolean
is_first_process (const struct save *s)
{
  struct weft_rendezvous *peers = weft_state_peers (s->state);
  return !peers || weft_rendezvous_place (peers)->process == 0;
}

/* Packs what the process of rank 0 needs for the manifest: for each file that this process wrote,
 * the number of the file, its size, and the checksums of its chunks. */
static GBytes *
pack_files (const struct save *s)
{
  GArray *words = g_array_new (FALSE, FALSE, sizeof (uint64_t));

  for (uint64_t i = 0; i < s->m->files->len; i++) {
    if (!is_here (s, (uint32_t) i))
      continue;
    uint64_t head[] = { i, weft_manifest_file (s->m, (uint32_t) i)->bytes };
    g_array_append_vals (words, head, G_N_ELEMENTS (head));
    for (uint32_t c = 0; c < s->m->chunks->len; c++) {
      uint64_t crc = weft_manifest_chunk (s->m, c)->crc;
      if (weft_manifest_chunk (s->m, c)->file == i)
        g_array_append_val (words, crc);
    }
  }
  gsize bytes = words->len * sizeof (uint64_t);
  return g_bytes_new_take (g_array_free (words, FALSE), bytes);
}

/* Unpacks one file from the message of another process. Returns the number of words read, or 0 if
 * the message is malformed. */
static gsize
unpack_file (struct save *s, const uint64_t *word, gsize n)
{
  gsize taken = 2;

  if (n < 2 || word[0] >= s->m->files->len)
    return 0;
  weft_manifest_file (s->m, (uint32_t) word[0])->bytes = word[1];
  for (uint32_t c = 0; c < s->m->chunks->len; c++) {
    if (weft_manifest_chunk (s->m, c)->file != word[0])
      continue;
    if (taken == n)
      return 0;
    weft_manifest_chunk (s->m, c)->crc = (uint32_t) word[taken++];
  }
  return taken;
}

static gboolean
unpack_files (struct save *s, GBytes *packed, GError **error)
{
  gsize bytes = 0;
  const uint64_t *word = packed ? g_bytes_get_data (packed, &bytes) : NULL;
  gsize n = bytes / sizeof *word;

  while (n > 0) {
    gsize taken = unpack_file (s, word, n);
    if (taken == 0)
      return weft_run_error (error, "%s: found the files of another plan in another process",
                             s->dir);
    word += taken;
    n -= taken;
  }
  return TRUE;
}

/* Sends file sizes and checksums to the process of rank 0. Returns when all processes have written
 * their files. */
static gboolean
gather_files (struct save *s, GError **error)
{
  struct weft_rendezvous *peers = weft_state_peers (s->state);
  g_autoptr (GBytes) mine = peers ? pack_files (s) : NULL;
  g_autoptr (GPtrArray) all =
      peers ? weft_rendezvous_gather (peers, "files of a checkpoint", mine, 0, error) : NULL;

  for (uint32_t i = 0; all && i < all->len; i++)
    if (!unpack_files (s, all->pdata[i], error))
      return FALSE;
  return !peers || all;
}

/* Broadcasts the name of the temporary directory from the process of rank 0. */
static gboolean
share_directory (struct save *s, GError **error)
{
  struct weft_rendezvous *peers = weft_state_peers (s->state);

  if (!peers)
    return TRUE;
  g_autofree char *name = g_path_get_basename (s->temporary);
  g_autoptr (GBytes) mine = is_first_process (s) ? g_bytes_new (name, strlen (name)) : NULL;
  g_autoptr (GPtrArray) all =
      weft_rendezvous_all_gather (peers, "the folder of a checkpoint", mine, 0, error);
  if (!all || is_first_process (s))
    return all != NULL;
  g_free (name);
  name = all->pdata[0]
             ? g_strndup (g_bytes_get_data (all->pdata[0], NULL), g_bytes_get_size (all->pdata[0]))
             : g_strdup ("");
  if (!weft_checkpoint_is_hidden (name))
    return weft_run_error (error, "%s: found a malformed name of a folder from rank 0", s->dir);
  g_free (s->temporary);
  s->temporary = g_build_filename (s->dir, name, NULL);
  return g_file_test (s->temporary, G_FILE_TEST_IS_DIR) ||
         weft_run_error (
             error,
             "%s: rank 0 made this folder, but it is not visible here; wanted --save in a folder "
             "that all processes can see",
             s->temporary);
}

static gboolean
write_all (struct save *s, GError **error)
{
  if (is_first_process (s) && mkdir (s->temporary, 0777))
    return weft_failed_path (s->temporary, error);
  return share_directory (s, error) && write_files (s, error) && gather_files (s, error) &&
         (!is_first_process (s) || write_manifest (s, error));
}

/* --------------------------------------------------------------------- publishing */

/* Replaces an older save of the same step on file systems without RENAME_EXCHANGE: renames the
 * older save, gives its name to the new save, and restores the older save if that fails. */
static gboolean
replace (const struct save *s, GError **error)
{
  g_autofree char *aside = g_strconcat (s->temporary, "-old", NULL);

  if (rename (s->final, aside))
    return weft_failed_path (s->final, error);
  if (rename (s->temporary, s->final) == 0)
    return rename (aside, s->temporary) == 0 || weft_failed_path (aside, error);
  weft_failed_path (s->final, error);
  if (rename (aside, s->final))
    g_prefix_error (error, "the older save of this step is now %s: ", aside);
  return FALSE;
}

/* Renames the save to its final name. An older save of the same step is renamed to `temporary`. */
static gboolean
publish_name (const struct save *s, GError **error)
{
  if (renameat2 (AT_FDCWD, s->temporary, AT_FDCWD, s->final, RENAME_EXCHANGE) == 0)
    return TRUE;
  if (errno == ENOENT || !g_file_test (s->final, G_FILE_TEST_EXISTS))
    return rename (s->temporary, s->final) == 0 || weft_failed_path (s->final, error);
  return replace (s, error);
}

static gboolean
write_latest (const struct save *s, GError **error)
{
  g_autofree char *name = g_path_get_basename (s->final), *line = g_strconcat (name, "\n", NULL);
  g_autofree char *path = g_build_filename (s->dir, WEFT_CHECKPOINT_LATEST, NULL);
  g_autofree char *temporary = g_build_filename (s->dir, ".latest.tmp", NULL);

  if (weft_write_synced (temporary, line, error) &&
      (rename (temporary, path) == 0 || weft_failed_path (path, error)))
    return TRUE;
  unlink (temporary);
  return FALSE;
}

/* Writes `latest`, then renames the save. Renames it even if `latest` could not be written, because
 * the checkpoint can then be found by its step. `latest` is written first for the case of a crash
 * between the two: a `latest` that names a missing checkpoint is recognised, but after a `latest`
 * that names an older checkpoint, the new one would look like a checkpoint of a run that was given
 * up. */
static gboolean
publish (const struct save *s, GError **error)
{
  gboolean said = write_latest (s, error);

  return publish_name (s, said ? error : NULL) && weft_sync_path (s->dir, said ? error : NULL) &&
         said;
}

/* ----------------------------------------------------------------------- cleaning */

/* Renames a checkpoint before deleting it, so that no search finds a half-deleted checkpoint. */
static void
delete_step (const struct save *s, const char *path)
{
  g_autofree char *hidden = g_strconcat (s->temporary, "-old", NULL);

  if (rename (path, hidden) == 0)
    weft_remove_directory (hidden);
}

/* Deletes complete checkpoints except the newest `keep`, of which the checkpoint that was just
 * published is the first. Checkpoints of higher steps stay, because they belong to another run. */
static void
delete_old (const struct save *s, uint32_t keep)
{
  g_autoptr (GArray) steps = weft_checkpoint_steps (s->dir);
  uint32_t kept = 0;

  for (uint32_t i = 0; keep > 0 && i < steps->len; i++) {
    uint64_t step = g_array_index (steps, uint64_t, i);
    if (step > s->m->progress.step)
      continue;
    g_autofree char *path = weft_checkpoint_path (s->dir, step);
    g_autoptr (weft_manifest) m = weft_checkpoint_manifest (path, NULL);
    if (m && kept++ >= keep)
      delete_step (s, path);
  }
}

static void
delete_leftovers (const struct save *s)
{
  g_autoptr (GDir) listing = g_dir_open (s->dir, 0, NULL);
  const char *name;

  while (listing && (name = g_dir_read_name (listing))) {
    g_autofree char *path = g_build_filename (s->dir, name, NULL);
    if (weft_checkpoint_is_hidden (name))
      weft_remove_directory (path);
  }
}

/* Deletes old checkpoints and leftovers after publishing. A file that cannot be deleted stays until
 * the next save. */
static void
clean (const struct save *s, uint32_t keep)
{
  weft_remove_directory (s->temporary);
  delete_old (s, keep);
  if (weft_checkpoint_lock_held (s->lock))
    delete_leftovers (s);
}

/* -------------------------------------------------------------------------- whole */

/* Barrier: the other processes return only after the process of rank 0 has published. */
static gboolean
wait_for_publish (const struct save *s, GError **error)
{
  struct weft_rendezvous *peers = weft_state_peers (s->state);

  return !peers || weft_rendezvous_barrier (peers, "the end of a checkpoint", 0, error);
}

static gboolean
save_locked (struct save *s, uint32_t keep, GError **error)
{
  if (!write_all (s, error) || (is_first_process (s) && !publish (s, error))) {
    if (is_first_process (s))
      weft_remove_directory (s->temporary);
    return FALSE;
  }
  if (is_first_process (s))
    clean (s, keep);
  return wait_for_publish (s, error);
}

static char *
temporary_name (const char *final)
{
  g_autofree char *dir = g_path_get_dirname (final), *name = g_path_get_basename (final);

  return g_strdup_printf ("%s/.%s.tmp-%d-%08x", dir, name, (int) getpid (), g_random_int ());
}

gboolean
weft_checkpoint_save_held (weft_state *state, const struct weft_job *job,
                           const struct weft_progress *progress, const weft_checkpoint_lock *lock,
                           uint32_t keep, GError **error)
{
  const char *dir = weft_checkpoint_lock_dir (lock);
  g_autofree float *block = g_new (float, BLOCK);
  g_autofree uint16_t *raw = g_new (uint16_t, BLOCK);
  g_autofree char *final = weft_checkpoint_path (dir, progress->step);
  g_autoptr (GArray) rows = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  struct save s = { .state = state,
                    .lock = lock,
                    .dir = dir,
                    .rows = rows,
                    .final = final,
                    .temporary = temporary_name (final),
                    .block = block,
                    .raw = raw };

  g_autoptr (weft_manifest) m = plan (state, job, progress, rows);
  s.m = m;
  weft_crc32c_init (&s.crc);
  gboolean ok = save_locked (&s, keep, error);
  g_free (s.temporary);
  return ok;
}

gboolean
weft_checkpoint_save (weft_state *state, const struct weft_job *job,
                      const struct weft_progress *progress, const char *dir, uint32_t keep,
                      GError **error)
{
  g_autoptr (weft_checkpoint_lock) lock =
      weft_checkpoint_lock_new (dir, weft_state_peers (state), error);

  return lock && weft_checkpoint_save_held (state, job, progress, lock, keep, error);
}
