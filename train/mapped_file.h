/* mapped_file.h - files that are read where they lie.
 *
 * A mapped file must keep its size while it is open: reading what was cut off ends the process with
 * SIGBUS, and what is written to it meanwhile may be seen. */
#pragma once
#include <glib.h>

/* A regular file, to be read.  Errors begin with the path.  Caller unrefs. */
GMappedFile *weft_map_file (const char *path, GError **error);
