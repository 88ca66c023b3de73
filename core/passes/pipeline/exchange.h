/* exchange.h - what stages send each other between the cells of the grid: in Megatron-Core's order without
 * and with chunks, and that of any other grid. */
#pragma once
#include "core/passes/step.h"

/* exchange.c: what is sent and received before cell i of this role, or after the last of them. */
void weft_exchange (struct weft_step *s, uint32_t i);
/* exchange_interleaved.c: where ranks hold several chunks in a ring. */
void weft_exchange_interleaved (struct weft_step *s, uint32_t i);

/* Whether ranks take turns with their chunks as in Megatron-Core; slot k of this row in one direction, or
 * NULL beyond its ends; slots that are over. */
gboolean weft_step_interleaves (const struct weft_step *s);
const struct weft_cell *weft_slot_at (const struct weft_step *s, gboolean forward, int64_t k);
uint32_t weft_slots_over (const struct weft_step *s, gboolean forward);
/* exchange_free.c: of any other grid. */
void weft_exchange_free (struct weft_step *s, uint32_t i);

/* What they share.  The neighbour that a cell's result goes to, or its input comes from: +1 or -1;
 * 0 where that is this rank, or there is none. */
int weft_exchange_target (const struct weft_step *s, const struct weft_cell *cell);
int weft_exchange_source (const struct weft_step *s, const struct weft_cell *cell);
/* An exchange; without batch_p2p_comm no transfers are one launch.  The two in between add a transfer,
 * if there is one; the end posts them and returns the last send, or WEFT_NO_OP. */
void weft_exchange_begin (struct weft_step *s, enum weft_post how);
void weft_exchange_send (struct weft_step *s, const struct weft_cell *cell);
void weft_exchange_receive (struct weft_step *s, const struct weft_cell *cell);
uint32_t weft_exchange_end (struct weft_step *s);
/* Weight gradients that were put off run while it is under way. */
void weft_exchange_run_delayed (struct weft_step *s);
/* A cell's input as kernels take it. */
uint32_t weft_exchange_take (struct weft_step *s, const struct weft_cell *cell);
