/* bound.h - what a candidate takes at least, before its program is built.
 *
 * weft_bound_flops() is arithmetic.  weft_bound_passes() is closer, and looks at one microbatch: jobs
 * with as many stages, as large microbatches and as much recompute have the same kernels in a forward and
 * in a backward pass of a stage, however replicas split their state and whatever hides behind what.  So
 * one program of one microbatch speaks for all of them.  Counted are kernels that have no other purpose
 * than the pass (no casts, copies, sums of gradients), and the collectives of tensor, context and expert
 * parallel ranks, at their prices with nothing beside them.
 *
 *   time    F and B are the longest ways, over lanes and dependencies, from the first to the last kernel
 *           of a pass between the arrival of its input and the departure of its output.  Kernels of a
 *           stage run on one lane in the order of its passes, so that one pass begins when the one before
 *           has ended.  Stage r begins when some microbatch has come through the stages before, has m
 *           forward and m backward passes, and after the last of these the stages before run theirs of
 *           that microbatch.  The three follow each other, whatever the order of passes:
 *             T >= max over r of  m (F_r + B_r) + sum over q < r of (F_q + B_q)
 *   bytes   what a microbatch leaves in forward for its backward is there for each microbatch that a
 *           stage has in flight, and no plan of memory is smaller than what is alive at once.
 *
 * Where passes of a job are not all alike, or do not follow each other like this, nothing is said: 0. */
#pragma once
#include "core/job/job.h"

struct weft_bound {
  double seconds, bytes; /* of a step; of the worst stage */
};

/* Model FLOPs at the reachable matmul rate, stretched by the bubble of the pipeline, in seconds; 0 where
 * kernels were measured (cluster.h, cost_table), which may be quicker than that rate. */
double weft_bound_flops (const struct weft_job *job);

/* Remembers the passes of stages, so that jobs that differ in the rest look at them once.  All jobs
 * asked about come out of one space (space.h). */
typedef struct weft_bounds weft_bounds;
weft_bounds *weft_bounds_new (void);
void weft_bounds_free (weft_bounds *bounds);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_bounds, weft_bounds_free)

/* The job has passed its rules. */
struct weft_bound weft_bound_passes (weft_bounds *bounds, const struct weft_job *job);
