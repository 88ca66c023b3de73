#include "launch/signals.h"
#include <pthread.h>
#include <stddef.h>

void
weft_signals_block (sigset_t *before)
{
  sigset_t both;

  sigemptyset (&both);
  sigaddset (&both, SIGTERM);
  sigaddset (&both, SIGINT);
  pthread_sigmask (SIG_BLOCK, &both, before);
}

void
weft_signals_restore (const sigset_t *before)
{
  pthread_sigmask (SIG_SETMASK, before, NULL);
}
