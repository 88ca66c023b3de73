/* assumptions.h - what a row of published measurements says as a job: rules in an .ini file, by default
 * validation/assumptions.ini.
 *
 * A section is a rule.  Its name is the rows it is for:
 *
 *   [id = zb-* and recompute = blank]
 *
 * joins conditions with "and", each a column of published.def, one of = != >, and a value: for = and
 * != patterns with * and ?, several of them between bars, where `blank` is a cell with nothing in
 * it; for > a number.  Rules are applied in the order of the file.  Their keys are
 *
 *   column.NAME       the value of that column, where it is blank
 *   SECTION.KEY       a setting of the job, as in a job file; the last one counts
 *   measured.memory   what the source's memory is: `device`, all that a driver counts, or `allocator`,
 *                     without the context and the buffers of communicators
 *   measured.flops    how the source counts FLOPs, where it prints only their rate: `causal` or
 *                     `full` attention
 *   why               the reason, for people
 *
 * and {NAME} in a value is the cell of that column: a rule that names a blank one refuses the row.
 * "{dp} * 4 / 8" is calculated, from left to right. */
#pragma once
#include "core/job/job.h"
#include "planner/published.h"

typedef struct weft_assumptions weft_assumptions;

/* NULL: the bundled file. */
weft_assumptions *weft_assumptions_load (const char *path, GError **error);
void weft_assumptions_free (weft_assumptions *assumptions);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_assumptions, weft_assumptions_free)

/* Where in the file a rule stands and what it did to one row. */
struct weft_applied {
  const char *rule, *key; /* borrowed from the file */
  char *value;            /* columns filled in */
  unsigned line;
};

#define WEFT_MEASURED_MEMORY_LIST(X)                                                               \
  X (WEFT_MEMORY_DEVICE, "device", "all that the driver counts")                                   \
  X (WEFT_MEMORY_ALLOCATOR, "allocator", "without context and communicators")
enum weft_measured_memory { WEFT_MEASURED_MEMORY_LIST (WEFT_WORD_ID) WEFT_N_MEASURED_MEMORY };

#define WEFT_MEASURED_FLOPS_LIST(X)                                                                \
  X (WEFT_FLOPS_UNKNOWN, "unknown", "no time follows from a rate")                                 \
  X (WEFT_FLOPS_CAUSAL, "causal", "half of attention")                                             \
  X (WEFT_FLOPS_FULL, "full", "all of attention")
enum weft_measured_flops { WEFT_MEASURED_FLOPS_LIST (WEFT_WORD_ID) WEFT_N_MEASURED_FLOPS };

typedef struct weft_row_job {
  struct weft_job job; /* where weft_row_job_new() made one */
  char *cell[WEFT_N_COLUMN];
  GPtrArray *applied; /* of struct weft_applied *, in order */
  enum weft_measured_memory memory;
  enum weft_measured_flops flops;
} weft_row_job;

/* The job of a row.  Where a rule of rules.def or a blank cell stands against it *error is set, and what was
 * applied is returned all the same. */
weft_row_job *weft_row_job_new (const weft_assumptions *assumptions, const weft_published *table,
                                unsigned row, GError **error);
void weft_row_job_free (weft_row_job *row);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_row_job, weft_row_job_free)

/* Seconds of the measured step: the time, or what follows from tokens or FLOPs of a second; not a
 * number where none is given. */
double weft_row_job_seconds (const weft_row_job *row);
