/* leaves.h - the order of the terms in a sum: leaf by leaf.
 *
 * A leaf is one chain, from 0 on, over one or more segments of the terms; leaves are then added as
 * core/base/fold.h defines. If several ranks share a sum and the number of leaves per rank is a
 * power of two, the result has the same bits as on one rank with all leaves:
 *
 *   tokens        each chunk of a sequence is a leaf; chunks of a sequence come in zigzag order
 *   columns       units of a linear map (heads of one query group, columns of an MLP) are divided
 *                 into leaves; if the map has several parts ([q | k | v], [gate | up]), a leaf has
 *                 its share of each part
 *
 * A sum with one leaf is a plain chain over all terms. */
#pragma once
#include "core/base/zigzag.h"
#include "kernels/part.h"

#define WEFT_LEAF_SEGMENTS 3

struct weft_leaves {
  uint32_t n;
  struct {
    uint64_t begin, end, share; /* leaf i has terms [begin + i share, begin + (i + 1) share),
                                 * limited to end */
  } segment[WEFT_LEAF_SEGMENTS];
  uint32_t zigzag; /* leaves are visited in groups of this many, each group in the order of
                    * zigzag.h; 0: all in plain order */
};

/* All terms in one leaf. */
static inline struct weft_leaves
weft_leaves_one (uint64_t terms)
{
  return (struct weft_leaves){ .n = 1, .segment[0] = { 0, terms, terms } };
}

/* The terms are three parts of `terms - 2 tail`, `tail` and `tail` terms. Each of n leaves contains
 * 1 / n of each part. */
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

/* Which leaf comes i-th in the order of addition. */
static inline uint32_t
weft_leaves_turn (const struct weft_leaves *l, uint32_t i)
{
  uint32_t j = l->zigzag ? i % l->zigzag : 0;

  if (!l->zigzag)
    return i;
  return i - j + weft_zigzag (j, l->zigzag);
}

/* The terms of one segment of the leaf that comes i-th in the order of addition. The range may be
 * empty. */
static inline struct weft_range
weft_leaves_segment (const struct weft_leaves *l, uint32_t i, uint32_t segment)
{
  uint64_t leaf = weft_leaves_turn (l, i), share = l->segment[segment].share;
  uint64_t end = l->segment[segment].end, begin = l->segment[segment].begin + leaf * share;

  begin = weft_least (begin, end);
  return (struct weft_range){ begin, weft_least (begin + share, end) };
}
