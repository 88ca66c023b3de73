#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "planner/workers.h"
#include "core/base/error.h"
#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Memory that all workers share: the number of the next task, one flag for each task, and the
 * results. */
struct shared {
  _Atomic uint32_t next;
  _Atomic uint8_t done[];
};

struct running {
  const struct weft_workers *tasks;
  struct shared *shared;
  char *results;      /* results of the tasks, in the shared memory */
  size_t bytes;       /* size of the shared memory */
  uint32_t n, n_done; /* number of workers, and of tasks that earlier workers have finished */
  pid_t *pid;
  int finished[2]; /* a pipe into which a worker writes one byte for each finished task */
};

/* The result of each task begins at a multiple of 64 bytes, so that every type is aligned. */
static size_t
results_at (const struct weft_workers *tasks)
{
  return (sizeof (struct shared) + tasks->n_tasks + 63) / 64 * 64;
}

static void
work (struct running *w)
{
  const struct weft_workers *tasks = w->tasks;

  for (uint32_t task; (task = atomic_fetch_add (&w->shared->next, 1)) < tasks->n_tasks;) {
    if (atomic_load (&w->shared->done[task]))
      continue;
    tasks->run (tasks->user, task, w->results + task * tasks->result_bytes);
    atomic_store (&w->shared->done[task], 1);
    while (write (w->finished[1], "", 1) < 0 && errno == EINTR)
      ;
  }
}

/* Lets the allocator keep freed memory, up to this many bytes at the end of the heap: tasks
 * allocate and free large arrays, and new pages cost more than the arrays. */
#define KEPT_BYTES (1 << 30)

/* Bytes of heap that a worker takes as huge pages. Small pages cost a fault each. */
#define HUGE_BYTES ((size_t) 256 << 20)

/* Most of the bytes are never touched, and so take no memory. */
void
weft_workers_keep_memory (void)
{
  const uintptr_t page = (uintptr_t) 2 << 20;

  mallopt (M_MMAP_THRESHOLD, KEPT_BYTES);
  mallopt (M_TRIM_THRESHOLD, KEPT_BYTES);
  char *heap = malloc (HUGE_BYTES);
  if (!heap)
    return;
  uintptr_t first = ((uintptr_t) heap + page - 1) / page * page;
  madvise ((char *) first, (HUGE_BYTES - page) / page * page, MADV_HUGEPAGE);
  free (heap);
}

void
weft_workers_end_with (pid_t parent)
{
  prctl (PR_SET_PDEATHSIG, SIGKILL);
  if (getppid () != parent)
    _exit (1);
}

/* Starts the worker processes. The children end with _exit(), so that they do not write the
 * contents of the parent's output buffers a second time. */
static void
start (struct running *w, uint32_t n)
{
  const pid_t parent = getpid ();

  for (w->n = 0; w->n < n; w->n++) {
    w->pid[w->n] = fork ();
    if (w->pid[w->n] < 0)
      return;
    if (w->pid[w->n] == 0) {
      weft_workers_end_with (parent);
      close (w->finished[0]);
      weft_workers_keep_memory ();
      work (w);
      _exit (0);
    }
  }
}

static gboolean
stops (const struct weft_workers *tasks)
{
  return tasks->stop && tasks->stop (tasks->progress_user);
}

/* Counts the finished tasks until the last worker has closed the pipe. */
static void
watch (struct running *w)
{
  char bytes[64];
  uint32_t done = w->n_done;

  for (;;) {
    ssize_t n = read (w->finished[0], bytes, sizeof bytes);
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0)
      return;
    done += (uint32_t) n;
    if (w->tasks->progress)
      w->tasks->progress (w->tasks->progress_user, done, w->tasks->n_tasks);
    if (stops (w->tasks))
      atomic_store (&w->shared->next, w->tasks->n_tasks);
  }
}

static void
join (struct running *w)
{
  for (uint32_t i = 0; i < w->n; i++)
    while (waitpid (w->pid[i], NULL, 0) < 0 && errno == EINTR)
      ;
}

static uint32_t
count_done (const struct running *w)
{
  uint32_t n = 0;

  for (uint32_t task = 0; task < w->tasks->n_tasks; task++)
    n += atomic_load (&w->shared->done[task]) != 0;
  return n;
}

/* Starts groups of workers until every task was taken. If all workers of a group end early, each
 * has taken at least one task, so the number of groups is limited. */
static gboolean
run_workers (struct running *w, uint32_t n, GError **error)
{
  do {
    if (pipe (w->finished))
      return weft_run_error (error, "no pipe to the workers: %s", g_strerror (errno));
    w->n_done = count_done (w);
    start (w, n);
    int failed = errno;
    close (w->finished[1]);
    watch (w);
    close (w->finished[0]);
    join (w);
    if (w->n == 0)
      return weft_run_error (error, "no process to predict rows: %s", g_strerror (failed));
  } while (atomic_load (&w->shared->next) < w->tasks->n_tasks);
  return TRUE;
}

/* Lets workers take the tasks again whose worker has ended early, unless tasks were stopped.
 * Returns whether there are any. */
static gboolean
reopen_lost (struct running *w)
{
  const struct weft_workers *tasks = w->tasks;

  if (count_done (w) == tasks->n_tasks || stops (tasks))
    return FALSE;
  for (uint32_t task = 0; task < tasks->n_tasks; task++)
    if (!atomic_load (&w->shared->done[task]))
      memset (w->results + task * tasks->result_bytes, 0, tasks->result_bytes);
  atomic_store (&w->shared->next, 0);
  return TRUE;
}

static void
run_here (const struct weft_workers *tasks, char *results, gboolean *done)
{
  for (uint32_t task = 0; task < tasks->n_tasks && !stops (tasks); task++) {
    tasks->run (tasks->user, task, results + task * tasks->result_bytes);
    done[task] = TRUE;
    if (tasks->progress)
      tasks->progress (tasks->progress_user, task + 1, tasks->n_tasks);
  }
}

static gboolean
run_forked (const struct weft_workers *tasks, uint32_t n, char *results, gboolean *done,
            GError **error)
{
  g_autofree pid_t *pid = g_new (pid_t, n);
  struct running w = { .tasks = tasks,
                       .bytes = results_at (tasks) + tasks->n_tasks * tasks->result_bytes,
                       .pid = pid };

  w.shared = mmap (NULL, w.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (w.shared == MAP_FAILED)
    return weft_run_error (error, "no memory for %zu bytes of results: %s", w.bytes,
                           g_strerror (errno));
  w.results = (char *) w.shared + results_at (tasks);
  gboolean good = run_workers (&w, n, error) && (!reopen_lost (&w) || run_workers (&w, n, error));
  memcpy (results, w.results, tasks->n_tasks * tasks->result_bytes);
  for (uint32_t task = 0; task < tasks->n_tasks; task++)
    done[task] = atomic_load (&w.shared->done[task]) != 0;
  munmap (w.shared, w.bytes);
  return good;
}

gboolean
weft_workers_run (const struct weft_workers *tasks, void *results, gboolean *done, GError **error)
{
  uint32_t n = MIN (tasks->n_workers ? tasks->n_workers : g_get_num_processors (), tasks->n_tasks);

  memset (results, 0, tasks->n_tasks * tasks->result_bytes);
  if (tasks->n_workers != 1)
    return run_forked (tasks, n, results, done, error);
  run_here (tasks, results, done);
  return TRUE;
}
