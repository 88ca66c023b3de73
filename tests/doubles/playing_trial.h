/* playing_trial.h - a test double of kernels/cuda/trial.h without a GPU: blocks of memory are on
 * the host, and the test sets how long each run takes. */
#pragma once
#include "kernels/cuda/trial.h"

struct playing_trial {
  /* milliseconds of the next runs, in order; negative: this run fails, or WEFT_TRIAL_HUNG */
  float takes[8];
  uint32_t n_runs;    /* number of runs so far */
  uint32_t n_blocks;  /* number of memory blocks that are allocated now */
  gboolean no_memory; /* allocations fail */
};
extern struct playing_trial playing_trial;
