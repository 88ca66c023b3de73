/* watchdog.h - a thread waits for other ranks, and polls meanwhile. */
#pragma once
#include "exec_gpu/machine.h"

/* What is waited for, and how many seconds after m->since it counts as lost; 0: never. */
struct gpu_watchdog {
  const char *what;
  double seconds;
  gulong pause;           /* microseconds; 0 at first */
  gboolean short_pauses;  /* pauses do not grow */
};

/* One pause between two polls.  FALSE: the deadline has passed, a communicator reports an error, or
 * another process is gone. */
gboolean gpu_watchdog_sleep (struct gpu_machine *m, struct gpu_watchdog *w, GError **error);

/* Until an event has come; until a communicator is ready. */
gboolean gpu_watchdog_wait_event (struct gpu_machine *m, struct gpu_watchdog *w,
                                  weft_gpu_event *event, GError **error);
gboolean gpu_watchdog_wait_comm (struct gpu_machine *m, struct gpu_watchdog *w, weft_gpu_comm *comm,
                                 GError **error);
