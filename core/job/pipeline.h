/* pipeline.h - which pipeline a job asks for: its schedule, the counts, and the grid of cells. */
#pragma once
#include "core/job/job.h"
#include "core/schedule/grid.h"

/* What the knobs of a job ask for. */
struct weft_grid_spec weft_job_grid_spec (const struct weft_job *job);

/* The path in pipeline_schedule_file, or NULL. */
const char *weft_job_schedule_file (const struct weft_job *job);

/* The row of pipeline_schedule; NULL where pipeline_schedule_file takes its place: then the grid is
 * all that is known of the schedule. */
const struct weft_schedule_row *weft_job_schedule (const struct weft_job *job);

/* The grid of the schedule at the job's sizes, or that of pipeline_schedule_file.  Caller frees. */
weft_grid *weft_job_grid (const struct weft_job *job, GError **error);

/* Chunks of one copy of the model on a rank: what the schedule, its file, or
 * virtual_pipeline_model_parallel_size asks for, at least one. */
uint32_t weft_job_chunks (const struct weft_job *job);

/* Whether the chunks of a rank take turns under Megatron-Core's interleaved schedule. */
gboolean weft_job_interleaves (const struct weft_job *job);

/* Whether gradients of weights have cells of their own. */
gboolean weft_job_splits_backward (const struct weft_job *job);

/* Copies of the model in one pipeline; whether its stages go round the ranks several times. */
uint32_t weft_job_copies (const struct weft_job *job);
gboolean weft_job_is_ring (const struct weft_job *job);
