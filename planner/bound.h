/* bound.h - what a candidate takes at least, before its program is built.
 *
 * weft_bound_flops() is arithmetic.  weft_bound_passes() is closer: sums over the layers (segments.h),
 * which one look at one microbatch gives for many jobs.
 *
 *   time    Kernels of a stage run on one lane in the order of its passes, so that the ways of layers, and
 *           of passes, follow each other: F and B are the sums over the layers of a chunk, less the first
 *           and the last kernel, which differ at the ends of a stage.  Rank r begins when some microbatch
 *           has come through the first chunks of the ranks before, has m passes forward and backward
 *           through each of its chunks, and after the last of these the ranks before run theirs of the
 *           first chunk.  The three follow each other, whatever the order of passes:
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
#include "planner/segments.h"

struct weft_bound {
  double seconds, bytes; /* of a step; of the worst rank */
};

/* Model FLOPs at the reachable matmul rate, stretched by the bubble of the pipeline, in seconds; 0 where
 * kernels were measured (cluster.h, cost_table), which may be quicker than that rate. */
double weft_bound_flops (const struct weft_job *job);

/* The job has passed its rules. */
struct weft_bound weft_bound_passes (weft_segment_cache *cache, const struct weft_job *job);

/* Seconds, closer: the schedule replayed with these passes, and between stages the time that their
 * output takes to the next with no other transfer beside it. */
double weft_bound_schedule (weft_segment_cache *cache, const struct weft_job *job);
