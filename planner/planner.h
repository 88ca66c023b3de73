/* planner.h - searches the strategy with the shortest step for a model on a cluster.
 *
 * The search space is every combination of the axes (axes.def) that the user left open. The search
 * always refines the candidate with the lowest lower bound of step time, in these steps:
 *
 *   bound     Computes a lower bound of the step time: from FLOPs, then from the sum over layers,
 *             then from a replay of the schedule, then with the work before and after the passes,
 *             then with the paths through its passes (bound.h), then by the executor `clock` on a
 *             program without buffer addresses. A lower bound of bytes rules out most candidates
 *             that do not fit.
 *   clock     Computes time with closed formulas, on the exact program and memory plan. The clock
 *             time never exceeds the simulated time, because `clock` has no contention.
 *   SimGrid   Simulates the `finalists` candidates with the lowest clock times, on proved plans. If
 *             the user gives no number of finalists, the search ends before the tenth once the ops
 *             that it has simulated are many and the gap is at most 1 %.
 *
 * A clock time below the bounds of all other candidates is the minimum, so the finalists are the
 * same as if all candidates had a clock time. The remaining candidates cannot win: their bounds
 * exceed the clock times of all finalists, or their FLOPs alone take 1.5 times the best clock time.
 * Whether these candidates fit in memory is not computed.
 *
 * Step time grows linearly with the number of microbatches once the pipeline is full; memory grows
 * linearly or is constant. A long step is therefore priced, proved and simulated as two short ones
 * and extrapolated (shorten.h). The memory and the clock time of a finalist are those of the plan
 * of its whole step (trials.c). For software without an arena, and for the longest steps, this plan
 * is built only if the memory of the two short steps differs.
 *
 * The steps that build programs are trials (trials.h). They run in several processes, for the
 * candidate with the lowest bound and for the few candidates that follow it.
 *
 * `gap` bounds the distance from the optimum of the whole space: the best simulated time relative
 * to the smallest clock time of all candidates that were not simulated. Candidates whose bound is
 * below the best simulated time get a clock time first. */
#pragma once
#include "core/exec/exec.h"
#include "core/report/report.h"
#include "planner/space.h"

/* X (constant, word, doc): the outcome of the search for a candidate. */
#define WEFT_FATE_LIST(X)                                                                          \
  X (WEFT_FATE_FAULT, "fault", "an internal check (core/base/invariant.h) rejected it: a bug")     \
  X (WEFT_FATE_RULE, "breaks a rule", "a rule refuses its job")                                    \
  X (WEFT_FATE_MEMORY, "does not fit", "it needs more memory than there is")                       \
  X (WEFT_FATE_PRUNED, "ruled out", "a lower bound exceeds the time of better candidates")         \
  X (WEFT_FATE_RANKED, "ranked", "it has a clock time")                                            \
  X (WEFT_FATE_SIMULATED, "simulated", "it has a clock time and a simulated time")
enum weft_fate { WEFT_FATE_LIST (WEFT_WORD_ID) WEFT_N_FATE };
extern const char *const weft_fate_words[];

struct weft_candidate {
  /* values of the axes; weft_space_job() makes the candidate's job from them */
  struct weft_choice choice;
  /* during a search: the level of a family (space.h), the number of its strategies, and whether the
   * families or strategies within it are candidates */
  enum weft_space_level level;
  uint32_t n_strategies;
  gboolean expanded;
  enum weft_fate fate;
  /* bytes of memory, including reserved bytes, of the role that needs most: exact if the candidate
   * was simulated, a lower bound if it cannot fit */
  uint64_t bytes;
  /* seconds: lower bound by FLOPs, best lower bound so far, and clock time; 0 if not computed */
  double flops, bound, clock;
  /* kind of the bound in `bound` */
  enum { WEFT_FLOPS, WEFT_PASSES, WEFT_SCHEDULE, WEFT_ENDS, WEFT_LANES, WEFT_PROGRAM } known;
  double seconds; /* simulated step time, seconds */
  uint64_t work;  /* work of its simulation in ops (trials.h); 0 if not known */
  /* TRUE: no candidate fits in memory, and the `bytes` of this candidate were measured on its
   * plan */
  gboolean weighed;
  /* plan of a simulated candidate, without its programs (weft_plan_drop_programs()); NULL for other
   * candidates */
  weft_plan *plan;
  /* report of a simulated candidate, without timeline; NULL for other candidates */
  weft_report *report;
};

