/* Placement of the stages of a grid. */
#include "core/schedule/grid.h"

static uint32_t
rank_of (const weft_grid *grid, uint32_t copy, uint32_t stage)
{
  return grid->place[copy * grid->n_stages + stage] / grid->n_chunks;
}

gboolean
weft_grid_is_ring (const weft_grid *grid)
{
  if (grid->n_copies > 1 || grid->n_stages == grid->n_ranks || grid->n_ranks == 1)
    return FALSE;
  for (uint32_t stage = 0; stage < grid->n_stages; stage++)
    if (rank_of (grid, 0, stage) != stage % grid->n_ranks)
      return FALSE;
  return TRUE;
}

gboolean
weft_grid_splits (const weft_grid *grid)
{
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    for (uint32_t i = 0; i < grid->n_cell[rank]; i++)
      if (grid->cell[rank][i].phase == WEFT_PHASE_WEIGHT_GRAD)
        return TRUE;
  return FALSE;
}

static char *
jump_in (const weft_grid *grid, uint32_t copy)
{
  for (uint32_t stage = 0; stage + 1 < grid->n_stages; stage++) {
    uint32_t here = rank_of (grid, copy, stage), next = rank_of (grid, copy, stage + 1);
    if (MAX (here, next) - MIN (here, next) > 1)
      return g_strdup_printf ("stage %u is on rank %u and stage %u on rank %u", stage, here,
                              stage + 1, next);
  }
  return NULL;
}

static gboolean
is_mirrored (const weft_grid *grid)
{
  for (uint32_t stage = 0; stage < grid->n_stages; stage++)
    if (rank_of (grid, 0, stage) + rank_of (grid, 1, stage) + 1 != grid->n_ranks)
      return FALSE;
  return TRUE;
}

char *
weft_grid_place_problem (const weft_grid *grid)
{
  uint32_t first = rank_of (grid, 0, 0), last = rank_of (grid, 0, grid->n_stages - 1);

  if (grid->n_copies > 2 || (grid->n_copies == 2 && !is_mirrored (grid)))
    return g_strdup_printf ("%u copies of the model, wanted one, or two in opposite directions",
                            grid->n_copies);
  if (first != 0 || (last != 0 && last + 1 != grid->n_ranks))
    return g_strdup_printf ("the first stage is on rank %u and the last on rank %u", first, last);
  for (uint32_t copy = 0; copy < grid->n_copies && !weft_grid_is_ring (grid); copy++) {
    char *problem = jump_in (grid, copy);
    if (problem)
      return problem;
  }
  return NULL;
}
