/* order.h - filling a grid with cells, and the work items of a cell. Private to core/schedule. */
#pragma once
#include "core/schedule/grid.h"

/* Work items of a microbatch on a stage. Each is done once. A full backward computes both
 * gradients. */
enum weft_cell_work {
  WEFT_CELL_WORK_FORWARD,
  WEFT_CELL_WORK_INPUT,
  WEFT_CELL_WORK_WEIGHT,
  WEFT_N_CELL_WORK
};

/* The work items that cells of a phase do, and the letter of the phase in text pictures. A phase
 * without work items cannot be a cell. */
struct weft_cell_kind {
  uint8_t works; /* work items that cells of this phase do: bits of enum weft_cell_work */
  char glyph;   /* character for microbatch 0; microbatch m has character glyph + m % 10 */
};

extern const struct weft_cell_kind weft_cell_kinds[WEFT_N_PHASE];

static inline gboolean
weft_cell_does (const struct weft_cell *cell, enum weft_cell_work part)
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

/* The place (weft_grid_place()) of the next stage (`by` = 1) or the previous stage (`by` = -1) in
 * the same copy of the model; WEFT_NO_PLACE if there is no such stage. */
#define WEFT_NO_PLACE UINT32_MAX
uint32_t weft_grid_beside (const weft_grid *grid, uint32_t place, int by);

/* Creates a grid with these numbers of ranks, chunks and microbatches, but without stages and
 * cells. */
weft_grid *weft_grid_alloc (uint32_t n_ranks, uint32_t n_chunks, uint32_t n_micro,
                            uint32_t n_copies);

/* Sets the copy and the stage of a place. */
void weft_grid_settle (weft_grid *grid, uint32_t place, uint32_t copy, uint32_t stage);

/* Creates a grid with the stages of a shape, but without cells. Each copy of the model has a
 * contiguous share of the microbatches; all shares are equal. */
weft_grid *weft_grid_blank (uint32_t n_ranks, uint32_t n_chunks, uint32_t n_micro,
                            enum weft_grid_shape shape);

/* One function per row of core/schedules.def, which fills the grid of that schedule. */
#define SCHEDULE(id, word, doc, fill, ...) weft_order_fill fill;
#include "core/schedules.def"

/* Appends a cell (one pass of one microbatch) to the row of a rank. */
void weft_order_put (GArray *row, enum weft_phase phase, uint32_t chunk, uint32_t micro);

/* The target of a search: an order of two chunks per rank, placed in a V, in which no rank keeps
 * more than `most` (at least 2) chunk activations. */
struct weft_v_spec {
  uint32_t n_ranks, n_micro, most;
  /* the search stops at an order with this many idle slots per rank. The slots of the work, 6 per
   * microbatch, do not count */
  uint32_t enough;
  /* number of ranks that the search adds where the V turns; the grid does not contain them */
  uint32_t n_more;
};

/* Tries several orders, and stops at the first order with at most `enough` idle slots. Otherwise
 * returns the order with the fewest idle slots; among equal orders, the one that is fastest if
 * cells have unequal durations. The caller frees the order. */
weft_grid *weft_search_v (const struct weft_v_spec *spec);
