/* segments.h - time and memory of each layer, measured on one microbatch of one stage.
 *
 * The pass of a microbatch is cut into segments: one before the layers, one for each layer, and one
 * after the layers. Jobs with the same numbers of tensor, context and expert parallel ranks, the
 * same micro batch size and the same recompute have the same kernels in a layer. The assignment of
 * layers to stages, data-parallel sharding and overlap do not change these kernels, so one program
 * serves all such jobs.
 *
 * The duration of a segment is the longest path, over lanes and dependencies, from its first kernel
 * to the first kernel of the next segment. The path counts kernels of the pass itself (no casts,
 * copies or sums of gradients) and the collectives of tensor, context and expert parallel ranks,
 * priced without contention.
 *
 * If the schedule splits the backward pass, its input gradients and its weight gradients are two
 * passes, because cells of the schedule run them apart (WEFT_SEGMENT_BACKWARD,
 * WEFT_SEGMENT_WEIGHT). Otherwise the weight gradients belong to WEFT_SEGMENT_BACKWARD, and the
 * third pass is empty.
 *
 * Layers of one kind with neighbours of the same kinds have equal segments. Segments are therefore
 * measured on a model with few layers, which has all kinds of the model's layers: 3 of the 126 of
 * Llama 3.1 405B. */
#pragma once
#include "planner/ends.h"
#include "planner/flights.h"
#include "planner/paths.h"

enum weft_segment_pass {
  WEFT_SEGMENT_FORWARD,
  WEFT_SEGMENT_BACKWARD,
  WEFT_SEGMENT_WEIGHT, /* weight gradients of a schedule that splits the backward pass */
  WEFT_N_SEGMENT_PASS
};
/* Until when activations exist: until the backward pass has run, or until the weight gradients have
 * been computed in a cell of their own. */
enum weft_segment_life { WEFT_LIFE_BACKWARD, WEFT_LIFE_WEIGHT, WEFT_N_LIFE };
/* Families of weights, which are sharded separately. */
enum weft_segment_family { WEFT_FAMILY_DENSE, WEFT_FAMILY_EXPERT, WEFT_N_FAMILY };
enum weft_segment_state {
  WEFT_STATE_WEIGHTS,
  WEFT_STATE_GRADIENTS,
  WEFT_STATE_OPTIMIZER,
  WEFT_N_STATE
};

/* Times and bytes of one segment. The first or the last kernel of a segment may depend on the
 * neighbouring segment, because residual sums and norms may be fused across the boundary. Matrix
 * products do not depend on neighbours. */
struct weft_segment_cost {
  double way[WEFT_N_SEGMENT_PASS];   /* seconds from the first kernel to the first kernel of the
                                      * next segment */
  double first[WEFT_N_SEGMENT_PASS]; /* seconds of the first kernel; 0 if it is a matrix product */
  /* seconds from the begin of the last kernel (from its end if it is a matrix product) to the end
   * of the interval `way` */
  double last[WEFT_N_SEGMENT_PASS];
  /* seconds of the kernels of `way`, without waits for collectives */
  double kernels[WEFT_N_SEGMENT_PASS];
  /* seconds from the first kernel of the backward pass to the first that is not recompute:
   * recompute at the begin of a cell needs no gradient of the next stage */
  double early;
  /* bytes of activations kept for the backward pass of this segment; bytes kept for the backward
   * pass of the next segment */
  double own[WEFT_N_LIFE], handed[WEFT_N_LIFE];
  /* bytes that the input gradients of this segment leave for its own weight gradients, and for
   * those of the previous segment */
  double late, late_handed;
  /* bytes of state before data-parallel sharding; 0 under PyTorch */
  double state[WEFT_N_FAMILY][WEFT_N_STATE];
};

struct weft_segments {
  /* number of segments, which is the number of layers + 2; 0: the segments could not be measured */
  uint32_t n;
  struct weft_segment_cost *segment;
  weft_plan *plan; /* the plan on which the segments were measured */
};

/* Measures the segments of a job; `whole`: on all layers of its model, for tests. */
struct weft_segments *weft_segments_measure (const struct weft_job *job, gboolean whole);
void weft_segments_free (struct weft_segments *segments);

/* A cache of measured segments. The key of an entry is the settings that change the kernels of a
 * layer, so all jobs must come from one search space (space.h). */
typedef struct weft_segment_cache weft_segment_cache;
weft_segment_cache *weft_segment_cache_new (void);
void weft_segment_cache_free (weft_segment_cache *cache);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_segment_cache, weft_segment_cache_free)

/* The placements of groups that plans of the search space share. The cache owns them. */
weft_placements *weft_segment_cache_placements (weft_segment_cache *cache);

/* Returns weft_flights_new (spec), which may be NULL. The cache owns the result. */
const struct weft_flights *
weft_segment_cache_flights (weft_segment_cache *cache, const struct weft_grid_spec *spec);

/* Looks for the result of a replay of the schedule of a job's family (space.h): the seconds at
 * which the last pass of each rank ends, or NULL if the schedule was not replayed. FALSE: no result
 * was kept. The cache owns the result. */
gboolean weft_segment_cache_replay (weft_segment_cache *cache, const struct weft_job *job,
                                    const double **end);

/* Keeps the result of a replay, and returns it. The cache takes ownership of `end`, which may be
 * NULL. */
const double *
weft_segment_cache_keep_replay (weft_segment_cache *cache, const struct weft_job *job, double *end);

/* The ends of a job's step; NULL: they could not be measured. The cache owns the result. */
const struct weft_ends *
weft_segment_cache_ends (weft_segment_cache *cache, const struct weft_job *job);

/* The paths through the passes of a job of few microbatches, which satisfies the rules; NULL: they
 * could not be measured. The cache owns the result. */
const struct weft_paths *
weft_segment_cache_paths (weft_segment_cache *cache, const struct weft_job *few);

/* Whether the cache has the ends or the paths of a job, and those that were measured elsewhere. The
 * cache takes them over. Paths may be NULL. */
gboolean weft_segment_cache_has_ends (const weft_segment_cache *cache, const struct weft_job *one);
void weft_segment_cache_keep_ends (weft_segment_cache *cache, const struct weft_job *one,
                                   struct weft_ends *ends);
gboolean weft_segment_cache_has_paths (const weft_segment_cache *cache, const struct weft_job *few);
void weft_segment_cache_keep_paths (weft_segment_cache *cache, const struct weft_job *few,
                                    struct weft_paths *paths);

/* The number of plans that were built to measure segments, ends and paths. */
uint32_t weft_segment_cache_plans (const weft_segment_cache *cache);

/* The segments (times and bytes of each layer) of a job that satisfies the rules and recomputes all
 * layers or none. The first call for a key measures the segments. The cache owns the result. */
const struct weft_segments *
weft_segment_cache_get (weft_segment_cache *cache, const struct weft_job *job);
