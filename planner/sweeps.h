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

/* Sweeps of fewer strategies have no rank correlation. A strategy is the knobs, the micro
 * batch and the precision: rows that differ only in GPUs or batch have the same. */
#define WEFT_SWEEP_STRATEGIES 8

/* A candidate that is slower than another by more than the ratio error is slower in reality in nine
 * of ten cases: in two of ten pairs of alike rows the ratio is off by more, in half of these in the
 * direction that turns the order. */
#define WEFT_SWEEP_SHARE 0.8

struct weft_sweep_order {
  const char *name;
  gboolean apart;
  uint32_t rows, strategies;
  double spearman, kendall;  /* rank correlations, -1..1; ties have middle ranks */
  uint32_t pairs;            /* alike rows whose measured times differ */
  double right;              /* fraction of `pairs` that is predicted in the right order */
  const char *best;          /* id of the fastest row */
  uint32_t place;            /* place of `best` in the predicted order, from 1 */
  gboolean top;              /* the place is in the first tenth, rounded up */
};

/* Pairs of alike rows in all sweeps that count, however small. */
struct weft_ratio_error {
  uint32_t sweeps, pairs;
  double error; /* fraction that WEFT_SWEEP_SHARE of the pairs do not exceed, each sweep with the
                 * same weight; NaN without pairs */
};

/* The sweeps of WEFT_SWEEP_STRATEGIES strategies, by name, as an array of struct weft_sweep_order;
 * its texts belong to `errors`. The caller frees it. */
GArray *weft_sweeps_order (const weft_errors *errors);

struct weft_ratio_error weft_sweeps_ratio_error (const weft_errors *errors);
