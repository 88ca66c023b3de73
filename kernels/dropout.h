/* dropout.h - dropout masks: a function of the seed, the step, the layer, the site and the index of
 * the element in the global batch, independent of sharding and of recomputation. Random numbers
 * come from a counter-based generator: a hash of a key and the element's number (mix.h).
 *
 * Dimensions of an op: rows, tokens, columns, site, drop. `tokens` counts the tokens of the
 * microbatch, on this rank or on all sequence-parallel ranks together; `rows` is smaller with
 * sequence parallelism, and larger (tokens times heads) for attention probabilities. An element is
 * dropped if its 32-bit random number is below `drop`; the others are multiplied by 2^32 / (2^32 -
 * drop). In a forward-only step (weft_control) nothing is dropped. */
#pragma once
#include "core/base/mix.h"
#include "kernels/kernel.h"

struct weft_dropout {
  uint64_t key, drop;
  float grow;
  uint64_t columns;
};

struct weft_dropout weft_dropout_of (const struct weft_kernel *k);

/* Number of the random draw for the first element of a row. The other elements of the row use the
 * following numbers. */
uint64_t weft_dropout_row (const struct weft_kernel *k, uint64_t row);

static inline uint8_t
weft_dropout_keeps (const struct weft_dropout *d, uint64_t number)
{
  return weft_mix_bits (d->key + number * WEFT_MIX_STEP) >> 32 >= d->drop;
}
