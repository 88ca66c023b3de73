/* rendezvous.h - what a process of a job of several has to do with the others, outside of NCCL.
 *
 * Rank 0's process keeps the store (store.h); all of them, that one too, talk to it over TCP.  When
 * one process fails, or is gone, every wait of the others ends with an error that names it. */
#pragma once
#include "launch/environment.h"

typedef struct weft_rendezvous weft_rendezvous;

struct weft_rendezvous_place {
  const char *host; /* of process 0 */
  uint16_t port;
  const char *token; /* of the job */
  uint32_t n, process;
  uint32_t each;  /* ranks of a process, which messages speak of */
  double seconds; /* how long processes wait for each other, where nothing else is said */
};

/* Returns when all have come; or with the names of those that have not. */
weft_rendezvous *weft_rendezvous_open (const struct weft_rendezvous_place *place, GError **error);

/* The same as a launcher's variables say it. */
weft_rendezvous *weft_rendezvous_of (const struct weft_launch *launch, uint32_t each, double seconds,
                                     GError **error);

/* A farewell.  Process 0 waits until the others have said theirs, or are gone. */
void weft_rendezvous_close (weft_rendezvous *r);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_rendezvous, weft_rendezvous_close)

const struct weft_rendezvous_place *weft_rendezvous_place (const weft_rendezvous *r);

/* A value for all, and one that somebody has set or will set. */
gboolean weft_rendezvous_set (weft_rendezvous *r, const char *key, GBytes *value, GError **error);
GBytes *weft_rendezvous_get (weft_rendezvous *r, const char *key, GError **error);

/* Waits until all are here, `seconds` at most (0: as long as all are alive), and gives what each has
 * brought: by process, NULL for who brings nothing, which `value` may be.  What people read of it is
 * `key`: "step 17". */
GPtrArray *weft_rendezvous_meet (weft_rendezvous *r, const char *key, GBytes *value, double seconds,
                                 GError **error);
/* The same, but only process 0 gets what was brought; for the others it is as if nobody had. */
GPtrArray *weft_rendezvous_gather (weft_rendezvous *r, const char *key, GBytes *value,
                                   double seconds, GError **error);
gboolean weft_rendezvous_barrier (weft_rendezvous *r, const char *key, GError **error);

/* While something else is waited for, from any thread: FALSE when all must end; *asked is set where
 * somebody wants to know how far this process is, which say() answers. */
gboolean weft_rendezvous_look (weft_rendezvous *r, gboolean *asked, GError **error);
void weft_rendezvous_say (weft_rendezvous *r, const char *words);

/* How far the others are, in words; those that say nothing for `seconds` are named.  `words` are its
 * own, for others that ask.  Caller frees. */
char *weft_rendezvous_report (weft_rendezvous *r, const char *words, double seconds);

/* All must end, and are told why.  Nothing but close() may follow. */
void weft_rendezvous_abort (weft_rendezvous *r, const char *why);
