/* validate.h - compares predictions with published measurements, row by row, and summarises the
 * errors.
 *
 * An error is the signed fraction predicted / measured - 1. Rows of tier C are predicted but never
 * counted in a summary. */
#pragma once
#include "core/exec/exec.h"
#include "planner/assumptions.h"
#include "planner/traits.h"

/* The statistics of a set of errors; all are NaN if the set is empty. */
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

/* Unknown seconds and GiB are NaN. Errors that depend on unknown values are NaN, too. */
struct weft_validate_row {
  unsigned index;     /* row of the table */
  const char *id, *group;
  char *source;       /* SOURCE of an id SOURCE-NUMBER */
  char tier;
  gboolean apart;     /* the row counts in its source and its group, but in no total */
  char *rule, *why;   /* the rule that the row breaks, and its message; NULL if the row was
                       * predicted */
  double predicted_s, measured_s, time_error;
  double predicted_gib, measured_gib, memory_error;
  /* Of a row that was predicted: */
  struct weft_traits traits;
  char *sweep;         /* model and cluster (sweeps.h) */
  double sequences;   /* of a step */
  uint32_t strategy;  /* a hash of the knobs, the micro batch and the precision */
};

/* A group of rows, or a source. */
struct weft_validate_group {
  const char *name;
  gboolean apart; /* no row of the group counts in totals */
  struct weft_validate_errors time, memory;
};

typedef struct weft_validation {
  uint32_t n_row, n_predicted, n_group, n_source;
  struct weft_validate_row *row;     /* n_row rows, in the order of the table */
  struct weft_validate_errors time, memory;
  double time_by_source, memory_by_source; /* means of the means of all sources; NaN without any */
  /* Sorted by name; those without errors are left out. */
  struct weft_validate_group *group, *source;
  double wall_seconds;
} weft_validation;

struct weft_validate_options {
  const struct weft_exec_ops *executor;
  uint32_t jobs; /* number of processes that predict rows; 0: one for each processor; 1: rows are
                  * predicted in this process */
  const char *tier, *group, *source; /* select rows; NULL selects all. tier: a set of letters, "AB";
                                      * group and source: patterns with * and ?; source may also be
                                      * the SOURCE of an id SOURCE-NUMBER */
  void (*progress) (void *user, uint32_t done, uint32_t of); /* may be NULL */
  void *user;
};

/* Predicts the selected rows. Returns NULL with an error if no row is selected or no process can be
 * started. If a row cannot be predicted, its `why` is the reason. */
weft_validation *weft_validate (const weft_published *table, const weft_assumptions *assumptions,
                                const struct weft_validate_options *options, GError **error);
void weft_validation_free (weft_validation *validation);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_validation, weft_validation_free)

/* Statistics of n errors; NaN values are left out. */
struct weft_validate_errors weft_validate_errors_of (const double *error, uint32_t n);
