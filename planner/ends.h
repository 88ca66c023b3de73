/* ends.h - the work of a rank before its first pass and after its last pass of a step: gathers of
 * weights and reductions of gradients that no pass overlaps, the update, transfers of offloaded
 * state.
 *
 * This work does not depend on the number and the size of microbatches, on recompute, nor on the
 * order of the passes. It is measured on a program of one microbatch of one sequence, in which each
 * rank has the layers of the job: the longest path through the ops of the rank, without waiting for
 * other ranks, priced without contention. */
#pragma once
#include "core/plan/plan.h"

/* The ends of a chunk of a rank, seconds. */
struct weft_end {
  /* From the begin of the step to the first kernel of the first forward pass of the rank; from the
   * end of the last kernel of its last backward pass to the end of the step. */
  double before, after;
  /* Of the work that overlaps passes: from the begin of the step until the last kernel of the first
   * forward pass of the chunk has its weights; the collectives that reduce gradients after the last
   * backward pass of the chunk has begun; from their end to the end of the step. */
  double gathered, reduced, tail;
};

/* One block of memory without pointers, so that it can be copied between processes. */
struct weft_ends {
  uint32_t n, n_chunks;  /* numbers of ranks and of their chunks; n = 0: not measured */
  struct weft_end end[]; /* [rank][chunk] */
};

static inline size_t
weft_ends_bytes (uint32_t n, uint32_t n_chunks)
{
  return sizeof (struct weft_ends) + (size_t) n * n_chunks * sizeof (struct weft_end);
}

static inline const struct weft_end *
weft_ends_at (const struct weft_ends *ends, uint32_t rank, uint32_t chunk)
{
  return &ends->end[rank * ends->n_chunks + chunk];
}

/* A schedule with the stages of `row` that exists for any number of microbatches, also for one;
 * WEFT_N_SCHEDULE: none. chunked: a rank has several chunks. */
enum weft_schedule weft_ends_schedule (const struct weft_schedule_row *row, gboolean chunked);

/* Makes the job on which the ends of `job` are measured. Jobs with equal results have equal ends.
 * FALSE: there is none. */
gboolean weft_ends_job (const struct weft_job *job, struct weft_job *one);

/* Measures the ends of a job of weft_ends_job(). The caller frees the result with g_free(). */
struct weft_ends *weft_ends_measure (const struct weft_job *one, weft_placements *placements);

/* The least seconds that an op of a program adds to its lane. The ops of a launch group run at the
 * same time, except collectives, whose seconds are those that they add; fused ops are part of the
 * kernel before them. */
double weft_least_seconds (const weft_program *p, const double *seconds, uint32_t op);