/* Number of plans that a search has built. */
struct weft_search_plans {
  /* number of plans by depth: priced for bounds, placed for clock times, proved for simulations */
  uint32_t by_depth[WEFT_PLAN_PROVED + 1];
  uint32_t of_layers; /* plans of few microbatches, on which layers, ends and paths were measured */
};

typedef struct weft_search {
  uint32_t n; /* number of strategies in the search space */
  /* number of `candidate`: strategies of the families that were expanded. Strategies of the others
   * count in `n` and `by_fate` */
  uint32_t n_listed;
  /* strategies, best first: simulated ones by simulated time, then ranked ones by clock time, then
   * the others */
  struct weft_candidate *candidate;
  /* numbers of strategies; their sum is `n`. A family that is ruled out counts as a whole, with
   * those of its strategies that break a rule */
  uint32_t by_fate[WEFT_N_FATE];
  /* the fastest candidate that does not fit, but would be simulated if it fitted; NULL if there is
   * none, if near_miss is FALSE, or if it was not found soon after simulations of long steps */
  const struct weft_candidate *miss;
  const struct weft_candidate *closest; /* if near_miss is TRUE and no candidate fits: the candidate
                                           with the least measured memory; otherwise NULL */
  /* if near_miss is TRUE and no candidate fits: number of GPUs of the smallest cluster that was
   * tried and on which a strategy fits; 0: no such cluster was found */
  uint32_t enough_gpus;
  /* TRUE: weft_search_options.stop ended the search, so that candidates may be missing, and `gap`
   * is 1 */
  gboolean stopped;
  double gap, wall_seconds;
  struct weft_search_plans plans;
  /* error of the first candidate that an internal check rejected (WEFT_FATE_FAULT), owned; NULL:
   * none */
  GError *fault;
} weft_search;

/* A progress report of a search. */
struct weft_search_progress {
  const char *phase;
  /* number of work units done in this phase and their total; `of` is 0 if the total is not known */
  uint32_t done, of;
  uint32_t steps; /* number of bounds, clock times and simulations computed so far */
  /* best simulated step time; before the first simulation, the best clock time; INFINITY: none
   * yet */
  double best;
};

/* Fraction of the GPU memory that a strategy leaves free by default, for fragmentation and for
 * libraries whose memory is not part of a plan. */
#define WEFT_SEARCH_HEADROOM 0.05

struct weft_search_options {
  const struct weft_space_ranges *ranges; /* values to which axes are limited; NULL: no limits */
  /* number of candidates to simulate; 0: 10, but fewer if `most_ops` ops were simulated and the gap
   * is at most 1 %, or after eight times as many at most 4 % */
  uint32_t finalists;
  uint32_t most_ops; /* work of simulations in ops (trials.h); 0: as much as takes about 15 s */
  /* predict steps that are captured and launched as one CUDA graph; a candidate whose step cannot
   * be captured breaks a rule */
  gboolean graph;
  gboolean near_miss; /* also set `miss`, `closest` and `enough_gpus` in the result */
  /* compute all clock times before other bounds; the result is the same, but takes far more time.
   * For tests */
  gboolean exhaustive;
  /* number of processes that build programs of candidates, as in struct weft_workers (workers.h);
   * the result does not depend on it. With any number but 1, no other thread may run in this
   * process */
  uint32_t n_workers;
  /* function that reports progress; may be NULL */
  void (*progress) (void *user, const struct weft_search_progress *now);
  /* asked during the search: TRUE ends the search with the candidates found so far; may be NULL */
  gboolean (*stop) (void *user);
  void *user;
};

/* Searches the strategies around `job`. Settings that are marked in its knob_set and train_set keep
 * their values. The search is always returned. If no candidate fits, *error is
 * WEFT_ERROR_INFEASIBLE. */
weft_search *weft_search_run (const struct weft_job *job, const struct weft_search_options *options,
                              GError **error);

/* Sets *fits to TRUE if one of the strategies with the lowest bounds on memory fits. This takes a
 * small fraction of the time of a search. */
gboolean weft_search_fits (const struct weft_job *job, const struct weft_search_options *options,
                           gboolean *fits, GError **error);
void weft_search_free (weft_search *search);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_search, weft_search_free)
