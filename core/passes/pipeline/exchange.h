/* exchange.h - sends and receives between pipeline stages. A cell of the schedule's grid is one
 * forward or backward pass of a microbatch.
 *
 *   exchange.c              Megatron-Core's order without interleaving
 *   exchange_interleaved.c  Megatron-Core's order of the interleaved schedule
 *   exchange_free.c         any other schedule
 *
 * The previous stage, on this rank or on another rank, computes the input of a model chunk. The
 * next stage reads the chunk's output. In backward, gradients are sent in the opposite
 * direction. */
#pragma once
#include "core/passes/emit/emit.h"

void weft_pipeline_begin (struct weft_step *s);
/* creates the permanent buffer of sizes for variable_seq_lengths */
void weft_pipeline_buffers (struct weft_step *s);
void weft_pipeline_end (struct weft_step *s);

/* Appends the sends and receives before forward or backward pass `i` (cell) of this rank. If i is
 * the number of passes, appends the sends and receives after the last pass. `beside` appends
 * kernels that run during the transfers: delayed weight gradients. */
void weft_exchange (struct weft_step *s, uint32_t i, weft_kernels *beside);

/* A cell is a forward or backward pass of a microbatch. weft_exchange_take() returns the input of a
 * cell, converted to the dtype of kernels. weft_exchange_output() returns the output of a cell.
 * weft_exchange_hand_over() stores `x` as the output of a cell, which the next stage on this rank
 * reads, or which a send transmits. */
uint32_t weft_exchange_take (struct weft_step *s, const struct weft_cell *cell);
uint32_t weft_exchange_output (const struct weft_step *s, const struct weft_cell *cell);
void weft_exchange_hand_over (struct weft_step *s, const struct weft_cell *cell, uint32_t x);

/* Whether the rank follows Megatron-Core's interleaved schedule. weft_slot_at() and
 * weft_slots_over() may be called only in this schedule. */
gboolean weft_pipeline_interleaves (const struct weft_step *s);

/* Returns the k-th forward pass (`forward` TRUE) or the k-th backward pass (FALSE) of this rank.
 * NULL: the rank has no k-th pass. */
const struct weft_cell *weft_slot_at (const struct weft_step *s, gboolean forward, int64_t k);

/* Returns the number of forward passes (`forward` TRUE) or backward passes that this rank has
 * completed. */
uint32_t weft_slots_over (const struct weft_step *s, gboolean forward);
