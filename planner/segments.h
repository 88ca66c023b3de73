/* segments.h - what each layer takes, out of one microbatch on one stage.
 *
 * The way of a microbatch is cut into what precedes the layers, the layers, and what follows them.  Jobs
 * with the same tensor, context and expert parallel ranks, as large microbatches and as much recompute
 * have the same kernels there, however layers are dealt to stages, replicas split their state and
 * whatever hides behind what: one program speaks for all of them.
 *
 * A segment lasts the longest way, over lanes and dependencies, from its first kernel to the first of
 * the segment after it.  Counted are kernels that have no other purpose than the pass (no casts, copies,
 * sums of gradients), and the collectives of tensor, context and expert parallel ranks, at their prices
 * with nothing beside them. */
#pragma once
#include "core/plan/plan.h"

enum weft_pass { WEFT_PASS_FORWARD, WEFT_PASS_BACKWARD, WEFT_N_PASS };
enum weft_family { WEFT_FAMILY_DENSE, WEFT_FAMILY_EXPERT, WEFT_N_FAMILY }; /* shared out apart */
enum weft_state { WEFT_STATE_WEIGHTS, WEFT_STATE_GRADIENTS, WEFT_STATE_OPTIMIZER, WEFT_N_STATE };

/* Of `way`, the first kernel and the end are another's where the neighbour is another (of sums and norms,
 * which are fused or not; products are the same everywhere). */
struct weft_segment {
  double way[WEFT_N_PASS];   /* seconds from its first kernel to the first of the next segment */
  double first[WEFT_N_PASS]; /* the first kernel, unless it is a product */
  double last[WEFT_N_PASS];  /* from the begin of the last kernel; of a product, from its end */
  double own, handed;        /* bytes that its backward needs; and that of the next segment does */
  double state[WEFT_N_FAMILY][WEFT_N_STATE]; /* bytes where replicas split nothing; 0 under PyTorch */
};

struct weft_segments {
  uint32_t n; /* layers and two; 0: nothing is known */
  struct weft_segment *segment;
  weft_plan *plan; /* which they were measured in */
};

/* Remembers what was looked at.  All jobs asked about come out of one space (space.h). */
typedef struct weft_looks weft_looks;
weft_looks *weft_looks_new (void);
void weft_looks_free (weft_looks *looks);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_looks, weft_looks_free)

/* Of a job that has passed its rules, and recomputes all layers or none; owned by `looks`. */
const struct weft_segments *weft_looks_find (weft_looks *looks, const struct weft_job *job);
