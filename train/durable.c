#include "train/durable.h"
#include "core/base/error.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

gboolean
weft_failed_path (const char *path, GError **error)
{
  const char *why = g_strerror (errno);

  g_set_error (error, WEFT_ERROR, WEFT_ERROR_RUN, "%s: %s", path, why);
  return FALSE;
}

/* EINVAL is ignored: some file systems cannot sync a directory. */
gboolean
weft_sync_path (const char *path, GError **error)
{
  int fd = open (path, O_RDONLY | O_CLOEXEC);

  if (fd < 0)
    return weft_failed_path (path, error);
  gboolean ok = fsync (fd) == 0 || errno == EINVAL || weft_failed_path (path, error);
  close (fd);
  return ok;
}

gboolean
weft_write_all (int fd, const void *data, uint64_t n)
{
  const uint8_t *at = data;

  while (n > 0) {
    ssize_t some = write (fd, at, n);
    if (some < 0 && errno != EINTR)
      return FALSE;
    at += MAX (some, 0);
    n -= (uint64_t) MAX (some, 0);
  }
  return TRUE;
}

gboolean
weft_write_synced (const char *path, const char *text, GError **error)
{
  int fd = open (path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

  if (fd < 0)
    return weft_failed_path (path, error);
  gboolean ok = (weft_write_all (fd, text, strlen (text)) && fsync (fd) == 0) ||
                weft_failed_path (path, error);
  close (fd);
  return ok;
}
