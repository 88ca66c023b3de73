/* sink.h - text on its way to a file: written as it is made, compressed when the path ends in .gz.
 *
 * Append to `text` and call weft_sink_spill() now and then; the first error stops all writing and
 * stays until weft_sink_close() hands it over. */
#pragma once
#include <gio/gio.h>
#include <stdio.h>

typedef struct weft_sink {
  GString *text;
  GError *error;     /* NULL: all is well so far */
  FILE *file;
  GConverter *gzip;  /* NULL: plain */
  const char *path;  /* borrowed */
} weft_sink;

/* Opens the file itself, never one beside it: the path may be a device or a pipe. */
gboolean weft_sink_open (weft_sink *sink, const char *path, GError **error);

/* Writes what is there once it is worth a write. */
void weft_sink_spill (weft_sink *sink);

/* Writes the rest; FALSE with the first error of all.  Call it once after a successful open. */
gboolean weft_sink_close (weft_sink *sink, GError **error);

/* Appends a string of JSON with its quotes. */
void weft_sink_quote (GString *out, const char *text);
