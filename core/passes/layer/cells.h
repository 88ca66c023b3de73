/* cells.h - private to layer/: cells of the pipeline schedule, that is, forward and backward
 * passes. */
#pragma once
#include "core/passes/layer/block.h"

/* weft_cell_begin() starts a cell (a forward or backward pass). weft_cell_take() returns the input
 * of the pass, from the embedding, the output layer or a neighbouring stage. After the layers,
 * weft_cell_end() appends the output layer (forward) or the embedding (backward) if the model chunk
 * has one. x: the output of the layers, in backward the gradient of their input. */
void weft_cell_begin (struct weft_step *s, const struct weft_cell *cell);
uint32_t weft_cell_take (struct weft_step *s, const struct weft_cell *cell);
void weft_cell_end (struct weft_step *s, const struct weft_cell *cell, uint32_t x);

/* Appends the sends and receives before cell `i` (a forward or backward pass), and the delayed
 * weight gradients that run during these transfers. */
void weft_cells_exchange (struct weft_step *s, uint32_t i);
