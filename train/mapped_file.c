#include "train/mapped_file.h"
#include "core/base/error.h"
#include "core/base/output.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* O_NONBLOCK is necessary because opening a pipe without a writer would block. */
int
weft_open_regular (const char *path, GError **error)
{
  int file = open (path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  struct stat status;

  if (file < 0) {
    weft_bad_input (error, "%s: cannot be opened: %s", path, g_strerror (errno));
    return -1;
  }
  if (fstat (file, &status) == 0 && S_ISREG (status.st_mode)) {
    weft_output_note_input (file);
    return file;
  }
  weft_bad_input (error, "%s: found %s, wanted a file", path,
                  S_ISDIR (status.st_mode) ? "a directory" : "a pipe or device");
  close (file);
  return -1;
}

GMappedFile *
weft_map_file (const char *path, GError **error)
{
  g_autoptr (GError) cause = NULL;
  int file = weft_open_regular (path, error);

  if (file < 0)
    return NULL;
  GMappedFile *map = g_mapped_file_new_from_fd (file, FALSE, &cause);
  if (!map)
    weft_bad_input (error, "%s: cannot be mapped into memory: %s", path, cause->message);
  close (file);
  return map;
}
