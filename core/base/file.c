#include "core/base/file.h"
#include "core/base/error.h"
#include "core/base/output.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST_BYTES 4096

/* Seconds to wait for the writer of a named pipe, which may have been started a moment before. */
enum { PATIENCE_S = 2 };

static gboolean
fail (const char *path, GError **error)
{
  return weft_bad_input (error, "%s: %s", path, g_strerror (errno));
}

/* Reads to the end of the file, but at most `most` + 1 bytes.  Returns 0, or -1 with errno set. */
static gssize
read_up_to (int fd, gsize most, GString *text)
{
  while (text->len <= most) {
    gsize had = text->len;
    g_string_set_size (text, MIN (most + 1, had + MAX (had, FIRST_BYTES)));
    gssize n = read (fd, text->str + had, text->len - had);
    g_string_truncate (text, had + (n > 0 ? n : 0));
    if (n == 0 || (n < 0 && errno != EINTR))
      return n;
  }
  return 0;
}

/* Whether a pipe has data to read or a process that has opened it for writing. A blocking read from
 * a named pipe without a writer would wait for such a process. `fd` is open without blocking. If
 * this function reads a byte, it appends the byte to `text`. */
static gboolean
has_writer (int fd, GString *text)
{
  struct pollfd pipe = { .fd = fd, .events = POLLIN };
  char byte;

  if (poll (&pipe, 1, PATIENCE_S * 1000) != 0)
    return TRUE;
  gssize n = read (fd, &byte, 1);
  if (n > 0)
    g_string_append_c (text, byte);
  return n != 0;
}

/* Switches reads of this file back to blocking mode. */
static void
let_block (int fd)
{
  fcntl (fd, F_SETFL, fcntl (fd, F_GETFL) & ~O_NONBLOCK);
}

static gboolean
read_open (int fd, const char *path, gsize most, GString *text, GError **error)
{
  struct stat found;

  if (fstat (fd, &found))
    return fail (path, error);
  if (S_ISFIFO (found.st_mode) && fcntl (fd, F_GETFL) & O_NONBLOCK && !has_writer (fd, text))
    return weft_bad_input (error, "%s: found a pipe that nobody has opened for writing within %d s",
                           path, PATIENCE_S);
  let_block (fd);
  if (S_ISDIR (found.st_mode))
    return weft_bad_input (error, "%s: found a folder, wanted a file", path);
  if (S_ISREG (found.st_mode) && (gsize) found.st_size > most)
    return weft_bad_input (error,
                           "%s: found %" G_GSIZE_FORMAT " bytes, wanted at most %" G_GSIZE_FORMAT,
                           path, (gsize) found.st_size, most);
  if (read_up_to (fd, most, text) < 0)
    return fail (path, error);
  return text->len <= most ||
         weft_bad_input (error, "%s: found no end, wanted at most %" G_GSIZE_FORMAT " bytes", path,
                         most);
}

/* Opens with O_NONBLOCK, because opening a named pipe without a writer would block. */
static int
open_file (const char *path)
{
  if (weft_file_is_stdin (path))
    return fcntl (STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
  return open (path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
}

gboolean
weft_file_is_stdin (const char *path)
{
  return strcmp (path, "-") == 0;
}

char *
weft_file_read (const char *path, gsize most, gsize *length, GError **error)
{
  const char *name = weft_file_is_stdin (path) ? "stdin" : path;
  int fd = open_file (path);

  if (fd < 0) {
    fail (name, error);
    return NULL;
  }
  weft_output_note_input (fd);
  GString *text = g_string_new (NULL);
  gboolean ok = read_open (fd, name, most, text, error);
  close (fd);
  *length = text->len;
  return g_string_free (text, !ok);
}

gboolean
weft_file_check_text (const char *text, gsize length, const char *name, GError **error)
{
  const char *end;
  unsigned line = 1;

  if (g_utf8_validate_len (text, length, &end))
    return TRUE;
  for (const char *c = text; c < end; c++)
    line += *c == '\n';
  return weft_bad_input (error, "%s:%u: found byte 0x%02x, wanted UTF-8 text", name, line,
                         (unsigned char) *end);
}
