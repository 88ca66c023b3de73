#define _GNU_SOURCE /* O_TMPFILE */
#include "core/base/output.h"
#include "core/base/error.h"
#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct weft_output {
  FILE *file;
  char *path;      /* the path as the caller gave it */
  char *target;    /* the path that gets the new contents; NULL: the file is written in place */
  char *temporary; /* path of the temporary file; NULL: the file has no name until it is complete */
};

static gboolean
fail (const char *path, GError **error)
{
  const char *why = g_strerror (errno);

  return weft_run_error (error, "%s: %s", path, why);
}

/* ----------------------------------------------------------------------- inputs */

struct identity {
  dev_t device;
  ino_t inode;
};

static struct {
  GMutex mutex;
  /* files that the command has read, as struct identity; NULL until weft_output_guard_inputs() is
   * called */
  GArray *read;
} inputs;

void
weft_output_guard_inputs (void)
{
  g_mutex_lock (&inputs.mutex);
  if (!inputs.read)
    inputs.read = g_array_new (FALSE, FALSE, sizeof (struct identity));
  g_mutex_unlock (&inputs.mutex);
}

void
weft_output_note_input (int fd)
{
  struct stat found;

  if (fstat (fd, &found) || !S_ISREG (found.st_mode))
    return;
  g_mutex_lock (&inputs.mutex);
  if (inputs.read)
    g_array_append_val (inputs.read, ((struct identity){ found.st_dev, found.st_ino }));
  g_mutex_unlock (&inputs.mutex);
}

static gboolean
is_input (const struct stat *file)
{
  gboolean found = FALSE;

  g_mutex_lock (&inputs.mutex);
  for (guint i = 0; inputs.read && i < inputs.read->len; i++) {
    const struct identity *input = &g_array_index (inputs.read, struct identity, i);
    found |= input->device == file->st_dev && input->inode == file->st_ino;
  }
  g_mutex_unlock (&inputs.mutex);
  return found;
}

/* ------------------------------------------------------------------------ places */

/* Whether a file is the one that stdout or stderr is connected to, as in `--trace /dev/stdout
 * >trace.json`. */
static gboolean
is_standard (const struct stat *file)
{
  struct stat stream;

  for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
    if (fstat (fd, &stream) == 0 && stream.st_dev == file->st_dev && stream.st_ino == file->st_ino)
      return TRUE;
  return FALSE;
}

/* The path of the file that a symbolic link leads to. NULL with an error if that file is in another
 * folder than the link. The caller frees the path. */
static char *
follow (const char *path, GError **error)
{
  g_autofree char *above = g_path_get_dirname (path);
  char *folder = realpath (above, NULL), *real = realpath (path, NULL);
  g_autofree char *target = real ? g_strdup (real) : g_file_read_link (path, NULL);
  g_autofree char *beside = real ? g_path_get_dirname (real) : NULL;
  gboolean same = folder && g_strcmp0 (folder, beside) == 0;

  free (folder);
  free (real);
  if (same)
    return g_steal_pointer (&target);
  weft_bad_input (error, "%s: found a link to %s, wanted a file; give the path of that file",
                  path, target ? target : "nothing");
  return NULL;
}

/* Whether an existing file can be written only in place: its folder is not writable. */
static gboolean
is_in_place (const char *path)
{
  g_autofree char *folder = g_path_get_dirname (path);

  return access (folder, W_OK | X_OK) != 0;
}

gboolean
weft_output_find (const char *path, char **target, GError **error)
{
  struct stat own, file = { 0 };

  *target = NULL;
  if (g_str_equal (path, "-"))
    return weft_bad_input (error, "-: is no file (expected a file, such as /dev/stdout)");
  if (lstat (path, &own)) {
    *target = g_strdup (path);
    return TRUE;
  }
  gboolean exists = stat (path, &file) == 0;
  if (exists && S_ISDIR (file.st_mode))
    return weft_bad_input (error, "%s: is a folder (expected a file)", path);
  if (exists && is_input (&file))
    return weft_bad_input (error, "%s: is an input of this command (expected another file)", path);
  if (exists && (!S_ISREG (file.st_mode) || is_standard (&file)))
    return TRUE;
  if (exists && access (path, W_OK))
    return fail (path, error);
  g_autofree char *real = S_ISLNK (own.st_mode) ? follow (path, error) : g_strdup (path);
  if (real && !is_in_place (real))
    *target = g_steal_pointer (&real);
  return *target || real;
}

/* ----------------------------------------------------------------------- writing */

/* Opens a file without a name in the folder of the target, or a file with a temporary name. The new
 * file gets the permissions of an existing target. */
static int
open_unfinished (weft_output *o)
{
  g_autofree char *folder = g_path_get_dirname (o->target);
  struct stat old;
  int fd = -1;

  if (access ("/proc/self/fd", X_OK) == 0)
    fd = open (folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  if (fd < 0 && errno != ENOENT && errno != ENOTDIR && errno != EACCES) {
    o->temporary = g_strconcat (o->target, ".tmp-XXXXXX", NULL);
    fd = g_mkstemp_full (o->temporary, O_WRONLY | O_CLOEXEC, 0666);
  }
  if (fd >= 0 && stat (o->target, &old) == 0)
    fchmod (fd, old.st_mode & 07777);
  return fd;
}

weft_output *
weft_output_open (const char *path, GError **error)
{
  weft_output *o = g_new0 (weft_output, 1);

  o->path = g_strdup (path);
  if (!weft_output_find (path, &o->target, error)) {
    weft_output_abandon (o);
    return NULL;
  }
  int fd = o->target ? open_unfinished (o) : -1;
  o->file = !o->target ? g_fopen (path, "wbe") : fd >= 0 ? fdopen (fd, "wb") : NULL;
  if (o->file)
    return o;
  fail (path, error);
  g_clear_pointer (&o->temporary, g_free);
  weft_output_abandon (o);
  return NULL;
}

FILE *
weft_output_stream (const weft_output *output)
{
  return output->file;
}

/* Gives a name to the unnamed file (O_TMPFILE): the name of the target if no file has that name
 * yet, else a temporary name. */
static gboolean
name_file (weft_output *o)
{
  g_autofree char *self = g_strdup_printf ("/proc/self/fd/%d", fileno (o->file));

  if (linkat (AT_FDCWD, self, AT_FDCWD, o->target, AT_SYMLINK_FOLLOW) == 0)
    return TRUE;
  if (errno != EEXIST)
    return FALSE;
  o->temporary =
      g_strdup_printf ("%s.tmp-%d-%08x", o->target, (int) getpid (), g_random_int ());
  return linkat (AT_FDCWD, self, AT_FDCWD, o->temporary, AT_SYMLINK_FOLLOW) == 0;
}

static gboolean
publish (weft_output *o, GError **error)
{
  gboolean whole = fflush (o->file) == 0 && !ferror (o->file) &&
                   (!o->target || o->temporary || name_file (o));

  if (!whole)
    return fail (o->path, error);
  int closed = fclose (o->file);
  o->file = NULL;
  if (closed || (o->temporary && rename (o->temporary, o->target)))
    return fail (o->path, error);
  g_clear_pointer (&o->temporary, g_free);
  return TRUE;
}

gboolean
weft_output_close (weft_output *output, GError **error)
{
  gboolean ok = publish (output, error);

  weft_output_abandon (output);
  return ok;
}

void
weft_output_abandon (weft_output *o)
{
  if (!o)
    return;
  if (o->file)
    fclose (o->file);
  if (o->temporary)
    unlink (o->temporary);
  g_free (o->temporary);
  g_free (o->target);
  g_free (o->path);
  g_free (o);
}
