#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "cli/interrupt.h"
#include <sys/mman.h>

/* Memory that this process shares with the processes that it starts. Ctrl-C on a terminal is sent
 * to all of them, but `kill -INT` is sent to one process only. */
static volatile sig_atomic_t *interrupted;

static void
interrupt (int signal)
{
  (void) signal;
  *interrupted = 1;
}

void
weft_cli_catch_interrupt (void)
{
  struct sigaction action = { .sa_handler = interrupt, .sa_flags = (int) SA_RESETHAND };

  interrupted =
      mmap (NULL, sizeof *interrupted, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (interrupted != MAP_FAILED)
    sigaction (SIGINT, &action, NULL);
  else
    interrupted = NULL;
}

gboolean
weft_cli_is_interrupted (void *user)
{
  (void) user;
  return interrupted && *interrupted;
}
