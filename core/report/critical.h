/* critical.h - the critical path of a step, and what would shorten the step.
 *
 * The critical path is the chain of ops, from the end of the step to its beginning, in which each
 * op begins when the op before it ends (Kelley and Walker 1959): on the same lane, as a
 * dependency, or, for a collective or transfer, on another rank.  Its ops and the waits for
 * launches between them are as long as the step.
 *
 * What a kind of op costs is computed by replays (core/plan/replay.h): the ops of the timeline run
 * again, each for the seconds that it took, with the ops of this kind shortened.  Contention is not
 * computed anew: other ops keep their seconds. */
#pragma once
#include "core/exec/timeline.h"

/* An op on the critical path: `row` is its row of the timeline. */
struct weft_critical_op {
  uint32_t row, op;
  double begin, end; /* seconds since the step began, in the replay */
};

/* All ops of a kind on one lane: "matmul", "tp all_reduce". */
struct weft_critical_kind {
  char *what;          /* owned */
  uint32_t ops;        /* number of these ops on the path */
  double on_path_s;    /* seconds of these ops on the path */
  double without_s;    /* step time if all ops of the kind took no time */
  double tenth_less_s; /* step time if all ops of the kind took a tenth less */
};

typedef struct weft_critical {
  double step_s;          /* step time of the replay without any change */
  double launch_s;        /* seconds on the path in which the next op was not launched yet */
  double without_launch_s; /* step time if no op waited for its launch */
  GArray *path;           /* struct weft_critical_op, in order of time */
  GArray *kind;           /* struct weft_critical_kind; first the kind that saves most */
} weft_critical;

/* Computes the critical path of a predicted step. `graph`: the step was predicted as one graph
 * (weft_exec_hosts()). Returns NULL with an error if the timeline is not a prediction of this plan.
 * The caller frees the result. */
weft_critical *weft_critical_new (const weft_plan *plan, const weft_timeline *timeline,
                                  gboolean graph, GError **error);
void weft_critical_free (weft_critical *critical);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_critical, weft_critical_free)
