/* fenced.h - memory of an exact size for tests, between two inaccessible pages; access to them ends
 * the process. Other bytes before and after the memory are checked for changes, and guarded by the
 * address sanitizer. */
#pragma once
#include <glib.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Allocates memory that begins `askew` bytes (less than 16) after a multiple of 16, filled with
 * 0xff. at_end TRUE: the memory ends less than 16 bytes before the last page; FALSE: it begins
 * `askew` bytes after the first page. */
void *fenced_new (uint64_t bytes, unsigned askew, gboolean at_end);

/* Accepts NULL. Fails if bytes before or after the memory were written. */
void fenced_free (void *at);

#ifdef __cplusplus
}
#endif
