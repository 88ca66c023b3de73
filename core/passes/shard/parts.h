/* parts.h - private to shard/: the state of the wing. */
#pragma once
#include "core/passes/shard/shard.h"

struct weft_shard {
  uint32_t overlap_buffer[WEFT_N_LAYER_PARAM * 3]; /* by map and pass, or WEFT_NO_BUF: overlap.c */
  gboolean *in_parts; /* by parameter: TRUE: tensor parallel ranks must all-reduce its gradient.
                       * NULL: no gradient is all-reduced */
  uint32_t joined;    /* the newest all-reduce of a gradient in in_parts */
};
