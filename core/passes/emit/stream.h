/* stream.h - private to emit/: dependencies that the next ops will have. */
#pragma once
#include "core/passes/emit/emit.h"

struct weft_stream {
  GArray *wait_for; /* ops for which the next kernel must wait */
  /* pipeline transfers that the next kernel waits for, one per stream */
  uint32_t exchange[WEFT_N_EXCHANGE];
  uint32_t synced; /* newest op for which the host waited, or WEFT_NO_OP */
  uint32_t timed;  /* newest begin or end of a timed phase, or WEFT_NO_OP */
  /* buffer of one float for the all-reduce of a barrier, or WEFT_NO_BUF */
  uint32_t barrier;
};

/* Whether the next op of `lane` must wait for the newest begin or end of a timed phase
 * (timers.c). */
gboolean weft_timer_holds (const struct weft_step *s, enum weft_lane lane);
