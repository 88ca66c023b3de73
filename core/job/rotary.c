#include "core/job/rotary.h"
#include "core/base/invariant.h"
#include <math.h>

/* Weight, from 0 to 1, with which the frequency of a rotated pair stays unscaled: 0 if the pair
 * rotates less than low_freq_factor turns over the original context, 1 if more than
 * high_freq_factor turns. */
static double
llama3_share (const union weft_model *m, double frequency)
{
  double turns = m->rotary_original_positions * frequency / (2 * G_PI);
  double low = m->rotary_low_freq_factor, high = m->rotary_high_freq_factor;

  if (low == high)
    return turns > low;
  return CLAMP ((turns - low) / (high - low), 0, 1);
}

uint64_t
weft_rotary_pairs (const union weft_model *m, uint64_t width)
{
  return (uint64_t) ((double) width * m->rotary_percent + 1e-6) / 2;
}

double
weft_rotary_frequency (const union weft_model *m, uint32_t i, uint32_t width, gboolean local)
{
  double base = local ? m->rotary_base_local : m->rotary_base;
  double frequency = pow (base, -2.0 * i / width), share = 0;

  WEFT_INVARIANT (i < width / 2 && m->rotary_scaling != WEFT_ROTARY_OTHER);
  if (m->rotary_scaling == WEFT_ROTARY_NONE || local)
    return frequency;
  if (m->rotary_scaling == WEFT_ROTARY_LLAMA3)
    share = llama3_share (m, frequency);
  return share * frequency + (1 - share) * frequency / m->rotary_scaling_factor;
}
