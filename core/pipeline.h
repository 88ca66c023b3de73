/* pipeline.h - a schedule is data: for each pipeline rank its compute cells in order.
 *
 * A cell is stage, type and microbatch, written in PyTorch's grammar: 0F3 is the forward of
 * microbatch 3 on stage 0, 1B2 a full backward, 1I2 and 1W2 its input- and weight-gradient halves.
 * A rank may hold several chunks; stage = chunk * n_ranks + rank. */
#pragma once
#include "core/op.h"
#include <glib.h>

struct weft_cell {
  uint8_t phase; /* WEFT_PHASE_FORWARD, _BACKWARD, _INPUT_GRAD or _WEIGHT_GRAD */
  uint8_t chunk;
  uint16_t micro;
};

typedef struct weft_grid {
  uint32_t n_ranks, n_chunks, n_micro;
  uint32_t *n_cell;         /* by rank */
  struct weft_cell **cell;  /* by rank */
} weft_grid;

/* At least one rank and one microbatch; at most UINT16_MAX microbatches. */
weft_grid *weft_grid_new (enum weft_schedule schedule, uint32_t n_ranks, uint32_t n_micro);
void weft_grid_free (weft_grid *grid);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_grid, weft_grid_free)

/* Replays the grid: every F, then its B, on every stage exactly once, and nobody waits for ever.
 * A forward needs that of the stage before; a backward (or I) needs its own forward and the
 * backward of the stage after; W needs its I.  The error names the cell that is missing, done twice
 * or never starts.  Everything below wants a grid that passes. */
gboolean weft_grid_check (const weft_grid *grid, GError **error);

/* One line a rank: "0F0,0F1,0B0,..."; idle slots are not written. */
char *weft_grid_csv (const weft_grid *grid);

/* Text of one cell, e.g. "3F12".  Caller frees. */
char *weft_cell_print (const weft_grid *grid, uint32_t rank, const struct weft_cell *cell);

/* Start times when a forward cell takes `forward` slots and a backward cell `backward` (I and W
 * half of that each), communication is free: start[rank][cell], in slots; returns the makespan.
 * The caller brings the rows of `start`, or NULL.  Used by pictures and closed-form tests. */
double weft_grid_replay (const weft_grid *grid, double forward, double backward, double **start);

/* Most microbatches (of whole-stage units, chunk = 1 / n_chunks, rounded up) whose backward is
 * outstanding at once: from F to B, or to W where the backward is split. */
uint32_t weft_grid_in_flight (const weft_grid *grid, uint32_t rank);

/* A picture for terminals: one row a rank, digits forward, letters backward, dots idle; 3 and d are
 * microbatch 3, 13, 23..., and weight gradients of a split backward are capitals.  A column is one
 * slot, a forward takes one and a backward two; where that exceeds `width`, a column shows what
 * runs in the middle of its share of the time. */
char *weft_grid_ascii (const weft_grid *grid, uint32_t width);

/* The same in colour, with microbatch numbers where they fit; stands alone or inline in a page. */
char *weft_grid_svg (const weft_grid *grid);
