/* cast.h - processes of one job as threads of a test. */
#pragma once
#include "launch/rendezvous.h"
#include "launch/wire.h"
#include "tests/runner/runner.h"
#include <gio/gio.h>

/* One process: its task, and its error or its answer. */
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

/* n processes with the same task, whose rendezvous is at a free port of 127.0.0.1. */
struct cast cast_of (uint32_t n, double seconds,
                     char *(*play) (weft_rendezvous *r, GError **error));

/* Starts one process; starts all and waits; waits for those that were started. */
void cast_start (struct cast *c, uint32_t i);
void cast_run (struct cast *c);
void cast_finish (struct cast *c);
void cast_clear (struct cast *c);

/* Asserts that a process has answered; that it has failed with an error that contains `part`. */
void cast_assert_said (const struct cast *c, uint32_t i, const char *wanted);
void cast_assert_failed (const struct cast *c, uint32_t i, const char *part);

/* Number of the process. */
uint32_t cast_process (const weft_rendezvous *r);

/* Waits for the other processes within the time limit of the job. */
gboolean cast_barrier (weft_rendezvous *r, const char *key, GError **error);

/* Connects to a port of 127.0.0.1 from another address of this machine, and waits until somebody
 * listens there. */
GSocketConnection *cast_connect (uint16_t port, const char *from);

/* Frames of a client that follows no rules: sends one; receives the next one, which is valid until
 * the next call (FALSE: the connection is closed, or nothing has come for ten seconds). */
struct raw_client {
  GSocketConnection *connection;
  GByteArray *in;
  gsize done;
};
struct raw_client raw_connect (uint16_t port, const char *from);
void raw_close (struct raw_client *raw);
gboolean raw_send (struct raw_client *raw, const struct weft_frame *frame);
gboolean raw_next (struct raw_client *raw, struct weft_frame *frame);

/* Sends a hello as that process of n of the job, and receives the answer. */
gboolean raw_hello (struct raw_client *raw, uint32_t process, uint32_t n,
                    struct weft_frame *answer);
