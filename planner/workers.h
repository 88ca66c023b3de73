/* workers.h - runs independent tasks in several processes, because SimGrid can simulate in only one
 * thread of a process. */
#pragma once
#include <glib.h>
#include <stdint.h>
#include <sys/types.h>

struct weft_workers {
  uint32_t n_tasks;
  /* number of processes; 0: one for each processor; 1: tasks run in this process */
  uint32_t n_workers;
  size_t result_bytes; /* bytes of the result of one task */
  /* The function that runs a task. It writes the result of the task to memory that is zeroed
   * before; the result must not contain pointers. */
  void (*run) (void *user, uint32_t task, void *result);
  void *user;
  /* function that reports progress; may be NULL */
  void (*progress) (void *user, uint32_t done, uint32_t of);
  void *progress_user;
  /* asked with `progress_user` when a task has ended; once it returns TRUE, no further task begins;
   * may be NULL */
  gboolean (*stop) (void *user);
};

/* Runs all tasks and writes their results to results[n_tasks], in the order of the tasks. Workers
 * take the tasks in this order. A task whose worker ended before the task did, for example by a
 * signal, is run again after all others; done[task] is FALSE if that worker ended early too, or
 * if tasks were stopped.
 * Returns FALSE with an error if no worker could be started. No other thread may run in this
 * process, because workers are forks of it. */
gboolean weft_workers_run (const struct weft_workers *tasks, void *results, gboolean *done,
                        GError **error);

/* Makes the allocator of a process that runs tasks keep the memory that a task frees. */
void weft_workers_keep_memory (void);

/* Ends this process, a fork of `parent`, when the thread of `parent` that made it ends. Otherwise
 * the processes of a search that was killed would run on. */
void weft_workers_end_with (pid_t parent);
