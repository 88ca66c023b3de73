/* fenced.h - memory of an exact size, between two inaccessible pages; an access to these pages ends
 * the process. Bytes between the memory and the pages are checked for changes, and guarded by the
 * address sanitizer. */
#pragma once
#include <glib.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Allocates `bytes` bytes filled with 0xff, which begin `askew` bytes (less than 16) after a
 * multiple of 16. at_end TRUE: the memory ends less than 16 bytes before the inaccessible page
 * behind it. FALSE: the memory begins `askew` bytes after the inaccessible page before it. */
void *fenced_new (uint64_t bytes, unsigned askew, gboolean at_end);

/* Frees the memory (NULL is allowed). Fails if bytes before or after the memory were written. */
void fenced_free (void *at);

#ifdef __cplusplus
}
#endif
