/* signals.h - blocking SIGTERM and SIGINT in helper threads.
 *
 * Both signals are delivered to any thread of the process that does not block them, and end the
 * process by default. The training loop polls for them between steps (train/trainer.h), so helper
 * threads must block both. */
#pragma once
#include <signal.h>

/* Blocks SIGTERM and SIGINT in this thread and in the threads that it starts from now on. *before
 * receives the old mask. */
void weft_signals_block (sigset_t *before);

/* Sets the signal mask of this thread to *before. */
void weft_signals_restore (const sigset_t *before);
