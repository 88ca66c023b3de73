#include "planner/flights.h"
#include <string.h>

uint64_t
weft_spec_cells (const struct weft_grid_spec *spec)
{
  const struct weft_schedule_row *row = &weft_schedules[spec->schedule];

  return (uint64_t) (2 + row->splits_backward) * spec->n_micro * weft_spec_chunks (spec) *
         spec->n_ranks;
}

/* The number of microbatches that count at a moment. */
static uint32_t
weight_of (const struct weft_flight *now, uint32_t n_chunks, enum weft_moment moment)
{
  uint32_t sum = 0;

  for (uint32_t chunk = 0; chunk < n_chunks; chunk++)
    sum += now[chunk].whole + (moment == WEFT_MOMENT_ANY ? now[chunk].late : 0);
  return sum;
}

/* Counts a cell that has run. */
static void
count_cell (struct weft_flight *chunk, enum weft_phase phase)
{
  chunk->whole += phase == WEFT_PHASE_FORWARD;
  chunk->whole -= phase == WEFT_PHASE_BACKWARD || phase == WEFT_PHASE_INPUT_GRAD;
  chunk->late += phase == WEFT_PHASE_INPUT_GRAD;
  chunk->late -= phase == WEFT_PHASE_WEIGHT_GRAD;
}

/* Stores the counts `now` for each moment at which they exceed those stored before. */
static void
keep_most (const struct weft_flight *now, uint32_t n_chunks, struct weft_flight *most)
{
  for (int moment = 0; moment < WEFT_N_MOMENT; moment++)
    if (weight_of (now, n_chunks, moment) > weight_of (most + moment * n_chunks, n_chunks, moment))
      memcpy (most + moment * n_chunks, now, n_chunks * sizeof *now);
}

static gboolean
has_wholes (const weft_grid *grid)
{
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    for (uint32_t i = 0; i < grid->n_cell[rank]; i++)
      if (grid->cell[rank][i].phase == WEFT_PHASE_BACKWARD)
        return TRUE;
  return FALSE;
}

static void
count_rank (const weft_grid *grid, uint32_t rank, struct weft_flight *most)
{
  g_autofree struct weft_flight *now = g_new0 (struct weft_flight, grid->n_chunks);

  for (uint32_t i = 0; i < grid->n_cell[rank]; i++) {
    count_cell (&now[grid->cell[rank][i].chunk], grid->cell[rank][i].phase);
    keep_most (now, grid->n_chunks, most);
  }
}

struct weft_flights *
weft_flights_new (const struct weft_grid_spec *spec)
{
  g_autoptr (weft_grid) grid =
      weft_spec_cells (spec) <= WEFT_MOST_CELLS ? weft_grid_new (spec, NULL) : NULL;

  if (!grid)
    return NULL;
  struct weft_flights *flights = g_new0 (struct weft_flights, 1);
  flights->at = g_new0 (struct weft_flight, grid->n_ranks * WEFT_N_MOMENT * grid->n_chunks);
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    count_rank (grid, rank, flights->at + rank * WEFT_N_MOMENT * grid->n_chunks);
  flights->wholes = weft_schedules[spec->schedule].splits_backward && has_wholes (grid);
  flights->grid = g_steal_pointer (&grid);
  return flights;
}

void
weft_flights_free (struct weft_flights *flights)
{
  if (!flights)
    return;
  weft_grid_free (flights->grid);
  g_free (flights->at);
  g_free (flights);
}
