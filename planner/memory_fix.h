/* memory_fix.h - the changes that make a job fit in memory, and what they cost in step time.
 *
 * All changes of memory_changes.def are tried, each alone and then in pairs, and in threes if
 * neither a single change nor a pair fits. A change is not combined with others if it fits alone. A
 * lower bound of memory (bound.h) rules out most combinations. The memory of the others comes from
 * their plans, which are made from the lowest bound of the step time on, up to a limit. The jobs
 * with the shortest clock times (closed formulas) are proved and simulated with SimGrid. The job as
 * given is simulated too, so that times can be compared. */
#pragma once
#include "planner/memory_changes.h"
#include "planner/planner.h"

/* The largest number of changes in a combination. */
#define WEFT_FIX_MOST 3

/* A job and its prediction. */
struct weft_memory_fix {
  struct weft_job job;
  unsigned n; /* number of changes; 0: the job as given */
  enum weft_change change[WEFT_FIX_MOST];
  double bytes;   /* memory of the GPU that needs most, libraries included */
  double clock;   /* step time without contention, in seconds */
  double seconds; /* simulated step time; NaN: not simulated */
};

typedef struct weft_memory_fixes {
  struct weft_memory_fix given;
  gboolean given_fits;
  uint32_t n;                  /* number of fixes */
  struct weft_memory_fix *fix; /* sorted by number of changes, then by step time */
  /* if no combination fits: of those whose plan was made, the one that needs least memory; n is 0
   * if no plan was made */
  struct weft_memory_fix closest;
  /* numbers of combinations that break a rule, that change a kept setting, and that do not fit */
  uint32_t illegal, kept, too_large;
  uint32_t fitting; /* combinations that fit; only the fastest are in fix[] */
  gboolean stopped; /* TRUE: options.stop ended the search, so that fixes may be missing */
} weft_memory_fixes;

struct weft_memory_fix_options {
  double limit; /* bytes that the job may use; at most those of the GPU */
  /* settings that must keep their values */
  gboolean knob_kept[WEFT_N_KNOB], train_kept[WEFT_N_TRAIN_FIELD];
  uint32_t n_workers; /* number of processes; 0: one for each processor */
  /* function that reports progress; may be NULL */
  void (*progress) (void *user, const struct weft_search_progress *now);
  /* asked during the search: TRUE ends the search with the fixes found so far; may be NULL */
  gboolean (*stop) (void *user);
  void *user;
};

/* Finds the changes with which a job, which satisfies the rules, needs at most `limit` bytes. The
 * caller frees the result. */
weft_memory_fixes *
weft_memory_fix_find (const struct weft_job *job, const struct weft_memory_fix_options *options,
                      GError **error);
void weft_memory_fixes_free (weft_memory_fixes *fixes);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_memory_fixes, weft_memory_fixes_free)

/* The first combination of `advised` changes whose memory fits, in the order of the table: single
 * changes, then pairs, then threes. Returns its proved plan; NULL if none fits. */
weft_plan *weft_memory_fix_first (const struct weft_job *job);
