#include "train/trainer.h"
#include <math.h>

double
weft_trainer_lr (const struct weft_trainer_options *o, uint64_t step)
{
  if (step <= o->warmup)
    return o->lr * (double) step / (double) o->warmup;
  if (step >= o->decay_steps)
    return o->min_lr;
  double done = (double) (step - o->warmup) / (double) (o->decay_steps - o->warmup);
  return o->min_lr + 0.5 * (o->lr - o->min_lr) * (1 + cos (G_PI * done));
}

/* Published peak learning rates by model size, ascending. From 125M on: Brown et al. 2020, arXiv
 * 2005.14165, table 2.1. Below: the smallest model of Pythia (arXiv 2304.01373; table in
 * github.com/EleutherAI/pythia) and nanoGPT, config/train_shakespeare_char.py. */
static const struct peak {
  double parameters, lr;
} peaks[] = {
  { 10.7e6, 1e-3 }, { 70e6, 1e-3 },    { 125e6, 6e-4 },   { 350e6, 3e-4 }, { 760e6, 2.5e-4 },
  { 1.3e9, 2e-4 },  { 2.7e9, 1.6e-4 }, { 6.7e9, 1.2e-4 }, { 13e9, 1e-4 },  { 175e9, 0.6e-4 },
};

/* Interpolates linearly in the logarithm of the size. Sizes outside the table use the nearest
 * row. */
double
weft_trainer_default_lr (uint64_t parameters)
{
  const double n = (double) parameters;
  unsigned i = 0;

  while (i < G_N_ELEMENTS (peaks) && peaks[i].parameters < n)
    i++;
  if (i == 0)
    return peaks[0].lr;
  if (i == G_N_ELEMENTS (peaks))
    return peaks[i - 1].lr;
  const struct peak *below = &peaks[i - 1], *above = &peaks[i];
  double share = log (n / below->parameters) / log (above->parameters / below->parameters);
  return below->lr + share * (above->lr - below->lr);
}

uint64_t
weft_trainer_default_decay_steps (uint64_t parameters, uint64_t tokens_per_step)
{
  const uint64_t tokens_per_parameter = 20;
  return MAX (parameters * tokens_per_parameter / tokens_per_step, 1);
}
