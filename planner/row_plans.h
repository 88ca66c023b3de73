/* row_plans.h - predicts one row of published measurements: the plans of its short steps
 * (shorten.h), run by an executor. */
#pragma once
#include "core/exec/exec.h"
#include "planner/assumptions.h"
#include "planner/shorten.h"

typedef struct weft_row_plans {
  weft_row_job *job; /* owned */
  struct weft_shortened shortened;
  weft_plan *plan[2]; /* plans of shortened.job[] */
} weft_row_plans;

/* Makes the plans of a row's job; takes `job`. Buffers have offsets only if the software has an
 * arena; the plans are not proved. NULL with an error if the plans cannot be made. */
weft_row_plans *weft_row_plans_new (weft_row_job *job, GError **error);
void weft_row_plans_free (weft_row_plans *row);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_row_plans, weft_row_plans_free)

/* Prices the ops of all plans again, for other numbers in the topology and the stack. The numbers
 * must not be ones that change programs. */
void weft_row_plans_price (weft_row_plans *row, const union weft_cluster_fields *cluster,
                           const union weft_stack *stack);

/* Predicts the seconds of the step. NaN with an error if the executor fails. */
double weft_row_plans_seconds (const weft_row_plans *row, const struct weft_exec_ops *executor,
                               GError **error);

/* Predicts the memory of the role that needs most, in bytes, counted as the source of the
 * measurement counts it. */
double weft_row_plans_bytes (const weft_row_plans *row);
