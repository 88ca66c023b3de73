/* paths.h - longest paths through the passes of each pipeline rank, measured on the program of few
 * microbatches, and a replay of the schedule with these paths.
 *
 * A cell (one pass of one microbatch) begins at the moments at which its lanes are free and its
 * input has arrived. For each of these moments, a path is the longest chain of ops of the cell, by
 * lanes and dependencies, until each lane is free again and until the output can be sent. Ops that
 * were launched in earlier cells count only through the lane on which they run, so a path is never
 * longer than the real chain. The replay follows these paths cell by cell. It knows that
 * Megatron-FSDP gathers weights before kernels and reduces gradients after them, on a lane that
 * runs in order, and that some schedules begin a transfer only after all earlier kernels.
 *
 * Forward passes of a chunk have equal ops, except the first of a step, which is measured apart.
 * Backward passes have equal ops, except the last, which has more and is measured only if it is the
 * only one. Among equal cells, the shortest paths are taken. */
#pragma once
#include "core/schedule/grid.h"
#include "planner/ends.h"

/* One block of memory without pointers, so that it can be copied between processes. */
struct weft_paths;

/* Measures a job of few microbatches. Returns NULL if the ops of a cell of its schedule are not
 * contiguous, or if its plan has a bug. The caller frees the result with g_free(). */
struct weft_paths *weft_paths_of_job (const struct weft_job *few, weft_placements *placements);

/* The size of measured paths, and the size of those of a job, bytes. */
size_t weft_paths_bytes (const struct weft_paths *paths);
size_t weft_paths_most_bytes (const struct weft_job *job);

/* Replays a schedule with the ends of its job (ends.h), which may be NULL. Returns a lower bound of
 * the seconds of the step; 0: the schedule has a kind of cell that was not measured. */
double weft_paths_replay (const struct weft_paths *paths, const weft_grid *grid,
                          const struct weft_ends *ends);
