/* memory_stalls.h - overlap that a plan gives up to fit in memory: ops that wait until the last
 * users of the bytes of their buffers have ended (core/plan/memory.h).
 *
 * The stall of an op begins when the op could have begun: its lane was free, and the other
 * dependencies of all ops of its launch had ended. The stall ends when the memory wait ends, or
 * when the op begins, if that is earlier. A stall is the local cost of memory, not the time that
 * the step would save with more memory: without the stall, the op might have waited for another op.
 * Stalls of several lanes are summed. */
#pragma once
#include "core/exec/timeline.h"

/* Ops that wait until an op of one kind, on one lane, has released the memory that they need. All
 * kernels of lane gpu count as one kind. */
struct weft_memory_stall {
  enum weft_lane lane;
  enum weft_op_kind kind; /* WEFT_N_OP: kernels of lane gpu */
  uint32_t ops;           /* number of ops that wait; an op may wait for several kinds */
  double held_s;          /* seconds; an op that waits for several kinds counts for the
                           * kind of the op that ended last */
};

struct weft_memory_stalls {
  uint32_t n_op, n_kernel; /* ops that wait; ops on lane gpu that wait */
  double held_s;           /* seconds, mean over the ranks of the role; 0 if there is no timeline */
  GArray *cause;           /* struct weft_memory_stall, by first op; NULL: no op waits */
};

/* Computes the stalls of one role. `timeline` NULL: sets only the counts; seconds are 0. */
void weft_memory_stalls_init (struct weft_memory_stalls *stalls, const weft_plan *plan,
                              uint32_t role, const weft_timeline *timeline);
void weft_memory_stalls_clear (struct weft_memory_stalls *stalls);

/* The kind of op that a stall waits for, as a word for messages: "reduce_scatter", "kernels". */
const char *weft_memory_stall_word (const struct weft_memory_stall *cause);
