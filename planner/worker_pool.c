#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "planner/worker_pool.h"
#include "core/base/error.h"
#include "core/base/invariant.h"
#include "planner/workers.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NO_TASK = -1 };

/* What a process writes when a task is done. */
enum reply { REPLY_NEXT = 1, REPLY_LAST };

struct worker {
  pid_t pid;    /* 0: the process is not running */
  int to, from; /* pipes: numbers of tasks to the process, replies from it */
  int64_t task; /* the task that it runs, or NO_TASK */
};

struct weft_worker_pool {
  struct weft_worker_pool_work work;
  char *shared; /* tasks, then results; shared by all processes */
  size_t task_step, result_step, bytes;
  uint32_t n;
  struct worker *worker;
};

/* Every task and result begins at a multiple of 64 bytes, so that every type is aligned. */
static size_t
step_of (size_t bytes)
{
  return (bytes + 63) / 64 * 64;
}

static char *
task_at (const weft_worker_pool *pool, uint32_t task)
{
  return pool->shared + task * pool->task_step;
}

static char *
result_at (const weft_worker_pool *pool, uint32_t task)
{
  return pool->shared + pool->work.most * pool->task_step + task * pool->result_step;
}

weft_worker_pool *
weft_worker_pool_new (const struct weft_worker_pool_work *work, GError **error)
{
  weft_worker_pool *pool = g_new0 (weft_worker_pool, 1);

  pool->work = *work;
  pool->task_step = step_of (work->task_bytes);
  pool->result_step = step_of (work->result_bytes);
  pool->bytes = work->most * (pool->task_step + pool->result_step);
  pool->n = MIN (work->n_workers ? work->n_workers : g_get_num_processors (), work->most);
  pool->worker = g_new (struct worker, pool->n);
  for (uint32_t i = 0; i < pool->n; i++)
    pool->worker[i] = (struct worker){ .task = NO_TASK };
  pool->shared =
      mmap (NULL, pool->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (pool->shared != MAP_FAILED)
    return pool;
  weft_run_error (error, "no memory for %zu bytes of results: %s", pool->bytes, g_strerror (errno));
  pool->shared = NULL;
  weft_worker_pool_free (pool);
  return NULL;
}

/* Reads or writes one number. Returns FALSE at the end of the pipe and on errors. */
static gboolean
receive (int from, uint32_t *number)
{
  ssize_t n;

  while ((n = read (from, number, sizeof *number)) < 0 && errno == EINTR)
    ;
  return n == sizeof *number;
}

static gboolean
send (int to, uint32_t number)
{
  ssize_t n;

  while ((n = write (to, &number, sizeof number)) < 0 && errno == EINTR)
    ;
  return n == sizeof number;
}

/* The life of a process: it ends when its pool closes the pipe. */
static void
serve (const weft_worker_pool *pool, int from, int to)
{
  gboolean more = TRUE;

  for (uint32_t task; more && receive (from, &task);) {
    more = pool->work.run (pool->work.user, task_at (pool, task), result_at (pool, task));
    more = send (to, more ? REPLY_NEXT : REPLY_LAST) && more;
  }
}

/* Closes the pipes of all processes, so that a process ends when its pool does, although later
 * forks have copies of its pipes. */
static void
forget_all (const weft_worker_pool *pool)
{
  for (uint32_t i = 0; i < pool->n; i++)
    if (pool->worker[i].pid) {
      close (pool->worker[i].to);
      close (pool->worker[i].from);
    }
}

static void
close_pair (const int pair[2])
{
  close (pair[0]);
  close (pair[1]);
}

/* Starts a process. It ends with _exit(), so that it does not write the contents of the parent's
 * output buffers a second time. */
static gboolean
start (const weft_worker_pool *pool, struct worker *w)
{
  const pid_t parent = getpid ();
  int to[2], from[2];

  if (pipe (to))
    return FALSE;
  if (pipe (from)) {
    close_pair (to);
    return FALSE;
  }
  pid_t pid = fork ();
  if (pid == 0) {
    weft_workers_end_with (parent);
    forget_all (pool);
    close (to[1]);
    close (from[0]);
    weft_workers_keep_memory ();
    serve (pool, to[0], from[1]);
    _exit (0);
  }
  close (to[0]);
  close (from[1]);
  *w = (struct worker){ MAX (pid, 0), to[1], from[0], NO_TASK };
  if (pid > 0)
    return TRUE;
  close (to[1]);
  close (from[0]);
  return FALSE;
}

static void
end (struct worker *w)
{
  close (w->to);
  close (w->from);
  while (waitpid (w->pid, NULL, 0) < 0 && errno == EINTR)
    ;
  *w = (struct worker){ .task = NO_TASK };
}

/* Sends a task to a process that has none. If the process was killed since its last task, a new one
 * takes its place. */
static gboolean
send_task (const weft_worker_pool *pool, struct worker *w, uint32_t task)
{
  for (int attempt = 0; attempt < 2 && (w->pid || start (pool, w)); attempt++) {
    w->task = task;
    if (send (w->to, task))
      return TRUE;
    end (w);
  }
  return FALSE;
}

/* Gives a task to a process that has none. Returns FALSE if no process can take it. */
static gboolean
give (weft_worker_pool *pool, uint32_t task)
{
  for (uint32_t i = 0; i < pool->n; i++)
    if (pool->worker[i].task == NO_TASK && send_task (pool, &pool->worker[i], task))
      return TRUE;
  return FALSE;
}

/* Takes the reply of a process, or its end. */
static void
hear (struct worker *w, gboolean *done)
{
  uint32_t reply;
  gboolean alive = receive (w->from, &reply);

  if (alive)
    done[w->task] = TRUE;
  w->task = NO_TASK;
  if (!alive || reply == REPLY_LAST)
    end (w);
}

/* Milliseconds between two questions whether tasks are stopped. */
enum { BETWEEN_QUESTIONS = 100 };

static gboolean
stops (const weft_worker_pool *pool)
{
  return pool->work.stop && pool->work.stop (pool->work.user);
}

/* Kills the processes that run tasks. */
static void
kill_busy (weft_worker_pool *pool)
{
  for (uint32_t i = 0; i < pool->n; i++)
    if (pool->worker[i].pid && pool->worker[i].task != NO_TASK) {
      kill (pool->worker[i].pid, SIGKILL);
      end (&pool->worker[i]);
    }
}

/* Waits for replies of busy processes. Returns FALSE if no process is busy. */
static gboolean
wait_for_any (weft_worker_pool *pool, gboolean *done)
{
  g_autofree struct pollfd *at = g_new0 (struct pollfd, pool->n);
  gboolean busy = FALSE;

  for (uint32_t i = 0; i < pool->n; i++) {
    const struct worker *w = &pool->worker[i];
    at[i] = (struct pollfd){ w->pid && w->task != NO_TASK ? w->from : -1, POLLIN, 0 };
    busy = busy || at[i].fd >= 0;
  }
  if (!busy || poll (at, pool->n, pool->work.stop ? BETWEEN_QUESTIONS : -1) < 0)
    return busy;
  for (uint32_t i = 0; i < pool->n; i++)
    if (at[i].fd >= 0 && at[i].revents)
      hear (&pool->worker[i], done);
  return TRUE;
}

/* Runs the tasks that are not done, until they are stopped. Returns FALSE if no process could take
 * a task. */
static gboolean
run_open (weft_worker_pool *pool, uint32_t n, gboolean *done)
{
  uint32_t next = 0;

  for (uint32_t i = 0; i < n; i++)
    if (!done[i])
      memset (result_at (pool, i), 0, pool->work.result_bytes);
  do {
    if (stops (pool)) {
      kill_busy (pool);
      return TRUE;
    }
    while (next < n && (done[next] || give (pool, next)))
      next++;
  } while (wait_for_any (pool, done));
  return next == n;
}

gboolean
weft_worker_pool_run (weft_worker_pool *pool, const void *task, uint32_t n, void *result,
                      gboolean *done, GError **error)
{
  const struct weft_worker_pool_work *work = &pool->work;
  void (*before) (int) = signal (SIGPIPE, SIG_IGN);

  WEFT_INVARIANT (n <= work->most);
  for (uint32_t i = 0; i < n; i++) {
    memcpy (task_at (pool, i), (const char *) task + i * work->task_bytes, work->task_bytes);
    done[i] = FALSE;
  }
  gboolean ok = run_open (pool, n, done) && run_open (pool, n, done);
  for (uint32_t i = 0; i < n; i++)
    memcpy ((char *) result + i * work->result_bytes, result_at (pool, i), work->result_bytes);
  signal (SIGPIPE, before);
  return ok || weft_run_error (error, "no process for a task: %s", g_strerror (errno));
}

size_t
weft_worker_pool_result_bytes (const weft_worker_pool *pool)
{
  return pool->work.result_bytes;
}

void
weft_worker_pool_free (weft_worker_pool *pool)
{
  if (!pool)
    return;
  for (uint32_t i = 0; i < pool->n; i++)
    if (pool->worker[i].pid)
      end (&pool->worker[i]);
  if (pool->shared)
    munmap (pool->shared, pool->bytes);
  g_free (pool->worker);
  g_free (pool);
}
