/* store.h - the server of the rendezvous, a thread in the process of rank 0.
 *
 * The server keeps values, completes an exchange when every process has called it, reports which
 * processes are missing, and ends the job when a connection is lost without a sign-off. A
 * connection is a stranger until it is admitted as a process of the job. */
#pragma once
#include <gio/gio.h>
#include <stdint.h>

typedef struct weft_store weft_store;

struct weft_store_options {
  const char *token;       /* identifies the job; clients with another token are refused */
  /* clients must prove that they have this secret; NULL: the job has no secret, and `host` must be
   * a loopback address */
  const char *secret;
  const char *host;        /* name or address of the machine where the store listens */
  uint32_t n, ranks_each;  /* number of processes; number of ranks per process */
  double seconds;          /* time limit in seconds for all processes to connect */
  double stranger_seconds; /* time limit for the admission of a new connection; 0: the default */
  /* limit in bytes of the memory for values and messages; 0: WEFT_STORE_MOST_BYTES */
  uint64_t most_bytes;
};

/* Maximum number of strangers (connections that are not admitted yet). If one more connects, the
 * store closes the oldest stranger among those from the address with the most strangers. */
#define WEFT_STORE_MOST_STRANGERS 128u

/* Maximum number of bytes of values in the store: values that were set, values of incomplete
 * exchanges, and values that were received in part. A process that exceeds the limit ends the
 * job. */
#define WEFT_STORE_MOST_BYTES (512u << 20)

/* Listens on a port (0: any free port) of the addresses of options->host (listening.h) and starts
 * the thread. */
weft_store *weft_store_open (uint16_t port, const struct weft_store_options *options,
                             GError **error);

/* The TCP port that the store listens on. */
uint16_t weft_store_port (const weft_store *store);

/* Whether the store listens on every address of this machine. */
gboolean weft_store_is_everywhere (const weft_store *store);

/* The address at which this process connects to its own store. The caller unrefs it. */
GSocketAddress *weft_store_own_address (const weft_store *store);

/* Waits until every client has signed off, at most `seconds`, then ends the thread and frees the
 * store. `store` may be NULL. */
void weft_store_close (weft_store *store, double seconds);

/* "rank 3", or "ranks 8 to 15" for a process with several ranks. The caller frees the string. */
char *weft_store_name (uint32_t ranks_each, uint32_t process);
