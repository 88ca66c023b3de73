/* signals.h - the signals that ask a run to stop, and their blocking in helper threads.
 *
 * These signals are delivered to any thread of the process that does not block them, and end the
 * process by default. The training loop polls for them between steps (train/trainer.h), so helper
 * threads must block them. */
#pragma once
#include <signal.h>

/* Columns: signal, usual sender. */
#define WEFT_STOP_SIGNAL_LIST(X)                                                                   \
  X (SIGTERM, "schedulers and `kill`")                                                             \
  X (SIGINT, "Ctrl-C")                                                                             \
  X (SIGHUP, "a terminal or connection that closes")                                               \
  X (SIGUSR1, "Slurm, some time before the end of the job: sbatch --signal=USR1@120")              \
  X (SIGXFSZ, "the kernel, when a file reaches the size limit of the process (ulimit -f)")

/* Blocks the signals listed above in this thread and in the threads that it starts from now on.
 * *before receives the old mask. */
void weft_signals_block (sigset_t *before);

/* Sets the signal mask of this thread to *before. */
void weft_signals_restore (const sigset_t *before);

/* Signals that one thread of the process polls for. */
struct weft_signals {
  sigset_t watched, before; /* before: the mask of the thread before weft_signals_watch() */
  struct sigaction limit;   /* the action for SIGXFSZ before weft_signals_watch() */
};

/* Blocks the signals listed above in this thread and in the threads that it starts, and watches for
 * them. Signals that the process ignores are not watched (nohup), except SIGXFSZ: programs ignore
 * it to get an error from write(). */
void weft_signals_watch (struct weft_signals *signals);

/* The number of a watched signal that has arrived, which this call consumes; 0 if there is none. */
int weft_signals_poll (const struct weft_signals *signals);

/* Consumes the watched signals that have arrived and restores the mask. */
void weft_signals_unwatch (const struct weft_signals *signals);

/* "SIGTERM" for a signal of the list, else "another process". */
const char *weft_signals_name (int signal);
