#include "exec_cpu/ready.h"

/* The ring buffer cannot overflow: it contains each rank at most once. */
void
cpu_ready_add (struct cpu_machine *m, uint32_t row)
{
  m->ready[(m->first_ready + m->n_ready++) % m->n] = row;
  if (m->n_idle > 0)
    pthread_cond_signal (&m->work);
}

struct cpu_rank *
cpu_ready_take (struct cpu_machine *m)
{
  struct cpu_rank *r = &m->rank[m->ready[m->first_ready]];

  m->first_ready = (m->first_ready + 1) % m->n;
  m->n_ready--;
  return r;
}

static void
wake_locked (struct cpu_machine *m, uint32_t row)
{
  struct cpu_rank *r = &m->rank[row];

  atomic_fetch_add (&r->signals, 1);
  if (r->asleep) {
    r->asleep = FALSE;
    cpu_ready_add (m, row);
  }
}

void
cpu_ready_wake (struct cpu_machine *m, uint32_t row)
{
  pthread_mutex_lock (&m->lock);
  wake_locked (m, row);
  pthread_mutex_unlock (&m->lock);
}

void
cpu_ready_wake_group (struct cpu_machine *m, const struct weft_group *group)
{
  pthread_mutex_lock (&m->lock);
  for (uint32_t i = 0; i < weft_group_size (group); i++)
    wake_locked (m, weft_group_rank (group, i));
  pthread_mutex_unlock (&m->lock);
}
