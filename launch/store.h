/* store.h - the server of the rendezvous, a thread in the process of rank 0.
 *
 * The server keeps values, completes an exchange when every process has called it, reports which
 * processes are missing, and ends the job when a connection is lost without a sign-off. */
#pragma once
#include <glib.h>
#include <stdint.h>

typedef struct weft_store weft_store;

struct weft_store_options {
  const char *token; /* clients with another token are refused */
  uint32_t n, ranks_each;  /* processes, ranks per process */
  double seconds;    /* time limit for all processes to connect */
};

/* Listens on a port (0: any free port) of every address of this machine and starts the thread. */
weft_store *weft_store_open (uint16_t port, const struct weft_store_options *options,
                             GError **error);

/* The port that the store listens on. */
uint16_t weft_store_port (const weft_store *store);

/* Waits until every client has signed off, at most `seconds`, then ends the thread and frees the
 * store. `store` may be NULL. */
void weft_store_close (weft_store *store, double seconds);

/* "rank 3", or "ranks 8 to 15" for a process with several ranks. The caller frees the string. */
char *weft_store_name (uint32_t ranks_each, uint32_t process);
