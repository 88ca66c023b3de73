/* grid.h - a schedule as data: for each pipeline rank its compute cells in order.
 *
 * A cell is stage, type and microbatch, written in PyTorch's grammar: 0F3 is the forward of
 * microbatch 3 on stage 0, 1B2 a full backward, 1I2 and 1W2 its input- and weight-gradient halves.
 *
 * A rank holds n_chunks chunks of the model.  Each chunk is one stage of one copy of the model;
 * schedule.h says which.  A copy has every stage once, and a microbatch stays within a copy; only
 * DualPipe has two copies. */
#pragma once
#include "core/schedule/schedule.h"
#include <glib.h>

struct weft_cell {
  uint8_t phase; /* WEFT_PHASE_FORWARD, _BACKWARD, _INPUT_GRAD or _WEIGHT_GRAD */
  uint8_t chunk;
  uint16_t micro;
  uint16_t paired; /* runs together with the next cell: a forward and the backward after it */
};

typedef struct weft_grid {
  uint32_t n_ranks, n_chunks, n_micro;
  uint32_t n_stages;       /* of one copy */
  uint32_t n_copies;       /* n_ranks * n_chunks / n_stages */
  uint32_t *stage, *copy;  /* by rank * n_chunks + chunk */
  uint32_t *place;         /* by copy * n_stages + stage: rank * n_chunks + chunk */
  uint32_t *copy_of;       /* by microbatch */
  uint32_t *n_cell;        /* by rank */
  struct weft_cell **cell; /* by rank */
} weft_grid;

/* At least one rank and microbatch, at most UINT16_MAX microbatches.  Refused where the schedule
 * cannot be made of these counts. */
weft_grid *weft_grid_new (const struct weft_grid_spec *spec, GError **error);

void weft_grid_free (weft_grid *grid);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_grid, weft_grid_free)

uint32_t weft_grid_stage (const weft_grid *grid, uint32_t rank, uint32_t chunk);

/* Which copy of the model a chunk belongs to, and which one a microbatch goes through. */
uint32_t weft_grid_copy (const weft_grid *grid, uint32_t rank, uint32_t chunk);
uint32_t weft_grid_micro_copy (const weft_grid *grid, uint32_t micro);

/* The chunk that holds the stage after, or before, in the same copy: moves rank and chunk there.
 * FALSE where the chunk is the last (it has the loss), or the first (it has the embedding). */
gboolean weft_grid_next (const weft_grid *grid, uint32_t *rank, uint32_t *chunk);
gboolean weft_grid_prev (const weft_grid *grid, uint32_t *rank, uint32_t *chunk);

/* Whether each rank hands on to the next, and the last to the first; whether any backward is split. */
gboolean weft_grid_is_ring (const weft_grid *grid);
gboolean weft_grid_splits (const weft_grid *grid);

/* Why programs cannot be made of a grid that lies like this, for a message; NULL: they can.  Caller
 * frees. */
char *weft_grid_place_problem (const weft_grid *grid);

/* Replays the grid: every F, then its B, on every stage exactly once, and no rank waits for ever.
 * A forward needs that of the stage before; a backward (or I) needs its own forward and the
 * backward of the stage after; W needs its I.  A pair is a forward and a backward, neither of which
 * waits for the other.  The error names the cell that is missing, done twice or never starts.
 * Everything below wants a grid that passes. */
gboolean weft_grid_check (const weft_grid *grid, GError **error);

/* One line a rank: "0F0,0F1,0B0,..."; idle slots are not written, pairs are "(0F4;3B1)OVERLAP_F_B". */
char *weft_grid_csv (const weft_grid *grid);

/* The same back: text in PyTorch's grammar, from `where`.  Blank cells and actions that gather weights
 * or send tensors are passed over.  Checked. */
weft_grid *weft_grid_read (const char *text, const char *where, GError **error);
weft_grid *weft_grid_load (const char *path, GError **error);

/* Text of one cell, e.g. "3F12".  Caller frees. */
char *weft_cell_print (const weft_grid *grid, uint32_t rank, const struct weft_cell *cell);

/* How long the cells of one chunk take; a full backward takes input + weight.  A forward and a
 * backward that are paired start together and take `pair`, or, where that is 0, run one after the
 * other. */
struct weft_cell_times {
  double forward, input, weight, pair;
};

/* Start times when communication is free: start[rank][cell]; returns the makespan.  The caller
 * brings the rows of `start`, or NULL.  Used by pictures and closed-form tests. */
double weft_grid_replay (const weft_grid *grid, struct weft_cell_times times, double **start);

/* The makespan where chunks take different times, by rank * n_chunks + chunk, pairs none of their own,
 * and what a stage hands to the next has arrived `transfer` seconds later. */
double weft_grid_replay_uneven (const weft_grid *grid, const struct weft_cell_times *times,
                                double transfer);

/* Most chunk activations that a rank keeps at once: one from F to B; where the backward is split,
 * half of it goes with I and half with W. */
double weft_grid_in_flight (const weft_grid *grid, uint32_t rank);

/* A picture for terminals: one row a rank, digits forward, letters backward, dots idle; 3 and d are
 * microbatch 3, 13, 23..., and weight gradients of a split backward are capitals.  A column is one
 * slot, a forward takes one and a backward two; where that exceeds `width`, a column shows what
 * runs in the middle of its share of the time. */
char *weft_grid_ascii (const weft_grid *grid, uint32_t width);

/* The same in colour, with microbatch numbers where they fit; stands alone or inline in a page. */
char *weft_grid_svg (const weft_grid *grid);
