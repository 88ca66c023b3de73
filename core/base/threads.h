/* threads.h - independent tasks in as many threads as the machine has processors.
 *
 * The threads end before the call does: a process may fork afterwards. */
#pragma once
#include <glib.h>
#include <stdint.h>

struct weft_threads {
  gboolean alone; /* TRUE: all tasks run in the thread of the caller */
  /* Runs a task. A failure sets *error. A task is guarded (invariant.h): an invariant that fails is
   * a failure too */
  void (*run) (void *user, uint32_t task, GError **error);
  void *user;
};

/* Runs tasks 0 to n - 1, in any order. Returns FALSE with the error of the first task, by number,
 * that failed. */
gboolean weft_threads_run (const struct weft_threads *threads, uint32_t n, GError **error);
