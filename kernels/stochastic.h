/* stochastic.h - stochastic rounding: a float is rounded to one of its two 16-bit neighbours, up
 * with a probability equal to its relative distance from the lower one, so the expected error is
 * zero (torchao's optimizers call it bf16_stochastic_round).
 *
 * The random numbers come from a counter-based generator, as in dropout (dropout.h). Each number is
 * a function of the seed, the step, the tensor and the index of the element in the whole tensor,
 * independent of sharding. */
#pragma once
#include "core/base/mix.h"
#include "kernels/kernel.h"
#include <string.h>

/* The part of the random number key that is common to all elements of one call. */
static inline uint64_t
weft_stochastic_key (const struct weft_kernel *k)
{
  return weft_mix (weft_mix (weft_mix (k->control->seed) ^ k->control->step) ^ k->whole.key);
}

/* Index in the whole tensor of element i of a call. */
static inline uint64_t
weft_whole_element (const struct weft_whole *w, uint64_t i)
{
  uint64_t at = w->start + i;
  return at / w->columns * w->stride + at % w->columns + w->offset;
}

static inline uint16_t
weft_random_key (uint64_t key, uint64_t element)
{
  return (uint16_t) (weft_mix_bits (key + element * WEFT_MIX_STEP) >> 48);
}

/* Rounds stochastically to bf16, and returns the result as a float. Infinities and NaN are kept. */
static inline float
weft_bf16_stochastic (float x, uint16_t draw)
{
  uint32_t bits;

  memcpy (&bits, &x, sizeof bits);
  if ((bits & 0x7f800000u) != 0x7f800000u)
    bits = (bits + draw) & 0xffff0000u;
  memcpy (&x, &bits, sizeof x);
  return x;
}
