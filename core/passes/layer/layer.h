/* layer.h - forward and backward of the model: embedding, transformer layers, output layer and
 * loss. The ops are appended in the order of the pipeline schedule's cells (forward or backward
 * passes of one microbatch).
 *
 *   cells.c         one cell, or two cells that overlap (expert_overlap.c)
 *   recompute.c     the layers of a model chunk, and which of them are recomputed
 *   offload.c       activations of the first layers in host memory
 *   layer.c         one layer: attention.c, scores.c, latent.c, norm.c, mlp.c, dropout.c
 *   moe.c           a layer of experts: dispatch.c, experts.c, gates.c, balance.c
 *   linear.c        linear layers: autocast.c, fp8_products.c
 *   ends.c          embedding, final norm and output layer: loss.c, head_chunks.c, mtp.c */
#pragma once
#include "core/passes/emit/emit.h"

void weft_layer_begin (struct weft_step *s);
/* weft_layer_build() must be called after weft_params_build() */
void weft_layer_build (struct weft_step *s);
void weft_layer_end (struct weft_step *s);

/* weft_cells_begin() copies the tokens of the first pass to the device, and receives the input of
 * this pass. weft_cells_play() appends cell `i` (a forward or backward pass) of this pipeline rank,
 * the cell that overlaps cell `i`, if any, and the transfers after these cells. weft_cells_play()
 * returns the number of appended cells, 1 or 2. weft_cells_end() appends the deferred weight
 * gradients of the output layer after the last cell. */
void weft_cells_begin (struct weft_step *s);
uint32_t weft_cells_play (struct weft_step *s, uint32_t i);
void weft_cells_end (struct weft_step *s);

/* Must be called when a step begins. weft_balance_start() zeroes the counts of chosen experts.
 * weft_fp8_begin_step() zeroes the largest magnitudes that the delayed fp8 recipe collects. */
void weft_balance_start (struct weft_step *s);
void weft_fp8_begin_step (struct weft_step *s);

/* Must be called when gradients are complete. Updates the biases of experts. */
void weft_balance_update (struct weft_step *s);

/* Must be called before the update of weights. All-reduces the largest magnitudes from which the
 * next step computes fp8 scales. */
void weft_fp8_reduce_magnitudes (struct weft_step *s);
