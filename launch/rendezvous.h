/* rendezvous.h - a key-value store and collectives of small messages between the processes of one
 * job over TCP, independent of NCCL.
 *
 * The process of rank 0 runs the store (store.h) as a thread; every process, including that one, is
 * a client of it. If a process fails or its connection is lost, every wait in the other processes
 * ends with an error that names it. */
#pragma once
#include "launch/environment.h"

typedef struct weft_rendezvous weft_rendezvous;

struct weft_rendezvous_place {
  const char *host; /* of process 0 */
  uint16_t port;
  const char *token; /* identifies the job */
  uint32_t n, process; /* number of processes, and the number of this one */
  uint32_t local;      /* the number of this one among those of its machine */
  uint32_t ranks_each;  /* ranks per process, for messages */
  double seconds; /* default time limit for waits */
};

/* Connects this process; returns when all processes are connected. After `seconds`, the error names
 * the ranks that are missing. */
weft_rendezvous *weft_rendezvous_open (const struct weft_rendezvous_place *place, GError **error);

/* weft_rendezvous_open() with the address and token that the launcher gave. */
weft_rendezvous *weft_rendezvous_open_launch (const struct weft_launch *launch, uint32_t ranks_each,
                                              double seconds, GError **error);

/* Signs off and disconnects. Process 0 waits until the others have signed off or lost their
 * connection. */
void weft_rendezvous_close (weft_rendezvous *r);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_rendezvous, weft_rendezvous_close)

const struct weft_rendezvous_place *weft_rendezvous_place (const weft_rendezvous *r);

/* Sets a value for all processes; waits until a process has set a value and returns it. */
gboolean weft_rendezvous_set (weft_rendezvous *r, const char *key, GBytes *value, GError **error);
GBytes *weft_rendezvous_get (weft_rendezvous *r, const char *key, GError **error);

/* All-gather: waits until every process has called it with this key, at most `seconds` (0: as long
 * as all processes are alive). Returns the values by process, NULL for a process that passed NULL.
 * `key` appears in messages to people: "step 17". */
GPtrArray *weft_rendezvous_all_gather (weft_rendezvous *r, const char *key, GBytes *value,
                                       double seconds, GError **error);
/* Gather: only process 0 gets the values; the others get an array of NULL. */
GPtrArray *weft_rendezvous_gather (weft_rendezvous *r, const char *key, GBytes *value,
                                   double seconds, GError **error);
gboolean weft_rendezvous_barrier (weft_rendezvous *r, const char *key, GError **error);

/* Checks for messages of the store while this process waits for something else (a GPU, NCCL); any
 * thread may call it. FALSE: the job has failed, with the reason as error. *asked is set if another
 * process asked for a status; answer with weft_rendezvous_set_status(). */
gboolean weft_rendezvous_poll (weft_rendezvous *r, gboolean *asked, GError **error);
void weft_rendezvous_set_status (weft_rendezvous *r, const char *words);

/* Asks every other process for its status and returns the answers as text; names the processes that
 * do not answer within `seconds`. `words` is the status of this process. The caller frees it. */
char *weft_rendezvous_ask_status (weft_rendezvous *r, const char *words, double seconds);

/* Ends the job: every other process gets an error with the reason `why`. Only
 * weft_rendezvous_close() may follow. */
void weft_rendezvous_abort (weft_rendezvous *r, const char *why);
