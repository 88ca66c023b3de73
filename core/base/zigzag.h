/* zigzag.h - which pieces of a sequence a context parallel rank holds, and the order of canonical
 * sums over a sequence.
 *
 * A sequence is cut into 2c pieces for c ranks.  Rank r holds pieces r and 2c - 1 - r, one after
 * the other, so that all ranks have the same share of the causal triangle (Megatron-Core,
 * Transformer Engine).
 *
 * In canonical sums the leaves of a sequence are its 8 chunks in the order 0, 7, 1, 6, 2 ...;
 * core/base/fold.h adds them as a tree.  For c = 1, 2, 4 each rank then holds an aligned block of
 * leaves and computes one node of the tree, and its own chunks are in zigzag order, too. */
#pragma once
#include <stdint.h>

#define WEFT_MOST_CHUNKS 8

/* The position of a context parallel rank: rank `at` of `of` ranks. `of` is 0 or 1 without context
 * parallelism. */
struct weft_place {
  uint32_t at, of;
};

/* The number of chunks into which a sequence is cut: the largest power of two that divides its
 * length, at most WEFT_MOST_CHUNKS. */
static inline uint32_t
weft_chunks (uint64_t sequence)
{
  uint32_t n = WEFT_MOST_CHUNKS;

  while (sequence % n)
    n /= 2;
  return n;
}

/* The number of the chunk that is leaf i, in the order of summation, of a sequence of n chunks. */
static inline uint32_t
weft_zigzag (uint32_t i, uint32_t n)
{
  return i % 2 ? n - 1 - i / 2 : i / 2;
}

/* The position in the whole sequence of token t of a context-parallel rank. The rank holds `tokens`
 * tokens of the sequence. */
static inline uint64_t
weft_position (struct weft_place place, uint64_t tokens, uint64_t t)
{
  uint64_t half = tokens / 2;

  if (place.of <= 1)
    return t;
  return t < half ? place.at * half + t
                  : (2 * place.of - 1 - place.at) * half + (t - half);
}
