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

/* Default number of training tokens for each parameter; only parameters that a token uses are
 * counted. Source: Hoffmann et al. 2022 ("Chinchilla", arXiv 2203.15556), table 3. */
#define WEFT_SIZE_CHINCHILLA 20.0

/* A cluster is not proposed if its goodput (the fraction of the time that counts as training) is
 * below this value, because its machines fail too often. */
#define WEFT_SIZE_LEAST_GOODPUT 0.01

struct weft_size_options {
  double tokens;       /* tokens of the whole run */
  double days, budget; /* limits of the run; NaN: no limit */
  /* tokens of a step, rounded for each cluster; ignored by jobs that set global_batch_size */
  double batch_tokens;
  /* numbers of GPUs to search; NULL: the search chooses them (see the comment of this header) */
  const uint32_t *gpus;
  uint32_t n_gpus;
  uint32_t most_gpus;   /* largest size that the search may choose */
  uint32_t refinements, finalists;
  uint32_t n_workers;   /* number of processes; 0: one for each processor */
  uint64_t seed;        /* seed of the simulated failures */
  void (*progress) (void *user, const char *text); /* function that reports progress; may be NULL */
  gboolean (*stop) (void *user); /* TRUE ends the search, as in struct weft_search_options */
  void *user;
};

/* X (ID, word, doc): the outcome of the search for a cluster. */
#define WEFT_SIZE_FATE_LIST(X)                                                                     \
  X (WEFT_SIZE_OPEN, "open", "the search was interrupted before it found a strategy")              \
  X (WEFT_SIZE_REFUSED, "refused", "no such cluster, or every strategy breaks a rule")             \
  X (WEFT_SIZE_UNFIT, "unfit", "no strategy fits in memory")                                       \
  X (WEFT_SIZE_FAILING, "failing", "the machines fail too often for the job to advance")           \
  X (WEFT_SIZE_FOUND, "found", "the best strategy is known")
enum weft_size_fate { WEFT_SIZE_FATE_LIST (WEFT_WORD_ID) };
extern const char *const weft_size_fate_words[];

/* The result of the search for one cluster. Contains no pointers, because another process computes
 * it. */
struct weft_size_found {
  enum weft_size_fate fate;
  /* whether the search was interrupted, so that `choice` is only the best strategy found until
   * then */
  gboolean stopped;
  struct weft_choice choice;
  double step, mfu, tokens_per_s, gap, wall_seconds;
  double bytes;     /* bytes of memory of the GPU that needs most */
  char why[256];    /* the reason why a cluster was refused */
};

/* A cluster, and the training run on it. Numbers that are not known are NaN. */
struct weft_size_point {
  unsigned topology; /* index of the topology in struct weft_size */
  uint32_t gpus;     /* GPUs that the job uses; GPUs of spare nodes are not counted */
  int64_t batch;     /* number of sequences of a step */
  struct weft_size_found found;
  struct weft_failures failures;
  struct weft_goodput goodput;
  struct weft_percentiles seconds; /* percentiles of the seconds of the run */
  double steps, days; /* steps of the run; mean number of days of the run */
  double paid_gpus, gpu_hours, cost, kwh, co2_kg;
  /* TRUE: the point is on the Pareto front: no other point is faster and costs less */
  gboolean front;
};

struct weft_size_topology {
  char *name;
  struct weft_job job; /* the job on the default size of this topology */
  union weft_site_fields site;
  /* number of GPUs of the smallest cluster that was tried and on which a strategy fits; 0: there is
   * none, or sizes were given and no search was made */
  uint32_t fewest;
};

typedef struct weft_size {
  unsigned n_topology;
  struct weft_size_topology *topology;
  GArray *point;   /* array of struct weft_size_point, sorted by topology, then by GPUs */
  /* the results of the best point's strategy with other batches, sorted by batch */
  GArray *batches;
  /* index of the best point; -1: none. With a deadline it is the cheapest point that meets the
   * deadline. Otherwise, with a budget, it is the fastest point; with neither, the cheapest. The
   * best point is always within the budget */
  int best;
  /* whether all prices are known; if not, GPU-hours are compared instead of costs */
  gboolean priced;
  gboolean stopped;
  uint32_t searches;
  double wall_seconds;
} weft_size;

/* Searches strategies for every topology of `topologies` (terminated by NULL) and for every size.
 * `settings` are those of the job; each topology is added to them in turn. Returns NULL only if an
 * input is bad. The caller frees the result. */
weft_size *weft_size_run (weft_settings *settings, const char *const *topologies,
                          const weft_site *site, const struct weft_size_options *options,
                          GError **error);
void weft_size_free (weft_size *size);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_size, weft_size_free)

/* Makes the job of a point, with the best strategy found for it. */
struct weft_job weft_size_job (const weft_size *size, const struct weft_size_point *point);

static inline const struct weft_size_point *
weft_size_at (const GArray *points, unsigned i)
{
  return &g_array_index (points, struct weft_size_point, i);
}

/* Whether a run on this cluster keeps the deadline and the budget. FALSE if time or cost is not
 * known. */
gboolean weft_size_meets (const struct weft_size_point *point,
                          const struct weft_size_options *options);

/* The quantity that is compared together with the days on the Pareto front: the cost, or GPU-hours
 * if prices are missing. */
double weft_size_price (const weft_size *size, const struct weft_size_point *point);

/* The number of sequences of a step with about `tokens` tokens on `gpus` GPUs. It is a multiple of
 * the largest odd factor of `gpus` and of a power of two, so that many data-parallel sizes divide
 * it. It differs from `tokens` by at most 1/8, unless a step has less than four such multiples. */
int64_t weft_size_batch (double tokens, int64_t seq_length, uint32_t gpus);
