/* signals.h - SIGTERM and SIGINT are delivered to any thread of the process that does not block
 * them, and end the process by default. The training loop polls for them between steps
 * (train/trainer.h), so helper threads must block both. */
#pragma once
#include <signal.h>

/* Blocks both signals in this thread, and in threads that it starts from now on; *before receives
 * the old mask. */
void weft_signals_block (sigset_t *before);
void weft_signals_restore (const sigset_t *before);
