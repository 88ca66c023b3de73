#include "launch/secret.h"
#include "core/base/error.h"
#include "launch/seal.h"
#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_BYTES 4096u
#define RANDOM_BYTES 32u

gboolean
weft_secret_check (const char *secret, const char *name, GError **error)
{
  gsize n = strlen (secret);

  return n >= WEFT_SECRET_LEAST ||
         weft_bad_input (error,
                         "%s: found a secret of %" G_GSIZE_FORMAT " characters, wanted at least %u "
                         "random ones (openssl rand -hex 32)",
                         name, n, WEFT_SECRET_LEAST);
}

/* -------------------------------------------------------------------------- creating */

static gboolean
fail (const char *path, const char *what, GError **error)
{
  int number = errno;

  return weft_run_error (error,
                         "%s: cannot %s the secret of the rendezvous: %s (set WEFT_SECRET to the "
                         "same secret in all processes)",
                         path, what, g_strerror (number));
}

static gboolean
write_line (int file, const char *line)
{
  gsize n = strlen (line);

  return write (file, line, n) == (ssize_t) n && fsync (file) == 0;
}

/* Makes the line of a new file: random bytes in hexadecimal. The caller frees it. */
static char *
make_line (void)
{
  GString *line = g_string_new (NULL);
  uint8_t bytes[RANDOM_BYTES];

  weft_seal_random (bytes, sizeof bytes);
  for (unsigned i = 0; i < sizeof bytes; i++)
    g_string_append_printf (line, "%02x", bytes[i]);
  g_string_append_c (line, '\n');
  return g_string_free (line, FALSE);
}

/* Writes a temporary file and links it to `path`. link() does nothing if `path` exists, so no
 * process reads half a secret or replaces the secret of another process. */
static gboolean
create_file (const char *path, GError **error)
{
  g_autofree char *folder = g_path_get_dirname (path), *line = make_line (),
                  *made = g_strconcat (path, ".XXXXXX", NULL);

  if (g_mkdir_with_parents (folder, 0700))
    return fail (path, "create", error);
  int file = g_mkstemp_full (made, O_WRONLY | O_CLOEXEC, 0600);
  if (file < 0)
    return fail (path, "create", error);
  gboolean ok = write_line (file, line) || fail (path, "write", error);
  close (file);
  ok = ok && (link (made, path) == 0 || errno == EEXIST || fail (path, "create", error));
  g_unlink (made);
  return ok;
}

/* --------------------------------------------------------------------------- reading */

/* Checks that other users cannot read the open file, and reads its first line. */
static char *
read_line (int file, const char *path, GError **error)
{
  char text[MOST_BYTES + 1] = "";
  struct stat about;

  if (fstat (file, &about) || !S_ISREG (about.st_mode)) {
    weft_bad_input (error, "%s: wanted a file with the secret of the rendezvous", path);
    return NULL;
  }
  if (about.st_mode & 077) {
    weft_bad_input (error,
                    "%s: found mode %04o, wanted a secret that only its owner can read: "
                    "chmod 600 %s",
                    path, (unsigned) about.st_mode & 07777, path);
    return NULL;
  }
  if (read (file, text, MOST_BYTES) < 0) {
    fail (path, "read", error);
    return NULL;
  }
  text[strcspn (text, "\r\n")] = '\0';
  return weft_secret_check (text, path, error) ? g_strdup (text) : NULL;
}

/* Opens a file for reading. O_NONBLOCK: does not wait for a writer if the file is a FIFO. */
static int
open_file (const char *path)
{
  return open (path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

char *
weft_secret_read (const char *path, gboolean create, GError **error)
{
  int file = open_file (path);

  if (file < 0 && errno == ENOENT && create) {
    if (!create_file (path, error))
      return NULL;
    file = open_file (path);
  }
  if (file < 0 && errno == ENOENT) {
    weft_run_error (error,
                    "%s: found no secret of the rendezvous on this machine, wanted that of rank 0: "
                    "copy the file here, or set WEFT_SECRET to the same secret in all processes",
                    path);
    return NULL;
  }
  if (file < 0) {
    fail (path, "read", error);
    return NULL;
  }
  char *secret = read_line (file, path, error);
  close (file);
  return secret;
}
