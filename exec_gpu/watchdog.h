/* watchdog.h - waits for other ranks: polls events and communicators until a deadline. */
#pragma once
#include "exec_gpu/machine.h"

/* `what` names the work in messages. `seconds` is the deadline, counted from m->since; 0: none. */
struct gpu_watchdog {
  const char *what;
  double seconds;
  gulong pause;           /* microseconds between two polls; 0 before the first pause */
  gboolean short_pauses;  /* pauses do not grow */
};

/* Sleeps between two polls.  FALSE: the deadline has passed, a communicator has reported an error,
 * or another process has ended. */
gboolean gpu_watchdog_sleep (struct gpu_machine *m, struct gpu_watchdog *w, GError **error);

/* Waits until an event has been reached. */
gboolean gpu_watchdog_wait_event (struct gpu_machine *m, struct gpu_watchdog *w,
                                  weft_gpu_event *event, GError **error);

/* Waits until a communicator is ready. */
gboolean gpu_watchdog_wait_comm (struct gpu_machine *m, struct gpu_watchdog *w, weft_gpu_comm *comm,
                                 GError **error);
