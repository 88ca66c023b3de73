#include "exec_gpu/launches.h"
#include "core/base/error.h"
#include "kernels/kernel.h"
#include <math.h>

/* CALLS is less than the 1024 launches that a GPU's queue holds. GRAPHS launches take long enough
 * for a clock with a resolution of a microsecond. */
enum { ROUNDS = 9, CALLS = 256, GRAPHS = 16 };

struct bench {
  const struct weft_gpu_calls *calls;
  weft_gpu_stream *stream;
  void *at;
  GError **error;
};

static gboolean
went_well (const struct bench *b, const char *said)
{
  return !said || weft_run_error (b->error, "timing launches: %s", said);
}

#define DO(b, name, ...) went_well (b, (b)->calls->name ((b)->calls->self, ##__VA_ARGS__))

static gboolean
issue (const struct bench *b, int n)
{
  const struct weft_kernel k = {
    .kind = WEFT_OP_ZERO,
    .shape = { .dim = { 4 }, .dtype = WEFT_FP32, .out_dtype = WEFT_FP32 },
    .operand = { { .data = b->at, .n = 4, .dtype = WEFT_FP32 } },
  };
  const struct weft_gpu_scratch none = { 0 };

  for (int i = 0; i < n; i++)
    if (!DO (b, kernel, &k, 1, &none, b->stream))
      return FALSE;
  return TRUE;
}

static gboolean
run_graphs (const struct bench *b, weft_gpu_graph *graph)
{
  for (int i = 0; i < GRAPHS; i++)
    if (!DO (b, graph_run, graph, b->stream))
      return FALSE;
  return TRUE;
}

/* Host time in seconds of one graph launch or, if `graph` is NULL, of one kernel launch: the
 * smallest time of several rounds. */
static gboolean
time_each (const struct bench *b, weft_gpu_graph *graph, double *least)
{
  *least = INFINITY;
  for (int round = 0; round < ROUNDS; round++) {
    if (!DO (b, finish, b->stream))
      return FALSE;
    gint64 start = g_get_monotonic_time ();
    if (!(graph ? run_graphs (b, graph) : issue (b, CALLS)))
      return FALSE;
    double seconds = (double) (g_get_monotonic_time () - start) * 1e-6;
    *least = fmin (*least, seconds / (graph ? GRAPHS : CALLS));
  }
  return DO (b, finish, b->stream);
}

static gboolean
time_graph (const struct bench *b, int n, double *seconds)
{
  weft_gpu_graph *graph = NULL;

  if (!DO (b, capture_start, b->stream))
    return FALSE;
  gboolean issued = issue (b, n);
  if (!DO (b, capture_end, b->stream, &graph) || !issued)
    return FALSE;
  gboolean timed = time_each (b, graph, seconds);
  return DO (b, graph_close, graph) && timed;
}

static gboolean
time_all (const struct bench *b, double *out)
{
  double call, one, all;

  if (!time_each (b, NULL, &call) || !time_graph (b, 1, &one) || !time_graph (b, CALLS, &all))
    return FALSE;
  out[WEFT_HOST_CALL] = call;
  out[WEFT_HOST_GRAPH] = one;
  out[WEFT_HOST_NODE] = fmax (0, all - one) / (CALLS - 1);
  return TRUE;
}

gboolean
weft_gpu_time_launches (const struct weft_gpu_calls *calls, double *out, GError **error)
{
  struct bench b = { .calls = calls, .error = error };

  if (!DO (&b, choose, 0) || !DO (&b, stream_open, FALSE, &b.stream))
    return FALSE;
  gboolean done = DO (&b, alloc, WEFT_POOL_DEVICE, 4 * sizeof (float), &b.at) && time_all (&b, out);
  if (b.at)
    calls->release (calls->self, WEFT_POOL_DEVICE, b.at);
  calls->stream_close (calls->self, b.stream);
  return done;
}
