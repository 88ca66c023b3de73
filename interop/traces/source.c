#include "interop/traces/source.h"
#include "core/base/error.h"
#include "core/base/output.h"
#include <errno.h>
#include <fcntl.h>
#include <gio/gio.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 1 << 18 };

struct weft_source {
  char *path;
  int fd;
  GConverter *gzip; /* NULL: the file is plain */
  gboolean whole;   /* whether the last gzip member ended */
  gboolean ended;   /* whether the file has no more bytes */
  gsize at, n;      /* the bytes of `chunk` that nobody has read yet */
  char chunk[CHUNK];
};

/* Fills the chunk behind the unread bytes; FALSE on error. */
static gboolean
fill (weft_source *s, GError **error)
{
  memmove (s->chunk, s->chunk + s->at, s->n);
  s->at = 0;
  while (!s->ended && s->n < CHUNK) {
    gssize got = read (s->fd, s->chunk + s->n, CHUNK - s->n);
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0)
      return weft_bad_input (error, "%s: %s", s->path, g_strerror (errno));
    s->ended = got == 0;
    s->n += (gsize) got;
  }
  return TRUE;
}

weft_source *
weft_source_open (const char *path, GError **error)
{
  int fd = open (path, O_RDONLY | O_CLOEXEC);

  if (fd < 0) {
    weft_bad_input (error, "%s: %s", path, g_strerror (errno));
    return NULL;
  }
  weft_output_note_input (fd);
  g_autoptr (weft_source) s = g_new0 (weft_source, 1);
  s->fd = fd;
  s->path = g_strdup (path);
  if (!fill (s, error))
    return NULL;
  if (s->n > 1 && (unsigned char) s->chunk[0] == 0x1f && (unsigned char) s->chunk[1] == 0x8b)
    s->gzip = G_CONVERTER (g_zlib_decompressor_new (G_ZLIB_COMPRESSOR_FORMAT_GZIP));
  return g_steal_pointer (&s);
}

void
weft_source_close (weft_source *s)
{
  g_clear_object (&s->gzip);
  close (s->fd);
  g_free (s->path);
  g_free (s);
}

static gssize
read_plain (weft_source *s, char *bytes, gsize most)
{
  gsize n = MIN (most, s->n);

  memcpy (bytes, s->chunk + s->at, n);
  s->at += n;
  s->n -= n;
  return (gssize) n;
}

/* Decompresses until some bytes came out. A file may be several gzip members, one after another. */
static gssize
read_packed (weft_source *s, char *bytes, gsize most, GError **error)
{
  gsize read = 0, written = 0;

  while (!written && (s->n || !s->whole)) {
    g_autoptr (GError) found = NULL;
    if (s->whole)
      g_converter_reset (s->gzip);
    s->whole = FALSE;
    GConverterResult r =
        g_converter_convert (s->gzip, s->chunk + s->at, s->n, bytes, most,
                             s->ended ? G_CONVERTER_INPUT_AT_END : 0, &read, &written, &found);
    if (r == G_CONVERTER_ERROR) {
      weft_bad_input (error, "%s: found a damaged or shortened gzip file: %s", s->path,
                      found->message);
      return -1;
    }
    s->whole = r == G_CONVERTER_FINISHED;
    s->at += read;
    s->n -= read;
    if (s->n == 0 && !fill (s, error))
      return -1;
  }
  return (gssize) written;
}

gssize
weft_source_read (weft_source *s, char *bytes, gsize most, GError **error)
{
  if (s->n < CHUNK / 2 && !fill (s, error))
    return -1;
  return s->gzip ? read_packed (s, bytes, most, error) : read_plain (s, bytes, most);
}
