/* file.h - reads a file into memory as text. */
#pragma once
#include <glib.h>

/* Reads a whole file and puts a NUL after its last byte. The caller frees the text. The path "-" is
 * standard input. Pipes are read like files, so <(command) works. A named pipe without a writer is
 * refused, and so is a file with more than `most` bytes. */
char *weft_file_read (const char *path, gsize most, gsize *length, GError **error);

/* Whether a path is "-", which stands for standard input. */
gboolean weft_file_is_stdin (const char *path);

/* Checks that a text is UTF-8 without NUL; the error names the line of the first wrong byte. */
gboolean weft_file_check_text (const char *text, gsize length, const char *name, GError **error);
