/* data_file.h - regular files that are read by position while other processes may change them.
 *
 * Reading beyond the end of a file that became shorter is an error, unlike in a mapping
 * (mapped_file.h), where it ends the process. If another file is renamed to the name of an open
 * file, the open file stays readable with its old contents. */
#pragma once
#include <glib.h>
#include <stdint.h>

typedef struct weft_data_file weft_data_file;

/* Opens a regular file. Errors begin with the path. */
weft_data_file *weft_data_file_open (const char *path, GError **error);
void weft_data_file_free (weft_data_file *file);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_data_file, weft_data_file_free)

/* Size of the file in bytes when it was opened. */
uint64_t weft_data_file_bytes (const weft_data_file *file);

/* Reads bytes [offset, offset + n). They must be inside the size that the file had when it was
 * opened. */
gboolean weft_data_file_read (const weft_data_file *file, uint64_t offset, uint64_t n, void *out,
                              GError **error);

/* How the file has changed since it was opened: not at all, written, or shorter. */
enum weft_data_change { WEFT_DATA_SAME, WEFT_DATA_WRITTEN, WEFT_DATA_SHORTER };
enum weft_data_change weft_data_file_change (const weft_data_file *file);

/* Identifies the contents of a file, to notice in a later run that they changed. */
struct weft_data_mark {
  uint64_t bytes;      /* size of the file in bytes; 0: nothing is known about the file */
  uint64_t modified;   /* time of the last write, in nanoseconds since 1970 */
  uint64_t head, tail; /* CRC-32C of the first 64 KiB and of the last 64 KiB of the file */
};

/* Mark of the file as it was when it was opened. All fields are 0 if the file cannot be read. */
struct weft_data_mark weft_data_file_mark (const weft_data_file *file);
