/* posting.h - private to pipeline/: the state of the wing, and functions that post transfers. */
#pragma once
#include "core/passes/pipeline/exchange.h"

/* GROUP: the transfers are one launch. EACH: every transfer is a launch. In both cases the next
 * kernel waits for all transfers. ASIDE: every transfer is a launch that runs beside kernels; a
 * kernel waits only for transfers whose buffers it reads. */
enum weft_post { WEFT_POST_GROUP, WEFT_POST_EACH, WEFT_POST_ASIDE };

/* A send to, or a receive from, the rank `peer` places away. */
struct weft_transfer {
  enum weft_op_kind kind;
  int peer;
  uint32_t buf;
  struct weft_cell cell;
};

/* The exchange that is being posted. */
struct weft_posting {
  enum weft_post how;
  GArray *queue;                    /* struct weft_transfer */
  uint32_t newest[WEFT_N_EXCHANGE]; /* the newest transfer on each stream */
  uint32_t sent;                    /* the last send, or WEFT_NO_OP */
};

struct weft_pipeline {
  enum weft_dtype dtype;          /* type of transferred tensors */
  /* [n_micro][n_chunks]: buffers of forward cells (output) and of backward cells (input_grad). An
   * entry is the received input of the cell until the cell is computed, then the output of the
   * cell. */
  uint32_t *output, *input_grad;
  struct weft_posting posting;
  uint32_t shape;                 /* variable_seq_lengths: buffer with the sizes to send */
  struct weft_slots *slots;       /* exchange_interleaved.c */
  struct weft_moves *moves;       /* exchange_free.c */
};

void weft_exchange_in_order (struct weft_step *s, uint32_t i, weft_kernels *beside);
void weft_exchange_interleaved (struct weft_step *s, uint32_t i, weft_kernels *beside);
void weft_exchange_free (struct weft_step *s, uint32_t i, weft_kernels *beside);

/* Returns the direction of the rank that receives the output of a cell: +1 or -1, the next or the
 * previous rank. 0: this rank reads the output, or no rank does. */
int weft_exchange_target (const struct weft_step *s, const struct weft_cell *cell);

/* Returns the direction of the rank that sends the input of a cell: +1 or -1, the next or the
 * previous rank. 0: this rank computes the input, or no rank sends it. */
int weft_exchange_source (const struct weft_step *s, const struct weft_cell *cell);

/* Begins an exchange. If batch_p2p_comm and use_ring_exchange_p2p are both off, every transfer is a
 * separate launch. */
void weft_exchange_begin (struct weft_step *s, enum weft_post how);

/* Adds the send of a cell's output, or the receive of a cell's input, to the exchange. Does nothing
 * if no other rank sends or receives the tensor. */
void weft_exchange_send (struct weft_step *s, const struct weft_cell *cell);
void weft_exchange_receive (struct weft_step *s, const struct weft_cell *cell);

/* Appends the transfers of the exchange. Returns the last send, or WEFT_NO_OP. */
uint32_t weft_exchange_end (struct weft_step *s);

/* Appends kernels that do not wait for the transfers posted last. */
void weft_exchange_run_beside (struct weft_step *s, weft_kernels *beside);
