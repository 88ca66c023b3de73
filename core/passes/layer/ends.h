/* ends.h - the two ends of the pipeline: embedding, head and loss, and between them on the last stage
 * multi-token prediction. */
#pragma once
#include "core/passes/step.h"

/* What the two ends leave: token ids, the input of the norm of embeddings, their mask, the final
 * norm's input and output, logits.  `depth` of a layer of multi-token prediction: how many tokens further ahead it looks. */
struct weft_saved_end {
  uint32_t ids, targets, embedded, mask, x, normed, logits, lse;
  uint32_t depth;
  uint32_t arrived; /* the op that brought targets */
};

/* What such a layer leaves: mtp.c. */
struct weft_saved_mtp {
  struct weft_saved_end end;
  uint32_t stream, words, joined; /* what it takes from the depth before, embeddings, both normed */
};

/* loss.c: fills lse; logits become their gradient; both at once.  `gradient` is that of the loss, or
 * WEFT_NO_BUF for 1. */
void weft_loss_forward (struct weft_step *s, struct weft_saved_end *end);
void weft_loss_backward (struct weft_step *s, const struct weft_saved_end *end, uint32_t gradient);
void weft_loss_both (struct weft_step *s, struct weft_saved_end *end, uint32_t gradient);
uint32_t weft_loss_gradient (struct weft_step *s);
/* One running sum of it, of a depth. */
uint32_t weft_mtp_loss (struct weft_step *s, uint32_t depth);

/* mtp.c: from the normed output of the model's last layer; `dn` has the gradients of what the head
 * read, of the model and of each depth, and the first of them is what is returned. */
void weft_mtp_forward (struct weft_step *s, uint32_t micro, uint32_t stream);
uint32_t weft_mtp_backward (struct weft_step *s, uint32_t micro, const uint32_t *dn);
static inline struct weft_saved_mtp *
weft_mtp_saved (const struct weft_step *s, uint32_t micro, uint32_t depth)
{
  return &s->saved_mtp[(size_t) micro * s->model->mtp_num_layers + depth - 1];
}

/* Words that were looked up, of all tokens, and the gradient of what was found; by chunks of several
 * passes over the tokens, or 0. */
struct weft_words {
  uint32_t ids, dx, passes;
};

/* ends.c; words: embeddings, normalised and dropped as the job asks, which fills embedded and mask;
 * from their gradient to that of what was looked up, which is added to `table`; things of several passes over the tokens, chunk by chunk of each sequence */
uint32_t weft_embed_words (struct weft_step *s, struct weft_saved_end *end);
uint32_t weft_embed_words_backward (struct weft_step *s, const struct weft_saved_end *end,
                                    uint32_t dx);
void weft_embed_words_gradient (struct weft_step *s, struct weft_words words, struct weft_use table,
                                struct weft_use positions);
uint32_t weft_ends_by_chunk (struct weft_step *s, const uint32_t *buf, uint32_t n,
                             const char *name);
uint32_t weft_embed_forward (struct weft_step *s, uint32_t micro);
void weft_embed_backward (struct weft_step *s, uint32_t micro, uint32_t dx);
void weft_head_forward (struct weft_step *s, uint32_t micro, uint32_t x);
uint32_t weft_head_backward (struct weft_step *s, uint32_t micro);
/* The output head: its own matrix, or the embedding when both are on one stage; and the ends of the
 * model (0) and of each depth of multi-token prediction, which share it. */
uint32_t weft_head_param (const struct weft_step *s);
uint32_t weft_head_ends (const struct weft_step *s);
struct weft_saved_end *weft_head_end (const struct weft_step *s, uint32_t micro, uint32_t depth);
/* Its products; the gradient of its weight is begun and done once in a microbatch, and each end adds to
 * it; in canonical order a chunk of a sequence is one leaf of all of them, so that one kernel takes them. */
uint32_t weft_head_logits (struct weft_step *s, uint32_t normed, uint32_t weight);
void weft_head_dgrad (struct weft_step *s, uint32_t dlogits, uint32_t weight, uint32_t dn);
struct weft_use weft_head_begin (struct weft_step *s);
void weft_head_wgrad (struct weft_step *s, const uint32_t *dlogits, const uint32_t *normed,
                      struct weft_use dw);
void weft_head_done (struct weft_step *s, struct weft_use dw);
/* head_chunks.c: logits, loss and all gradients, chunk by chunk; fills in, of each end, that of what was
 * normed. */
void weft_head_chunks (struct weft_step *s, uint32_t micro, uint32_t *dn);
void weft_head_delayed (struct weft_step *s, uint32_t micro); /* its weight gradient, put off */
void weft_head_deferred (struct weft_step *s); /* all of them: defer_embedding_wgrad_compute */
void weft_ends_load (struct weft_step *s, const struct weft_cell *cell); /* the tokens it needs */
