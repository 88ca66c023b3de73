/* attention.h - private to layer/: attention of one layer, without the qkv and output
 * projections. */
#pragma once
#include "core/passes/layer/block.h"

/* attention.c: computes saved->o (attention output) and saved->lse (logsumexp) from saved->qkv. */
void weft_layer_attention (struct weft_step *s, struct weft_saved *saved);

/* Returns the gradient of saved->qkv. d_o is the gradient of saved->o, the attention output. */
uint32_t weft_layer_attention_backward (struct weft_step *s, struct weft_saved *saved,
                                        uint32_t d_o);

/* For models with fewer key-value groups than tensor parallel ranks, so that several ranks share a
 * group. weft_heads_gather() all-gathers `made`, the output of the qkv linear layer, and returns
 * the queries of this rank's heads with their keys and values. weft_heads_scatter() converts the
 * gradient of these queries, keys and values to the gradient of `made`. In other models both
 * functions return their input. */
uint32_t weft_heads_gather (struct weft_step *s, uint32_t made);
uint32_t weft_heads_scatter (struct weft_step *s, uint32_t dqkv);

/* scores.c: attention as separate matrix products and a softmax, which store the attention
 * probabilities (attention_backend = unfused). */
void weft_scores_forward (struct weft_step *s, struct weft_saved *saved);
void weft_scores_backward (struct weft_step *s, struct weft_saved *saved, uint32_t d_o,
                           uint32_t dqkv);

/* latent.c: computes saved->qkv from saved->n1, the output of the first norm. */
void weft_latent_forward (struct weft_step *s, struct weft_saved *saved);

/* Recomputes saved->qkv from the stored compressed queries and keys. */
void weft_latent_again (struct weft_step *s, struct weft_saved *saved);

/* Returns the gradient of saved->n1, the output of the first norm. dqkv is the gradient of
 * saved->qkv. */
uint32_t weft_latent_backward (struct weft_step *s, const struct weft_saved *saved, uint32_t dqkv);
