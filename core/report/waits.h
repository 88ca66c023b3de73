/* waits.h - who stands still because its bytes are somebody else's: a plan that does not fit otherwise has
 * ops wait for the last users of the bytes that they take (core/plan/memory.h).
 *
 * Held is the time from when an op's lane was free, its other dependencies had ended and the rest of its
 * launch might have begun until what it waits for ended, as far as it had not begun.  It counts what
 * memory alone costs an op there and then, not what the step would take with more of it: had the op
 * begun, it might have waited for something else.  Lanes that are held at the same time count each. */
#pragma once
#include "core/exec/timeline.h"

/* Ops that wait for one kind of op on one lane; kernels of lane gpu are of one kind here. */
struct weft_waits_for {
  enum weft_lane lane;
  enum weft_op_kind kind; /* WEFT_N_OP: kernels of lane gpu */
  uint32_t ops;           /* an op may wait for several */
  double held_s;          /* by what ended last of those */
};

struct weft_waits {
  uint32_t n_op, n_kernel; /* of them, those on lane gpu */
  double held_s;           /* mean of the ranks of the role; 0 without a timeline */
  GArray *awaited;         /* struct weft_waits_for, by their first ops; NULL: nothing waits */
};

/* Of one role.  `timeline` may be NULL. */
void weft_waits_init (struct weft_waits *waits, const weft_plan *plan, uint32_t role,
                      const weft_timeline *timeline);
void weft_waits_clear (struct weft_waits *waits);

/* "reduce_scatter", "kernels" */
const char *weft_waits_word (const struct weft_waits_for *awaited);
