/* worker_pool.h - processes that run one task after the other, for searches whose next tasks depend
 * on the results of earlier ones. A process that stays keeps its memory: a new fork copies each
 * page of its parent to which it writes, which takes as long as the programs of a small step.
 * workers.h runs tasks that are all known in advance. */
#pragma once
#include <glib.h>
#include <stdint.h>

struct weft_worker_pool_work {
  uint32_t n_workers; /* number of processes; 0: one for each processor */
  uint32_t most;      /* most tasks of one weft_worker_pool_run() */
  /* bytes of a task and of its result. Neither contains pointers, except to memory that exists
   * already when the pool is made */
  size_t task_bytes, result_bytes;
  /* Runs a task in another process. Writes the result to memory that is zeroed before. Returns
   * whether the process may run further tasks; otherwise a new process takes its place. */
  gboolean (*run) (void *user, const void *task, void *result);
  /* Asked ten times a second while tasks run; NULL: they always run to their ends. Once it returns
   * TRUE, the processes are killed. */
  gboolean (*stop) (void *user);
  void *user;
};

typedef struct weft_worker_pool weft_worker_pool;

/* Makes a pool; its processes start with the first tasks, as forks of this process. No other thread
 * may run in this process then. Returns NULL with an error if there is no memory. */
weft_worker_pool *weft_worker_pool_new (const struct weft_worker_pool_work *work, GError **error);

/* Runs task[n] and writes the results to result[n], in the order of the tasks. Processes take the
 * tasks in this order. A task whose process ended before the task did, for example by a signal, is
 * run again in another process after all others; done[i] is FALSE if that process ended early too,
 * or if tasks were stopped. Returns FALSE with an error if no process could be started. */
gboolean weft_worker_pool_run (weft_worker_pool *pool, const void *task, uint32_t n, void *result,
                               gboolean *done, GError **error);

/* Bytes of the result of one task. */
size_t weft_worker_pool_result_bytes (const weft_worker_pool *pool);

/* Ends the processes and frees the pool. NULL: does nothing. */
void weft_worker_pool_free (weft_worker_pool *pool);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_worker_pool, weft_worker_pool_free)
