#include "kernels/team.h"
#include "core/base/error.h"
#include <pthread.h>

/* FLOPs plus bytes of a kernel above which it is divided among threads: waking them costs about 10
 * us. */
#define WORTH_SHARING 1e6

struct member {
  struct weft_team *team;
  pthread_t thread;
  uint32_t part;
};

struct weft_team {
  uint32_t n, n_started;
  struct member *member; /* [n]; entry 0 stands for the calling thread, which computes part 0 */
  pthread_mutex_t lock;
  pthread_cond_t begin, end;
  const struct weft_kernel *kernel; /* the kernel that all threads run; guarded by the lock */
  uint64_t task;
  uint32_t n_busy;
  gboolean closing;
};

static void
run_part (const struct weft_team *team, const struct weft_kernel *k, uint32_t part)
{
  weft_kernels[k->kind].cpu (k, part, team->n);
}

static void *
member_main (void *data)
{
  const struct member *self = data;
  struct weft_team *team = self->team;
  uint64_t seen = 0;

  pthread_mutex_lock (&team->lock);
  for (;;) {
    while (team->task == seen && !team->closing)
      pthread_cond_wait (&team->begin, &team->lock);
    if (team->closing)
      break;
    seen = team->task;
    const struct weft_kernel *k = team->kernel;
    pthread_mutex_unlock (&team->lock);
    run_part (team, k, self->part);
    pthread_mutex_lock (&team->lock);
    if (--team->n_busy == 0)
      pthread_cond_signal (&team->end);
  }
  pthread_mutex_unlock (&team->lock);
  return NULL;
}

struct weft_team *
weft_team_new (uint32_t n, GError **error)
{
  struct weft_team *team = g_new0 (struct weft_team, 1);

  team->n = n;
  team->member = g_new0 (struct member, n);
  pthread_mutex_init (&team->lock, NULL);
  pthread_cond_init (&team->begin, NULL);
  pthread_cond_init (&team->end, NULL);
  for (team->n_started = 1; team->n_started < n; team->n_started++) {
    struct member *member = &team->member[team->n_started];
    *member = (struct member){ .team = team, .part = team->n_started };
    int failed = pthread_create (&member->thread, NULL, member_main, member);
    if (failed) {
      weft_run_error (error, "cannot start thread %u of %u: %s", team->n_started + 1, n,
                      g_strerror (failed));
      weft_team_free (team);
      return NULL;
    }
  }
  return team;
}

static void
run_together (struct weft_team *team, const struct weft_kernel *k)
{
  pthread_mutex_lock (&team->lock);
  team->kernel = k;
  team->n_busy = team->n - 1;
  team->task++;
  pthread_cond_broadcast (&team->begin);
  pthread_mutex_unlock (&team->lock);
  run_part (team, k, 0);
  pthread_mutex_lock (&team->lock);
  while (team->n_busy)
    pthread_cond_wait (&team->end, &team->lock);
  pthread_mutex_unlock (&team->lock);
}

void
weft_team_run (struct weft_team *team, const struct weft_kernel *k)
{
  const struct weft_op_info *info = &weft_op_info[k->kind];
  gboolean shared = team && !weft_op_info[k->kind].serial &&
                    info->flops (&k->shape) + info->bytes (&k->shape) > WORTH_SHARING;

  if (shared)
    run_together (team, k);
  else
    weft_kernels[k->kind].cpu (k, 0, 1);
}

void
weft_team_free (struct weft_team *team)
{
  if (!team)
    return;
  pthread_mutex_lock (&team->lock);
  team->closing = TRUE;
  pthread_cond_broadcast (&team->begin);
  pthread_mutex_unlock (&team->lock);
  for (uint32_t i = 1; i < team->n_started; i++)
    pthread_join (team->member[i].thread, NULL);
  pthread_mutex_destroy (&team->lock);
  pthread_cond_destroy (&team->begin);
  pthread_cond_destroy (&team->end);
  g_free (team->member);
  g_free (team);
}
