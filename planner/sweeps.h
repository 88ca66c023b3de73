/* sweeps.h - the order of strategies: predicted against measured, in sweeps of published runs.
 *
 * A sweep is all rows with the same value of column `sweep` of the recorded errors (errors.h): one
 * source, one model, one sequence length and one kind of GPU. Its rows differ in parallel sizes,
 * schedule, recompute, precision, batch and number of GPUs. They are ordered by the GPU-seconds of
 * one sequence, so that larger batches and clusters compare.
 *
 * Two rows of a sweep with the same GPUs, batch, precision and release of the software (stack) are
 * alike: they differ in the strategy alone, as the candidates of `weft plan` do. The ratio of their
 * predicted times has the error |ln (predicted ratio / measured ratio)|, in which all that a model
 * and a cluster have in common cancels. */
#pragma once
#include "planner/errors.h"

/* Least number of strategies of a sweep with a rank correlation. A strategy is the knobs, the micro
 * batch and the precision; rows that differ only in GPUs or batch have the same strategy. */
#define WEFT_SWEEP_STRATEGIES 8

/* The ratio error of pairs of alike rows is exceeded by two of ten pairs. In half of these the
 * measured order differs from the predicted order. So of two candidates whose predicted times
 * differ by more than the ratio error, the slower one is slower in reality in nine of ten cases. */
#define WEFT_SWEEP_SHARE 0.8

struct weft_sweep_order {
  const char *name;
  gboolean apart;
  uint32_t rows, strategies;
  /* rank correlations, -1..1; equal values have the mean of their ranks */
  double spearman, kendall;
  /* the Spearman correlation of a predictor that knows the measured times, but has one time for
   * each job: the mean of its runs, where the source ran a job several times. 1 without repeats */
  double reachable;
  uint32_t pairs;            /* number of pairs of alike rows whose measured times differ */
  double right;              /* fraction of the `pairs` whose order is predicted right */
  const char *best;          /* id of the run with the shortest measured time */
  /* place of `best`, the run with the shortest measured time, in the predicted order, from 1 */
  uint32_t place;
  gboolean top;              /* whether `place` is in the first tenth of the order, rounded up */
};

/* Number of pairs of alike rows in all sweeps. Sweeps of any size are counted. */
struct weft_ratio_error {
  uint32_t sweeps, pairs;
  /* ratio error that a fraction WEFT_SWEEP_SHARE of the pairs do not exceed; each sweep has the
   * same weight; NaN without pairs */
  double error;
};

/* The sweeps with at least WEFT_SWEEP_STRATEGIES strategies, sorted by name: an array of struct
 * weft_sweep_order. Its texts belong to `errors`. The caller frees the array. */
GArray *weft_sweeps_order (const weft_errors *errors);

struct weft_ratio_error weft_sweeps_ratio_error (const weft_errors *errors);
