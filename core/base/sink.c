#include "core/base/sink.h"
#include "core/base/error.h"
#include <errno.h>

enum { CHUNK = 1 << 20 };

static void
fail (weft_sink *s)
{
  if (!s->error)
    g_set_error (&s->error, WEFT_ERROR, WEFT_ERROR_RUN, "%s: %s", s->path, g_strerror (errno));
}

static void
write_bytes (weft_sink *s, const void *data, size_t n)
{
  if (!s->error && n && fwrite (data, 1, n, weft_output_stream (s->output)) != n)
    fail (s);
}

static void
compress (weft_sink *s, gboolean last)
{
  g_autofree char *out = g_malloc (CHUNK);
  gsize at = 0, read, written;
  GConverterResult result = G_CONVERTER_CONVERTED;

  while (!s->error && (at < s->text->len || (last && result != G_CONVERTER_FINISHED))) {
    result = g_converter_convert (s->gzip, s->text->str + at, s->text->len - at, out, CHUNK,
                                  last ? G_CONVERTER_INPUT_AT_END : G_CONVERTER_NO_FLAGS, &read,
                                  &written, &s->error);
    if (s->error)
      return;
    at += read;
    write_bytes (s, out, written);
  }
}

static void
flush (weft_sink *s, gboolean last)
{
  if (s->gzip)
    compress (s, last);
  else
    write_bytes (s, s->text->str, s->text->len);
  g_string_truncate (s->text, 0);
}

gboolean
weft_sink_open (weft_sink *s, const char *path, GError **error)
{
  *s = (weft_sink){ .path = path, .output = weft_output_open (path, error) };
  if (!s->output)
    return FALSE;
  s->text = g_string_sized_new (CHUNK + CHUNK / 8);
  if (g_str_has_suffix (path, ".gz"))
    s->gzip = G_CONVERTER (g_zlib_compressor_new (G_ZLIB_COMPRESSOR_FORMAT_GZIP, -1));
  return TRUE;
}

void
weft_sink_spill (weft_sink *s)
{
  if (s->text->len > CHUNK)
    flush (s, FALSE);
}

gboolean
weft_sink_close (weft_sink *s, GError **error)
{
  flush (s, TRUE);
  if (s->error)
    weft_output_abandon (s->output);
  else
    weft_output_close (s->output, &s->error);
  g_clear_object (&s->gzip);
  g_string_free (g_steal_pointer (&s->text), TRUE);
  if (!s->error)
    return TRUE;
  g_propagate_error (error, g_steal_pointer (&s->error));
  return FALSE;
}

void
weft_sink_quote (GString *out, const char *text)
{
  g_string_append_c (out, '"');
  for (; *text; text++)
    if (*text == '\n')
      g_string_append (out, "\\n");
    else if ((unsigned char) *text < ' ')
      g_string_append_printf (out, "\\u%04x", *text);
    else {
      if (*text == '"' || *text == '\\')
        g_string_append_c (out, '\\');
      g_string_append_c (out, *text);
    }
  g_string_append_c (out, '"');
}
