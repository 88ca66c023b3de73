/* attention.h - attention without the score matrix, on a tile of choice.
 *
 * Scores are made for a block of keys and a block of queries at a time.  The blocks begin at fixed
 * positions of a sequence and are met in increasing order, so that nothing depends on shares. */
#pragma once
#include "kernels/gemm.h"
#include "kernels/kernel.h"

struct weft_attention {
  const struct weft_kernel *kernel;
  const struct weft_tile *tile;
  uint32_t part, parts;
};

void weft_attention_forward (const struct weft_attention *call);
void weft_attention_backward (const struct weft_attention *call);

/* Queries of one rank of several that share sequences, keys and values in an array of their own: of
 * the whole sequence, or of one of the ranks. */
void weft_attention_part_forward (const struct weft_attention *call);
void weft_attention_part_backward (const struct weft_attention *call);
