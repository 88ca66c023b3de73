/* errors.h - the errors of predicted rows, as they were recorded: validation/errors.csv, with the
 * columns of errors.def. `weft validate --record` writes it.
 *
 * Everything that says how sure a prediction is reads this table: the bands of bands.h, the rank
 * correlations of sweeps.h, docs/accuracy.md. */
#pragma once
#include "core/base/csv.h"
#include "planner/validate.h"

/* Unknown numbers are NaN. */
struct weft_error_row {
  const char *id, *source, *sweep;
  const char *refused; /* the rule that refused the row; NULL: it was predicted */
  char tier;
  gboolean apart;
  struct weft_traits traits;
  double sequences;
  const char *strategy; /* equal texts: equal strategies */
  double time_s, time_error, memory_gib, memory_error;
};

typedef struct weft_errors {
  weft_csv *csv; /* owner of the texts */
  uint32_t n_row;
  struct weft_error_row *row;
} weft_errors;

/* Loads a record; `path` NULL: the bundled one, which may be missing: then the result has no rows.
 * The caller frees it. */
weft_errors *weft_errors_load (const char *path, GError **error);
weft_errors *weft_errors_parse (const char *text, const char *name, GError **error);
void weft_errors_free (weft_errors *errors);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_errors, weft_errors_free)

/* The text of the record of a validation. The caller frees it. */
char *weft_errors_record (const weft_validation *validation);

/* Whether a published run is part of totals and bands. */
gboolean weft_error_counts (const struct weft_error_row *row);

/* The two quantities that are predicted and measured: step time and memory. */
enum weft_quantity { WEFT_TIME, WEFT_MEMORY, WEFT_N_QUANTITY };

/* predicted / measured - 1 */
double weft_error_of (const struct weft_error_row *row, enum weft_quantity quantity);

/* The errors of a group: all published runs to which a weft_error_name() function gives the same
 * name. */
struct weft_error_group {
  char *name;
  gboolean apart; /* no run of the group counts in totals */
  struct weft_validate_errors of[WEFT_N_QUANTITY];
};

/* Returns the name of the group of a published run; the caller frees it. */
typedef char *weft_error_name (const struct weft_error_row *row);
weft_error_name weft_errors_source_name;

/* "H100 80GB HBM3, megatron-core, dense, pipeline" */
weft_error_name weft_errors_kind_name;

/* Groups the published runs of all tiers except C by the name that `name` gives: struct
 * weft_error_group *. Groups without errors are left out. The caller frees the array. */
GPtrArray *weft_errors_group (const weft_errors *errors, weft_error_name *name);

/* The mean of the groups' mean absolute errors, without groups that are apart. */
double weft_errors_mean (const GPtrArray *groups, enum weft_quantity quantity);
