/* stream.h - private to emit/: dependencies of ops that are not appended yet. */
#pragma once
#include "core/passes/emit/emit.h"

struct weft_stream {
  GArray *wait_for;                   /* ops that the next kernel waits for */
  uint32_t exchange[WEFT_N_EXCHANGE]; /* transfers that the next kernel waits for */
  uint32_t synced;                    /* newest op that the host waited for, or WEFT_NO_OP */
  uint32_t timed;                     /* newest begin or end of a timed phase, or WEFT_NO_OP */
  uint32_t barrier;                   /* buffer that a barrier all-reduces, or WEFT_NO_BUF */
};

/* Whether the next op of a lane must wait for the newest begin or end of a timed phase. */
gboolean weft_timer_holds (const struct weft_step *s, enum weft_lane lane);
