/* validate.h - compares predictions with published measurements, row by row, and summarises the
 * errors.
 *
 * An error is the signed fraction predicted / measured - 1. Rows of tier C are predicted but never
 * counted in a summary. */
#pragma once
#include "core/exec/exec.h"
#include "planner/assumptions.h"
#include "planner/traits.h"

/* The statistics of a set of errors. All values are NaN if the set is empty. */
#define WEFT_VALIDATE_ERROR_LIST(X)                                                                \
  X (mape, "mean of absolute errors")                                                              \
  X (median, "median of absolute errors")                                                          \
  X (p90, "nine of ten absolute errors are at most this")                                          \
  X (max, "largest absolute error")                                                                \
  X (bias, "mean of signed errors")

struct weft_validate_errors {
  uint32_t n;
#define WEFT_VALIDATE_REAL(name, doc) double name;
  WEFT_VALIDATE_ERROR_LIST (WEFT_VALIDATE_REAL)
#undef WEFT_VALIDATE_REAL
};

/* Prediction and measurement of a row. Unknown seconds and GiB are NaN. Errors that depend on
 * unknown values are NaN, too. */
struct weft_validate_row {
  unsigned index;     /* index of the row in the table */
  const char *id, *group;
  char *source;       /* the SOURCE part of the row's id SOURCE-NUMBER */
  char tier;
  gboolean apart;     /* whether the row counts in its source and its group, but in no total */
  /* name of the rule that the row breaks, and the text of the error; both NULL if the row was
   * predicted */
  char *rule, *why;
  double predicted_s, measured_s, time_error;
  double predicted_gib, measured_gib, memory_error;
  /* Only for a row that was predicted: */
  struct weft_traits traits;
  char *sweep;         /* a text that names model, sequence and GPU (sweeps.h) */
  double sequences;   /* sequences of a step */
  uint32_t strategy;  /* a hash of the strategy: the knobs, the micro batch and the precision */
};

/* A group of rows, or all rows of a source. */
struct weft_validate_group {
  const char *name;
  gboolean apart; /* TRUE: no row of the group counts in totals */
  struct weft_validate_errors time, memory;
};

typedef struct weft_validation {
  uint32_t n_row, n_predicted, n_group, n_source;
  struct weft_validate_row *row;     /* n_row rows, in the order of the table */
  struct weft_validate_errors time, memory;
  /* means over sources of the mean of each source; NaN without sources */
  double time_by_source, memory_by_source;
  /* array of groups or sources, sorted by name; those without errors are left out */
  struct weft_validate_group *group, *source;
  double wall_seconds;
} weft_validation;

struct weft_validate_options {
  const struct weft_exec_ops *executor;
  /* number of processes that predict rows; 0: one for each processor; 1: rows are predicted in this
   * process */
  uint32_t jobs;
  /* which rows are predicted; NULL: all. tier: a set of letters, "AB"; group and source: patterns
   * with * and ?; source may also be the SOURCE part of an id SOURCE-NUMBER */
  const char *tier, *group, *source;
  /* function that reports progress; may be NULL */
  void (*progress) (void *user, uint32_t done, uint32_t of);
  void *user;
};

/* Predicts the selected rows. Returns NULL with an error if no row is selected or no process can be
 * started. If a row cannot be predicted, its field `why` is the reason. */
weft_validation *weft_validate (const weft_published *table, const weft_assumptions *assumptions,
                                const struct weft_validate_options *options, GError **error);
void weft_validation_free (weft_validation *validation);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_validation, weft_validation_free)

/* Computes the statistics of n errors; NaN values are left out. */
struct weft_validate_errors weft_validate_errors_of (const double *error, uint32_t n);
