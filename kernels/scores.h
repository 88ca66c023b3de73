/* scores.h - memory layout of unfused attention.
 *
 * A token's row of qkv has all query heads, then the keys, then the values of each group. Scores,
 * probabilities and their gradients are squares (sequence, sequence), one per sequence and query
 * head; the causal mask lets a query see the keys up to its own position. */
#pragma once
#include "kernels/kernel.h"

enum { WEFT_BATCH, WEFT_SEQUENCE, WEFT_HEADS, WEFT_GROUPS, WEFT_HEAD_WIDTH, WEFT_WINDOW };

/* Index of the first element of a head of a token in qkv. `slot` is the number of the head: query
 * heads come first, then key heads, then value heads. */
static inline uint64_t
weft_qkv_at (const uint64_t *dim, uint64_t batch, uint64_t token, uint64_t slot)
{
  uint64_t slots = dim[WEFT_HEADS] + 2 * dim[WEFT_GROUPS];
  return ((batch * dim[WEFT_SEQUENCE] + token) * slots + slot) * dim[WEFT_HEAD_WIDTH];
}

/* Index of the first element of a head of a token in the attention output o. */
static inline uint64_t
weft_o_at (const uint64_t *dim, uint64_t batch, uint64_t token, uint64_t head)
{
  return ((batch * dim[WEFT_SEQUENCE] + token) * dim[WEFT_HEADS] + head) * dim[WEFT_HEAD_WIDTH];
}

/* Index of the first element of a query's row in a score matrix. */
static inline uint64_t
weft_square_at (const uint64_t *dim, uint64_t batch, uint64_t head, uint64_t query)
{
  return ((batch * dim[WEFT_HEADS] + head) * dim[WEFT_SEQUENCE] + query) * dim[WEFT_SEQUENCE];
}

/* Index of the key head that query head `head` uses, counted in heads from the start of a token's
 * row in qkv. */
static inline uint64_t
weft_key_slot (const uint64_t *dim, uint64_t head)
{
  return dim[WEFT_HEADS] + head / (dim[WEFT_HEADS] / dim[WEFT_GROUPS]);
}

/* Index of the value head that query head `head` uses, counted in heads from the start of a token's
 * row in qkv. */
static inline uint64_t
weft_value_slot (const uint64_t *dim, uint64_t head)
{
  return weft_key_slot (dim, head) + dim[WEFT_GROUPS];
}

/* The first key that a query sees: 0, or the start of its sliding window. */
static inline uint64_t
weft_first_key (const struct weft_kernel *k, uint64_t query)
{
  uint64_t window = k->shape.dim[WEFT_WINDOW];
  return window > 0 && query >= window ? query - window + 1 : 0;
}
