/* planner.h - searches the strategy with the shortest step for a model on a cluster.
 *
 * The search space is every combination of the axes (axes.def) that the user left open. The search
 * always refines the candidate with the lowest lower bound of step time, in these steps:
 *
 *   bound     Computes a lower bound of the step time: from FLOPs, then from the sum over layers,
 *             then from a replay of the schedule (bound.h), then by the executor `clock` on a
 *             program without buffer addresses. A lower bound of bytes rules out most candidates
 *             that do not fit.
 *   clock     Computes time with closed formulas, on the exact program and memory plan. The clock
 *             time never exceeds the simulated time, because `clock` has no contention.
 *   SimGrid   Simulates the `finalists` candidates with the lowest clock times; their plans are
 *             proved.
 *
 * A clock time below the bounds of all other candidates is the minimum, so the finalists are the
 * same as if all candidates had a clock time. The remaining candidates cannot win: their bounds
 * exceed the clock times of all finalists, or their FLOPs alone take 1.5 times the best clock time.
 * Whether these candidates fit in memory is not computed.
 *
 * Step time grows linearly with the number of microbatches once the pipeline is full; memory grows
 * linearly or is constant. A long step is therefore priced and simulated as two short ones and
 * extrapolated (shorten.h). The plans of finalists are built in full.
 *
 * `gap` bounds the distance from the optimum of the whole space: the best simulated time relative
 * to the smallest clock time of all candidates that were not simulated. Candidates whose bound is
 * below the best simulated time get a clock time first. */
#pragma once
#include "core/exec/exec.h"
#include "core/report/report.h"
#include "planner/space.h"

enum weft_fate {
  WEFT_FATE_FAULT,     /* an internal check failed (core/base/invariant.h), which is a bug */
  WEFT_FATE_RULE,      /* breaks a rule */
  WEFT_FATE_MEMORY,    /* does not fit in memory */
  WEFT_FATE_PRUNED,    /* ruled out by its lower bound */
  WEFT_FATE_RANKED,    /* has a clock time */
  WEFT_FATE_SIMULATED, /* has a clock time and a simulated time */
};

struct weft_candidate {
  struct weft_choice choice; /* weft_space_job() makes its job */
  enum weft_fate fate;
  uint64_t bytes; /* memory of the role that needs most, including reserved bytes: exact if
                     simulated, a lower bound if the candidate cannot fit */
  double flops, bound, clock; /* seconds: lower bound by FLOPs, best lower bound so far, clock time;
                                 0 if not computed */
  enum { WEFT_FLOPS, WEFT_PASSES, WEFT_SCHEDULE, WEFT_PROGRAM } known; /* the source of `bound` */
  double seconds;      /* simulated step time */
  gboolean weighed;    /* no candidate fits, and `bytes` of this candidate was measured */
  weft_plan *plan;     /* plan of a simulated candidate, without its programs
                        * (weft_plan_drop_programs()); NULL for others */
  weft_report *report; /* report of a simulated candidate, without timeline; NULL for others */
};

/* Plans that a search has built. */
struct weft_search_plans {
  uint32_t by_depth[WEFT_PLAN_PROVED + 1]; /* priced: bounds; placed: clock times; proved:
                                              simulations */
  uint32_t of_layers; /* plans of one microbatch, on which layers were measured (segments.h) */
};

typedef struct weft_search {
  uint32_t n; /* number of candidates in the search space */
  struct weft_candidate *candidate; /* best first: simulated ones by simulated time, then
                                       ranked ones by clock time, then the rest */
  uint32_t by_fate[WEFT_FATE_SIMULATED + 1];
  const struct weft_candidate *miss; /* the fastest candidate that does not fit and would be
                                        simulated if it fitted; NULL: none, or near_miss FALSE */
  const struct weft_candidate *closest; /* if near_miss is TRUE and no candidate fits: the candidate
                                           with the least measured memory; otherwise NULL */
  uint32_t enough_gpus; /* if near_miss is TRUE and no candidate fits: GPUs of the smallest cluster
                           that was tried and on which a strategy fits; 0: none found */
  gboolean stopped; /* whether weft_search_options.stop ended the search: candidates may be missing,
                     * and `gap` is 1 */
  double gap, wall_seconds;
  struct weft_search_plans plans;
  GError *fault; /* error of the first candidate with WEFT_FATE_FAULT, owned; NULL: none */
} weft_search;

/* The state of a running search. */
struct weft_search_progress {
  const char *phase;
  uint32_t done, of;    /* units of the phase; `of` is 0 if their number is not known */
  uint32_t steps;       /* bounds, clock times and simulations computed so far */
  double best;          /* best simulated step time; before the first simulation, best clock time;
                         * INFINITY: none yet */
};

/* Fraction of the GPU memory that a strategy leaves free by default, for fragmentation and for
 * libraries whose memory is not part of a plan. */
#define WEFT_SEARCH_HEADROOM 0.05

struct weft_search_options {
  uint32_t finalists; /* number of candidates to simulate; 0: 10 */
  gboolean graph; /* predict steps that run as one captured graph; a candidate whose step cannot be
                     captured breaks a rule */
  gboolean near_miss;  /* also find `miss`, `closest` and `enough_gpus` */
  gboolean exhaustive; /* compute all clock times before other bounds: the same result in far more
                          time, for tests */
  void (*progress) (void *user, const struct weft_search_progress *now); /* may be NULL */
  gboolean (*stop) (void *user); /* returns TRUE to end the search with the candidates found so far;
                                  * may be NULL */
  void *user;
};

/* Searches the space around `job`. The settings in its knob_set and train_set are fixed. The
 * search is always returned; if no candidate fits, *error is WEFT_ERROR_INFEASIBLE. */
weft_search *weft_search_run (const struct weft_job *job, const struct weft_search_options *options,
                              GError **error);

/* Sets *fits to whether one of the strategies with the lowest bounds on memory fits. Takes a small
 * part of the time of a search. */
gboolean weft_search_fits (const struct weft_job *job, const struct weft_search_options *options,
                           gboolean *fits, GError **error);
void weft_search_free (weft_search *search);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_search, weft_search_free)
