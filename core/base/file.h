/* file.h - a file as text in memory. */
#pragma once
#include <glib.h>

/* The whole file with a NUL after its last byte; caller frees.  Pipes are read like files, so that
 * <(command) may stand for one; what has more than `most` bytes, or no end, is refused. */
char *weft_file_read (const char *path, gsize most, gsize *length, GError **error);

/* Whether it is UTF-8 without NUL; if not, the error names the line of the first byte that is none. */
gboolean weft_file_check_text (const char *text, gsize length, const char *name, GError **error);
