/* nodes.h - private to layer/: the nodes of one transformer layer. A node is a group of ops. The
 * nodes of two microbatches can alternate, so that all-to-alls of experts overlap kernels.
 *
 *   node       forward                               backward, from the last node to the first
 *   attention  attention, norms; router, sort, pack  unpack, router; norms, attention
 *   dispatch   rows to experts                       input gradients of experts back
 *   mlp        MLP, or experts and shared experts    MLP, or experts and shared experts
 *   combine    rows back                             pack; output gradients to experts
 *   add        unpack; sum with the residual stream  -
 *
 * layer.c appends all nodes one after the other. With overlap_moe_expert_parallel_comm the nodes of
 * one microbatch's forward and of another's backward alternate (expert_overlap.c;
 * TransformerLayerNode of Megatron-Core). */
#pragma once
#include "core/passes/layer/block.h"

enum weft_layer_node {
  WEFT_NODE_ATTENTION,
  WEFT_NODE_DISPATCH,
  WEFT_NODE_MLP,
  WEFT_NODE_COMBINE,
  WEFT_NODE_ADD,
  WEFT_N_NODE
};

/* State of the forward or backward of one microbatch in one layer, between two nodes. */
struct weft_layer_pass {
  uint32_t layer;
  struct weft_saved *saved;
  /* x: in forward the input of the layer, and after the last node the layer's output; in backward
   * the gradient of the layer's output, and after the last node the gradient of its input */
  uint32_t x;
  /* output of the MLP or of the shared experts; in backward, gradient of this output */
  uint32_t mlp;
  /* tokens (rows) and router weights (weights) that are sent to experts or back */
  uint32_t rows, weights;
  uint32_t branch; /* in backward, for parallel attention: gradient of the layer's output */
  /* in backward: the MLP's part of the gradient of a norm's output, if attention also reads this
   * norm's output */
  uint32_t beside;
};

/* Append the kernels of one node. layer.c: of any layer; moe.c: the expert kernels of a layer of
 * experts. */
void weft_layer_forward_node (struct weft_step *s, struct weft_layer_pass *pass,
                              enum weft_layer_node node);
void weft_layer_backward_node (struct weft_step *s, struct weft_layer_pass *pass,
                               enum weft_layer_node node);
void weft_moe_forward_node (struct weft_step *s, struct weft_layer_pass *pass,
                            enum weft_layer_node node);
void weft_moe_backward_node (struct weft_step *s, struct weft_layer_pass *pass,
                             enum weft_layer_node node);

/* layer.c: applies the norm of the output of attention (`attention` TRUE) or of the MLP
 * (norm_placement = post, sandwich). Forward sets *made to the input of the norm, which backward
 * reads. If the model has no such norm, forward returns y, and backward returns dy. */
uint32_t weft_layer_output_norm (struct weft_step *s, gboolean attention, uint32_t y,
                                 uint32_t *made);
uint32_t weft_layer_output_norm_backward (struct weft_step *s, gboolean attention, uint32_t made,
                                          uint32_t dy);

/* mlp.c: backward of the MLP. Replaces pass->x, the gradient of the layer's output, by the gradient
 * of the residual stream before the MLP. If residual = parallel_one_norm, sets pass->beside
 * instead. */
void weft_layer_mlp_backward (struct weft_step *s, struct weft_layer_pass *pass);

/* recompute.c: callers call these before and after each pass of microbatch `micro` through layer
 * `l` of the model chunk. x: in forward the input of the layer, in backward the gradient of the
 * layer's output. */
struct weft_layer_pass weft_chunk_before_layer (struct weft_step *s, uint32_t micro, uint32_t l,
                                                uint32_t x);
void weft_chunk_after_layer (struct weft_step *s, uint32_t l);

/* Whether the nodes of one microbatch's forward and of another's backward alternate
 * (overlap_moe_expert_parallel_comm). */
static inline gboolean
weft_overlaps_experts (const struct weft_step *s)
{
  return s->strategy->overlap_moe_expert_parallel_comm;
}

/* expert_overlap.c: appends the forward and backward passes i and i + 1 of this pipeline rank
 * together, with the pipeline transfers after them. */
void weft_expert_overlap_pair (struct weft_step *s, uint32_t i);

/* Appends the layers of a backward pass that is not paired with a forward pass. dy: gradient of the
 * last layer's output. Returns the gradient of the first layer's input. */
uint32_t weft_expert_overlap_backward (struct weft_step *s, uint32_t dy);
