/* real_run.h - runs a few real steps of a job given as text, and returns all results.
 *
 * Tokens come from a fixed seed and weights from weft_state_init(), so two runs can be compared bit
 * for bit whatever their strategies. */
#pragma once
#include "core/exec/exec.h"

#define REAL_RUN_MOST_STEPS 8

struct real_run {
  const char *words; /* text of the job, in the format of random_job.h */
  uint32_t steps;
  /* seed of the random order in which one thread runs all ops; 0: ranks run in threads */
  uint64_t stress;
  uint32_t threads; /* number of CPU threads per rank */
  gboolean poison;
};

struct real_result {
  double loss[REAL_RUN_MOST_STEPS], norm[REAL_RUN_MOST_STEPS], eval_loss;
  uint64_t gradients, weights, moments; /* hashes of all global tensors after the last step */
};

/* Runs the steps of a job. Fails the test if the job or a step is refused. */
struct real_result weft_test_run (const struct real_run *run);

/* Like weft_test_run(), but on a given plan, which may be a mutant; run->words is ignored. Returns
 * FALSE if the executor fails. */
gboolean weft_test_run_plan (const weft_plan *plan, const struct real_run *run,
                             struct real_result *result, GError **error);

/* Whether two runs have equal losses, norms and hashes of all tensors. */
gboolean
weft_test_same_bits (const struct real_result *a, const struct real_result *b, uint32_t steps);

/* Whether two runs in fast order agree: losses of all steps and the first gradient norm within
 * 1e-6, later norms within 1e-5. The limit for later norms is wider, because Adam divides a
 * gradient by its own magnitude, so a gradient that is only rounding noise changes its weight as
 * much as any other. */
gboolean
weft_test_is_near (const struct real_result *a, const struct real_result *b, uint32_t steps);

/* Runs a job and fails the test if a loss, norm or hash of tensors differs in any bit from the
 * result `one`. */
void weft_test_check_run (const struct real_run *run, const struct real_result *one);

/* Like weft_test_check_run(), but for a job given as text, in memory that is poisoned with NaN. If
 * 3 divides `seed`, ops run in random order, otherwise in threads. */
void weft_test_check_bits (const char *words, uint32_t steps, const struct real_result *one,
                           unsigned seed);

/* Runs two steps of a model under each strategy, a text that is appended to the model's text. All
 * results must be bitwise equal to those of the model on one rank. */
void weft_test_check_strategies (const char *model, const char *const *strategies, unsigned n);

/* Returns the text of a job that runs on the CPU of this machine. The caller frees it. */
char *weft_test_cpu_words (const char *model, const char *precision, const char *strategy);

/* Runs the job whose text is that of weft_test_cpu_words() for these arguments; run.words is
 * ignored. */
struct real_result weft_test_run_words (const char *model, const char *precision,
                                        const char *strategy, struct real_run run);

/* A list of jobs: models in several precisions, under strategies that must not change any bit of
 * the results. */
struct real_sweep {
  const char *const *models, *const *precisions, *const *strategies;
  unsigned n_models, n_precisions, n_strategies;
  uint32_t steps;
  unsigned stride; /* of the strategies, only every stride-th is run */
  /* Returns text to append to the job for this strategy in this precision. May be NULL. */
  const char *(*more) (const char *precision, const char *strategy);
};

/* Runs one job of a sweep with weft_test_check_bits(), and fails unless its results are those of
 * `one`. */
void weft_test_check_one (const struct real_sweep *sweep, const char *model, const char *precision,
                          const char *strategy, const struct real_result *one, unsigned seed);

/* Checks every model under every strategy: the first model in one precision, the others in another.
 * With `./weft test --long`, or with one model only, the first model is checked in every
 * precision. */
void weft_test_check_sweep (const struct real_sweep *sweep);
