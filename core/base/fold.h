/* fold.h - the order of summation of canonical sums: a binary tree.
 *
 * n terms are the leaves of a binary tree; a node over more than one leaf splits after the largest
 * power of two that is smaller than its size:
 *
 *   n = 6:  ((t0 + t1) + (t2 + t3)) + (t4 + t5)
 *
 * Leaves are the sequences of the global batch, in order.  A rank that holds an aligned block of
 * 2^k sequences computes one node of the tree, for any number of ranks and microbatches, so all
 * strategies add the same numbers in the same order.  Each node is rounded to the dtype in which it
 * is stored.  The order of two children does not matter: a + b = b + a.
 *
 * If leaves arrive in order, a stack computes the sum (weft_fold_push()): leaf i is pushed, then
 * the top entry is added to the entry below it weft_fold_merges (i, n) times.  (A binary counter;
 * pairwise summation, Higham 1993.) */
#pragma once
#include <stdint.h>

/* Number of leaves of the left child of a node over n >= 2 leaves. */
static inline uint32_t
weft_fold_split (uint32_t n)
{
  return 1u << (31 - __builtin_clz (n - 1));
}

static inline uint32_t
weft_fold_merges (uint32_t i, uint32_t n)
{
  return i + 1 < n ? (uint32_t) __builtin_ctz (i + 1) : (uint32_t) __builtin_popcount (i);
}

/* Number of partial sums that the stack must be able to hold for n leaves; never more than
 * WEFT_FOLD_MOST_DEPTH. */
static inline uint32_t
weft_fold_depth (uint32_t n)
{
  return 32 - (uint32_t) __builtin_clz (n);
}

#define WEFT_FOLD_MOST_DEPTH 32

/* Function that adds entry `below` + 1 of a stack of partial sums to entry `below`. */
typedef void (*weft_fold_join) (void *stack, uint32_t below);

/* Adds leaf i of n leaves to a sum. The caller has stored the leaf as entry `top` of the stack of
 * partial sums. Calls `join` for each addition of two entries. Returns the number of entries that
 * remain; after the last leaf it is 1, and that entry is the whole sum. */
static inline uint32_t
weft_fold_push (uint32_t top, uint32_t i, uint32_t n, weft_fold_join join, void *stack)
{
  for (uint32_t merges = weft_fold_merges (i, n); merges; merges--)
    join (stack, --top);
  return top + 1;
}
