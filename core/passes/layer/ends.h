/* ends.h - private to layer/: the two ends of the model: embedding; final norm, head and loss; and
 * multi-token prediction on the last stage. */
#pragma once
#include "core/passes/layer/block.h"

/* Activations of the two ends: token ids and targets; embeddings before their norm; dropout mask of
 * embeddings; input and output of the final norm; logits (in backward their gradient);
 * logsumexp. */
struct weft_saved_end {
  uint32_t ids, targets, embedded, mask, x, normed, logits, lse;
  uint32_t depth;   /* 1, 2 ...: multi-token prediction; 0: the model's own loss */
  uint32_t arrived; /* the op that copies targets to the device */
};

/* Activations of a layer of multi-token prediction, besides those of its transformer layer. */
struct weft_saved_mtp {
  struct weft_saved_end end;
  uint32_t stream, words, joined; /* stream: output of the previous depth; words: embeddings;
                                   * joined: the norms of both, side by side */
};

/* --------------------------------------------------------------- embedding: ends.c */

/* Copies the tokens of a cell to the device. */
void weft_ends_load (struct weft_step *s, const struct weft_cell *cell);

/* forward: returns the embeddings of a microbatch, on the first stage. backward: adds the gradient
 * of the embedding, from dx, the gradient of the returned embeddings. */
uint32_t weft_embed_forward (struct weft_step *s, uint32_t micro);
void weft_embed_backward (struct weft_step *s, uint32_t micro, uint32_t dx);

/* Token ids and the gradient of their embeddings. passes: in canonical order the number of depths
 * whose ids are interleaved chunk by chunk of a sequence; otherwise 0. */
struct weft_words {
  uint32_t ids, dx, passes;
};

/* Returns the embeddings of end->ids, and sets end->embedded and end->mask. */
uint32_t weft_embed_words (struct weft_step *s, struct weft_saved_end *end);

/* Returns the gradient of the rows that were looked up, for all tokens. dx is the gradient of the
 * embeddings that weft_embed_words() returned. */
uint32_t weft_embed_words_backward (struct weft_step *s, const struct weft_saved_end *end,
                                    uint32_t dx);

/* Adds the gradients of rows to the gradients of the embedding `table` and of `positions`. */
void weft_embed_words_gradient (struct weft_step *s, struct weft_words words, struct weft_use table,
                                struct weft_use positions);

/* Returns a buffer with the rows of `n` buffers, interleaved chunk by chunk of each sequence. */
uint32_t weft_ends_by_chunk (struct weft_step *s, const uint32_t *buf, uint32_t n,
                             const char *name);

/* -------------------------------------------------------------------- head: ends.c */

/* forward: appends final norm, multi-token prediction, head and loss for the output x of the
 * layers. backward: appends the backward of all of these, and returns the gradient of x. */
void weft_head_forward (struct weft_step *s, uint32_t micro, uint32_t x);
uint32_t weft_head_backward (struct weft_step *s, uint32_t micro);

/* Returns the parameter with the weight of the head: a separate weight, or the embedding if the
 * stage has no separate weight of the head. */
uint32_t weft_head_param (const struct weft_step *s);

/* Returns the number of losses that share the head: the loss of the model (depth 0) and one for
 * each depth of multi-token prediction. */
uint32_t weft_head_ends (const struct weft_step *s);

/* Returns the activations of the loss of one depth. */
struct weft_saved_end *weft_head_end (const struct weft_step *s, uint32_t micro, uint32_t depth);

/* The products of the head. weft_head_begin() and weft_head_done() are called once in a microbatch.
 * Between these two calls every loss adds to the weight gradient dw. In canonical order one kernel
 * adds all losses, because a chunk of a sequence is one leaf of the sum (kernels/leaves.h). */
uint32_t weft_head_logits (struct weft_step *s, uint32_t normed, uint32_t weight);
void weft_head_cap (struct weft_step *s, uint32_t logits); /* final_logit_softcapping */
void weft_head_dgrad (struct weft_step *s, uint32_t dlogits, uint32_t weight, uint32_t dn);
struct weft_use weft_head_begin (struct weft_step *s);
void weft_head_wgrad (struct weft_step *s, const uint32_t *dlogits, const uint32_t *normed,
                      struct weft_use dw);
void weft_head_done (struct weft_step *s, struct weft_use dw);

/* Appends the delayed weight gradient of the head for one microbatch. */
void weft_head_delayed_wgrad (struct weft_step *s, uint32_t micro);

/* Appends the weight gradients of the head that defer_embedding_wgrad_compute has deferred. */
void weft_head_run_deferred_wgrads (struct weft_step *s);

/* head_chunks.c: computes logits, loss and gradients chunk by chunk of the tokens. Sets dn[depth]
 * to the gradient of the head's input for each loss. */
void weft_head_chunks (struct weft_step *s, uint32_t micro, uint32_t *dn);

/* -------------------------------------------------------------------- loss: loss.c */

/* forward: adds the loss of end->logits to the running sum, and sets end->lse. backward: replaces
 * the logits by their gradient. both: forward, then backward; one kernel does both if this rank has
 * the whole vocabulary. gradient: the buffer from weft_loss_gradient(). */
void weft_loss_forward (struct weft_step *s, struct weft_saved_end *end);
void weft_loss_backward (struct weft_step *s, const struct weft_saved_end *end, uint32_t gradient);
void weft_loss_both (struct weft_step *s, struct weft_saved_end *end, uint32_t gradient);

/* Returns a buffer with the gradient of the loss, which is the loss scale, or WEFT_NO_BUF if the
 * job does not scale the loss. */
uint32_t weft_loss_gradient (struct weft_step *s);

/* ------------------------------------------------- multi-token prediction: mtp.c */

/* forward: appends all depths; `stream` is the output of the final norm. backward: returns the
 * gradient of `stream`; dn[depth] is the gradient of the head's input for each loss. */
void weft_mtp_forward (struct weft_step *s, uint32_t micro, uint32_t stream);
uint32_t weft_mtp_backward (struct weft_step *s, uint32_t micro, const uint32_t *dn);

static inline struct weft_saved_mtp *
weft_mtp_saved (const struct weft_step *s, uint32_t micro, uint32_t depth)
{
  return &s->layer->saved_mtp[(size_t) micro * s->model->mtp_num_layers + depth - 1];
}
