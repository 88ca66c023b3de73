/* row_plans.h - predicts one row of a table of published measurements. Plans are made for the short
 * steps of its job (shorten.h), and an executor runs them. If the source runs the pipeline several
 * times in a step (measured.runs in assumptions.h), the plans are those of one run. */
#pragma once
#include "core/exec/exec.h"
#include "planner/assumptions.h"
#include "planner/shorten.h"

typedef struct weft_row_plans {
  weft_row_job *job; /* owned */
  struct weft_shortened shortened;
  weft_plan *plan[2]; /* plan of each short step, for the jobs in shortened.job[] */
} weft_row_plans;

/* Makes the plans of a row's job, and takes ownership of `job`. Buffers have offsets only if the
 * software has an arena; the plans are not proved. NULL with an error if the plans cannot be
 * made. */
weft_row_plans *weft_row_plans_new (weft_row_job *job, GError **error);
void weft_row_plans_free (weft_row_plans *row);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_row_plans, weft_row_plans_free)

/* Prices the ops of all plans of a row again, with other numbers in the topology and the stack. The
 * changed numbers must not be numbers that change programs. */
void weft_row_plans_price (weft_row_plans *row, const union weft_cluster_fields *cluster,
                           const union weft_stack *stack);

/* Predicts the seconds of a row's step. NaN with an error if the executor fails. */
double weft_row_plans_seconds (const weft_row_plans *row, const struct weft_exec_ops *executor,
                               GError **error);

/* Predicts the memory of the role that needs most, in bytes, counted as the source of the
 * measurement counts it. */
double weft_row_plans_bytes (const weft_row_plans *row);
