/* trained.h - runs a few training steps on a device or the CPU and keeps the results, for comparing
 * runs. */
#pragma once
#include "tests/made/real_job.h"

#define TRAINED_STEPS 3

typedef struct trained {
  double loss[TRAINED_STEPS], norm[TRAINED_STEPS], eval_loss;
  uint64_t state[WEFT_N_STATE_KIND]; /* hash of all tensors of each kind after the last step */
  /* first-step gradients of all tensors, one after the other; elements are float */
  GArray *gradient;
  GArray *tensor; /* number of elements of each tensor, as uint64_t */
} trained;

/* Sets the time limit of a run in seconds. If a run exceeds the limit, the program ends and prints
 * the text of the job and the seed from which it was drawn. 0: the default limit, which is longer
 * than any run needs. */
void trained_limit (double seconds, uint32_t seed);

/* Runs TRAINED_STEPS steps and an evaluation. Initial weights do not depend on the strategy.
 * `calls`: the device; NULL: the CPU. Returns NULL if the device or NCCL does not support the
 * job. */
trained *trained_new (const struct weft_gpu_calls *calls, const char *words,
                      const struct weft_exec_options *how);
void trained_free (trained *t);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (trained, trained_free)

/* Relative tolerances. `loss`, `norm`: relative to the value. `gradient`: of an element, relative
 * to the root mean square of its tensor. `whole`: of all gradients as one vector, the length of the
 * difference relative to the length of the vector (0: not checked). */
struct trained_bound {
  double loss, norm, gradient, whole;
};

/* Fails the test if a difference between the two runs exceeds its limit in `bound`. */
void trained_assert_near (const trained *found, const trained *wanted, struct trained_bound bound,
                          const char *words);

/* Fails the test if any bit of losses, norms or tensors differs. */
void trained_assert_same (const trained *found, const trained *wanted, const char *words);

/* Returns the largest relative differences between the results of two runs. */
struct trained_bound trained_difference (const trained *found, const trained *wanted);
