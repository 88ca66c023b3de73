/* trace.h - what fuzz targets require of a measured trace. */
#pragma once
#include "interop/traces/names.h"
#include <math.h>

static inline void
fuzz_trace_refused (const GError *error)
{
  g_assert_nonnull (error);
  g_assert_true (g_utf8_validate (error->message, -1, NULL));
}

static inline void
fuzz_trace_rank (const struct weft_trace_rank *rank)
{
  g_autoptr (GArray) list = g_array_new (FALSE, FALSE, sizeof (struct weft_activity));
  double sum, first = INFINITY, last = -INFINITY;

  for (guint i = 0; i < rank->kernel->len; i++) {
    const struct weft_trace_kernel *k = &g_array_index (rank->kernel, struct weft_trace_kernel, i);
    g_assert_true (k->begin <= k->end && k->work < WEFT_N_WORK && k->axis < WEFT_N_AXIS);
    g_assert_true (g_utf8_validate (k->name, -1, NULL));
    const struct weft_activity a = { (double) k->begin * 1e-9, (double) k->end * 1e-9, NAN, k->work,
                                     k->axis };
    first = fmin (first, a.begin);
    last = fmax (last, a.end);
    g_array_append_val (list, a);
  }
  if (list->len == 0)
    return;
  struct weft_breakdown b = weft_breakdown_of (list, first, last);
  sum = b.host_s + b.idle_s + weft_breakdown_compute (&b);
  for (unsigned axis = 0; axis < WEFT_N_AXIS; axis++)
    sum += weft_breakdown_exposed (&b, axis);
  g_assert_true (fabs (sum - b.seconds) <= 1e-6 * fmax (b.seconds, fabs (first) + fabs (last)));
}

static inline void
fuzz_trace_accepted (weft_trace *trace)
{
  weft_names_classify (trace);
  for (guint i = 0; i < trace->rank->len; i++)
    fuzz_trace_rank (g_ptr_array_index (trace->rank, i));
}
