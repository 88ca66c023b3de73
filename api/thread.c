#include "core/base/error.h"
#include "api/inside.h"

struct call {
  void (*run) (void *user);
  void *user;
  GAsyncQueue *done; /* queue to which the call is sent when it has returned */
};

static void
run_in_thread (gpointer call, gpointer unused)
{
  struct call *c = call;

  (void) unused;
  c->run (c->user);
  g_async_queue_push (c->done, c);
}

/* SimGrid has one engine per process, which belongs to the thread that created it. Therefore one
 * thread, which never ends, runs all simulations, one after the other. */
static gpointer
start_thread (gpointer unused)
{
  (void) unused;
  return g_thread_pool_new (run_in_thread, NULL, 1, TRUE, NULL);
}

bool
weft_api_in_thread (void (*run) (void *user), void *user, weft_error *error)
{
  static GOnce once = G_ONCE_INIT;
  GThreadPool *pool = g_once (&once, start_thread, NULL);
  struct call call = { run, user, NULL };

  if (!pool)
    return weft_api_fail_with (error, WEFT_STATUS_FAILED, "cannot start a thread");
  call.done = g_async_queue_new ();
  g_thread_pool_push (pool, &call, NULL);
  g_async_queue_pop (call.done);
  g_async_queue_unref (call.done);
  return true;
}
