/* posting.h - private to pipeline/: the state of pipeline/, and functions that append sends and
 * receives. */
#pragma once
#include "core/passes/pipeline/exchange.h"

/* How the sends and receives of an exchange are launched. GROUP: all in one launch. EACH: every
 * send and receive is a separate launch. After GROUP and EACH the next kernel waits for all of
 * them. ASIDE: separate launches beside kernels; a kernel waits only for transfers whose buffers it
 * reads. */
enum weft_post { WEFT_POST_GROUP, WEFT_POST_EACH, WEFT_POST_ASIDE };

/* A send to, or a receive from, the pipeline rank `peer` places away (+1 next, -1 previous). */
struct weft_transfer {
  enum weft_op_kind kind;
  int peer;
  uint32_t buf;
  struct weft_cell cell;
};

/* The exchange (a set of sends and receives) that is being assembled. */
struct weft_posting {
  enum weft_post how;
  GArray *queue;                    /* array of struct weft_transfer */
  uint32_t newest[WEFT_N_EXCHANGE]; /* newest transfer on each of the two streams */
  uint32_t sent;                    /* last send of the exchange, or WEFT_NO_OP */
};

struct weft_pipeline {
  enum weft_dtype dtype; /* dtype of transferred tensors */
  /* Arrays [n_micro][n_chunks]: the buffers of forward passes (output) and of backward passes
   * (input_grad). Until a pass has been computed, its entry is the received input of the pass;
   * afterwards, the output of the pass. */
  uint32_t *output, *input_grad;
  struct weft_posting posting;
  /* for variable_seq_lengths: buffer with the tensor sizes that are sent before each tensor */
  uint32_t shape;
  struct weft_slots *slots; /* exchange_interleaved.c */
  struct weft_moves *moves; /* exchange_free.c */
};

void weft_exchange_in_order (struct weft_step *s, uint32_t i, weft_kernels *beside);
void weft_exchange_interleaved (struct weft_step *s, uint32_t i, weft_kernels *beside);
void weft_exchange_free (struct weft_step *s, uint32_t i, weft_kernels *beside);

/* Returns where the output of a pass is sent: +1 to the next pipeline rank, -1 to the previous
 * rank. 0: this rank reads the output, or no rank does. */
int weft_exchange_target (const struct weft_step *s, const struct weft_cell *cell);

/* Returns from where the input of a pass is received: +1 from the next pipeline rank, -1 from the
 * previous rank. 0: this rank computes the input, or no rank does. */
int weft_exchange_source (const struct weft_step *s, const struct weft_cell *cell);

/* Begins an exchange, to which sends and receives are then added. If batch_p2p_comm and
 * use_ring_exchange_p2p are both off, every send and receive is a separate launch. */
void weft_exchange_begin (struct weft_step *s, enum weft_post how);

/* Adds the send of a pass's output, or the receive of a pass's input, to the exchange. Does nothing
 * if the tensor stays on this rank. */
void weft_exchange_send (struct weft_step *s, const struct weft_cell *cell);
void weft_exchange_receive (struct weft_step *s, const struct weft_cell *cell);

/* Appends the sends and receives of the exchange. Returns the last send, or WEFT_NO_OP. */
uint32_t weft_exchange_end (struct weft_step *s);

/* Appends kernels that do not wait for the newest sends and receives. */
void weft_exchange_run_beside (struct weft_step *s, weft_kernels *beside);
