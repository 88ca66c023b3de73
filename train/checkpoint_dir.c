#include "train/checkpoint_dir.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "train/durable.h"
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* -------------------------------------------------------------------------- names */

#define PREFIX "step-"

char *
weft_checkpoint_path (const char *dir, uint64_t step)
{
  g_autofree char *name = g_strdup_printf (PREFIX "%08" G_GUINT64_FORMAT, step);
  return g_build_filename (dir, name, NULL);
}

/* Parses only names that weft_checkpoint_path() would produce. */
static gboolean
step_of (const char *name, uint64_t *step)
{
  if (!g_str_has_prefix (name, PREFIX) ||
      !g_ascii_string_to_unsigned (name + strlen (PREFIX), 10, 0, G_MAXUINT64, step, NULL))
    return FALSE;
  g_autofree char *wanted = weft_checkpoint_path (".", *step);
  return g_str_equal (wanted + strlen ("./"), name);
}

gboolean
weft_checkpoint_is_step (const char *path)
{
  g_autofree char *name = g_path_get_basename (path);
  uint64_t step;

  return step_of (name, &step);
}

static int
compare_steps (gconstpointer a, gconstpointer b)
{
  uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;

  return (x < y) - (x > y);
}

GArray *
weft_checkpoint_steps (const char *dir)
{
  GArray *steps = g_array_new (FALSE, FALSE, sizeof (uint64_t));
  g_autoptr (GDir) listing = g_dir_open (dir, 0, NULL);
  const char *name;
  uint64_t step;

  while (listing && (name = g_dir_read_name (listing)))
    if (step_of (name, &step))
      g_array_append_val (steps, step);
  g_array_sort (steps, compare_steps);
  return steps;
}

/* Maximum number of bytes that are read from the file `latest`. */
#define MOST_LATEST 100

gboolean
weft_checkpoint_latest (const char *dir, uint64_t *step)
{
  g_autofree char *path = g_build_filename (dir, WEFT_CHECKPOINT_LATEST, NULL);
  gsize length;

  if (!g_file_test (path, G_FILE_TEST_IS_REGULAR))
    return FALSE;
  g_autofree char *name = weft_file_read (path, MOST_LATEST, &length, NULL);
  return name && step_of (g_strchomp (name), step);
}

GArray *
weft_checkpoint_candidates (const char *dir)
{
  GArray *steps = weft_checkpoint_steps (dir);
  uint32_t higher = 0;
  uint64_t latest;

  if (!weft_checkpoint_latest (dir, &latest))
    return steps;
  while (higher < steps->len && g_array_index (steps, uint64_t, higher) > latest)
    higher++;
  g_autofree uint64_t *last = g_memdup2 (steps->data, higher * sizeof *last);
  g_array_remove_range (steps, 0, higher);
  return g_array_append_vals (steps, last, higher);
}

gboolean
weft_checkpoint_is_hidden (const char *name)
{
  return g_str_has_prefix (name, WEFT_CHECKPOINT_HIDDEN) && !strchr (name, G_DIR_SEPARATOR);
}

/* ------------------------------------------------------------------- completeness */

static gboolean
check_size (const char *dir, const struct weft_manifest_file *file, GError **error)
{
  g_autofree char *path = g_build_filename (dir, file->name, NULL);
  struct stat found;

  if (stat (path, &found))
    return weft_failed_path (path, error);
  if ((uint64_t) found.st_size == file->bytes)
    return TRUE;
  return weft_bad_input (error,
                         "%s: found %" G_GUINT64_FORMAT " bytes, wanted the %" G_GUINT64_FORMAT
                         " of the manifest",
                         path, (uint64_t) found.st_size, file->bytes);
}

static gboolean
check_step (const char *path, const weft_manifest *m, GError **error)
{
  g_autofree char *name = g_path_get_basename (path);
  uint64_t step;

  if (!step_of (name, &step) || step == m->progress.step)
    return TRUE;
  return weft_bad_input (error,
                         "step: found %" G_GUINT64_FORMAT ", wanted %" G_GUINT64_FORMAT
                         ", the name of its directory",
                         m->progress.step, step);
}

weft_manifest *
weft_checkpoint_manifest (const char *path, GError **error)
{
  g_autofree char *name = g_build_filename (path, WEFT_MANIFEST_NAME, NULL);
  gsize length;

  if (g_file_test (name, G_FILE_TEST_EXISTS) && !g_file_test (name, G_FILE_TEST_IS_REGULAR)) {
    weft_bad_input (error, "%s: found a directory, pipe or device, wanted a file", name);
    return NULL;
  }
  g_autofree char *text = weft_file_read (name, WEFT_MANIFEST_MOST_BYTES, &length, error);
  if (!text)
    return NULL;
  g_autoptr (weft_manifest) m = weft_manifest_parse (text, length, error);
  if (!m || !check_step (path, m, error)) {
    g_prefix_error (error, "%s: ", name);
    return NULL;
  }
  for (uint32_t i = 0; i < m->files->len; i++)
    if (!check_size (path, weft_manifest_file (m, i), error))
      return NULL;
  return g_steal_pointer (&m);
}

char *
weft_checkpoint_newest_except (const char *dir, const char *name)
{
  g_autoptr (GArray) steps = weft_checkpoint_candidates (dir);

  for (uint32_t i = 0; i < steps->len; i++) {
    g_autofree char *path = weft_checkpoint_path (dir, g_array_index (steps, uint64_t, i));
    g_autofree char *found = g_path_get_basename (path);
    g_autoptr (weft_manifest) m =
        g_strcmp0 (found, name) ? weft_checkpoint_manifest (path, NULL) : NULL;
    if (m)
      return g_steal_pointer (&path);
  }
  return NULL;
}

char *
weft_checkpoint_newest (const char *dir)
{
  return weft_checkpoint_newest_except (dir, NULL);
}

gboolean
weft_checkpoint_has (const char *path)
{
  g_autofree char *folder = g_path_get_dirname (path), *name = g_path_get_basename (path);
  g_autofree char *manifest = g_build_filename (folder, WEFT_MANIFEST_NAME, NULL);
  g_autoptr (GArray) steps = weft_checkpoint_steps (folder);

  return weft_checkpoint_is_step (folder) || g_file_test (manifest, G_FILE_TEST_EXISTS) ||
         (steps->len > 0 && g_str_equal (name, WEFT_CHECKPOINT_LATEST));
}

/* ----------------------------------------------------------------------- deletion */

void
weft_remove_directory (const char *path)
{
  g_autoptr (GDir) listing = g_dir_open (path, 0, NULL);
  const char *name;

  while (listing && (name = g_dir_read_name (listing))) {
    g_autofree char *file = g_build_filename (path, name, NULL);
    unlink (file);
  }
  rmdir (path);
}
