/* output.h - files that a command writes: they appear whole or not at all, and destroy no input.
 *
 * A file is written without a name (O_TMPFILE), or under a temporary name where the file system
 * cannot do that, and gets its name when it is complete. Until then an existing file of that name
 * keeps its contents. Devices, pipes and the file behind stdout or stderr are written in place, and
 * so is a writable file in a folder that is not writable.
 *
 * A path is refused if it is "-" (which is standard input elsewhere), a folder, a file without
 * permission to write, a file that this command has read (weft_output_guard_inputs()), or a
 * symbolic link that leads into another folder. */
#pragma once
#include <glib.h>
#include <stdio.h>

/* From now on, records each file that weft_file_read(), or another function that calls
 * weft_output_note_input(), reads. The commands call this; a library does not. */
void weft_output_guard_inputs (void);

/* Records that a file has been read, so that the command does not overwrite it. Does nothing before
 * weft_output_guard_inputs() was called. */
void weft_output_note_input (int fd);

/* Finds the file that a path stands for. *target receives its path, without a symbolic link; the
 * caller frees it; NULL: the path is written in place. Errors begin with the path. */
gboolean weft_output_find (const char *path, char **target, GError **error);

typedef struct weft_output weft_output;

/* Opens a file for writing; NULL with an error. */
weft_output *weft_output_open (const char *path, GError **error);

/* The stream to which the caller writes the contents of the file. */
FILE *weft_output_stream (const weft_output *output);

/* Completes the file, gives the file its name and frees `output`. If anything could not be written,
 * returns FALSE, and an existing file keeps its old contents. */
gboolean weft_output_close (weft_output *output, GError **error);

/* Discards what was written and frees `output`, which may be NULL. */
void weft_output_abandon (weft_output *output);
