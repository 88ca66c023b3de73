/* order.h - private to core/schedule: filling a grid, and the work of its cells. */
#pragma once
#include "core/schedule/grid.h"

/* Work items of a microbatch on a stage; each is done once. A full backward does both gradients. */
enum weft_work { WEFT_WORK_FORWARD, WEFT_WORK_INPUT, WEFT_WORK_WEIGHT, WEFT_N_WORK };

/* Work of a phase, and its letter in text pictures. A phase without work cannot be a cell. */
struct weft_cell_kind {
  uint8_t works; /* bits of enum weft_work */
  char glyph;   /* character for microbatch 0; microbatch m has character glyph + m % 10 */
};

extern const struct weft_cell_kind weft_cell_kinds[WEFT_N_PHASE];

static inline gboolean
weft_cell_does (const struct weft_cell *cell, enum weft_work part)
{
  return weft_cell_kinds[cell->phase].works >> part & 1;
}

static inline uint32_t
weft_grid_place (const weft_grid *grid, uint32_t rank, uint32_t chunk)
{
  return rank * grid->n_chunks + chunk;
}

static inline uint32_t
weft_grid_places (const weft_grid *grid)
{
  return grid->n_ranks * grid->n_chunks;
}

static inline uint32_t
weft_cell_stage (const weft_grid *grid, uint32_t rank, const struct weft_cell *cell)
{
  return grid->stage[weft_grid_place (grid, rank, cell->chunk)];
}

/* The place of the next (by = 1) or previous (-1) stage in the same copy; WEFT_NO_PLACE if there is
 * none. A place is weft_grid_place(). */
#define WEFT_NO_PLACE UINT32_MAX
uint32_t weft_grid_beside (const weft_grid *grid, uint32_t place, int by);

/* Creates a grid of these sizes, without stages and cells. */
weft_grid *weft_grid_alloc (uint32_t n_ranks, uint32_t n_chunks, uint32_t n_micro,
                            uint32_t n_copies);

/* Sets the copy and the stage of a place. */
void weft_grid_settle (weft_grid *grid, uint32_t place, uint32_t copy, uint32_t stage);

/* Creates a grid with the stages of a shape, but without cells. Each copy has a contiguous, equal
 * share of the microbatches. */
weft_grid *weft_grid_blank (uint32_t n_ranks, uint32_t n_chunks, uint32_t n_micro,
                            enum weft_grid_shape shape);

/* The functions that fill grids, one for each row of core/schedules.def. */
#define SCHEDULE(id, word, doc, fill, ...) weft_order_fill fill;
#include "core/schedules.def"

/* Appends a cell to the row of a rank. */
void weft_order_put (GArray *row, enum weft_phase phase, uint32_t chunk, uint32_t micro);

/* Goal of a search: an order of two chunks in a V in which no rank keeps more than `most` (2 or
 * more) chunk activations. */
struct weft_v_spec {
  uint32_t n_ranks, n_micro, most;
  uint32_t enough; /* stop the search at this many idle slots per rank, beside the 6 slots of each
                    * microbatch */
  uint32_t n_more; /* additional ranks at the turn of the V, in the search only */
};

/* Tries several orders. Returns one with at most `enough` idle slots, or else with the fewest;
 * among those, the one that is fastest if cells have unequal durations. The caller frees it. */
weft_grid *weft_search_v (const struct weft_v_spec *spec);
