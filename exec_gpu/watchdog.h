/* watchdog.h - waits for other ranks: polls events and communicators until a deadline. */
#pragma once
#include "exec_gpu/machine.h"

/* A wait. `what` names the awaited work in messages. `seconds` is the time limit, counted from
 * m->since; 0: no limit. */
struct gpu_watchdog {
  const char *what;
  double seconds;
  gulong pause;           /* length of the last pause in microseconds; 0 before the first pause */
  gboolean short_pauses;  /* TRUE: all pauses have the shortest length */
  gint64 expected;        /* microseconds from m->since to the likely end; 0: unknown */
};

/* Length in microseconds of the next pause, `elapsed` microseconds after m->since: the last pause
 * doubled, 20 to 200. 0, near the expected end: the thread only yields the processor, so that the
 * end is seen at once. */
gulong gpu_watchdog_pause (const struct gpu_watchdog *w, gint64 elapsed);

/* Pauses once between two polls. FALSE: the deadline has passed, a communicator has reported an
 * error, or another process has ended. */
gboolean gpu_watchdog_sleep (struct gpu_machine *m, struct gpu_watchdog *w, GError **error);

/* Polls until the GPU has reached an event. */
gboolean gpu_watchdog_wait_event (struct gpu_machine *m, struct gpu_watchdog *w,
                                  weft_gpu_event *event, GError **error);

/* Polls until a communicator is ready for use. */
gboolean gpu_watchdog_wait_comm (struct gpu_machine *m, struct gpu_watchdog *w, weft_gpu_comm *comm,
                                 GError **error);
