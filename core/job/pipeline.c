#include "core/job/pipeline.h"
#include "core/base/error.h"

/* The part of an activation that a weight gradient needs, of WEFT_ACTIVATION: inputs and gradients
 * of the four products of a layer are 32 bytes for each element of a hidden state, of 34 bytes and
 * 5 bytes for each stored score (arXiv 2401.10241, section 3.1). */
static uint32_t
for_weights (const struct weft_job *job)
{
  const union weft_model *m = &job->model;
  gboolean stores = job->strategy.attention_backend == WEFT_ATTENTION_UNFUSED;
  double scores = stores ? 5.0 * m->num_attention_heads * m->seq_length : 0;

  return WEFT_ACTIVATION * 32.0 * m->hidden_size / (34.0 * m->hidden_size + scores);
}

struct weft_grid_spec
weft_job_grid_spec (const struct weft_job *job)
{
  const union weft_strategy *s = &job->strategy;
  gboolean within = s->pipeline_schedule == WEFT_SCHEDULE_ZB_AUTO;

  return (struct weft_grid_spec){
    .schedule = s->pipeline_schedule,
    .n_ranks = s->pipeline_model_parallel_size,
    .n_chunks = MAX (s->virtual_pipeline_model_parallel_size, 0),
    .n_micro = weft_job_microbatches (job),
    .group = MAX (s->microbatch_group_size_per_vp_stage, 0),
    .extra_warmup = s->overlap_moe_expert_parallel_comm,
    .most_pending = MAX (s->zero_bubble_max_pending_backward, 0),
    .for_weights = within ? MAX (for_weights (job), 1) : 0,
  };
}

const char *
weft_job_schedule_file (const struct weft_job *job)
{
  const char *path = g_quark_to_string ((GQuark) job->strategy.pipeline_schedule_file);

  return path && *path && !g_str_equal (path, "none") ? path : NULL;
}

const struct weft_schedule_row *
weft_job_schedule (const struct weft_job *job)
{
  return weft_job_schedule_file (job) ? NULL : &weft_schedules[job->strategy.pipeline_schedule];
}

/* Checks that the numbers of ranks, microbatches and chunks in the job are those of its schedule
 * file. */
static gboolean
agrees (const weft_grid *grid, const struct weft_job *job, const char *path, GError **error)
{
  const union weft_strategy *s = &job->strategy;
  int64_t chunks = s->virtual_pipeline_model_parallel_size, micro = weft_job_microbatches (job);
  uint32_t own = grid->n_stages / grid->n_ranks;

  if (grid->n_ranks != s->pipeline_model_parallel_size)
    return weft_bad_input (error,
                           "%s: found a line for each of %u ranks, wanted %" G_GINT64_FORMAT
                           " ranks (pipeline_model_parallel_size)",
                           path, grid->n_ranks, s->pipeline_model_parallel_size);
  if (grid->n_micro != micro)
    return weft_bad_input (error,
                           "%s: found %u microbatches, wanted %" G_GINT64_FORMAT " microbatches",
                           path, grid->n_micro, micro);
  return chunks == WEFT_NONE || chunks == own ||
         weft_bad_input (error,
                         "%s: found %u stages on a rank, wanted %" G_GINT64_FORMAT
                         " stages (virtual_pipeline_model_parallel_size)",
                         path, own, chunks);
}

weft_grid *
weft_job_grid (const struct weft_job *job, GError **error)
{
  const struct weft_grid_spec spec = weft_job_grid_spec (job);
  const char *path = weft_job_schedule_file (job);

  if (!path)
    return weft_grid_new (&spec, error);
  g_autoptr (weft_grid) grid = weft_grid_load (path, error);
  return grid && agrees (grid, job, path, error) ? g_steal_pointer (&grid) : NULL;
}

uint32_t
weft_job_chunks (const struct weft_job *job)
{
  const struct weft_grid_spec spec = {
    .schedule = job->strategy.pipeline_schedule,
    .n_chunks = MAX (job->strategy.virtual_pipeline_model_parallel_size, 0),
  };
  const char *path = weft_job_schedule_file (job);
  g_autoptr (weft_grid) grid = path ? weft_grid_load (path, NULL) : NULL;

  return grid ? grid->n_stages / grid->n_ranks : weft_spec_chunks (&spec);
}

gboolean
weft_job_interleaves (const struct weft_job *job)
{
  const struct weft_schedule_row *row = weft_job_schedule (job);

  return row && row->interleaved && weft_job_chunks (job) > 1;
}

/* The pipeline grid in the file pipeline_schedule_file; NULL if no file is given or it cannot be
 * read. Rule schedule_file refuses an unreadable file. Until that rule is checked, the other knobs
 * describe the grid. */
static weft_grid *
grid_of_file (const struct weft_job *job)
{
  return weft_job_schedule_file (job) ? weft_job_grid (job, NULL) : NULL;
}

gboolean
weft_job_splits_backward (const struct weft_job *job)
{
  g_autoptr (weft_grid) grid = grid_of_file (job);

  return grid ? weft_grid_splits (grid)
              : weft_schedules[job->strategy.pipeline_schedule].splits_backward;
}

uint32_t
weft_job_copies (const struct weft_job *job)
{
  g_autoptr (weft_grid) grid = grid_of_file (job);

  return grid ? grid->n_copies
              : weft_shape_copies (weft_schedules[job->strategy.pipeline_schedule].shape);
}

gboolean
weft_job_is_ring (const struct weft_job *job)
{
  g_autoptr (weft_grid) grid = grid_of_file (job);
  enum weft_grid_shape shape = weft_schedules[job->strategy.pipeline_schedule].shape;

  return grid ? weft_grid_is_ring (grid) : shape == WEFT_GRID_LOOP && weft_job_chunks (job) > 1;
}
