/* flights.h - the microbatches whose activations a rank keeps, counted in the cells of its
 * schedule.
 *
 * For schedules without a closed formula for the microbatches in flight. The cells of a rank run in
 * program order, so all activations of the counted microbatches are alive at one time. */
#pragma once
#include "core/schedule/grid.h"

/* The moments of a step at which microbatches are counted: when most microbatches wait for their
 * input or weight gradients, and when most wait for their input gradients. */
enum weft_moment { WEFT_MOMENT_ANY, WEFT_MOMENT_WHOLE, WEFT_N_MOMENT };

/* Counts of one chunk of a rank at one moment. */
struct weft_flight {
  uint16_t whole; /* microbatches whose forward pass has run, but not their input gradients */
  uint16_t late;  /* microbatches whose input gradients have run, but not their weight gradients */
};

struct weft_flights {
  weft_grid *grid; /* the grid with its cells */
  gboolean wholes; /* the schedule splits backward passes, but some cells are whole ones */
  /* at index (rank * WEFT_N_MOMENT + moment) * grid->n_chunks + chunk */
  struct weft_flight *at;
};

/* Counts the microbatches of a schedule. NULL: the schedule does not exist for these numbers, or
 * has too many cells to be replayed. */
struct weft_flights *weft_flights_new (const struct weft_grid_spec *spec);
void weft_flights_free (struct weft_flights *flights);

/* Most cells that a replay of a schedule may have, over all ranks. */
#define WEFT_MOST_CELLS (1u << 22)

/* Number of cells that a schedule has over all ranks. */
uint64_t weft_spec_cells (const struct weft_grid_spec *spec);
