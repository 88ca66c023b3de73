/* bound.h - lower bounds of a candidate's step time and memory, computed before its program is
 * built.
 *
 * weft_bound_flops() is arithmetic on model FLOPs. weft_bound_passes() is tighter: it adds up the
 * times of layers (segments.h). Layers are measured on one microbatch, and many jobs share one
 * measurement.
 *
 * Time. All kernels of a stage run on one lane, in pass order, so the durations of layers and of
 * passes add up. F and B are the forward and backward durations of one chunk: the sums over its
 * layers, without the first and the last kernel, which differ at the ends of a stage. Rank r
 *
 *   - starts after a microbatch has passed through the first chunk of each earlier rank,
 *   - runs m forward and m backward passes of each of its chunks,
 *   - and is followed by the backward passes of the first chunks of the earlier ranks.
 *
 * These three intervals do not overlap, whatever the order of passes:
 *
 *   T >= max over r of  m sum over chunks c of (F_rc + B_rc) + sum over q < r of (F_q0 + B_q0)
 *
 * Bytes. The activations that a layer keeps for its backward pass exist once for each microbatch in
 * flight: min (m, p - r) microbatches in 1f1b and m in gpipe. If a rank has v chunks, the
 * microbatches in flight are those of its first 2 (p - r - 1) + (v - 1) g + 1 forward passes, for
 * groups of g microbatches (Megatron-LM: Narayanan et al. 2021, "Efficient Large-Scale Language
 * Model Training on GPU Clusters", section 2.2). Weights, gradients and optimizer state are added,
 * sharded over the replicas where the strategy shards them. The sum is a lower bound, because no
 * memory plan is smaller than the bytes that are alive at one time.
 *
 * Other schedules, which may split the backward pass into input and weight gradients, are counted
 * in their cells (flights.h): the activations of a microbatch exist from its forward pass to its
 * input gradients, those for its weight gradients until these are computed. Of their time, only
 * forward passes through earlier ranks count, because weight gradients may fill all other idle
 * time; the replay of the schedule is tighter.
 *
 * The bound is 0 if the passes of a job differ from each other, or if the schedule comes from a
 * file. */
#pragma once
#include "planner/segments.h"

struct weft_bound {
  /* lower bound of the step time in seconds; lower bound of the memory of the rank that needs most,
   * in bytes */
  double seconds, bytes;
};

/* Lower bound of the step time in seconds: the model FLOPs at the reachable matmul rate, with the
 * pipeline bubble. 0 if the cluster has a table of measured kernels (cost_table), because measured
 * kernels may be faster than that rate. */
double weft_bound_flops (const struct weft_job *job);

/* Lower bounds from the layers of a job. The job must satisfy the rules. A bound that is not known
 * is 0. */
struct weft_bound weft_bound_passes (weft_segment_cache *cache, const struct weft_job *job);

/* Bytes of one pipeline rank: those that do not depend on the replicas (activations, libraries),
 * and the state of each family of weights before replicas shard it. */
struct weft_rank_bytes {
  double fixed, state[WEFT_N_FAMILY][WEFT_N_STATE];
};

/* The bound of time of weft_bound_passes(), which is equal for all members of a family (space.h).
 * Replaces the contents of `ranks`, an array of struct weft_rank_bytes, by the bytes of each
 * pipeline rank, which are equal too; there are none if the bound is not known. */
double weft_bound_family (weft_segment_cache *cache, const struct weft_job *job, GArray *ranks);

/* The lower bound of the memory of a member of the family of `ranks`, in bytes. */
double weft_bound_bytes (const struct weft_job *job, const GArray *ranks);

/* A tighter lower bound of the step time in seconds, from a replay of the schedule with the passes
 * of `passes` and with transfers between stages, priced without contention. 0 if it was not
 * computed. */
double weft_bound_schedule (weft_segment_cache *cache, const struct weft_job *job);

/* Lower bound of the step time in seconds: weft_bound_schedule() with the work of a rank before its
 * first pass and after its last (ends.h). 0 if it was not computed. */
double weft_bound_ends (weft_segment_cache *cache, const struct weft_job *job);

/* Lower bound of the step time in seconds: a replay of the schedule with the paths through passes
 * of the strategy's own program of few microbatches (paths.h), with the work before the first pass
 * and after the last. It knows the gathers and reductions of Megatron-FSDP and the copies of
 * activation offload in every microbatch. 0 if it was not computed. */
double weft_bound_lanes (weft_segment_cache *cache, const struct weft_job *job);

/* Whether weft_bound_ends() and weft_bound_lanes() would measure a job of one or of few
 * microbatches, which is not in the cache. Set the last argument to this job. A search measures
 * several such jobs at a time (trials.h). */
gboolean weft_bound_ends_measures (const weft_segment_cache *cache, const struct weft_job *job,
                                   struct weft_job *one);
gboolean weft_bound_lanes_measures (const weft_segment_cache *cache, const struct weft_job *job,
                                    struct weft_job *few);
