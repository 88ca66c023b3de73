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
void weft_layer_build (struct weft_step *s); /* once the tensors are there */
void weft_layer_end (struct weft_step *s);

/* Cell `i` of the role, with the cells that overlap it and with what stages send each other after
 * these. Returns how many cells that was. Before the first cell: loads its tokens, receives its
 * input. After the last one: weight gradients of the head that were deferred. */
void weft_cells_begin (struct weft_step *s);
uint32_t weft_cells_play (struct weft_step *s, uint32_t i);
void weft_cells_end (struct weft_step *s);

/* The step begins: zeroes the counters of experts; zeroes the largest magnitudes that fp8 recipes
 * note. */
void weft_balance_start (struct weft_step *s);
void weft_fp8_begin_step (struct weft_step *s);

/* Gradients are complete: moves the biases of experts; before the update: all ranks agree on the
 * largest magnitudes. */
void weft_balance_update (struct weft_step *s);
void weft_fp8_reduce_magnitudes (struct weft_step *s);
