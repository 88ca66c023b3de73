/* fenced.h - memory of exactly as many bytes as somebody may touch, for tests: before and behind it
 * lie pages that nobody may, and where it does not end at a page, fewer than 16 bytes that stay as
 * they are; the address sanitizer guards these too.  Who touches a page dies. */
#pragma once
#include <glib.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Begins `askew` bytes, less than 16, behind a multiple of 16: near its first page, or near its
 * last. Holds 0xff. */
void *fenced_new (uint64_t bytes, unsigned askew, gboolean at_end);

/* NULL: nothing.  Fails where bytes beside it were written. */
void fenced_free (void *at);

#ifdef __cplusplus
}
#endif
