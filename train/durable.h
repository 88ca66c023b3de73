/* durable.h - writing what shall be there after a crash. */
#pragma once
#include <glib.h>
#include <stdint.h>

/* "PATH: what errno says"; always FALSE. */
gboolean weft_failed_path (const char *path, GError **error);

/* All n bytes, however many calls it takes; FALSE: errno says why not. */
gboolean weft_write_all (int fd, const void *data, uint64_t n);

/* What fsync() says of a file or directory. */
gboolean weft_sync_path (const char *path, GError **error);

/* A new file with this text, synced. */
gboolean weft_write_synced (const char *path, const char *text, GError **error);
