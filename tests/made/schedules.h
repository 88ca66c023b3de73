/* schedules.h - pipeline schedules for tests: construction, checks, makespans, placement of
 * stages. */
#pragma once
#include "core/schedule/grid.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
/* CMocka requires these headers before its own. */

#include <cmocka.h>

static inline weft_grid *
schedule_made (const struct weft_grid_spec *spec)
{
  g_autoptr (GError) error = NULL;
  weft_grid *grid = weft_grid_new (spec, &error);

  if (!grid || !weft_grid_check (grid, &error))
    fail_msg ("%s of %u ranks, %u chunks, %u microbatches: %s", weft_schedule_words[spec->schedule],
              spec->n_ranks, spec->n_chunks, spec->n_micro, error->message);
  return grid;
}

static inline weft_grid *
schedule_plain (enum weft_schedule schedule, uint32_t p, uint32_t m)
{
  return schedule_made (
      &(struct weft_grid_spec){ .schedule = schedule, .n_ranks = p, .n_micro = m });
}

/* Returns the longest time between the begin of a rank's first cell and the end of its last cell.
 * In a run of many steps, a step takes at least this time, because ranks that start a step later
 * also end it later. */
static inline double
schedule_longest_span (const weft_grid *grid, struct weft_cell_times t)
{
  g_autofree double **start = g_new (double *, grid->n_ranks);
  double longest = 0;

  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    start[rank] = g_new (double, grid->n_cell[rank]);
  weft_grid_replay (grid, t, start);
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++) {
    uint32_t last = grid->n_cell[rank] - 1;
    assert_int_equal (grid->cell[rank][last].phase, WEFT_PHASE_WEIGHT_GRAD);
    longest = MAX (longest, start[rank][last] + t.weight - start[rank][0]);
    g_free (start[rank]);
  }
  return longest;
}

/* Sets of cell times. In all of them the weight gradient takes no longer than the other cells. */
static const struct weft_cell_times schedule_times[] = {
  { 1, 1, 1, 0 }, { 2, 2, 1, 0 }, { 3, 3, 2, 0 }, { 2, 3, 1, 0 }, { 3, 2, 1, 0 }, { 4, 4, 3, 0 },
};

static inline void
schedule_assert_v (const weft_grid *grid)
{
  uint32_t p = grid->n_ranks;

  assert_int_equal (grid->n_stages, 2 * p);
  for (uint32_t rank = 0; rank < p; rank++) {
    assert_int_equal (weft_grid_stage (grid, rank, 0), rank);
    assert_int_equal (weft_grid_stage (grid, rank, 1), 2 * p - 1 - rank);
  }
}
