/* drop.h - which elements dropout takes: a function of the seed, the step, the layer, the site and the
 * place of the element in the whole batch, whoever computes it and how often.  Draws are made of
 * counters: each is the mixed sum of a key and its number (mix.h).
 *
 * An op's dimensions are rows, tokens, columns, site and drop.  `tokens` are those of the microbatch on
 * this rank, or on all that share them out; rows are fewer where ranks share them out, and more, one
 * for each head, of probabilities.  Of 2^32 possible draws the first `drop` take an element, and what
 * remains is multiplied by 2^32 / (2^32 - drop).  Where nothing but forward runs (weft_control) nothing
 * is taken. */
#pragma once
#include "core/base/mix.h"
#include "kernels/kernel.h"

struct weft_drop {
  uint64_t key, drop;
  float grow;
  uint64_t columns;
};

struct weft_drop weft_drop_of (const struct weft_kernel *k);

/* The number of the first draw of a row; the others of the row follow it. */
uint64_t weft_drop_row (const struct weft_kernel *k, uint64_t row);

static inline uint8_t
weft_drop_keeps (const struct weft_drop *d, uint64_t number)
{
  return weft_mix_bits (d->key + number * WEFT_MIX_STEP) >> 32 >= d->drop;
}
