/* exchange.h - sends and receives of pipeline stages between the cells of the grid.
 *
 *   exchange.c              Megatron-Core's order without interleaving
 *   exchange_interleaved.c  Megatron-Core's order of the interleaved schedule
 *   exchange_free.c         any other grid
 *
 * The previous stage, on this rank or on another rank, computes the input of a chunk; the next
 * stage reads its output. In backward, gradients are sent in the opposite direction. */
#pragma once
#include "core/passes/emit/emit.h"

void weft_pipeline_begin (struct weft_step *s);
void weft_pipeline_buffers (struct weft_step *s); /* creates the permanent buffer of
                                                   * variable_seq_lengths */
void weft_pipeline_end (struct weft_step *s);

/* Appends the sends and receives before cell `i` of this role. If i is the number of cells, appends
 * the sends and receives after the last cell. `beside` appends kernels that run during the
 * transfers: delayed weight gradients. */
void weft_exchange (struct weft_step *s, uint32_t i, weft_kernels *beside);

/* take: returns the input of a cell, converted to the type of kernels. output: returns the output
 * of a cell. hand_over: stores `x` as the output of a cell, which the next chunk reads or a send
 * transmits. */
uint32_t weft_exchange_take (struct weft_step *s, const struct weft_cell *cell);
uint32_t weft_exchange_output (const struct weft_step *s, const struct weft_cell *cell);
void weft_exchange_hand_over (struct weft_step *s, const struct weft_cell *cell, uint32_t x);

/* Whether the role follows Megatron-Core's interleaved schedule. Call the next two functions only
 * if this is TRUE. */
gboolean weft_pipeline_interleaves (const struct weft_step *s);

/* Returns the k-th forward slot (`forward` TRUE) or backward slot (FALSE) of this rank. NULL: slot
 * k does not exist. */
const struct weft_cell *weft_slot_at (const struct weft_step *s, gboolean forward, int64_t k);

/* Returns the number of forward or backward slots that this rank has completed. */
uint32_t weft_slots_over (const struct weft_step *s, gboolean forward);
