/* signals.h - SIGTERM and SIGINT ask a whole process to end, and any of its threads that does not block
 * them may be the one that gets them.  A run looks for them where it can stop (train/trainer.h): threads
 * beside it must not be ended by them, and the process with them. */
#pragma once
#include <signal.h>

/* Blocks both in this thread, and in threads that it starts from now on; *before is how it was. */
void weft_signals_hold (sigset_t *before);
void weft_signals_let_go (const sigset_t *before);
