/* parts.h - private to shard/: its state. */
#pragma once
#include "core/passes/shard/shard.h"

struct weft_shard {
  uint32_t overlap_buffer[WEFT_N_LAYER_PARAM * 3]; /* by map and pass, or WEFT_NO_BUF: overlap.c */
  gboolean *in_parts; /* by parameter: tensor parallel ranks must reduce its gradient; NULL: none */
  uint32_t joined;    /* the newest all-reduce of a gradient in in_parts */
};
