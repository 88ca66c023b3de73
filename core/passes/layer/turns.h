/* turns.h - a pass through one layer in turns, between which rows travel to experts and back.
 *
 *   turn     forward                                    backward, where they come the other way round
 *   attend   attention, norms; router, sort, pack       unpack, router; norms, attention
 *   go       rows to experts                            gradients of what experts took, back
 *   mlp      MLP; experts, shared experts               the same
 *   return   rows back                                  pack; gradients of what experts made, to them
 *   add      unpack; to the residual stream             -
 *
 * One pass takes them all, one after the other (layer.c); those of a forward and a backward may take turns
 * (combined.c). */
#pragma once
#include "core/passes/step.h"

enum weft_turn {
  WEFT_TURN_ATTEND,
  WEFT_TURN_GO,
  WEFT_TURN_MLP,
  WEFT_TURN_RETURN,
  WEFT_TURN_ADD,
  WEFT_N_TURN
};

/* A pass through one layer. */
struct weft_pass {
  uint32_t layer;
  struct weft_saved *saved;
  uint32_t x;             /* what it takes, in the end what it makes; backward gradients of it */
  uint32_t mlp;           /* what the MLP, or shared experts, make, and its gradient */
  uint32_t rows, weights; /* on their way to experts, or back */
  uint32_t branch;        /* backward: the gradient of what attention added */
  uint32_t beside;        /* backward: that of the norm that attention and MLP both read */
};

/* layer.c */
void weft_layer_forward_turn (struct weft_step *s, struct weft_pass *pass, enum weft_turn turn);
void weft_layer_backward_turn (struct weft_step *s, struct weft_pass *pass, enum weft_turn turn);

/* layer.c: the norm of what attention, or the MLP, made (norm_placement post or sandwich), kept in
 * `made`; and its gradient.  Without such a norm both return what they are given. */
uint32_t weft_layer_output_norm (struct weft_step *s, gboolean attention, uint32_t y,
                                 uint32_t *made);
uint32_t weft_layer_output_norm_backward (struct weft_step *s, gboolean attention, uint32_t made,
                                          uint32_t dy);

/* mlp.c: from the gradient of the residual stream behind the MLP to that before it. */
void weft_layer_mlp_backward (struct weft_step *s, struct weft_pass *pass);

/* moe.c: what a layer of experts does in them, beside attention. */
void weft_moe_forward_turn (struct weft_step *s, struct weft_pass *pass, enum weft_turn turn);
void weft_moe_backward_turn (struct weft_step *s, struct weft_pass *pass, enum weft_turn turn);

/* step.c: a cell of the grid begins; what its layers take, of the embedding, the head or a neighbour;
 * what they made goes there; and the end that follows them, if its chunk has it. */
void weft_cell_begin (struct weft_step *s, const struct weft_cell *cell);
uint32_t weft_cell_take (struct weft_step *s, const struct weft_cell *cell);
void weft_cell_hand_over (struct weft_step *s, const struct weft_cell *cell, uint32_t x);
void weft_cell_end (struct weft_step *s, const struct weft_cell *cell, uint32_t x);

/* recompute.c: the pass of a microbatch through layer l of the chunk, which takes x, begins, and ends. */
struct weft_pass weft_chunk_enter (struct weft_step *s, uint32_t micro, uint32_t l, uint32_t x);
void weft_chunk_leave (struct weft_step *s, uint32_t l);

/* combined.c: whether passes take turns; cells i and i + 1 of this role, with what is sent and received
 * around them; and the layers of a backward that has no partner. */
typedef void weft_exchange_before (struct weft_step *s, uint32_t i);
static inline gboolean
weft_step_combines (const struct weft_step *s)
{
  return s->strategy->overlap_moe_expert_parallel_comm;
}
void weft_combined_pair (struct weft_step *s, uint32_t i, weft_exchange_before *exchange);
uint32_t weft_combined_backward (struct weft_step *s, uint32_t dy);
