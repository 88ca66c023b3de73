/* trained.h - a few steps of training on a device or on the CPU, and what they left, for tests that
 * hold one run against another. */
#pragma once
#include "tests/made/real_job.h"

#define TRAINED_STEPS 3

typedef struct trained {
  double loss[TRAINED_STEPS], norm[TRAINED_STEPS], eval_loss;
  uint64_t state[WEFT_N_STATE_KIND]; /* hashes, at the end */
  GArray *gradient;                  /* float: of all tensors, after the first step */
  GArray *tensor;                    /* uint64_t: elements of each */
} trained;

/* Seconds that a run may take: what takes longer, or for ever, ends the program, which says the
 * run's words and the seed that they were drawn from; 0: as many as no run should need, which is
 * the default. */
void trained_limit (double seconds, uint32_t seed);

/* Steps from the same weights, whatever the strategy; an evaluation after the last.  `calls` NULL:
 * on the CPU.  NULL when the device lacks something: a kernel, or what NCCL has not. */
trained *trained_new (const struct weft_cuda_calls *calls, const char *words,
                      const struct weft_exec_options *how);
void trained_free (trained *t);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (trained, trained_free)

/* How far two runs may differ, as a share: a loss and a norm of the wanted ones; an element of a
 * gradient of the root mean square of its tensor; of all gradients, as one vector, the difference's
 * length of theirs, or 0: nobody asks. */
struct trained_bound {
  double loss, norm, gradient, whole;
};

/* Fails, with words, where they differ more; or where one bit does. */
void trained_assert_near (const trained *found, const trained *wanted, struct trained_bound bound,
                          const char *words);
void trained_assert_same (const trained *found, const trained *wanted, const char *words);

/* The largest differences, as shares. */
struct trained_bound trained_difference (const trained *found, const trained *wanted);
