/* playing_trial.h - kernels/cuda/trial.h without a GPU: blocks are of this machine, runs take as
 * long as a test says. */
#pragma once
#include "kernels/cuda/trial.h"

struct playing_trial {
  float takes[8];    /* milliseconds of the next runs, in turn; negative: fails without being run */
  uint32_t n_runs;   /* so far */
  uint32_t n_blocks; /* that are there */
  gboolean no_memory; /* for blocks */
};
extern struct playing_trial playing_trial;
