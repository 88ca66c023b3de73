#include "train/data_file.h"
#include "core/base/error.h"
#include "train/crc32c.h"
#include "train/durable.h"
#include "train/mapped_file.h"
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

/* Number of bytes at the begin and at the end of a file that the checksums of a mark cover. */
#define MARKED 65536u

struct weft_data_file {
  char *path;
  int fd;
  uint64_t bytes, modified;
};

static uint64_t
modified_of (const struct stat *status)
{
  return (uint64_t) status->st_mtim.tv_sec * 1000000000u + (uint64_t) status->st_mtim.tv_nsec;
}

weft_data_file *
weft_data_file_open (const char *path, GError **error)
{
  g_autoptr (weft_data_file) file = g_new0 (weft_data_file, 1);
  struct stat status;

  file->path = g_strdup (path);
  file->fd = weft_open_regular (path, error);
  if (file->fd < 0)
    return NULL;
  if (fstat (file->fd, &status)) {
    weft_failed_path (path, error);
    return NULL;
  }
  file->bytes = (uint64_t) status.st_size;
  file->modified = modified_of (&status);
  return g_steal_pointer (&file);
}

void
weft_data_file_free (weft_data_file *file)
{
  if (file->fd >= 0)
    close (file->fd);
  g_free (file->path);
  g_free (file);
}

uint64_t
weft_data_file_bytes (const weft_data_file *file)
{
  return file->bytes;
}

static gboolean
blame_end (const weft_data_file *file, GError **error)
{
  struct stat now;

  if (fstat (file->fd, &now))
    return weft_failed_path (file->path, error);
  return weft_run_error (error,
                         "%s: found %" G_GUINT64_FORMAT " bytes, wanted the %" G_GUINT64_FORMAT
                         " that it had when it was opened: the file became shorter",
                         file->path, (uint64_t) now.st_size, file->bytes);
}

gboolean
weft_data_file_read (const weft_data_file *file, uint64_t offset, uint64_t n, void *out,
                     GError **error)
{
  g_assert (offset <= file->bytes && n <= file->bytes - offset);
  for (uint64_t done = 0; done < n;) {
    ssize_t some = pread (file->fd, (char *) out + done, n - done, (off_t) (offset + done));
    if (some == 0)
      return blame_end (file, error);
    if (some < 0 && errno != EINTR)
      return weft_failed_path (file->path, error);
    done += (uint64_t) MAX (some, 0);
  }
  return TRUE;
}

enum weft_data_change
weft_data_file_change (const weft_data_file *file)
{
  struct stat now;

  if (fstat (file->fd, &now)) /* ignores the error, which the next read will report */
    return WEFT_DATA_SAME;
  if ((uint64_t) now.st_size < file->bytes)
    return WEFT_DATA_SHORTER;
  return modified_of (&now) == file->modified ? WEFT_DATA_SAME : WEFT_DATA_WRITTEN;
}

struct weft_data_mark
weft_data_file_mark (const weft_data_file *file)
{
  uint64_t n = MIN (file->bytes, MARKED);
  g_autofree void *block = g_malloc (n);
  struct weft_data_mark mark = { .bytes = file->bytes, .modified = file->modified };
  struct weft_crc32c crc;

  weft_crc32c_init (&crc);
  if (!weft_data_file_read (file, 0, n, block, NULL))
    return (struct weft_data_mark){ 0 };
  mark.head = weft_crc32c (&crc, 0, block, n);
  if (!weft_data_file_read (file, file->bytes - n, n, block, NULL))
    return (struct weft_data_mark){ 0 };
  mark.tail = weft_crc32c (&crc, 0, block, n);
  return mark;
}
