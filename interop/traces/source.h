/* source.h - the bytes of a file from its begin to its end, in chunks; gzip is decompressed. */
#pragma once
#include <glib.h>

typedef struct weft_source weft_source;

/* Opens a file. Compressed files are recognised by their first bytes (RFC 1952). */
weft_source *weft_source_open (const char *path, GError **error);

/* Reads up to `most` bytes: their number, 0 at the end, -1 with an error that begins with the path.
 * A gzip file that ends early is an error. */
gssize weft_source_read (weft_source *source, char *bytes, gsize most, GError **error);
void weft_source_close (weft_source *source);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_source, weft_source_close)
