/* planner.h - which strategy is best for this model on this cluster.
 *
 * The space is every combination of the axes below that the user left open.  Three sieves:
 *
 *   1. rules and memory   a candidate that breaks a rule or does not fit is infeasible;
 *   2. clock              what remains is ranked by closed formulas, which never exceed the simulated time
 *                         (nothing contends); a candidate whose lower bound is already far behind the best is
 *                         pruned before its program is built;
 *   3. SimGrid            simulates the best `finalists`, exact program and memory.
 *
 * Time and arena of a schedule grow linearly in the number of microbatches once the pipeline is full, so
 * ranking builds two short steps and extrapolates; finalists are built in full.
 *
 * gap bounds how far the answer can be from the optimum of the whole space: the best simulated time
 * against the smallest clock time of anything that was not simulated. */
#pragma once
#include "core/exec/exec.h"

enum weft_fate {
  WEFT_FATE_RULE,      /* broke a rule */
  WEFT_FATE_MEMORY,    /* does not fit */
  WEFT_FATE_PRUNED,    /* bound too far behind */
  WEFT_FATE_RANKED,    /* has a clock time */
  WEFT_FATE_SIMULATED, /* has a simulated time, too */
};

struct weft_candidate {
  struct weft_job job;
  enum weft_fate fate;
  uint64_t bytes;         /* worst role, reserved bytes included; exact when simulated */
  double bound, clock;    /* seconds; 0 when not computed */
  double seconds;         /* simulated */
  weft_plan *plan;        /* of simulated ones */
  weft_timeline *timeline;
};

typedef struct weft_search {
  uint32_t n;                      /* candidates in the space */
  struct weft_candidate *candidate;/* best first: simulated by time, then ranked by clock, then the rest */
  uint32_t by_fate[WEFT_FATE_SIMULATED + 1];
  double gap, wall_seconds;
} weft_search;

struct weft_search_options {
  uint32_t finalists; /* 0: 10 */
  void (*progress) (void *user, const char *phase, uint32_t done, uint32_t of); /* may be NULL */
  void *user;
};

/* Searches around `job`, whose knob_set and train_set say what is fixed.  `simulate` is the executor that
 * decides.  FALSE with WEFT_ERROR_INFEASIBLE when nothing fits; the search is returned all the same. */
weft_search *weft_search_run (const struct weft_job *job, const struct weft_search_options *options,
                              GError **error);
void weft_search_free (weft_search *search);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_search, weft_search_free)
