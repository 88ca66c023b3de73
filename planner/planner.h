/* planner.h - which strategy is best for this model on this cluster.
 *
 * The space is every combination of the axes (axes.def) that the user left open.  Candidates are looked at in
 * the order of the least time that they can take, as far as is known, and no closer than needed:
 *
 *   bound     FLOPs, then layers added up, then the schedule replayed (bound.h), then the clock of a program
 *             whose buffers have no places: seconds that nothing undercuts; and bytes that are there in
 *             any case, by which most of what does not fit is known
 *   clock     exact program and memory, and closed formulas for time, which never exceed the simulated
 *             time (nothing contends)
 *   SimGrid   simulates the best `finalists` by clock, whose plans are proved
 *
 * A clock that is below all bounds of others is the smallest, so the finalists are those that they would
 * be if all had been ranked.  What is left then can not win: its bound is above the clocks of all
 * finalists, or its FLOPs alone take half as long again as the best.  That it fits was not asked.
 *
 * Time and arena of a schedule grow linearly in the number of microbatches once the pipeline is full, so
 * of a long step two short ones are ranked, and simulated, and extrapolated (shorten.h).  The plans of
 * finalists are built in full.
 *
 * gap bounds how far the answer can be from the optimum of the whole space: the best simulated time
 * against the smallest clock time of anything that was not simulated.  Candidates whose bound is below the
 * best simulated time are ranked for it, until there are none. */
#pragma once
#include "core/exec/exec.h"
#include "core/report/report.h"
#include "planner/space.h"

enum weft_fate {
  WEFT_FATE_RULE,      /* broke a rule */
  WEFT_FATE_MEMORY,    /* does not fit */
  WEFT_FATE_PRUNED,    /* bound too far behind */
  WEFT_FATE_RANKED,    /* has a clock time */
  WEFT_FATE_SIMULATED, /* has a simulated time, too */
};

struct weft_candidate {
  struct weft_choice choice; /* weft_space_job() makes the job of it */
  enum weft_fate fate;
  uint64_t bytes;         /* worst role, reserved bytes included; exact when simulated; where it can not
                             fit, what it needs at least */
  double flops, bound, clock; /* seconds: bound by FLOPs, the best that is known; 0 when not computed */
  enum { WEFT_FLOPS, WEFT_PASSES, WEFT_SCHEDULE, WEFT_PROGRAM } known; /* what `bound` comes from */
  double seconds;         /* simulated */
  weft_plan *plan;        /* of simulated ones */
  weft_report *report;    /* likewise, without a timeline */
};

typedef struct weft_search {
  uint32_t n;                      /* candidates in the space */
  struct weft_candidate *candidate;/* best first: simulated by time, then ranked by clock, then the rest */
  uint32_t by_fate[WEFT_FATE_SIMULATED + 1];
  const struct weft_candidate *miss; /* the quickest that does not fit and else would be simulated, if
                                        it was asked for, or NULL */
  double gap, wall_seconds;
} weft_search;

struct weft_search_options {
  uint32_t finalists; /* 0: 10 */
  struct weft_exec_options exec; /* of predictions.  What cannot be a graph, if one is asked for,
                                    breaks a rule */
  gboolean near_miss;  /* find `miss`, too */
  gboolean exhaustive; /* rank all and ask no bound: the same answer in far more time, for tests */
  void (*progress) (void *user, const char *phase, uint32_t done, uint32_t of); /* may be NULL */
  void *user;
};

/* Searches around `job`, whose knob_set and train_set say what is fixed.  `simulate` is the executor that
 * decides.  FALSE with WEFT_ERROR_INFEASIBLE when nothing fits; the search is returned all the same. */
weft_search *weft_search_run (const struct weft_job *job, const struct weft_search_options *options,
                              GError **error);
void weft_search_free (weft_search *search);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_search, weft_search_free)
