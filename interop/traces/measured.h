/* measured.h - one step of a measured trace, as the breakdown of its mean rank.
 *
 * A step on a GPU lasts from the first kernel that the host launched in the range of the step to
 * the first kernel of the next step; the last step of a trace lasts as long as its range, or to its
 * last kernel if that is later. A trace of `weft sim` is one step. */
#pragma once
#include "interop/traces/trace.h"

/* Kernels of one name whose class is not known. */
struct weft_measured_name {
  const char *name;      /* owned by the trace */
  double calls, seconds; /* mean over the ranks */
};

/* Nanoseconds of the step on one GPU of the trace. */
struct weft_measured_window {
  int64_t number, begin, end; /* number of the step */
};

typedef struct weft_measured {
  struct weft_breakdown mean;
  uint32_t n_ranks; /* GPUs in the trace */
  struct weft_measured_window *window; /* window of each GPU, in the order of the trace */
  gboolean *roles;  /* by role: whether the trace has a rank of this role */
  char *step;       /* description of the step: "step 12, the median of 10 to 14" */
  GArray *unknown;  /* struct weft_measured_name, largest seconds first */
  double counted_s; /* communication whose axis was chosen by the number of calls (axes.h) */
  /* the ranks with the least and with the most seconds in which kernels run, and these seconds */
  uint32_t kernels_rank[2];
  double kernels_s[2];
  GPtrArray *note; /* texts: differences between trace and job */
} weft_measured;

/* Chooses a step and computes its breakdown; sets axes in the trace. `step`: NULL: the step of
 * median length of those that all ranks have; "12": that step; "all": the whole trace as one step;
 * "0.5:1.5": these seconds since the first kernel of each rank. An error if the trace and the job
 * have different numbers of ranks, or there is no such step. The caller frees the result, before
 * the trace. */
weft_measured *
weft_measured_new (const weft_plan *plan, weft_trace *trace, const char *step, GError **error);
void weft_measured_free (weft_measured *measured);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_measured, weft_measured_free)
