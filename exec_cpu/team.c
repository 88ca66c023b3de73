#include "exec_cpu/team.h"

struct member {
  struct cpu_team *team;
  GThread *thread;
  uint32_t part;
};

struct cpu_team {
  uint32_t n;
  struct member *member; /* n - 1: part 0 is the caller's */
  GMutex lock;
  GCond begin, end;
  const struct weft_kernel *kernel; /* all under the lock */
  uint64_t task;
  uint32_t n_busy;
  gboolean closing;
};

static void
run_part (const struct cpu_team *team, const struct weft_kernel *k, uint32_t part)
{
  weft_kernels[k->kind].cpu (k, part, team->n);
}

static gpointer
member_main (gpointer data)
{
  const struct member *self = data;
  struct cpu_team *team = self->team;
  uint64_t seen = 0;

  g_mutex_lock (&team->lock);
  for (;;) {
    while (team->task == seen && !team->closing)
      g_cond_wait (&team->begin, &team->lock);
    if (team->closing)
      break;
    seen = team->task;
    const struct weft_kernel *k = team->kernel;
    g_mutex_unlock (&team->lock);
    run_part (team, k, self->part);
    g_mutex_lock (&team->lock);
    if (--team->n_busy == 0)
      g_cond_signal (&team->end);
  }
  g_mutex_unlock (&team->lock);
  return NULL;
}

struct cpu_team *
cpu_team_new (uint32_t n)
{
  struct cpu_team *team = g_new0 (struct cpu_team, 1);

  team->n = n;
  team->member = g_new0 (struct member, n);
  g_mutex_init (&team->lock);
  g_cond_init (&team->begin);
  g_cond_init (&team->end);
  for (uint32_t i = 1; i < n; i++) {
    team->member[i] = (struct member){ .team = team, .part = i };
    team->member[i].thread = g_thread_new ("part", member_main, &team->member[i]);
  }
  return team;
}

void
cpu_team_run (struct cpu_team *team, const struct weft_kernel *k)
{
  g_mutex_lock (&team->lock);
  team->kernel = k;
  team->n_busy = team->n - 1;
  team->task++;
  g_cond_broadcast (&team->begin);
  g_mutex_unlock (&team->lock);
  run_part (team, k, 0);
  g_mutex_lock (&team->lock);
  while (team->n_busy)
    g_cond_wait (&team->end, &team->lock);
  g_mutex_unlock (&team->lock);
}

void
cpu_team_free (struct cpu_team *team)
{
  if (!team)
    return;
  g_mutex_lock (&team->lock);
  team->closing = TRUE;
  g_cond_broadcast (&team->begin);
  g_mutex_unlock (&team->lock);
  for (uint32_t i = 1; i < team->n; i++)
    g_thread_join (team->member[i].thread);
  g_mutex_clear (&team->lock);
  g_cond_clear (&team->begin);
  g_cond_clear (&team->end);
  g_free (team->member);
  g_free (team);
}
