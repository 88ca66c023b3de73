/* store_state.h - what the files of the store share: store.c has the connections and the event
 * loop, store_strangers.c admits processes, store_requests.c answers those that are admitted. */
#pragma once
#include "launch/link.h"
#include "launch/listening.h"
#include "launch/store.h"
#include <pthread.h>

#define WEFT_STORE_NOBODY 0xffffffffu

/* The store handles no further request of a process while more than this number of bytes waits to
 * be sent to the process. */
#define WEFT_STORE_MOST_UNSENT (1u << 20)

/* A stranger: a connection that is not yet admitted as a process of the job. */
struct weft_store_stranger {
  GInetAddress *from;
  gint64 until;
  struct weft_hello hello;
  /* process number that the stranger sent in its hello; WEFT_STORE_NOBODY before the hello */
  uint32_t process;
  GByteArray *transcript; /* bytes that both sides have sent during the handshake */
};

/* A connection, of a stranger (not admitted yet) or of a process of the job. */
struct weft_store_peer {
  struct weft_link link;
  struct weft_store_stranger *stranger; /* NULL: admitted */
  /* process number of the client; WEFT_STORE_NOBODY: the client is not admitted */
  uint32_t process;
  /* bytes of received input that are counted in weft_store.memory */
  gsize counted;
  gboolean closing_peer;          /* close the connection when everything has been sent */
  char *waiting_key;              /* the key of the value that this client waits for */
};

/* State of one process of the job in the store. */
struct weft_store_member {
  struct weft_store_peer
      /* connection of the process; not owned; NULL before its hello and after the connection is
       * lost */
      *peer;
  /* last: key of the last exchange (collective) that the process has called */
  char *host, *last, *status;
  gint64 heard, status_at;    /* time of the last frame from the process; time of its last status */
  /* deadline of a report that this process has requested; 0: no request */
  gint64 report_until;
  gboolean joined, left;
  gboolean asked; /* the process was asked for a status and has not sent it yet */
};

struct weft_store_exchange {
  char *key;
  GBytes **value; /* by process: its value */
  uint8_t *joined;
  uint32_t n_joined, n;
  gsize bytes;  /* number of bytes of the values of all processes */
  gsize memory; /* bytes of this exchange that are counted in weft_store.memory */
};

struct weft_store {
  struct weft_store_options options;
  char *token, *secret;
  struct weft_listening listening;
  pthread_t thread;
  gint closing; /* atomic */

  GPtrArray *peers;
  struct weft_store_member *member;
  uint32_t n_joined, n_strangers;
  gsize memory; /* bytes of values, incomplete exchanges and incomplete frames */
  GHashTable *values, *exchanges;
  gint64 opened;
  char *stopped; /* why the job has failed; NULL: it has not failed */
};

/* Makes a store, which at first has no connections, no listening sockets and no thread. */
weft_store *weft_store_new (const struct weft_store_options *options);
void weft_store_free (weft_store *s);

/* "rank 3", as weft_store_name(). The caller frees the string. */
char *weft_store_name_of (const weft_store *s, uint32_t process);
const char *weft_store_host_of (const struct weft_store_member *m);

/* Appends "rank 2 on b (last seen at step 17, 3 s ago)". */
void weft_store_append_member (const weft_store *s, GString *text, uint32_t process);

/* Queues a frame for sending. Key and value may be NULL. */
void weft_store_put (struct weft_store_peer *p, enum weft_frame_kind kind, GBytes *key,
                     GBytes *value);
void weft_store_put_text (struct weft_store_peer *p, enum weft_frame_kind kind, const char *text);

/* Sends the reason of a refusal, then closes the connection. */
void weft_store_refuse (struct weft_store_peer *p, const char *text);

/* Ends the job: sends the reason to every client, now or when it connects. */
void weft_store_stop (weft_store *s, const char *format, ...) G_GNUC_PRINTF (2, 3);

/* Adds `bytes` from this peer to s->memory. A process that exceeds the limit ends the job, and the
 * store reads nothing more from it. */
void weft_store_count (weft_store *s, struct weft_store_peer *p, gsize bytes);

/* Closes a connection. A process that has not signed off counts as dead, which ends the job. */
void weft_store_drop (weft_store *s, struct weft_store_peer *p);

/* store_strangers.c: accepts connections of one listening socket. */
void weft_store_accept (weft_store *s, GSocket *listening);

/* store_strangers.c: adds a new connection, which is a stranger until it is admitted. The
 * connection then owns the socket. */
struct weft_store_peer *weft_store_add_stranger (weft_store *s, GSocket *socket);

/* store_strangers.c: handles a frame from a stranger (a connection that is not admitted yet).
 * FALSE: the connection must be closed. */
gboolean weft_store_on_stranger (weft_store *s, struct weft_store_peer *p,
                                 const struct weft_frame *f);
void weft_store_stranger_free (struct weft_store_stranger *stranger);

/* store_requests.c: handles a frame of a process. FALSE: the connection must be closed. */
gboolean weft_store_on_request (weft_store *s, struct weft_store_peer *p,
                                const struct weft_frame *f);

/* store_requests.c: sends the reports that are complete or whose deadline has passed. */
void weft_store_finish_reports (weft_store *s, gint64 now);
void weft_store_exchange_free (void *exchange);
