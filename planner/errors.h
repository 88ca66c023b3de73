/* errors.h - the errors of predicted rows, as recorded in validation/errors.csv with the columns of
 * errors.def. `weft validate --record` writes this file.
 *
 * All statements about the certainty of a prediction are computed from this file: the bands of
 * bands.h, the rank correlations of sweeps.h, docs/accuracy.md. */
#pragma once
#include "core/base/csv.h"
#include "planner/validate.h"

/* A row of recorded errors. Unknown numbers are NaN. */
struct weft_error_row {
  const char *id, *source, *sweep;
  const char *refused; /* name of the rule that refused the row; NULL: the row was predicted */
  char tier;
  gboolean apart;
  struct weft_traits traits;
  double sequences;
  const char *strategy; /* rows with equal texts have the same strategy */
  double time_s, time_error, memory_gib, memory_error;
};

typedef struct weft_errors {
  weft_csv *csv; /* owner of the texts in the rows */
  uint32_t n_row;
  struct weft_error_row *row;
} weft_errors;

/* Loads a record of errors; `path` NULL: the bundled record. If the bundled file is missing, the
 * result has no rows. The caller frees the result. */
weft_errors *weft_errors_load (const char *path, GError **error);
weft_errors *weft_errors_parse (const char *text, const char *name, GError **error);
void weft_errors_free (weft_errors *errors);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_errors, weft_errors_free)

/* The text of the file that records the errors of a validation. The caller frees the text. */
char *weft_errors_record (const weft_validation *validation);

/* Whether a published run is part of totals and bands. */
gboolean weft_error_counts (const struct weft_error_row *row);

/* The two quantities that are predicted and measured: step time and memory. */
enum weft_quantity { WEFT_TIME, WEFT_MEMORY, WEFT_N_QUANTITY };

/* predicted / measured - 1 */
double weft_error_of (const struct weft_error_row *row, enum weft_quantity quantity);

/* The errors of a group: of all published runs with the same name, which a weft_error_name()
 * function gives. */
struct weft_error_group {
  char *name;
  gboolean apart; /* TRUE: no run of the group counts in totals */
  struct weft_validate_errors of[WEFT_N_QUANTITY];
};

/* Returns the name of the group that a published run belongs to; the caller frees the text. */
typedef char *weft_error_name (const struct weft_error_row *row);
weft_error_name weft_errors_source_name;

/* a name of a group: "H100 80GB HBM3, megatron-core, dense, pipeline" */
weft_error_name weft_errors_kind_name;

/* Groups the published runs of all tiers except C by the name that `name` gives: struct
 * weft_error_group *. Groups without errors are left out. The caller frees the array. */
GPtrArray *weft_errors_group (const weft_errors *errors, weft_error_name *name);

/* The mean over groups of their mean absolute errors. Groups that count in no total are left
 * out. */
double weft_errors_mean (const GPtrArray *groups, enum weft_quantity quantity);
