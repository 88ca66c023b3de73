/* file.h - a file as text in memory. */
#pragma once
#include <glib.h>

/* The whole file with a NUL after its last byte; caller frees.  Pipes are read like files, so that
 * <(command) may stand for one; what has more than `most` bytes, or no end, is refused. */
char *weft_file_read (const char *path, gsize most, gsize *length, GError **error);
