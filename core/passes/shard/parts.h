/* parts.h - private to shard/: the state of shard/. */
#pragma once
#include "core/passes/shard/shard.h"

struct weft_shard {
  /* by linear layer and matrix product (forward, input gradient, weight gradient): buffer of
   * overlapped pieces (overlap.c), or WEFT_NO_BUF */
  uint32_t overlap_buffer[WEFT_N_LAYER_PARAM * 3];
  /* by parameter: TRUE if tensor parallel ranks must all-reduce the parameter's gradient. NULL: no
   * gradient needs an all-reduce */
  gboolean *in_parts;
  uint32_t joined; /* newest all-reduce of a gradient that the array in_parts marks */
};
