/* grid.h - a pipeline schedule as data: for each pipeline rank its compute cells in order.
 *
 * A cell is stage, type and microbatch, in PyTorch's notation: 0F3 is the forward of microbatch 3
 * on stage 0, 1B2 a full backward, 1I2 and 1W2 its input-gradient and weight-gradient halves.
 *
 * A rank holds n_chunks chunks of the model. Each chunk is one stage of one copy of the model, as
 * schedule.h defines. A copy has every stage once, and a microbatch stays within a copy; only
 * DualPipe has two copies. */
#pragma once
#include "core/schedule/schedule.h"
#include <glib.h>

struct weft_cell {
  uint8_t phase; /* the pass: WEFT_PHASE_FORWARD, _BACKWARD, _INPUT_GRAD or _WEIGHT_GRAD */
  uint8_t chunk;
  uint16_t micro;
  /* TRUE: the cell runs together with the next cell; one is a forward, the other a backward */
  uint16_t paired;
};

typedef struct weft_grid {
  uint32_t n_ranks, n_chunks, n_micro;
  uint32_t n_stages;       /* number of stages of one copy of the model */
  uint32_t n_copies;       /* number of copies of the model: n_ranks * n_chunks / n_stages */
  /* stage and copy of the model of each chunk, at index rank * n_chunks + chunk */
  uint32_t *stage, *copy;
  /* place of each stage, at index copy * n_stages + stage: rank * n_chunks + chunk */
  uint32_t *place;
  uint32_t *copy_of;       /* by microbatch: the copy of the model that it passes through */
  uint32_t *n_cell;        /* by rank: its number of cells */
  struct weft_cell **cell; /* by rank: its cells in the order in which they run */
} weft_grid;

/* Builds the grid of a schedule, for at least one rank and 1 to UINT16_MAX microbatches. NULL with
 * an error if the schedule does not exist for the numbers of `spec`. */
weft_grid *weft_grid_new (const struct weft_grid_spec *spec, GError **error);

void weft_grid_free (weft_grid *grid);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_grid, weft_grid_free)

/* The stage that a chunk of a rank is, within its copy of the model. */
uint32_t weft_grid_stage (const weft_grid *grid, uint32_t rank, uint32_t chunk);

/* The copy of the model that a chunk of a rank belongs to. */
uint32_t weft_grid_copy (const weft_grid *grid, uint32_t rank, uint32_t chunk);

/* The copy of the model that a microbatch passes through. */
uint32_t weft_grid_micro_copy (const weft_grid *grid, uint32_t micro);

/* Changes rank and chunk to those of the next (or previous) stage of the same copy of the model.
 * FALSE if there is no next stage, because the chunk computes the loss, or no previous stage,
 * because the chunk has the embedding. */
gboolean weft_grid_next (const weft_grid *grid, uint32_t *rank, uint32_t *chunk);
gboolean weft_grid_prev (const weft_grid *grid, uint32_t *rank, uint32_t *chunk);

/* Whether each rank sends activations to the next rank, and the last rank sends to the first. */
gboolean weft_grid_is_ring (const weft_grid *grid);

/* Whether any backward is split into I (input gradients) and W (weight gradients). */
gboolean weft_grid_splits (const weft_grid *grid);

/* Why programs cannot be built for this placement of stages, as text for a message; NULL if they
 * can. The caller frees the text. */
char *weft_grid_place_problem (const weft_grid *grid);

/* Replays the grid and checks it. Every F and its B must occur exactly once on every stage, and
 * there must be no deadlock. A forward needs the forward of the previous stage. A backward (or I)
 * needs its own forward and the backward of the next stage. W needs its I. A pair is a forward and
 * a backward, neither of which waits for the other. The error names the cell that is missing,
 * duplicate or never starts. All functions below require a grid that passes this check. */
gboolean weft_grid_check (const weft_grid *grid, GError **error);

/* The grid in PyTorch's notation, one line per rank: "0F0,0F1,0B0,...". Idle slots are left out;
 * pairs are written as "(0F4;3B1)OVERLAP_F_B". The caller frees the text. */
char *weft_grid_csv (const weft_grid *grid);

/* Parses text in PyTorch's notation; `where` names the text in errors. Blank cells and actions that
 * gather weights or send tensors are skipped. The result has passed weft_grid_check(). */
weft_grid *weft_grid_read (const char *text, const char *where, GError **error);

/* Like weft_grid_read(), for a file. */
weft_grid *weft_grid_load (const char *path, GError **error);

/* The text of one cell, for example "3F12". The caller frees the text. */
char *weft_cell_print (const weft_grid *grid, uint32_t rank, const struct weft_cell *cell);

/* Durations of the cells of one chunk. A full backward takes `input` + `weight`. A paired forward
 * and backward start together and take `pair`; if `pair` is 0, they run one after the other. */
struct weft_cell_times {
  double forward, input, weight, pair;
};

/* Returns the makespan without communication. Stores the start time of every cell in
 * start[rank][cell], which the caller allocates; `start` may be NULL. For pictures and closed-form
 * tests. */
double weft_grid_replay (const weft_grid *grid, struct weft_cell_times times, double **start);

/* The makespan (seconds of the whole grid) if chunks have different durations: times[rank *
 * n_chunks + chunk]. A pair takes the sum of the times of its two cells. The output of a stage
 * arrives at the next stage `transfer` seconds after the cell, and at once if that stage is on the
 * same rank. Sets end[rank] to the end of the last cell of each rank; `end` may be NULL. */
double weft_grid_replay_uneven (const weft_grid *grid, const struct weft_cell_times *times,
                                double transfer, double *end);

/* Largest number of chunk activations that a rank keeps at once. F adds one activation; B frees it,
 * or I and W free half of it each. */
double weft_grid_in_flight (const weft_grid *grid, uint32_t rank);

/* A picture of a grid for terminals, with one row per chunk of a rank. Digits are forwards, letters
 * are backwards, dots are idle slots. 3 and d stand for microbatch 3, 13, 23...; capital letters
 * are weight gradients of a split backward. A column is one slot; a forward takes one slot and a
 * backward two. If there are more slots than `width`, a column shows the cell in the middle of its
 * interval. The caller frees the text. */
char *weft_grid_ascii (const weft_grid *grid, uint32_t width);
