/* durable.h - writing files that survive a crash of the machine. */
#pragma once
#include <glib.h>
#include <stdint.h>

/* Sets the error "PATH: text of errno" and returns FALSE. */
gboolean weft_failed_path (const char *path, GError **error);

/* Writes n bytes with as many calls of write() as necessary. FALSE: errno is the reason. */
gboolean weft_write_all (int fd, const void *data, uint64_t n);

/* Calls fsync() for a file or directory. */
gboolean weft_sync_path (const char *path, GError **error);

/* Writes `text` to a new file and calls fsync(). */
gboolean weft_write_synced (const char *path, const char *text, GError **error);
