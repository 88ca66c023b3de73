/* sums.h - sums over tokens, column by column, in the order that the contract of kernels asks for.
 *
 * In canonical order the terms of one chunk of a sequence are a leaf, and leaves are folded
 * (core/base/zigzag.h, core/base/fold.h) with every node rounded to the type of the output; else everything is
 * one leaf and nothing is rounded before it is stored.  Terms of a leaf are added in fp32, from 0.
 *
 * For each leaf, in order: rows are added to weft_sums_leaf() and the leaf is closed,
 * or it is skipped; then the sum is stored. */
#pragma once
#include "kernels/kernel.h"
#include "kernels/leaves.h"

#define WEFT_SUMS_MOST_DEPTH 32

struct weft_sums {
  const struct weft_operand *output;
  float *room; /* weft_sums_depth() entries of n floats, of the caller's stack */
  uint64_t n;  /* columns */
  uint32_t n_leaf;
  gboolean rounds; /* nodes, to the output's type: canonical order */
  /* From here on the sum's own, 0 at first. */
  uint32_t leaf, top;
  gboolean empty[WEFT_SUMS_MOST_DEPTH]; /* nothing was added to this entry: its floats are not set */
};

/* How a number of tokens is cut into leaves, of one segment each. */
struct weft_leaves weft_sums_leaves (const struct weft_kernel *k, uint64_t tokens);

/* The same of tokens that are those of several passes over the same sequences, chunk by chunk: a chunk of
 * all of them together is a leaf. */
struct weft_leaves weft_sums_leaves_of (const struct weft_kernel *k, uint64_t tokens,
                                        uint64_t passes);

/* The tokens of the i-th leaf. */
static inline struct weft_range
weft_sums_tokens (const struct weft_leaves *leaves, uint32_t i)
{
  return weft_leaves_segment (leaves, i, 0);
}

/* The leaves of a sequence, as far as it is here: 1 where there is no order to keep. */
uint32_t weft_sums_chunks (const struct weft_kernel *k);

/* Entries that are held at a time. */
uint32_t weft_sums_depth (uint32_t n_leaf);

/* The floats that the rows of the next leaf are added to; and the end of that leaf. */
float *weft_sums_leaf (struct weft_sums *s);
void weft_sums_close (struct weft_sums *s);

/* The next leaf has no rows: it is 0. */
void weft_sums_skip (struct weft_sums *s);

/* What all leaves sum to, in place of (or added to, where the output accumulates) the output's
 * elements from `first` on. */
void weft_sums_store (struct weft_sums *s, uint64_t first);

/* sum += x */
void weft_sums_add (float *sum, const float *x, uint64_t n);
