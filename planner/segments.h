/* segments.h - what each layer takes, out of one microbatch on one stage.
 *
 * The way of a microbatch is cut into what precedes the layers, the layers, and what follows them.  Jobs
 * with the same tensor, context and expert parallel ranks, as large microbatches and as much recompute
 * have the same kernels there, however layers are assigned to stages, and however replicas split
 * their state and overlap communication: one program speaks for all of them.
 *
 * A segment lasts the longest way, over lanes and dependencies, from its first kernel to the first of
 * the segment after it.  Counted are kernels that have no other purpose than the pass (no casts, copies,
 * sums of gradients), and the collectives of tensor, context and expert parallel ranks, at their prices
 * with nothing beside them. */
#pragma once
#include "core/plan/plan.h"

enum weft_segment_pass { WEFT_SEGMENT_FORWARD, WEFT_SEGMENT_BACKWARD, WEFT_N_SEGMENT_PASS };
enum weft_family { WEFT_FAMILY_DENSE, WEFT_FAMILY_EXPERT, WEFT_N_FAMILY }; /* shared out apart */
enum weft_state { WEFT_STATE_WEIGHTS, WEFT_STATE_GRADIENTS, WEFT_STATE_OPTIMIZER, WEFT_N_STATE };

/* Of `way`, the first kernel and the end are another's where the neighbour is another (of sums and norms,
 * which are fused or not; products are the same everywhere). */
struct weft_segment {
  double way[WEFT_N_SEGMENT_PASS];   /* seconds from its first kernel to that of the next segment */
  double first[WEFT_N_SEGMENT_PASS]; /* of the first kernel, unless it is a product */
  double last[WEFT_N_SEGMENT_PASS];  /* from the begin of the last kernel; of a product, its end */
  double own, handed; /* bytes that its backward needs; that the backward of the next segment needs */
  double state[WEFT_N_FAMILY][WEFT_N_STATE]; /* bytes where replicas split nothing; 0 under PyTorch */
};

struct weft_segments {
  uint32_t n; /* layers and two; 0: nothing is known */
  struct weft_segment *segment;
  weft_plan *plan; /* which they were measured in */
};

/* Measured segments, by what changes the kernels of a layer.  All jobs come from one space (space.h). */
typedef struct weft_segment_cache weft_segment_cache;
weft_segment_cache *weft_segment_cache_new (void);
void weft_segment_cache_free (weft_segment_cache *cache);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_segment_cache, weft_segment_cache_free)

/* The segments of a job that has passed its rules, and recomputes all layers or none; measured at the
 * first call, and owned by the cache. */
const struct weft_segments *weft_segment_cache_get (weft_segment_cache *cache,
                                                    const struct weft_job *job);
