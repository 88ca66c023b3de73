/* schedule.h - what a pipeline schedule is made of, and which counts it can be made for.
 *
 * pipeline.h makes the grid of cells; this is what rules and other tables need to know of it. */
#pragma once
#include "core/job/job.h"

/* How the pieces of the model that a rank holds become stages:
 *
 *   loop     chunk q of rank r is stage q * n_ranks + r
 *   V        chunk 0 is stage r, chunk 1 stage 2 * n_ranks - 1 - r
 *   two ways chunk 0 is stage r of one copy of the model, chunk 1 stage n_ranks - 1 - r of another,
 *            whose microbatches start at the last rank */
enum weft_grid_shape { WEFT_GRID_LOOP, WEFT_GRID_V, WEFT_GRID_TWO_WAYS };

struct weft_schedule_info {
  enum weft_grid_shape shape;
  uint32_t n_chunks; /* of one copy of the model on a rank; 0: as many as the job asks for */
  uint32_t n_copies;
};

extern const struct weft_schedule_info weft_schedule_infos[];

struct weft_grid_spec {
  enum weft_schedule schedule;
  uint32_t n_ranks;
  uint32_t n_chunks; /* virtual_pipeline_model_parallel_size; 0: the schedule's own */
  uint32_t n_micro;
  uint32_t group;        /* microbatch_group_size_per_vp_stage; 0: n_ranks */
  uint32_t extra_warmup; /* forwards that a rank runs ahead of what it must: the others are paired each
                            with the backward after it, which does not wait for it then */
};

/* What the knobs of a job ask for. */
struct weft_grid_spec weft_job_grid_spec (const struct weft_job *job);

/* The file of pipeline_schedule_file, or NULL. */
const char *weft_job_schedule_file (const struct weft_job *job);

/* Chunks of one copy of the model on a rank; microbatches of a group. */
uint32_t weft_spec_chunks (const struct weft_grid_spec *spec);
uint32_t weft_spec_group (const struct weft_grid_spec *spec);

/*    broken rule            name, of rules.def     what must be */
#define WEFT_SPEC_RULE_LIST(X)                                                                     \
  X (WEFT_SPEC_CHUNKS, chunks_schedule,                                                            \
     "virtual_pipeline_model_parallel_size is for 1f1b; the V-shaped schedules have two chunks by "  \
     "themselves, the others one")                                                                 \
  X (WEFT_SPEC_GROUP, chunks_group,                                                                \
     "microbatch_group_size_per_vp_stage must be at least the ranks of the pipeline and at most the " \
     "microbatches (none stands for the ranks)")                                                   \
  X (WEFT_SPEC_REST, chunks_rest,                                                                  \
     "the last group of microbatches must be whole, or have at least as many as the pipeline has "  \
     "ranks")                                                                                      \
  X (WEFT_SPEC_EVEN, dualpipe_even,                                                                \
     "dualpipe goes through the ranks both ways: these and the microbatches must be even")         \
  X (WEFT_SPEC_ENOUGH, dualpipe_microbatches,                                                      \
     "dualpipe and dualpipev need two microbatches for each rank of the pipeline")

enum weft_spec_rule {
#define WEFT_SPEC_RULE_ID(id, name, doc) id,
  WEFT_SPEC_RULE_LIST (WEFT_SPEC_RULE_ID)
#undef WEFT_SPEC_RULE_ID
  WEFT_SPEC_FITS
};

/* The first rule that the counts break, or WEFT_SPEC_FITS. */
enum weft_spec_rule weft_spec_broken (const struct weft_grid_spec *spec);
