/* chunk.h - private to layer/: passes through one layer, and through all layers of a model
 * chunk. */
#pragma once
#include "core/passes/layer/block.h"

/* layer.c. Forward returns the output of a layer for input x. Backward returns the gradient of the
 * input; `dresidual` is the gradient of the output. */
uint32_t weft_layer_forward (struct weft_step *s, uint32_t layer, uint32_t x,
                             struct weft_saved *saved);
uint32_t weft_layer_backward (struct weft_step *s, uint32_t layer, struct weft_saved *saved,
                              uint32_t dresidual);

/* Append all layers of a model chunk for one microbatch. Forward returns the output of the last
 * layer for input x. Backward returns the gradient of x; dy is the gradient of the output. */
uint32_t weft_chunk_forward (struct weft_step *s, uint32_t micro, uint32_t x);
uint32_t weft_chunk_backward (struct weft_step *s, uint32_t micro, uint32_t dy);

/* weft_recompute_start() chooses the microbatches to which full recompute applies.
 * weft_recomputes_mtp() returns whether full recompute applies to multi-token prediction in the
 * current microbatch. */
void weft_recompute_start (struct weft_step *s);
gboolean weft_recomputes_mtp (const struct weft_step *s);

/* offload.c: copies activations to host memory and back. The caller calls the functions `before`
 * and `after` around each forward or backward pass of layer `l` of the stage. */
void weft_offload_start (struct weft_step *s);
void weft_offload_before_forward (struct weft_step *s, uint32_t micro, uint32_t l);
void weft_offload_after_forward (struct weft_step *s, uint32_t micro, uint32_t l);
void weft_offload_before_backward (struct weft_step *s, uint32_t micro, uint32_t l);
void weft_offload_after_backward (struct weft_step *s, uint32_t micro);
void weft_offload_end (struct weft_step *s);
