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

/* Seconds from the begin of the step to the first kernel of the first forward pass; from the end of
 * the last kernel of the last backward pass to the end of the step. */
struct weft_end {
  double before, after;
};

/* One block of memory without pointers, so that it can be copied between processes. */
struct weft_ends {
  uint32_t n;             /* number of pipeline ranks; 0: the ends could not be measured */
  struct weft_end rank[]; /* by pipeline rank */
};

static inline size_t
weft_ends_bytes (uint32_t n)
{
  return sizeof (struct weft_ends) + n * sizeof (struct weft_end);
}

/* A schedule with the stages of `row` that exists for any number of microbatches, also for one;
 * WEFT_N_SCHEDULE: none. chunked: a rank has several chunks. */
enum weft_schedule weft_ends_schedule (const struct weft_schedule_row *row, gboolean chunked);

/* Makes the job on which the ends of `job` are measured. Jobs with equal results have equal ends.
 * FALSE: there is none. */
gboolean weft_ends_job (const struct weft_job *job, struct weft_job *one);

/* Measures the ends of a job of weft_ends_job(). The caller frees the result with g_free(). */
struct weft_ends *weft_ends_measure (const struct weft_job *one, weft_placements *placements);
