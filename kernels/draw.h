/* draw.h - rounding by lot: a float becomes the number of 16 bits below or above it in size, the one above
 * with the probability that is the share of the way to it, so that what is lost is nothing in the mean
 * (stochastic rounding; torchao's optimizers call it bf16_stochastic_round).
 *
 * A draw is a function of the seed, the step, the tensor and the place of the element in the whole of it,
 * whoever updates it: counters, as those of dropout (drop.h). */
#pragma once
#include "core/base/mix.h"
#include "kernels/kernel.h"
#include <string.h>

/* What the draws of one call have in common. */
static inline uint64_t
weft_draw_key (const struct weft_kernel *k)
{
  return weft_mix (weft_mix (weft_mix (k->control->seed) ^ k->control->step) ^ k->whole.key);
}

/* Element i of a call, in the tensor. */
static inline uint64_t
weft_whole_element (const struct weft_whole *w, uint64_t i)
{
  uint64_t at = w->start + i;
  return at / w->columns * w->stride + at % w->columns + w->offset;
}

static inline uint16_t
weft_draw (uint64_t key, uint64_t element)
{
  return (uint16_t) (weft_mix_bits (key + element * WEFT_MIX_STEP) >> 48);
}

/* A float that bf16 holds; infinities and NaN stay. */
static inline float
weft_bf16_drawn (float x, uint16_t draw)
{
  uint32_t bits;

  memcpy (&bits, &x, sizeof bits);
  if ((bits & 0x7f800000u) != 0x7f800000u)
    bits = (bits + draw) & 0xffff0000u;
  memcpy (&x, &bits, sizeof x);
  return x;
}
