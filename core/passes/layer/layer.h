/* layer.h - forward and backward of the model: embedding, layers, head and loss, cell by cell of
 * the grid.
 *
 *   cells.c         one cell of the grid, or two that overlap (expert_overlap.c)
 *   recompute.c     the layers of a chunk; which of them recompute
 *   offload.c       activations of the first layers in host memory
 *   layer.c         one layer: attention.c, scores.c, latent.c, norm.c, mlp.c, dropout.c
 *   moe.c           a layer of experts: dispatch.c, experts.c, gates.c, balance.c
 *   linear.c        linear maps: autocast.c, fp8_products.c
 *   ends.c          embedding, final norm and head: loss.c, head_chunks.c, mtp.c */
#pragma once
#include "core/passes/emit/emit.h"

void weft_layer_begin (struct weft_step *s);
void weft_layer_build (struct weft_step *s); /* after weft_params_build() */
void weft_layer_end (struct weft_step *s);

/* begin: loads the tokens of the first cell and receives its input. play: appends cell `i` of the
 * role, the cell that overlaps it, if any, and the transfers after them; returns the number of
 * cells, 1 or 2. end: after the last cell, appends the deferred weight gradients of the head. */
void weft_cells_begin (struct weft_step *s);
uint32_t weft_cells_play (struct weft_step *s, uint32_t i);
void weft_cells_end (struct weft_step *s);

/* Call these when the step begins. weft_balance_start() zeroes the counts of chosen experts.
 * weft_fp8_begin_step() zeroes the largest magnitudes that the delayed fp8 recipe collects. */
void weft_balance_start (struct weft_step *s);
void weft_fp8_begin_step (struct weft_step *s);

/* Call it when gradients are complete: updates the biases of experts. */
void weft_balance_update (struct weft_step *s);

/* Call it before the update of weights: all-reduces the largest magnitudes, from which the next
 * step computes scales. */
void weft_fp8_reduce_magnitudes (struct weft_step *s);
