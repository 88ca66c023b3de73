/* attention.h - fused attention on the CPU: never stores the score matrix; parameterised by the
 * matrix tile of a vector unit.
 *
 * Scores are computed for one block of keys and one block of queries at a time. Blocks begin at
 * fixed positions of a sequence and are visited in increasing order, so the results do not depend
 * on how work is divided between threads. */
#pragma once
#include "kernels/gemm.h"
#include "kernels/kernel.h"

struct weft_attention {
  const struct weft_kernel *kernel;
  const struct weft_tile *tile;
  uint32_t part, parts;
};

/* Both functions run ops of kinds ATTENTION and ATTENTION_PART. ATTENTION_PART is context-parallel
 * attention: the queries of one rank, and keys and values in a separate array, which holds either
 * the whole sequence or the part of one rank. */
void weft_attention_forward (const struct weft_attention *call);
void weft_attention_backward (const struct weft_attention *call);
