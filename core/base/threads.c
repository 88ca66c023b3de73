#include "core/base/threads.h"
#include "core/base/invariant.h"
#include <stdatomic.h>

struct tasks {
  const struct weft_threads *how;
  uint32_t n;
  _Atomic uint32_t next; /* number of the next task that a thread takes */
  GError **error;        /* by task */
};

struct one {
  const struct tasks *tasks;
  uint32_t number;
};

static void
run_one (void *data)
{
  const struct one *one = data;
  const struct weft_threads *how = one->tasks->how;

  how->run (how->user, one->number, &one->tasks->error[one->number]);
}

static void *
run_some (void *data)
{
  struct tasks *t = data;

  for (uint32_t i; (i = atomic_fetch_add (&t->next, 1)) < t->n;) {
    struct one one = { t, i };
    GError *failure = NULL;
    if (!weft_guarded (run_one, &one, &failure)) {
      g_clear_error (&t->error[i]);
      t->error[i] = failure;
    }
  }
  return NULL;
}

/* Propagates the first error and frees the others. */
static gboolean
take_first (GError **of, uint32_t n, GError **error)
{
  gboolean ok = TRUE;

  for (uint32_t i = 0; i < n; i++) {
    if (!of[i])
      continue;
    if (ok)
      g_propagate_error (error, of[i]);
    else
      g_error_free (of[i]);
    ok = FALSE;
  }
  return ok;
}

/* This thread runs tasks too, so all of them run even where no other thread can be started. */
gboolean
weft_threads_run (const struct weft_threads *threads, uint32_t n, GError **error)
{
  g_autofree GError **of = g_new0 (GError *, n + 1);
  struct tasks tasks = { .how = threads, .n = n, .error = of };
  uint32_t most = threads->alone ? 1 : MIN (n, g_get_num_processors ()), n_started = 0;
  g_autofree GThread **thread = g_new (GThread *, most + 1);

  while (n_started + 1 < most &&
         (thread[n_started] = g_thread_try_new ("weft-task", run_some, &tasks, NULL)))
    n_started++;
  run_some (&tasks);
  for (uint32_t i = 0; i < n_started; i++)
    g_thread_join (thread[i]);
  return take_first (of, n, error);
}
