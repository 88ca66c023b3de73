#include "planner/alike.h"
#include "core/passes/step.h"

static gboolean
is_offloaded (const struct weft_job *job, uint32_t layer)
{
  return job->strategy.cpu_offloading && layer < job->strategy.cpu_offloading_num_layers;
}

static gboolean
stages_are_alike (const struct weft_job *job, const struct weft_stage *a,
                  const struct weft_stage *b)
{
  if (a->n_layers != b->n_layers || a->embedding != b->embedding || a->head != b->head)
    return FALSE;
  for (uint32_t i = 0; i < a->n_layers; i++) {
    uint32_t x = a->first_layer + i, y = b->first_layer + i;
    if (!weft_model_layers_are_alike (&job->model, x, y) ||
        is_offloaded (job, x) != is_offloaded (job, y))
      return FALSE;
  }
  return TRUE;
}

static gboolean
ranks_are_alike (const struct weft_job *job, const weft_grid *grid, uint32_t a, uint32_t b)
{
  for (uint32_t chunk = 0; chunk < grid->n_chunks; chunk++) {
    struct weft_stage x = weft_stage_at (job, grid, a, chunk),
                      y = weft_stage_at (job, grid, b, chunk);
    if (!stages_are_alike (job, &x, &y))
      return FALSE;
  }
  return TRUE;
}

static gboolean
is_alone (const weft_grid *grid, uint32_t rank)
{
  return rank == 0 || rank + 2 >= grid->n_ranks;
}

void
weft_alike_ranks (const struct weft_job *job, const weft_grid *grid, uint32_t *first,
                  uint32_t *last)
{
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++) {
    uint32_t at = is_alone (grid, rank) ? rank : 1;
    while (at < rank && (first[at] != at || !ranks_are_alike (job, grid, at, rank)))
      at++;
    first[rank] = at;
    last[at] = rank;
  }
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    last[rank] = last[first[rank]];
}
