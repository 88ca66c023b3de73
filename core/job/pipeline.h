/* pipeline.h - the pipeline of a job: its schedule, numbers of chunks, and grid of cells. */
#pragma once
#include "core/job/job.h"
#include "core/schedule/grid.h"

/* The numbers of ranks, microbatches and chunks for which the job's pipeline schedule is built. */
struct weft_grid_spec weft_job_grid_spec (const struct weft_job *job);

/* The path in pipeline_schedule_file; NULL if the job sets none. */
const char *weft_job_schedule_file (const struct weft_job *job);

/* The row of the job's pipeline_schedule. NULL if the job reads its grid from
 * pipeline_schedule_file. */
const struct weft_schedule_row *weft_job_schedule (const struct weft_job *job);

/* Returns the grid of the job's schedule, or the grid in the file pipeline_schedule_file if the job
 * names one. The caller frees it. */
weft_grid *weft_job_grid (const struct weft_job *job, GError **error);

/* Number of model chunks (virtual pipeline stages) per rank of one copy of the model, at least 1.
 * The schedule or its file determines it, otherwise virtual_pipeline_model_parallel_size. */
uint32_t weft_job_chunks (const struct weft_job *job);

/* Whether the chunks of a rank alternate in Megatron-Core's interleaved schedule. */
gboolean weft_job_interleaves (const struct weft_job *job);

/* Whether weight gradients are computed in grid cells of their own (W), apart from input
 * gradients. */
gboolean weft_job_splits_backward (const struct weft_job *job);

/* Number of copies of the model that one pipeline trains: more than 1 in bidirectional
 * schedules. */
uint32_t weft_job_copies (const struct weft_job *job);

/* Whether consecutive stages go around the ranks several times: stage s is on rank s % p of p
 * ranks. */
gboolean weft_job_is_ring (const struct weft_job *job);
