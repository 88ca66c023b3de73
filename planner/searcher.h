/* searcher.h - the state of a search, for the files of the search (planner.c, families.c,
 * nothing_fits.c).
 *
 * A search knows the families of its space (space.h), and the strategies of those families whose
 * bounds made it expand them. Both are candidates. */
#pragma once
#include "planner/planner.h"
#include "planner/segments.h"
#include "planner/trials.h"

struct searcher {
  const struct weft_search_options *options;
  const struct weft_job *job;
  GPtrArray *families;   /* struct weft_candidate *: the families, owned */
  GPtrArray *strategies; /* struct weft_candidate *: members of expanded families, owned */
  GSequence *open; /* candidates that may still be among the best, in the order of comes_before() */
  weft_segment_cache *segments;
  struct weft_trials trials; /* how trials run, and the processes in which they do */
  /* the candidate with the lowest clock time of a program without addresses, or NULL */
  struct weft_candidate *nearest;
  double best_clock;     /* lowest clock time among the candidates that fit in memory */
  double nearest_miss;   /* lowest clock time among the candidates that do not fit in memory */
  double last_clock;     /* highest clock time of the finalists; set once all finalists are known */
  double best_simulated; /* lowest simulated time of all candidates */
  uint32_t n_steps;      /* number of bounds and times computed */
  /* work of the simulations so far (struct weft_trial), and a share of the ops in other trials */
  uint64_t n_ops;
  struct weft_search_plans plans;
  gboolean stopped;
  gboolean miss_unknown; /* the search for what nearly fits gave up */
  /* error of the first candidate whose step cannot be captured as a CUDA graph or simulated */
  GError *refused;
  /* error of the first candidate that an internal check rejected (WEFT_FATE_FAULT) */
  GError *fault;
};

void
weft_searcher_progress (const struct searcher *s, const char *phase, uint32_t done, uint32_t of);

/* Whether the user has asked to end the search now. */
gboolean weft_searcher_stops (struct searcher *s);

/* Computes the clock time of a strategy. */
gboolean weft_searcher_rank (struct searcher *s, struct weft_candidate *c, GError **error);

/* Replaces the lower bound of a strategy's memory by its measured memory, and sets its clock time.
 * Its fate is then WEFT_FATE_MEMORY. */
gboolean weft_searcher_weigh (struct searcher *s, struct weft_candidate *c, GError **error);

/* Makes the state of a search that has found nothing yet, and frees it. */
struct searcher
weft_searcher_of (const struct weft_job *job, const struct weft_search_options *options);
void weft_searcher_clear (struct searcher *s);

/* ------------------------------------------------------------------------ families.c */

/* Lists the families of equal schedules, checks their rules and computes the first lower bound of
 * each. If `exhaustive` is set, also expands all and computes the time of every strategy. */
gboolean weft_searcher_begin (struct searcher *s, GError **error);

/* Refines a candidate by one bound without the programs of its step: the bounds from its passes,
 * its schedule, its ends and its lanes. A family that has the bound from its schedule is
 * expanded. */
void weft_searcher_approach (struct searcher *s, struct weft_candidate *c);

/* Computes the bounds from the passes of a family: time and, if its strategies have the same
 * kernels, the bytes of that which needs least. */
void weft_searcher_look_at_family (struct searcher *s, struct weft_candidate *c);

/* Appends the families or strategies within a family to s->families or s->strategies. Those that
 * break a rule or do not fit have this fate. */
void weft_searcher_expand (struct searcher *s, struct weft_candidate *family);

/* -------------------------------------------------------------------- nothing_fits.c */

/* Measures the memory of the strategies with the lowest bounds on memory. Stops when no other
 * strategy's bound is below the least memory measured so far. */
gboolean weft_searcher_find_closest (struct searcher *s, GError **error);

/* Sets *enough to the number of GPUs of the smallest cluster that was tried and on which a strategy
 * fits; leaves it if there is none. */
gboolean weft_searcher_find_enough (struct searcher *s, uint32_t *enough, GError **error);

/* Sets the error of a search that has simulated no strategy: with the rule that is broken most
 * often, if strategies break rules. */
void weft_searcher_explain (struct searcher *s, const weft_search *search, GError **error);
