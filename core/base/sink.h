/* sink.h - writes a text file while the text is generated. If the path ends in .gz, the file is
 * compressed.
 *
 * Append to `text` and call weft_sink_spill() after every few lines. After the first error nothing
 * more is written; weft_sink_close() returns this error. */
#pragma once
#include "core/base/output.h"
#include <gio/gio.h>

typedef struct weft_sink {
  GString *text;
  GError *error;     /* first error; NULL: no error so far */
  weft_output *output;
  GConverter *gzip;  /* NULL: plain */
  const char *path;  /* borrowed */
} weft_sink;

/* Opens an output file as output.h describes. The path may name a device or a pipe. */
gboolean weft_sink_open (weft_sink *sink, const char *path, GError **error);

/* Writes `text` to the file and empties it, if it is longer than one chunk. Call this after every
 * few lines. */
void weft_sink_spill (weft_sink *sink);

/* Writes the rest of `text` and closes the file. FALSE with the first error since the file was
 * opened. Call this once after a successful open. */
gboolean weft_sink_close (weft_sink *sink, GError **error);

/* Appends a text as a JSON string, with quotes and escapes, to another text. */
void weft_sink_quote (GString *out, const char *text);
