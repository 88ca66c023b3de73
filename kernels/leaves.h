/* leaves.h - the order of the terms in a sum: leaf by leaf.
 *
 * The terms of a sum are divided into leaves. The terms of a leaf, which are one or more ranges
 * (segments), are added one after the other, from 0 on. The sums of the leaves are then added as a
 * tree (core/base/fold.h). If several ranks share a sum and the number of leaves per rank is a
 * power of two, the result has the same bits as on one rank with all leaves:
 *
 *   tokens        each chunk of a sequence (one of up to eight equal parts) is a leaf; the chunks
 *                 of a sequence are added in zigzag order
 *   columns       the columns of a linear layer (heads of one query group, columns of an MLP) are
 *                 divided into leaves; if the layer has several parts ([q | k | v], [gate | up]),
 *                 a leaf has its share of each part
 *
 * In a sum with one leaf, all terms are added one after the other. */
#pragma once
#include "core/base/zigzag.h"
#include "kernels/part.h"

#define WEFT_LEAF_SEGMENTS 3

struct weft_leaves {
  uint32_t n;
  struct {
    /* leaf i has the terms [begin + i share, begin + (i + 1) share), limited to `end` */
    uint64_t begin, end, share;
  } segment[WEFT_LEAF_SEGMENTS];
  /* leaves are added in groups of this many; the order inside a group is that of zigzag.h. 0:
   * leaves are added in the order of their numbers */
  uint32_t zigzag;
};

/* Describes a sum with one leaf, which contains all terms. */
static inline struct weft_leaves
weft_leaves_one (uint64_t terms)
{
  return (struct weft_leaves){ .n = 1, .segment[0] = { 0, terms, terms } };
}

/* Divides terms into n leaves (partial sums). The terms are three parts of `terms - 2 tail`, `tail`
 * and `tail` terms. Each leaf contains 1 / n of each part. */
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

/* Number of the leaf that is added i-th. */
static inline uint32_t
weft_leaves_turn (const struct weft_leaves *l, uint32_t i)
{
  uint32_t j = l->zigzag ? i % l->zigzag : 0;

  if (!l->zigzag)
    return i;
  return i - j + weft_zigzag (j, l->zigzag);
}

/* The range of terms that one segment has in the leaf that is added i-th. The range may be
 * empty. */
static inline struct weft_range
weft_leaves_segment (const struct weft_leaves *l, uint32_t i, uint32_t segment)
{
  uint64_t leaf = weft_leaves_turn (l, i), share = l->segment[segment].share;
  uint64_t end = l->segment[segment].end, begin = l->segment[segment].begin + leaf * share;

  begin = weft_least (begin, end);
  return (struct weft_range){ begin, weft_least (begin + share, end) };
}
