/* size.h - which cluster, for how long and for how much: the search of planner.h over clusters of
 * several topologies and sizes.
 *
 * Every cluster is searched for its best strategy with the same number of tokens per step. With a
 * deadline the sizes of a topology are chosen: doubled until a cluster meets the deadline, halved
 * until one misses it, then `refinements` sizes between the two. Without a deadline, and without a
 * list of sizes, the sizes are the smallest on which a strategy fits, doubled up to `most_gpus`.
 * Each round searches the next sizes of all topologies, in several processes.
 *
 * A run of n steps of s seconds takes n s / goodput (goodput.h). All GPUs of the job and of its
 * spare nodes are paid for, and for the whole time. */
#pragma once
#include "planner/goodput.h"
#include "planner/planner.h"

/* Tokens for each parameter, of those that a token uses, by default: Hoffmann et al. 2022
 * ("Chinchilla", arXiv 2203.15556), table 3. */
#define WEFT_SIZE_CHINCHILLA 20.0

/* A cluster is not an answer if the machines fail so often that less than this share of the time
 * counts. */
#define WEFT_SIZE_LEAST_GOODPUT 0.01

struct weft_size_options {
  double tokens;       /* of the whole run */
  double days, budget; /* limits; NaN: none */
  double batch_tokens; /* of a step, rounded for each cluster; not used by jobs that give
                          global_batch_size */
  const uint32_t *gpus; /* sizes; NULL: see above */
  uint32_t n_gpus;
  uint32_t most_gpus;   /* of sizes that are chosen */
  uint32_t refinements, finalists;
  uint32_t n_workers;   /* processes; 0: one for each processor */
  uint64_t seed;        /* of simulated failures */
  void (*progress) (void *user, const char *text); /* may be NULL */
  gboolean (*stop) (void *user); /* as in struct weft_search_options */
  void *user;
};

/* X (ID, word, doc): what is known of a cluster. */
#define WEFT_SIZE_FATE_LIST(X)                                                                     \
  X (WEFT_SIZE_OPEN, "open", "the search was interrupted before it found a strategy")              \
  X (WEFT_SIZE_REFUSED, "refused", "no such cluster, or every strategy breaks a rule")             \
  X (WEFT_SIZE_UNFIT, "unfit", "no strategy fits in memory")                                       \
  X (WEFT_SIZE_FAILING, "failing", "the machines fail too often for the job to advance")           \
  X (WEFT_SIZE_FOUND, "found", "the best strategy is known")
enum weft_size_fate { WEFT_SIZE_FATE_LIST (WEFT_WORD_ID) };
extern const char *const weft_size_fate_words[];

/* The result of a search. Contains no pointers, because another process computes it. */
struct weft_size_found {
  enum weft_size_fate fate;
  gboolean stopped; /* the search was interrupted: `choice` is the best so far */
  struct weft_choice choice;
  double step, mfu, tokens_per_s, gap, wall_seconds;
  double bytes;     /* of the fullest GPU */
  char why[256];    /* of a cluster that was refused */
};

/* A cluster, and the run on it. Numbers that are not known are NaN. */
struct weft_size_point {
  unsigned topology; /* index in struct weft_size */
  uint32_t gpus;     /* of the job, without those of spare nodes */
  int64_t batch;     /* sequences of a step */
  struct weft_size_found found;
  struct weft_failures failures;
  struct weft_goodput goodput;
  struct weft_percentiles seconds; /* of the run */
  double steps, days; /* of the run; days are the mean */
  double paid_gpus, gpu_hours, cost, kwh, co2_kg;
  gboolean front; /* no other point is faster and costs less */
};

struct weft_size_topology {
  char *name;
  struct weft_job job; /* of the default size */
  union weft_site_fields site;
  uint32_t fewest; /* GPUs of the smallest cluster that was tried and on which a strategy fits; 0:
                      none, or not asked because sizes were given */
};

typedef struct weft_size {
  unsigned n_topology;
  struct weft_size_topology *topology;
  GArray *point;   /* struct weft_size_point, by topology, then by GPUs */
  GArray *batches; /* the best point with other batches and the same strategy, by batch */
  int best;        /* index of the best point; -1: none. With a deadline the cheapest that meets it,
                      else with a budget the fastest, else the cheapest; all within the budget */
  gboolean priced; /* all prices are known; otherwise GPU-hours stand for costs */
  gboolean stopped;
  uint32_t searches;
  double wall_seconds;
} weft_size;

/* `settings`: of the job; every topology of `topologies` (terminated by NULL) is added to them in
 * turn. Returns NULL only for bad input. The caller frees the result. */
weft_size *weft_size_run (weft_settings *settings, const char *const *topologies,
                          const weft_site *site, const struct weft_size_options *options,
                          GError **error);
void weft_size_free (weft_size *size);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_size, weft_size_free)

/* The job of a point, with its best strategy. */
struct weft_job weft_size_job (const weft_size *size, const struct weft_size_point *point);

static inline const struct weft_size_point *
weft_size_at (const GArray *points, unsigned i)
{
  return &g_array_index (points, struct weft_size_point, i);
}

/* Whether the run on a cluster is known to meet the deadline and the budget. */
gboolean weft_size_meets (const struct weft_size_point *point,
                          const struct weft_size_options *options);

/* What is minimal on the Pareto front beside days: the cost, or GPU-hours if prices are missing. */
double weft_size_price (const weft_size *size, const struct weft_size_point *point);

/* Sequences of a step for `tokens` tokens on `gpus` GPUs: the multiple of the odd factor of `gpus`
 * and of a power of two that is nearest, so that many data-parallel sizes divide it. At most 1/8
 * from `tokens`, unless a step has less than four such multiples. */
int64_t weft_size_batch (double tokens, int64_t seq_length, uint32_t gpus);
