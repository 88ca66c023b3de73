/* trials.h - the steps of a search that build programs. A trial is one such step for one candidate.
 *
 * Trials of a batch are independent. They run in several processes (workers.h), because SimGrid can
 * simulate in only one thread of a process. The results do not depend on the number of
 * processes. */
#pragma once
#include "core/report/report.h"

enum weft_trial_depth {
  WEFT_TRIAL_BOUND,    /* clock time of programs without buffer addresses: a lower bound */
  WEFT_TRIAL_CLOCK,    /* clock time and memory */
  WEFT_TRIAL_SIMULATED /* if the step fits: also a simulation of proved plans, and the memory of the
                        * whole step */
};

struct weft_trial {
  struct weft_job job;
  enum weft_trial_depth depth;
  /* the result */
  GError *error;    /* why the trial failed, or why the step cannot be captured as a CUDA graph */
  gboolean refused; /* TRUE: the step cannot be captured as a CUDA graph */
  double seconds;   /* clock time */
  /* bytes of the role that needs most: the planned bytes of the short steps, and the bytes of the
   * whole step without padding; 0 for WEFT_TRIAL_BOUND */
  double bytes, least;
  /* the plan of the whole step, without its programs, and a report with the simulated times and the
   * memory of that plan, without timeline; NULL: the step was not simulated */
  weft_plan *plan;
  weft_report *report;
  uint32_t plans[WEFT_PLAN_PROVED + 1]; /* number of plans that were built, by depth */
  uint64_t ops;                         /* number of ops of the short steps, over all roles */
  /* the work of a trial of depth WEFT_TRIAL_SIMULATED, as a number of simulated ops: `ops`, and a
   * share of the ops of the whole step if its plan is needed */
  uint64_t work;
};

struct weft_trials {
  gboolean graph;              /* TRUE: steps are captured and launched as one CUDA graph */
  weft_placements *placements; /* placements of groups that the plans share */
  uint32_t n_workers;          /* number of processes, as in struct weft_workers */
};

/* Runs n trials, all on clusters equal to that of `placements`. Returns FALSE with an error if no
 * process could be started. */
gboolean weft_trials_run (const struct weft_trials *how, struct weft_trial *trial, uint32_t n,
                          GError **error);

/* Frees the members of the result that are not NULL. */
void weft_trial_clear (struct weft_trial *trial);
