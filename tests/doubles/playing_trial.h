/* playing_trial.h - a test double of kernels/cuda/trial.h without a GPU: blocks are host memory,
 * and the test sets how long runs take. */
#pragma once
#include "kernels/cuda/trial.h"

struct playing_trial {
  float takes[8];    /* milliseconds of the next runs, in order; negative: the run fails */
  uint32_t n_runs;   /* runs so far */
  uint32_t n_blocks; /* blocks allocated now */
  gboolean no_memory; /* fail allocations */
};
extern struct playing_trial playing_trial;
