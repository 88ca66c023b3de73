/* cells.h - private to layer/: the cells of the grid. */
#pragma once
#include "core/passes/layer/block.h"

/* begin: starts a cell. take: returns the input of the cell, from the embedding, the head or a
 * neighbouring stage. end: appends the head (forward) or the embedding (backward) after the layers,
 * if the chunk has a head or an embedding. x: the output of the layers, in backward the gradient of
 * their input. */
void weft_cell_begin (struct weft_step *s, const struct weft_cell *cell);
uint32_t weft_cell_take (struct weft_step *s, const struct weft_cell *cell);
void weft_cell_end (struct weft_step *s, const struct weft_cell *cell, uint32_t x);

/* Appends the sends and receives before cell `i`, and the delayed weight gradients that run during
 * these transfers. */
void weft_cells_exchange (struct weft_step *s, uint32_t i);
