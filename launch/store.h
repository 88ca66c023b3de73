/* store.h - where processes of a job meet: a server in the process of rank 0, a thread of its own.
 *
 * It keeps values, lets all wait for all, knows who has not come, and tells everybody when one is
 * gone: a connection that ends without a farewell ends the job. */
#pragma once
#include <glib.h>
#include <stdint.h>

typedef struct weft_store weft_store;

struct weft_store_options {
  const char *token; /* who has another one is refused */
  uint32_t n, each;  /* processes, and ranks of each */
  double seconds;    /* in which all have to come */
};

/* Listens on a port of every address of this machine; 0: one that is free. */
weft_store *weft_store_open (uint16_t port, const struct weft_store_options *options,
                             GError **error);
uint16_t weft_store_port (const weft_store *store);

/* Waits until all have left, or `seconds`. */
void weft_store_close (weft_store *store, double seconds);

/* "rank 3", or "ranks 8 to 15" of a process of several.  Caller frees. */
char *weft_store_name (uint32_t each, uint32_t process);
