/* pipeline.h - the pipeline of a job: its schedule, numbers of chunks, and grid of cells. */
#pragma once
#include "core/job/job.h"
#include "core/schedule/grid.h"

/* Grid specification from the knobs of a job. */
struct weft_grid_spec weft_job_grid_spec (const struct weft_job *job);

/* The path of pipeline_schedule_file, or NULL. */
const char *weft_job_schedule_file (const struct weft_job *job);

/* The row of pipeline_schedule; NULL with pipeline_schedule_file, for which only the grid is
 * known. */
const struct weft_schedule_row *weft_job_schedule (const struct weft_job *job);

/* Returns the grid of the job's schedule, or the grid in the file pipeline_schedule_file if the job
 * names one. The caller frees it. */
weft_grid *weft_job_grid (const struct weft_job *job, GError **error);

/* Model chunks per rank of one copy of the model: required by the schedule or its file, or
 * virtual_pipeline_model_parallel_size; at least one. */
uint32_t weft_job_chunks (const struct weft_job *job);

/* Whether the chunks of a rank alternate in Megatron-Core's interleaved schedule. */
gboolean weft_job_interleaves (const struct weft_job *job);

/* Whether weight gradients have cells of their own (W). */
gboolean weft_job_splits_backward (const struct weft_job *job);

/* Copies of the model in one pipeline: more than 1 in bidirectional schedules. */
uint32_t weft_job_copies (const struct weft_job *job);

/* Whether the stages go around the ranks several times: stage s is on rank s % p of p ranks. */
gboolean weft_job_is_ring (const struct weft_job *job);
