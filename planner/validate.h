/* validate.h - predictions against published measurements, row by row, and what the errors are together.
 *
 * Errors are signed shares, predicted / measured - 1.  Rows of tier C are predicted and never
 * counted. */
#pragma once
#include "core/exec/exec.h"
#include "planner/assumptions.h"

/* Everything that is told of errors that are there: nothing is of none. */
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

/* Seconds and GiB that are not known are not a number, and so is an error that follows from them. */
struct weft_validate_row {
  unsigned index;     /* in the table */
  const char *id, *group;
  char tier;
  char *rule, *why;   /* of a row that was refused, else NULL */
  double predicted_s, measured_s, time_error;
  double predicted_gib, measured_gib, memory_error;
};

struct weft_validate_group {
  const char *name;
  struct weft_validate_errors time, memory;
};

typedef struct weft_validation {
  uint32_t n_row, n_predicted, n_group;
  struct weft_validate_row *row;     /* in the order of the table */
  struct weft_validate_errors time, memory;
  struct weft_validate_group *group; /* by name; those with errors */
  double wall_seconds;
} weft_validation;

struct weft_validate_options {
  const struct weft_exec_ops *executor;
  uint32_t jobs;                     /* threads that make plans; 0: one for each processor */
  const char *tier, *group, *source; /* only these rows; NULL: all.  "AB"; patterns with * and ?; a
                                        source is what stands before the number of an id, too */
  void (*progress) (void *user, uint32_t done, uint32_t of); /* may be NULL */
  void *user;
};

/* NULL only where no row is asked for or no thread can be had; a row that cannot be predicted says
 * why. */
weft_validation *weft_validate (const weft_published *table, const weft_assumptions *assumptions,
                                const struct weft_validate_options *options, GError **error);
void weft_validation_free (weft_validation *validation);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_validation, weft_validation_free)

/* Errors of n numbers, those left out that are none. */
struct weft_validate_errors weft_validate_errors_of (const double *error, uint32_t n);
