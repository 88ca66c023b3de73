/* text.h - reads the text of a collective algorithm, and lists the steps that each rank runs. */
#pragma once
#include "core/collective/algorithm.h"

/* Limits: ranks of an algorithm, its chunks and steps of all ranks, channels of a rank. */
enum {
  WEFT_MOST_ALGORITHM_RANKS = 1024,
  WEFT_MOST_CHUNKS = 1 << 14,
  WEFT_MOST_ALGORITHM_STEPS = 1 << 18,
  WEFT_MOST_CHANNELS = 64
};

/* Sets name, collective, protocol, n, n_chunks, n_channels and the steps (rank, channel, peer,
 * chunk, line, kind) of an algorithm for n ranks, rank by rank in the order of the text. */
gboolean weft_algo_expand (const weft_algo_text *text, uint32_t n, weft_algo *a,
                                GError **error);
