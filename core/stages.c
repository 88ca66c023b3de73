#include "core/stages.h"

uint32_t
weft_job_chunks (const struct weft_job *job)
{
  int64_t chunks = job->strategy.virtual_pipeline_model_parallel_size;

  return chunks == WEFT_NONE ? 1 : (uint32_t) chunks;
}

static uint32_t
layers_of (const struct weft_job *job, const weft_grid *grid, uint32_t stage)
{
  (void) stage;
  return (uint32_t) job->model.num_layers / grid->n_stages;
}

struct weft_stage
weft_stage_at (const struct weft_job *job, const weft_grid *grid, uint32_t rank, uint32_t chunk)
{
  uint32_t stage = weft_grid_stage (grid, rank, chunk);
  struct weft_stage at = { .n_layers = layers_of (job, grid, stage),
                           .embedding = stage == 0,
                           .head = stage + 1 == grid->n_stages };

  for (uint32_t before = 0; before < stage; before++)
    at.first_layer += layers_of (job, grid, before);
  return at;
}
