/* sink.h - a text file written while it is generated; compressed when the path ends in .gz.
 *
 * Append to `text` and call weft_sink_spill() now and then.  The first error stops all writing;
 * weft_sink_close() returns it. */
#pragma once
#include "core/base/output.h"
#include <gio/gio.h>

typedef struct weft_sink {
  GString *text;
  GError *error;     /* NULL: no error so far */
  weft_output *output;
  GConverter *gzip;  /* NULL: plain */
  const char *path;  /* borrowed */
} weft_sink;

/* Opens an output file (output.h): the path may be a device or a pipe. */
gboolean weft_sink_open (weft_sink *sink, const char *path, GError **error);

/* Writes `text` when it is large enough. */
void weft_sink_spill (weft_sink *sink);

/* Writes the rest; FALSE with the first error.  Call it once after a successful open. */
gboolean weft_sink_close (weft_sink *sink, GError **error);

/* Appends a text as a JSON string, with quotes and escapes. */
void weft_sink_quote (GString *out, const char *text);
