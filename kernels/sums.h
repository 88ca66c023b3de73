/* sums.h - sums over tokens, per column, in the order that kernel.h requires.
 *
 * In canonical order the terms of one sequence chunk are a leaf, and leaves are folded
 * (core/base/zigzag.h, core/base/fold.h) with every node rounded to the output's type. Otherwise
 * everything is one leaf and is rounded only when stored. Terms of a leaf are added in fp32, from
 * 0.
 *
 * Use: for each leaf in order, add rows to weft_sums_leaf() and close the leaf, or skip it; at the
 * end, store the sum. */
#pragma once
#include "kernels/kernel.h"
#include "kernels/leaves.h"

#define WEFT_SUMS_MOST_DEPTH 32

struct weft_sums {
  const struct weft_operand *output;
  float *room; /* room for weft_sums_depth() entries of n floats, provided by the caller */
  uint64_t n;  /* number of columns of the output */
  uint32_t n_leaf;
  gboolean rounds; /* TRUE (canonical order): round every partial sum to the type of the output */
  /* private to sums.c; the caller sets these fields to 0 */
  uint32_t leaf, top;
  gboolean empty[WEFT_SUMS_MOST_DEPTH]; /* the entry has no terms yet, and its floats are not set */
};

/* Divides the tokens of a sum into leaves (partial sums, leaves.h). Each leaf is one range of
 * tokens. */
struct weft_leaves weft_sums_leaves (const struct weft_kernel *k, uint64_t tokens);

/* Like weft_sums_leaves(), if the tokens are those of several passes over the same sequences
 * (multi-token prediction). The tokens are ordered by chunk of the sequence; a leaf contains the
 * tokens of one chunk from all passes. */
struct weft_leaves weft_sums_leaves_of (const struct weft_kernel *k, uint64_t tokens,
                                        uint64_t passes);

/* The range of tokens of the leaf (partial sum) that is added i-th. */
static inline struct weft_range
weft_sums_tokens (const struct weft_leaves *leaves, uint32_t i)
{
  return weft_leaves_segment (leaves, i, 0);
}

/* Number of leaves (partial sums) into which the tokens of a sequence on this rank are divided; 1
 * if the order is not canonical. */
uint32_t weft_sums_chunks (const struct weft_kernel *k);

/* Number of stack entries that adding n_leaf leaves as a tree needs. */
uint32_t weft_sums_depth (uint32_t n_leaf);

/* Begins the next leaf: returns floats, set to 0, to which the caller adds the rows of the leaf. */
float *weft_sums_leaf (struct weft_sums *s);
/* Ends the current leaf, after the caller has added its rows to the floats that weft_sums_leaf()
 * returned. */
void weft_sums_close (struct weft_sums *s);

/* Skips the next leaf (partial sum), which has no rows; the leaf counts as 0. */
void weft_sums_skip (struct weft_sums *s);

/* Stores the total sum in the output, from element `first` on; adds it to the old contents if the
 * output accumulates. */
void weft_sums_store (struct weft_sums *s, uint64_t first);

/* sum += x */
void weft_sums_add (float *sum, const float *x, uint64_t n);
