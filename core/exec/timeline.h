/* timeline.h - what happened: begin and end of every (rank, op) that was watched.  Everything that
 * is reported is computed from plan + timeline (report.h, trace.h). */
#pragma once
#include "core/plan/plan.h"

typedef struct weft_timeline {
  uint32_t n;             /* ranks watched */
  uint32_t *rank, *role;  /* of each row */
  uint32_t *stands_for;   /* ranks a row speaks for: 1 without folding */
  double **begin, **end;  /* [row][op], seconds since the step began */
  double seconds;         /* the step: when the last op of all ranks ended */

  const char *executor;   /* static name */
  const char *engine;     /* "3.32" for SimGrid, "" otherwise */
  gboolean folded;        /* rows stand for all ranks of their orbit */
  gboolean contended;     /* something took longer than alone: links or SMs were shared */
  uint64_t n_ops;         /* ops run, all actors */
  uint64_t n_activities;  /* flows and timers of the engine */
  double wall_seconds;    /* of the executor */
} weft_timeline;

/* Rows for all actors, times not a number. */
weft_timeline *weft_timeline_new (const weft_plan *plan, const weft_actors *actors,
                                  const char *executor);
void weft_timeline_free (weft_timeline *timeline);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_timeline, weft_timeline_free)

/* Sets `seconds` from the rows. */
void weft_timeline_finish (weft_timeline *timeline, const weft_plan *plan);
