/* bound.h - what a candidate takes at least, before its program is built.
 *
 * weft_bound_flops() is arithmetic.  weft_bound_passes() is closer, and looks at one microbatch on one
 * stage: jobs with the same tensor, context and expert parallel ranks, as large microbatches and as much
 * recompute have the same kernels in a forward and in a backward pass of a layer, however layers are
 * dealt to stages, replicas split their state and whatever hides behind what.  So one program speaks for
 * all of them, and the rest is sums over layers.  Counted are kernels that have no other purpose than the
 * pass (no casts, copies, sums of gradients), and the collectives of tensor, context and expert parallel
 * ranks, at their prices with nothing beside them.
 *
 *   time    A layer lasts at least the longest way, over lanes and dependencies, from its first kernel to
 *           the first of the layer after it.  Kernels of a stage run on one lane in the order of its
 *           passes, so that ways of layers, and of passes, follow each other: F and B are the sums over
 *           the layers of a chunk, less the first and the last kernel, which differ at the ends of a
 *           stage.  Rank r begins when some microbatch has come through the first chunks of the ranks
 *           before, has m passes forward and backward through each of its chunks, and after the last of
 *           these the ranks before run theirs of the first chunk.  The three follow each other, whatever
 *           the order of passes:
 *             T >= max over r of  m sum over chunks c of (F_rc + B_rc) + sum over q < r of (F_q0 + B_q0)
 *   bytes   What a microbatch leaves in the forward pass of a layer for its backward is there for each
 *           one that a stage has in flight: min (m, p - r) of them in 1f1b, all m in gpipe, and with
 *           chunks those of the first 2 (p - r - 1) + (v - 1) g + 1 forward passes, g microbatches being a
 *           group (Megatron-LM: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on
 *           GPU Clusters", section 2.2).  Beside it weights, gradients and state of the optimizer, each
 *           whole or over as many ranks as it can be split.  No plan of memory is smaller than what is
 *           alive at once.
 *
 * Where passes of a job are not all alike, or do not follow each other like this, nothing is said: 0. */
#pragma once
#include "core/job/job.h"

struct weft_bound {
  double seconds, bytes; /* of a step; of the worst rank */
};

/* Model FLOPs at the reachable matmul rate, stretched by the bubble of the pipeline, in seconds; 0 where
 * kernels were measured (cluster.h, cost_table), which may be quicker than that rate. */
double weft_bound_flops (const struct weft_job *job);

/* Remembers the layers, so that jobs that differ in the rest look at them once.  All jobs asked about
 * come out of one space (space.h). */
typedef struct weft_bounds weft_bounds;
weft_bounds *weft_bounds_new (void);
void weft_bounds_free (weft_bounds *bounds);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_bounds, weft_bounds_free)

/* The job has passed its rules. */
struct weft_bound weft_bound_passes (weft_bounds *bounds, const struct weft_job *job);

/* Seconds, closer: the schedule replayed with these passes, and between stages the time that their
 * output takes to the next with no other transfer beside it. */
double weft_bound_schedule (weft_bounds *bounds, const struct weft_job *job);
