/* mapped_file.h - files mapped into memory read-only.
 *
 * The file must keep its size while it is mapped: reading beyond a new, shorter end raises SIGBUS.
 * Bytes that another process writes to the file meanwhile may become visible. */
#pragma once
#include <glib.h>

/* Opens a regular file for reading; -1 with an error that begins with the path for any other file.
 * Does not wait for the writer of a pipe. The caller closes the file. */
int weft_open_regular (const char *path, GError **error);

/* Maps a regular file for reading. Errors begin with the path. The caller unrefs the mapping. */
GMappedFile *weft_map_file (const char *path, GError **error);
