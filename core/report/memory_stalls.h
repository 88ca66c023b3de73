/* memory_stalls.h - overlap that a plan gives up to fit in memory: ops that wait until the last
 * users of the bytes they take have ended (core/plan/memory.h).
 *
 * The stall of an op is the time from when it could have begun (its lane was free, its other
 * dependencies had ended, its launch was complete) until the memory wait ended, as far as the op
 * had not begun.  It is the local cost of memory, not what the step would gain with more memory:
 * without the stall the op might have waited for something else.  Stalls of several lanes are
 * summed. */
#pragma once
#include "core/exec/timeline.h"

/* Ops that wait for one kind of op on one lane; all kernels of lane gpu count as one kind. */
struct weft_memory_stall {
  enum weft_lane lane;
  enum weft_op_kind kind; /* WEFT_N_OP: kernels of lane gpu */
  uint32_t ops;           /* an op may wait for several kinds */
  double held_s;          /* seconds, counted for the kind that ended last */
};

struct weft_memory_stalls {
  uint32_t n_op, n_kernel; /* ops that wait; those of them on lane gpu */
  double held_s;           /* mean over the ranks of the role; 0 without a timeline */
  GArray *cause;           /* struct weft_memory_stall, by first op; NULL: no op waits */
};

/* Stalls of one role.  `timeline` may be NULL. */
void weft_memory_stalls_init (struct weft_memory_stalls *stalls, const weft_plan *plan,
                              uint32_t role, const weft_timeline *timeline);
void weft_memory_stalls_clear (struct weft_memory_stalls *stalls);

/* "reduce_scatter", "kernels" */
const char *weft_memory_stall_word (const struct weft_memory_stall *cause);
