/* cast.h - runs the processes of one job as threads of a test. */
#pragma once
#include "launch/rendezvous.h"
#include "launch/wire.h"
#include "tests/runner/runner.h"
#include <gio/gio.h>

/* One process of the job: its task `play`, and afterwards its answer `said` or its error. */
struct part {
  struct weft_rendezvous_place place;
  char *(*play) (weft_rendezvous *r, GError **error);
  char *said;
  GError *error;
};

#define CAST_MOST 8

struct cast {
  uint32_t n;
  struct part part[CAST_MOST];
  GThread *thread[CAST_MOST];
};

/* Returns n processes with the same task and a rendezvous at a free port of 127.0.0.1. They are not
 * started. */
struct cast cast_of (uint32_t n, double seconds,
                     char *(*play) (weft_rendezvous *r, GError **error));

/* Starts process i. */
void cast_start (struct cast *c, uint32_t i);

/* Starts all processes and waits until they have ended. */
void cast_run (struct cast *c);

/* Waits until the processes that were started have ended. */
void cast_finish (struct cast *c);

/* Frees the answers and errors of all processes. */
void cast_clear (struct cast *c);

/* Asserts that process i has returned the answer `wanted`. */
void cast_assert_said (const struct cast *c, uint32_t i, const char *wanted);

/* Asserts that process i has failed with an error that contains `part`. */
void cast_assert_failed (const struct cast *c, uint32_t i, const char *part);

/* Returns the number of the calling process in the job. */
uint32_t cast_process (const weft_rendezvous *r);

/* Waits for the other processes within the time limit of the job. */
gboolean cast_barrier (weft_rendezvous *r, const char *key, GError **error);

/* Connects to a port of 127.0.0.1 from the address `from` of this machine. Waits up to two seconds
 * until a server listens on the port, and otherwise fails the test. */
GSocketConnection *cast_connect (uint16_t port, const char *from);

/* A client that sends any frames, also frames that the rules of the rendezvous forbid. */
struct raw_client {
  GSocketConnection *connection;
  GByteArray *in;
  gsize done;
};
struct raw_client raw_connect (uint16_t port, const char *from);
void raw_close (struct raw_client *raw);

/* Sends a frame. Returns FALSE if the connection fails. */
gboolean raw_send (struct raw_client *raw, const struct weft_frame *frame);

/* Receives the next frame, which is valid until the next call. FALSE: the connection is closed, or
 * no frame has arrived for ten seconds. */
gboolean raw_next (struct raw_client *raw, struct weft_frame *frame);

/* Sends a hello frame as process number `process` of the n processes of a job, and receives the
 * answer. */
gboolean raw_hello (struct raw_client *raw, uint32_t process, uint32_t n,
                    struct weft_frame *answer);
