/* trials.h - the steps of a search that build programs. A trial is one such step for one candidate.
 *
 * Trials of a batch are independent. They run in several processes (worker_pool.h), because SimGrid
 * can simulate in only one thread of a process. The results do not depend on the number of
 * processes. */
#pragma once
#include "core/report/report.h"
#include "planner/ends.h"
#include "planner/paths.h"
#include "planner/worker_pool.h"

enum weft_trial_depth {
  WEFT_TRIAL_BOUND, /* clock time of programs without buffer addresses: a lower bound */
  WEFT_TRIAL_CLOCK, /* clock time and memory */
  /* if the step fits: also a simulation of proved plans, and the memory of the whole step */
  WEFT_TRIAL_SIMULATED,
  /* only measurements for lower bounds: the ends of a job of one microbatch (ends.h), and the paths
   * through the passes of a job of few microbatches (paths.h) */
  WEFT_TRIAL_ENDS,
  WEFT_TRIAL_PATHS
};

struct weft_trial {
  struct weft_job job;
  enum weft_trial_depth depth;
  uint64_t expected_ops; /* number of ops as far as it is known: long trials begin first */
  /* the result */
  GError *error; /* why the trial failed, or why the step is refused */
  /* TRUE: the step cannot be captured as a CUDA graph, or too few of its ranks behave alike to
   * simulate it */
  gboolean refused;
  gboolean skipped; /* TRUE: trials were stopped before it ended, and it has no other result */
  double seconds;   /* clock time */
  /* lower bound of the simulated time from what ranks and lanes share (contention.h), where it
   * exceeds the clock time; otherwise 0 or less than the clock time */
  double contended;
  /* bytes of the role that needs most: the planned bytes of the short steps, 0 for
   * WEFT_TRIAL_BOUND; and the bytes of the whole step without padding, 0 if only a plan with
   * addresses would tell them */
  double bytes, least;
  /* the plan of the whole step, without its programs, and a report with the simulated times and the
   * memory of that plan, without timeline; NULL: the step was not simulated */
  weft_plan *plan;
  weft_report *report;
  struct weft_ends *ends;               /* of WEFT_TRIAL_ENDS */
  struct weft_paths *paths;             /* of WEFT_TRIAL_PATHS; NULL: they could not be measured */
  uint32_t plans[WEFT_PLAN_PROVED + 1]; /* number of plans that were built, by depth */
  uint64_t ops;                         /* number of ops of the short steps, over all roles */
  /* the work of a trial of depth WEFT_TRIAL_SIMULATED, as a number of simulated ops: `ops`, and a
   * share of the ops of the whole step if its plan is needed */
  uint64_t work;
};

struct weft_trials {
  gboolean graph;              /* TRUE: steps are captured and launched as one CUDA graph */
  weft_placements *placements; /* placements of groups that the plans share */
  /* number of processes; 0: one for each processor; 1: trials run in this process. Memory that
   * SimGrid has used stays in a process */
  uint32_t n_workers;
  weft_worker_pool *pool; /* NULL at first: the processes, which stay until weft_trials_end() */
  gboolean whole;         /* TRUE: long steps are not extrapolated from short ones; for tests */
  /* NULL, or whether trials in other processes end early (worker_pool.h) */
  gboolean (*stop) (void *user);
  void *user;
};

/* Runs n trials, all on clusters equal to that of `placements`. Returns FALSE with an error if no
 * process could be started. */
gboolean
weft_trials_run (struct weft_trials *how, struct weft_trial *trial, uint32_t n, GError **error);

/* The number of cells of the schedules whose programs a trial of the job builds. */
uint64_t weft_trial_cells (const struct weft_trials *how, const struct weft_job *job);

/* Ends the processes. */
void weft_trials_end (struct weft_trials *how);

/* Frees the members of the result that are not NULL. */
void weft_trial_clear (struct weft_trial *trial);
