/* memory_stalls.h - overlap that a plan loses so that it fits in memory: some ops wait until the
 * last users of the bytes of their buffers have ended (core/plan/memory.h).
 *
 * The stall of an op begins when the op could have begun: its lane was free, and the other
 * dependencies of all ops of its launch had ended. The stall ends when the op's wait for memory
 * ends, or when the op begins, if that is earlier. A stall is the local cost of memory. The step
 * would not necessarily be shorter by this time with more memory, because the op might have waited
 * for another op. Stalls of several lanes are summed. */
#pragma once
#include "core/exec/timeline.h"

/* The ops that wait until an op of one kind, on one lane, has released the memory that they need.
 * All kernels of lane gpu count as one kind. */
struct weft_memory_stall {
  enum weft_lane lane;
  enum weft_op_kind kind; /* WEFT_N_OP: the kernels of lane gpu */
  uint32_t ops;           /* number of ops that wait; an op may wait for several kinds */
  /* seconds of waiting; an op that waits for several kinds of ops counts for the kind whose op
   * ended last */
  double held_s;
};

struct weft_memory_stalls {
  uint32_t n_op, n_kernel; /* number of ops that wait; number of these ops that run on lane gpu */
  /* seconds of waiting, mean over the ranks of the role; 0 if there is no timeline */
  double held_s;
  /* array of struct weft_memory_stall, ordered by the first op of each; NULL: no op waits */
  GArray *cause;
};

/* Computes the stalls of one role. `timeline` NULL: sets only the counts; seconds are 0. */
void weft_memory_stalls_init (struct weft_memory_stalls *stalls, const weft_plan *plan,
                              uint32_t role, const weft_timeline *timeline);
void weft_memory_stalls_clear (struct weft_memory_stalls *stalls);

/* The kind of op that a stall waits for, as a word for messages: "reduce_scatter", "kernels". */
const char *weft_memory_stall_word (const struct weft_memory_stall *cause);
