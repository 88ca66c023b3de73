/* ends.h - the two ends of the pipeline: embedding, head and loss, and between them on the last stage
 * multi-token prediction. */
#pragma once
#include "core/passes/step.h"

/* What the two ends leave: token ids, the mask of embeddings, the final norm's input and output,
 * logits.  `depth` of a layer of multi-token prediction: how many tokens further ahead it looks. */
struct weft_saved_end {
  uint32_t ids, targets, mask, x, normed, logits, lse;
  uint32_t depth;
};

/* What such a layer leaves: mtp.c. */
struct weft_saved_mtp {
  struct weft_saved_end end;
  uint32_t stream, words, joined; /* what it takes from the depth before, embeddings, both normed */
};

/* loss.c: fills lse. */
void weft_loss_forward (struct weft_step *s, struct weft_saved_end *end);
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

/* ends.c; words: embeddings; from their gradient to that of what was looked up, which is added to
 * `table`; things of several passes over the tokens, chunk by chunk of each sequence */
uint32_t weft_embed_words (struct weft_step *s, uint32_t ids, uint32_t *mask);
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
void weft_head_delayed (struct weft_step *s, uint32_t micro); /* its weight gradient, put off */
void weft_head_deferred (struct weft_step *s); /* all of them: defer_embedding_wgrad_compute */
void weft_ends_load (struct weft_step *s, const struct weft_cell *cell); /* the tokens it needs */
