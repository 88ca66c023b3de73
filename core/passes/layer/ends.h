/* ends.h - private to layer/: the two ends of the model. Embedding; final norm, head and loss;
 * between them, on the last stage, multi-token prediction. */
#pragma once
#include "core/passes/layer/block.h"

/* Activations of the two ends: token ids, the input of the norm of embeddings, their dropout mask,
 * input and output of the final norm, logits, logsumexp. */
struct weft_saved_end {
  uint32_t ids, targets, embedded, mask, x, normed, logits, lse;
  uint32_t depth;   /* of multi-token prediction, 1 and more; of the model's own loss 0 */
  uint32_t arrived; /* the copy of targets to the device */
};

/* Activations of a layer of multi-token prediction, besides those of its transformer layer. */
struct weft_saved_mtp {
  struct weft_saved_end end;
  uint32_t stream, words, joined; /* output of the depth before; embeddings; both normed */
};

/* --------------------------------------------------------------- embedding: ends.c */

/* The tokens of a cell, copied to the device. */
void weft_ends_load (struct weft_step *s, const struct weft_cell *cell);

uint32_t weft_embed_forward (struct weft_step *s, uint32_t micro);
void weft_embed_backward (struct weft_step *s, uint32_t micro, uint32_t dx);

/* Embeddings of the ids of `end`, whose embedded and mask it fills; from their gradient to that of
 * the rows that were looked up, of all tokens; which is added to `table`. `passes`: canonical
 * order, ids of several depths chunk by chunk of a sequence; or 0. */
struct weft_words {
  uint32_t ids, dx, passes;
};
uint32_t weft_embed_words (struct weft_step *s, struct weft_saved_end *end);
uint32_t weft_embed_words_backward (struct weft_step *s, const struct weft_saved_end *end,
                                    uint32_t dx);
void weft_embed_words_gradient (struct weft_step *s, struct weft_words words, struct weft_use table,
                                struct weft_use positions);

/* `n` buffers of all tokens interleaved chunk by chunk of each sequence. */
uint32_t weft_ends_by_chunk (struct weft_step *s, const uint32_t *buf, uint32_t n,
                             const char *name);

/* -------------------------------------------------------------------- head: ends.c */

void weft_head_forward (struct weft_step *s, uint32_t micro, uint32_t x);
uint32_t weft_head_backward (struct weft_step *s, uint32_t micro);

/* The head's weight: its own, or the embedding where both are on one stage. How many losses share
 * it: the model's (depth 0) and that of each depth of multi-token prediction; the activations of
 * one. */
uint32_t weft_head_param (const struct weft_step *s);
uint32_t weft_head_ends (const struct weft_step *s);
struct weft_saved_end *weft_head_end (const struct weft_step *s, uint32_t micro, uint32_t depth);

/* Its products. The weight gradient is begun and done once in a microbatch, and every loss adds to
 * it. In canonical order one kernel takes all losses: a chunk of a sequence is one leaf. */
uint32_t weft_head_logits (struct weft_step *s, uint32_t normed, uint32_t weight);
void weft_head_cap (struct weft_step *s, uint32_t logits); /* final_logit_softcapping */
void weft_head_dgrad (struct weft_step *s, uint32_t dlogits, uint32_t weight, uint32_t dn);
struct weft_use weft_head_begin (struct weft_step *s);
void weft_head_wgrad (struct weft_step *s, const uint32_t *dlogits, const uint32_t *normed,
                      struct weft_use dw);
void weft_head_done (struct weft_step *s, struct weft_use dw);

/* The delayed weight gradient of a microbatch; of all that defer_embedding_wgrad_compute
 * deferred. */
void weft_head_delayed_wgrad (struct weft_step *s, uint32_t micro);
void weft_head_run_deferred_wgrads (struct weft_step *s);

/* head_chunks.c: logits, loss and gradients chunk by chunk of the tokens; fills the gradients of
 * what each end's head read. */
void weft_head_chunks (struct weft_step *s, uint32_t micro, uint32_t *dn);

/* -------------------------------------------------------------------- loss: loss.c */

/* Forward fills lse; backward turns logits into their gradient; both at once. `gradient` is that
 * of the loss where it is scaled, or WEFT_NO_BUF. */
void weft_loss_forward (struct weft_step *s, struct weft_saved_end *end);
void weft_loss_backward (struct weft_step *s, const struct weft_saved_end *end, uint32_t gradient);
void weft_loss_both (struct weft_step *s, struct weft_saved_end *end, uint32_t gradient);
uint32_t weft_loss_gradient (struct weft_step *s);

/* ------------------------------------------------- multi-token prediction: mtp.c */

/* All depths, from the output of the final norm; from the gradients of what each head read,
 * dn[depth], to the gradient of that output. */
void weft_mtp_forward (struct weft_step *s, uint32_t micro, uint32_t stream);
uint32_t weft_mtp_backward (struct weft_step *s, uint32_t micro, const uint32_t *dn);

static inline struct weft_saved_mtp *
weft_mtp_saved (const struct weft_step *s, uint32_t micro, uint32_t depth)
{
  return &s->layer->saved_mtp[(size_t) micro * s->model->mtp_num_layers + depth - 1];
}
