#include "launch/signals.h"
#include <pthread.h>
#include <stddef.h>
#include <time.h>

static const struct {
  int number;
  const char *name;
} stops[] = {
#define STOP_ROW(signal, who) { signal, #signal },
  WEFT_STOP_SIGNAL_LIST (STOP_ROW)
#undef STOP_ROW
};

#define N_STOP (sizeof stops / sizeof *stops)

void
weft_signals_block (sigset_t *before)
{
  sigset_t all;

  sigemptyset (&all);
  for (size_t i = 0; i < N_STOP; i++)
    sigaddset (&all, stops[i].number);
  pthread_sigmask (SIG_BLOCK, &all, before);
}

void
weft_signals_restore (const sigset_t *before)
{
  pthread_sigmask (SIG_SETMASK, before, NULL);
}

void
weft_signals_watch (struct weft_signals *s)
{
  const struct sigaction by_default = { .sa_handler = SIG_DFL };
  struct sigaction now;

  sigemptyset (&s->watched);
  for (size_t i = 0; i < N_STOP; i++)
    if (stops[i].number == SIGXFSZ ||
        (sigaction (stops[i].number, NULL, &now) == 0 && now.sa_handler != SIG_IGN))
      sigaddset (&s->watched, stops[i].number);
  pthread_sigmask (SIG_BLOCK, &s->watched, &s->before);
  /* SIGXFSZ must not be ignored, because the kernel discards ignored signals */
  sigaction (SIGXFSZ, &by_default, &s->limit);
}

int
weft_signals_poll (const struct weft_signals *s)
{
  const struct timespec at_once = { 0, 0 };
  int signal = sigtimedwait (&s->watched, NULL, &at_once);

  return signal > 0 ? signal : 0;
}

void
weft_signals_unwatch (const struct weft_signals *s)
{
  while (weft_signals_poll (s))
    continue;
  sigaction (SIGXFSZ, &s->limit, NULL);
  weft_signals_restore (&s->before);
}

const char *
weft_signals_name (int signal)
{
  for (size_t i = 0; i < N_STOP; i++)
    if (stops[i].number == signal)
      return stops[i].name;
  return "another process";
}
