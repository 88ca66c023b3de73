/* fenced.h - memory of an exact size for tests: inaccessible pages before and behind it. If it does
 * not end at a page, the fewer than 16 bytes behind it are checked for changes, and guarded by the
 * address sanitizer. Access to a page ends the process. */
#pragma once
#include <glib.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Begins `askew` bytes (less than 16) after a multiple of 16, next to its first page or next to its
 * last. Filled with 0xff. */
void *fenced_new (uint64_t bytes, unsigned askew, gboolean at_end);

/* Accepts NULL. Fails if bytes before or after the memory were written. */
void fenced_free (void *at);

#ifdef __cplusplus
}
#endif
