/* nodes.h - private to layer/: the nodes of one layer, whose order allows all-to-alls of experts to
 * overlap kernels.
 *
 *   node       forward                               backward, from the last node to the first
 *   attention  attention, norms; router, sort, pack  unpack, router; norms, attention
 *   dispatch   rows to experts                       input gradients of experts back
 *   mlp        MLP, or experts and shared experts    MLP, or experts and shared experts
 *   combine    rows back                             pack; output gradients to experts
 *   add        unpack; sum with the residual stream  -
 *
 * layer.c runs all nodes one after the other. With overlap_moe_expert_parallel_comm the nodes of a
 * forward and of a backward alternate (expert_overlap.c; TransformerLayerNode of Megatron-Core). */
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

/* The forward or backward of one microbatch in one layer, between two nodes. */
struct weft_layer_pass {
  uint32_t layer;
  struct weft_saved *saved;
  uint32_t x;             /* input of the layer; after the last node the output of the layer. In
                           * backward the gradient of the output; after the last node the gradient
                           * of the input */
  uint32_t mlp;           /* output of the MLP or of shared experts, or its gradient */
  uint32_t rows, weights; /* tokens and router weights that are sent to experts or back */
  uint32_t branch;        /* backward: gradient of the layer's output, for parallel attention */
  uint32_t beside;        /* backward: the MLP's part of the gradient of a norm's output that
                           * attention also reads */
};

/* Append the kernels of one node: of any layer (layer.c), or the expert kernels of a layer of
 * experts (moe.c). */
void weft_layer_forward_node (struct weft_step *s, struct weft_layer_pass *pass,
                              enum weft_layer_node node);
void weft_layer_backward_node (struct weft_step *s, struct weft_layer_pass *pass,
                               enum weft_layer_node node);
void weft_moe_forward_node (struct weft_step *s, struct weft_layer_pass *pass,
                            enum weft_layer_node node);
void weft_moe_backward_node (struct weft_step *s, struct weft_layer_pass *pass,
                             enum weft_layer_node node);

/* layer.c: the norm of the output of attention (TRUE) or of the MLP (norm_placement = post,
 * sandwich). Forward sets *made to the input of the norm, which backward reads. If the model has no
 * such norm, both functions return their input. */
uint32_t weft_layer_output_norm (struct weft_step *s, gboolean attention, uint32_t y,
                                 uint32_t *made);
uint32_t weft_layer_output_norm_backward (struct weft_step *s, gboolean attention, uint32_t made,
                                          uint32_t dy);

/* mlp.c: backward of the MLP. Replaces pass->x, the gradient of the layer's output, by the gradient
 * of the residual stream before the MLP. If residual = parallel_one_norm, pass->beside is set
 * instead. */
void weft_layer_mlp_backward (struct weft_step *s, struct weft_layer_pass *pass);

/* recompute.c: call these before and after a pass of microbatch `micro` through layer `l` of the
 * chunk. x: the input of the layer, in backward the gradient of its output. */
struct weft_layer_pass weft_chunk_before_layer (struct weft_step *s, uint32_t micro, uint32_t l,
                                                uint32_t x);
void weft_chunk_after_layer (struct weft_step *s, uint32_t l);

/* Whether the nodes of a forward and a backward alternate. */
static inline gboolean
weft_overlaps_experts (const struct weft_step *s)
{
  return s->strategy->overlap_moe_expert_parallel_comm;
}

/* expert_overlap.c: appends cells i and i + 1 of the role together, with the exchanges after
 * them. */
void weft_expert_overlap_pair (struct weft_step *s, uint32_t i);

/* Appends the layers of a backward that is not paired with a forward. dy: the gradient of the
 * output of the last layer. Returns the gradient of the input of the first layer. */
uint32_t weft_expert_overlap_backward (struct weft_step *s, uint32_t dy);
