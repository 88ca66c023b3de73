/* leaves.h - in which order the terms of a sum are added: leaf by leaf.
 *
 * A leaf is one chain, from 0 on, over one or more segments of the terms; leaves are then added as
 * core/base/fold.h says.  So ranks that share a sum out, each with a power of two of its leaves, and one
 * rank that takes all of them come to the same bits:
 *
 *   tokens        a chunk of a sequence is a leaf, and those of one sequence come in zigzag order
 *   columns       units of a map (heads of one group, columns of an MLP) are dealt to leaves, and
 *                 with a map of several parts ([q | k | v], [gate | up]) a share of each part
 *
 * Of one leaf the sum is a plain chain over all terms. */
#pragma once
#include "core/base/zigzag.h"
#include "kernels/part.h"

#define WEFT_LEAF_SEGMENTS 3

struct weft_leaves {
  uint32_t n;
  struct {
    uint64_t begin, end, share; /* leaf i has [begin + i share, begin + (i + 1) share), up to end */
  } segment[WEFT_LEAF_SEGMENTS];
  uint32_t zigzag; /* so many leaves in a row are taken in the order of zigzag.h; or 0 */
};

/* All terms as one leaf. */
static inline struct weft_leaves
weft_leaves_one (uint64_t terms)
{
  return (struct weft_leaves){ .n = 1, .segment[0] = { 0, terms, terms } };
}

/* n leaves, each with its share of three parts: terms - 2 tail, tail and tail. */
static inline struct weft_leaves
weft_leaves_dealt (uint64_t terms, uint32_t n, uint64_t tail)
{
  uint64_t first = terms - 2 * tail;

  if (n < 2)
    return weft_leaves_one (terms);
  return (struct weft_leaves){ .n = n,
                               .segment = { { 0, first, (first + n - 1) / n },
                                            { first, first + tail, tail / n },
                                            { first + tail, terms, tail / n } } };
}

/* The leaf that is taken as i-th. */
static inline uint32_t
weft_leaves_turn (const struct weft_leaves *l, uint32_t i)
{
  uint32_t j = l->zigzag ? i % l->zigzag : 0;

  if (!l->zigzag)
    return i;
  return i - j + weft_zigzag (j, l->zigzag);
}

/* The terms of a segment of the i-th leaf; perhaps none. */
static inline struct weft_range
weft_leaves_segment (const struct weft_leaves *l, uint32_t i, uint32_t segment)
{
  uint64_t leaf = weft_leaves_turn (l, i), share = l->segment[segment].share;
  uint64_t end = l->segment[segment].end, begin = l->segment[segment].begin + leaf * share;

  begin = weft_least (begin, end);
  return (struct weft_range){ begin, weft_least (begin + share, end) };
}
