#include "train/spread.h"
#include <glib.h>

#define SHARE (1u << 16) /* one thread is used per this many elements, and one more for the rest */
#define MOST_THREADS 32u

struct stretch {
  void (*run) (void *data, uint64_t first, uint64_t n);
  void *data;
  uint64_t first, n;
};

static void *
run_stretch (void *data)
{
  const struct stretch *s = data;

  s->run (s->data, s->first, s->n);
  return NULL;
}

void
weft_spread (uint64_t total, void (*run) (void *data, uint64_t first, uint64_t n), void *data)
{
  uint64_t wanted = MIN (total / SHARE + 1, MOST_THREADS);

  /* the number of processors is read from a file of the system: not for each small tensor */
  if (wanted > 1)
    wanted = MIN (wanted, g_get_num_processors ());
  uint64_t each = (total / wanted + 1) & ~(uint64_t) 1;
  struct stretch part[MOST_THREADS];
  GThread *thread[MOST_THREADS] = { NULL };

  for (uint64_t t = 0; t < wanted; t++) {
    uint64_t from = MIN (t * each, total), to = t + 1 < wanted ? MIN (from + each, total) : total;
    part[t] = (struct stretch){ run, data, from, to - from };
    if (t > 0)
      thread[t] = g_thread_try_new ("weft-spread", run_stretch, &part[t], NULL);
    if (t > 0 && !thread[t])
      run_stretch (&part[t]);
  }
  run_stretch (&part[0]);
  for (uint64_t t = 1; t < wanted; t++)
    if (thread[t])
      g_thread_join (thread[t]);
}
