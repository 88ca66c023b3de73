/* ends.h - private to layer/: what precedes and follows the transformer layers: embedding; final
 * norm, output layer and loss; multi-token prediction on the last stage. */
#pragma once
#include "core/passes/layer/block.h"

/* Activations of the first and last stage that backward reads: token ids and targets; embeddings
 * before their norm; dropout mask of embeddings; input and output of the final norm; logits (in
 * backward their gradient); logsumexp. */
struct weft_saved_end {
  uint32_t ids, targets, embedded, mask, x, normed, logits, lse;
  /* number of the prediction: 0 is the model's own loss; 1, 2 ... are losses of multi-token
   * prediction */
  uint32_t depth;
  uint32_t arrived; /* op that copies the target tokens to the device */
};

/* Activations of one multi-token prediction depth that backward reads, besides those of its
 * transformer layer. */
struct weft_saved_mtp {
  struct weft_saved_end end;
  /* stream: output of the previous depth; words: embeddings; joined: for each token, the normed
   * embedding and then the normed output of the previous depth */
  uint32_t stream, words, joined;
};

/* --------------------------------------------------------------- embedding: ends.c */

/* Appends the copy of a microbatch's tokens to the device. */
void weft_ends_load (struct weft_step *s, const struct weft_cell *cell);

/* weft_embed_forward() runs on the first stage and returns the embeddings of a microbatch.
 * weft_embed_backward() adds to the gradient of the embedding weight; dx is the gradient of the
 * returned embeddings. */
uint32_t weft_embed_forward (struct weft_step *s, uint32_t micro);
void weft_embed_backward (struct weft_step *s, uint32_t micro, uint32_t dx);

/* Token ids and the gradient of their embeddings. passes: in canonical order, number of multi-token
 * prediction depths whose ids are interleaved chunk by chunk of a sequence; otherwise 0. */
struct weft_embed_lookup {
  uint32_t ids, dx, passes;
};

/* Looks up and returns the embeddings of end->ids. Sets end->embedded and end->mask for
 * backward. */
uint32_t weft_embed_words (struct weft_step *s, struct weft_saved_end *end);

/* Returns the gradient of the looked-up embedding rows, for all tokens. dx is the gradient of the
 * embeddings that weft_embed_words() returned. */
uint32_t weft_embed_words_backward (struct weft_step *s, const struct weft_saved_end *end,
                                    uint32_t dx);

/* Adds the gradients of looked-up embedding rows to the gradient of the word embedding (`table`)
 * and of the position embedding (`positions`). */
void weft_embed_words_gradient (struct weft_step *s, struct weft_embed_lookup words,
                                struct weft_use table, struct weft_use positions);

/* Returns a buffer with the rows of `n` buffers: for each chunk of a sequence the rows of the first
 * buffer, then of the second, and so on. */
uint32_t weft_ends_by_chunk (struct weft_step *s, const uint32_t *buf, uint32_t n,
                             const char *name);

/* -------------------------------------------------------------------- head: ends.c */

/* weft_head_forward() appends final norm, multi-token prediction, output layer and loss, for the
 * output x of the transformer layers. weft_head_backward() appends the backward of all of these,
 * and returns the gradient of x. */
void weft_head_forward (struct weft_step *s, uint32_t micro, uint32_t x);
uint32_t weft_head_backward (struct weft_step *s, uint32_t micro);

/* Returns the weight parameter of the output layer: its own weight, or the embedding if the stage
 * has no separate weight. */
uint32_t weft_head_param (const struct weft_step *s);

/* Returns the number of losses that use the output layer: the model's own loss (depth 0), and one
 * loss for each depth of multi-token prediction. */
uint32_t weft_head_ends (const struct weft_step *s);

/* Returns the stored activations of one loss. depth 0: the model's own loss; depth 1, 2 ...:
 * multi-token prediction. */
struct weft_saved_end *weft_head_end (const struct weft_step *s, uint32_t micro, uint32_t depth);

/* Matrix products of the output layer (logits, input gradient, weight gradient). weft_head_begin()
 * and weft_head_done() are called once in a microbatch. In between, every loss adds to the weight
 * gradient dw. In canonical order one kernel adds all losses, because one term of the sum
 * (kernels/leaves.h) contains all losses of a piece of a sequence. */
uint32_t weft_head_logits (struct weft_step *s, uint32_t normed, uint32_t weight);
/* applies the setting final_logit_softcapping to the logits */
void weft_head_cap (struct weft_step *s, uint32_t logits);
void weft_head_dgrad (struct weft_step *s, uint32_t dlogits, uint32_t weight, uint32_t dn);
struct weft_use weft_head_begin (struct weft_step *s);
void weft_head_wgrad (struct weft_step *s, const uint32_t *dlogits, const uint32_t *normed,
                      struct weft_use dw);
void weft_head_done (struct weft_step *s, struct weft_use dw);

/* Appends the delayed weight gradient of the output layer for one microbatch. */
void weft_head_delayed_wgrad (struct weft_step *s, uint32_t micro);

/* Appends the weight gradients of the output layer that defer_embedding_wgrad_compute has deferred
 * to the end of the pipeline schedule. */
void weft_head_run_deferred_wgrads (struct weft_step *s);

/* head_chunks.c: computes logits, loss and gradients for some tokens at a time. Sets dn[depth] to
 * the gradient of the output layer's input, for each prediction (0: the model's own; 1, 2 ...:
 * multi-token prediction). */
void weft_head_chunks (struct weft_step *s, uint32_t micro, uint32_t *dn);

/* -------------------------------------------------------------------- loss: loss.c */

/* Cross entropy. weft_loss_forward() adds the loss of end->logits to the running sum, and sets
 * end->lse. weft_loss_backward() replaces the logits by their gradient. weft_loss_both() does
 * forward, then backward, with one kernel if this rank has the whole vocabulary. If
 * weft_loss_is_fused(), weft_loss_forward() does both, and weft_loss_backward() does nothing.
 * gradient: the buffer that weft_loss_gradient() returned. */
gboolean weft_loss_is_fused (const struct weft_step *s);
void weft_loss_forward (struct weft_step *s, struct weft_saved_end *end);
void weft_loss_backward (struct weft_step *s, const struct weft_saved_end *end, uint32_t gradient);
void weft_loss_both (struct weft_step *s, struct weft_saved_end *end, uint32_t gradient);

/* Returns a buffer with the gradient of the loss: the loss scale. Returns WEFT_NO_BUF if the job
 * does not scale the loss. */
uint32_t weft_loss_gradient (struct weft_step *s);

/* ------------------------------------------------- multi-token prediction: mtp.c */

/* Multi-token prediction; a depth is an extra prediction layer. weft_mtp_forward() appends all
 * depths; `stream` is the output of the final norm. weft_mtp_backward() returns the gradient of
 * `stream`; dn[depth] is the gradient of the output layer's input for each loss. */
void weft_mtp_forward (struct weft_step *s, uint32_t micro, uint32_t stream);
uint32_t weft_mtp_backward (struct weft_step *s, uint32_t micro, const uint32_t *dn);

static inline struct weft_saved_mtp *
weft_mtp_saved (const struct weft_step *s, uint32_t micro, uint32_t depth)
{
  return &s->layer->saved_mtp[(size_t) micro * s->model->mtp_num_layers + depth - 1];
}
