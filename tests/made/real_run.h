/* real_run.h - a few real steps of a job from words, and everything they left behind.
 *
 * Tokens are drawn from a fixed seed, weights from weft_state_init(), so what two runs leave can be
 * compared bit for bit whatever their strategies. */
#pragma once
#include "core/exec/exec.h"

#define REAL_RUN_MOST_STEPS 8

struct real_run {
  const char *words; /* of the job, random_job.h */
  uint32_t steps;
  uint64_t stress;  /* seed, 0: threads */
  uint32_t threads; /* per rank */
  gboolean poison;
};

struct real_result {
  double loss[REAL_RUN_MOST_STEPS], norm[REAL_RUN_MOST_STEPS], eval_loss;
  uint64_t gradients, weights, moments; /* hashes over all global tensors */
};

/* Fails the test when the job is refused or a step is. */
struct real_result weft_test_run (const struct real_run *run);

/* The same on a plan of the caller's, which may be damaged: FALSE when the executor gives up. */
gboolean weft_test_run_plan (const weft_plan *plan, const struct real_run *run,
                             struct real_result *result, GError **error);

/* Losses, norms and all tensors. */
gboolean
weft_test_same_bits (const struct real_result *a, const struct real_result *b, uint32_t steps);

/* Of fast order: losses of all steps and the first gradient norm are within 1e-6 of what they are,
 * later norms within 1e-5.  Adam divides a gradient by its own size: of an element whose gradient
 * is nothing but rounding (the bias of keys) the update is as large as any other's. */
gboolean
weft_test_is_near (const struct real_result *a, const struct real_result *b, uint32_t steps);

/* Fails where one bit of a run is not as it was for `one`, and says of what. */
void weft_test_check_run (const struct real_run *run, const struct real_result *one);

/* The same of words: poisoned, every third seed under stress and otherwise by threads. */
void weft_test_check_bits (const char *words, uint32_t steps, const struct real_result *one,
                           unsigned seed);

/* Two steps of a model with each strategy's words behind its own: the bits of one rank. */
void weft_test_check_strategies (const char *model, const char *const *strategies, unsigned n);

/* The words of a job on this machine's CPU. */
char *weft_test_cpu_words (const char *model, const char *precision, const char *strategy);

/* A run of them; its own words are not looked at. */
struct real_result weft_test_run_words (const char *model, const char *precision,
                                        const char *strategy, struct real_run run);

/* Models in several precisions under strategies that must not change one bit. */
struct real_sweep {
  const char *const *models, *const *precisions, *const *strategies;
  unsigned n_models, n_precisions, n_strategies;
  uint32_t steps;
  unsigned stride; /* of strategies, every so many are run */
  /* More words of a strategy in a precision; may be NULL. */
  const char *(*more) (const char *precision, const char *strategy);
};

/* One job of it under stress or by threads, as weft_test_check_bits() says. */
void weft_test_check_one (const struct real_sweep *sweep, const char *model, const char *precision,
                          const char *strategy, const struct real_result *one, unsigned seed);

/* The first model under every strategy in every precision, the others under each in one of them. */
void weft_test_check_sweep (const struct real_sweep *sweep);
