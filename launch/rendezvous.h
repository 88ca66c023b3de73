/* rendezvous.h - a key-value store and collectives of small messages between the processes of one
 * job over TCP, independent of NCCL.
 *
 * The process of rank 0 runs the store (store.h) as a thread. Every process, including that of rank
 * 0, is a client of the store. If a process fails or its connection is lost, every wait in the
 * other processes ends with an error that names the lost process. */
#pragma once
#include "launch/environment.h"

typedef struct weft_rendezvous weft_rendezvous;

struct weft_rendezvous_place {
  const char *host; /* name or address of the machine of process 0 */
  uint16_t port;
  const char *token; /* identifies the job; all processes have the same token */

  /* The secret that all processes share, or the file that contains the secret (secret.h): process 0
   * creates the file if it is absent, and the other processes read it when process 0 asks them for
   * a proof. Both NULL: no secret, which is allowed only if `host` is a loopback name or
   * address. */
  const char *secret, *secret_file;

  uint32_t n, process; /* number of processes; number of this process */
  uint32_t local;      /* number of this process among the processes of its machine */
  uint32_t ranks_each;  /* ranks per process, for messages */
  double seconds; /* default time limit in seconds for waits */
};

/* Connects this process and returns when all processes are connected. If some are missing after
 * place->seconds, returns NULL with an error that names their ranks. The strings are copied. */
weft_rendezvous *weft_rendezvous_open (const struct weft_rendezvous_place *place, GError **error);

/* weft_rendezvous_open() with the address, token and secret that the launcher gave. */
weft_rendezvous *weft_rendezvous_open_launch (const struct weft_launch *launch, uint32_t ranks_each,
                                              double seconds, GError **error);

/* Signs off and disconnects. Process 0 waits until the others have signed off or lost their
 * connection. */
void weft_rendezvous_close (weft_rendezvous *r);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_rendezvous, weft_rendezvous_close)

/* The address, token and time limits that were passed to weft_rendezvous_open(). */
const struct weft_rendezvous_place *weft_rendezvous_place (const weft_rendezvous *r);

/* Whether the rendezvous listens on every address of this machine, because no address of
 * place->host belongs to this machine. Only in process 0. */
gboolean weft_rendezvous_is_everywhere (const weft_rendezvous *r);

/* Sets a value that every process can get, of at most WEFT_FRAME_MOST_VALUE bytes (wire.h). Does
 * not wait. */
gboolean weft_rendezvous_set (weft_rendezvous *r, const char *key, GBytes *value, GError **error);

/* Waits until a process has set the value, at most place->seconds. The caller unrefs the value. */
GBytes *weft_rendezvous_get (weft_rendezvous *r, const char *key, GError **error);

/* All-gather: waits until every process has called this function with the same key, at most
 * `seconds` (0: as long as all processes are alive). Returns the values by process; a value is NULL
 * if the process passed NULL or no bytes. The caller unrefs the array. `key` appears in messages to
 * people: "step 17". The values of all processes together may have at most WEFT_FRAME_MOST_VALUE
 * bytes. */
GPtrArray *weft_rendezvous_all_gather (weft_rendezvous *r, const char *key, GBytes *value,
                                       double seconds, GError **error);

/* Gather: like the all-gather, but only process 0 receives the values; the other processes receive
 * an array of NULL. */
GPtrArray *weft_rendezvous_gather (weft_rendezvous *r, const char *key, GBytes *value,
                                   double seconds, GError **error);

/* Barrier: an all-gather without values. `seconds`: as for weft_rendezvous_all_gather(). */
gboolean
weft_rendezvous_barrier (weft_rendezvous *r, const char *key, double seconds, GError **error);

/* Checks for messages of the store while this process waits for something else (a GPU, NCCL). Any
 * thread may call this function. FALSE: the job has failed; the error is the reason. *asked:
 * whether another process asked for the status of this process since the last poll. */
gboolean weft_rendezvous_poll (weft_rendezvous *r, gboolean *asked, GError **error);

/* Sends the status of this process to the store. Call this function after weft_rendezvous_poll()
 * has set *asked. */
void weft_rendezvous_set_status (weft_rendezvous *r, const char *words);

/* Asks every other process for its status. Returns the answers as one text, which also names the
 * processes that do not answer within `seconds`. `words` is the status of this process. The caller
 * frees the text. */
char *weft_rendezvous_ask_status (weft_rendezvous *r, const char *words, double seconds);

/* Ends the job: every other process gets an error with the reason `why`. Only
 * weft_rendezvous_close() may follow. */
void weft_rendezvous_abort (weft_rendezvous *r, const char *why);
