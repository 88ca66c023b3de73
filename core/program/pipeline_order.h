/* pipeline_order.h - inside pipeline*.c: how a grid is made and what its cells mean. */
#pragma once
#include "core/program/pipeline.h"

/* What a stage owes each microbatch, once; a full backward pays both gradient parts. */
enum weft_part_of_cell { WEFT_PAYS_FORWARD, WEFT_PAYS_INPUT, WEFT_PAYS_WEIGHT, WEFT_N_PAYS };

/* What a phase pays and how pictures show it; a phase that pays nothing cannot be a cell. */
struct weft_cell_look {
  uint8_t pays; /* bits of enum weft_part_of_cell */
  char glyph;   /* of microbatch 0 */
  const char *colour, *name;
};

extern const struct weft_cell_look weft_cell_looks[WEFT_N_PHASE];

static inline gboolean
weft_cell_pays (const struct weft_cell *cell, enum weft_part_of_cell part)
{
  return weft_cell_looks[cell->phase].pays >> part & 1;
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

/* The place of the stage after (by = 1) or before (-1) in the same copy. */
#define WEFT_NO_PLACE UINT32_MAX
uint32_t weft_grid_beside (const weft_grid *grid, uint32_t place, int by);

/* A grid of such sizes with nothing in it; then each place is told its copy and stage. */
weft_grid *weft_grid_alloc (uint32_t n_ranks, uint32_t n_chunks, uint32_t n_micro,
                            uint32_t n_copies);
void weft_grid_settle (weft_grid *grid, uint32_t place, uint32_t copy, uint32_t stage);

/* A grid without cells: rows are empty.  Microbatches are dealt to copies in equal runs. */
weft_grid *weft_grid_blank (uint32_t n_ranks, uint32_t n_chunks, uint32_t n_micro,
                            enum weft_grid_shape shape);

/* A schedule appends the cells of every rank in order to row[rank], a GArray of struct weft_cell. */
typedef void weft_order_fill (const weft_grid *grid, const struct weft_grid_spec *spec,
                              GArray **row);

weft_order_fill weft_order_gpipe, weft_order_1f1b;
weft_order_fill weft_order_zb_h1, weft_order_zb_h2, weft_order_zb_v, weft_order_v_half,
    weft_order_v_min, weft_order_dualpipe, weft_order_dualpipev;

void weft_order_put (GArray *row, enum weft_phase phase, uint32_t chunk, uint32_t micro);

/* What to search for: an order of two chunks in a V in which no rank keeps more than `most` (2 or more)
 * activations of chunks. */
struct weft_v_spec {
  uint32_t n_ranks, n_micro, most;
  uint32_t enough; /* idle slots of a rank beside the 6 of each microbatch that are worth no more looking */
  uint32_t n_more; /* ranks at the turn that are there for the search only */
};

/* Of the orders that were tried one with as few slots as that, or else with the fewest; among those
 * the one that loses least where passes take unequal times. */
weft_grid *weft_search_v (const struct weft_v_spec *spec);
