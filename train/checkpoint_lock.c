#include "train/checkpoint_lock.h"
#include "core/base/error.h"
#include "launch/rendezvous.h"
#include "train/durable.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_HOLDER 200 /* maximum number of bytes of the text in the lock file */

struct weft_checkpoint_lock {
  char *dir, *path; /* path: name of the lock file */
  /* file descriptor of the lock file; -1: another process of this job has the lock */
  int fd;
  gboolean held;
  gboolean made; /* TRUE: this process created the directory */
};

/* Creates the directory if it does not exist. A new directory survives a crash of the machine only
 * after an fsync of its parent. */
static gboolean
make_directory (weft_checkpoint_lock *lock, GError **error)
{
  g_autofree char *above = g_path_get_dirname (lock->dir);

  if (g_file_test (lock->dir, G_FILE_TEST_IS_DIR))
    return TRUE;
  if (g_mkdir_with_parents (lock->dir, 0777))
    return weft_failed_path (lock->dir, error);
  lock->made = TRUE;
  return weft_sync_path (above, error);
}

/* Sets an error that quotes the lock file, which names the process that has the lock. The file may
 * contain any bytes; unprintable bytes are replaced. Always returns FALSE. */
static gboolean
blame_holder (const weft_checkpoint_lock *lock, GError **error)
{
  char text[MOST_HOLDER + 1];
  ssize_t n = pread (lock->fd, text, MOST_HOLDER, 0);

  text[MAX (n, 0)] = '\0';
  text[strcspn (text, "\n")] = '\0';
  for (char *c = text; *c; c++)
    *c = g_ascii_isprint (*c) ? *c : '?';
  return weft_run_error (error, "%s: another run saves into this directory (%s)", lock->dir,
                         *text ? text : "its process is unknown");
}

/* Whether the open lock file still has the name lock->path: a writer deletes the lock file when it
 * ends, and the next writer creates another one. */
static gboolean
is_current (const weft_checkpoint_lock *lock)
{
  struct stat open_file, named;

  return fstat (lock->fd, &open_file) == 0 && stat (lock->path, &named) == 0 &&
         open_file.st_dev == named.st_dev && open_file.st_ino == named.st_ino;
}

static gboolean
write_holder (const weft_checkpoint_lock *lock, GError **error)
{
  g_autofree char *text =
      g_strdup_printf ("process %d on %s\n", (int) getpid (), g_get_host_name ());

  return (ftruncate (lock->fd, 0) == 0 && weft_write_all (lock->fd, text, strlen (text))) ||
         weft_failed_path (lock->path, error);
}

/* Takes the lock. Errors of flock() other than EWOULDBLOCK come from file systems without locks and
 * are ignored. */
static gboolean
take (weft_checkpoint_lock *lock, GError **error)
{
  for (;;) {
    lock->fd = open (lock->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (lock->fd < 0)
      return weft_failed_path (lock->path, error);
    lock->held = flock (lock->fd, LOCK_EX | LOCK_NB) == 0;
    if (!lock->held && errno == EWOULDBLOCK)
      return blame_holder (lock, error);
    if (!lock->held || is_current (lock))
      return write_holder (lock, error);
    close (lock->fd);
  }
}

weft_checkpoint_lock *
weft_checkpoint_lock_new (const char *dir, struct weft_rendezvous *peers, GError **error)
{
  g_autoptr (weft_checkpoint_lock) lock = g_new0 (weft_checkpoint_lock, 1);

  lock->dir = g_strdup (dir);
  lock->path = g_build_filename (dir, ".lock", NULL);
  lock->fd = -1;
  if (peers && weft_rendezvous_place (peers)->process > 0)
    return g_steal_pointer (&lock);
  if (!make_directory (lock, error) || !take (lock, error))
    return NULL;
  return g_steal_pointer (&lock);
}

void
weft_checkpoint_lock_free (weft_checkpoint_lock *lock)
{
  if (!lock)
    return;
  if (lock->held)
    unlink (lock->path);
  if (lock->fd >= 0)
    close (lock->fd);
  if (lock->made)
    rmdir (lock->dir);
  g_free (lock->path);
  g_free (lock->dir);
  g_free (lock);
}

const char *
weft_checkpoint_lock_dir (const weft_checkpoint_lock *lock)
{
  return lock->dir;
}

gboolean
weft_checkpoint_lock_held (const weft_checkpoint_lock *lock)
{
  return lock->held;
}
