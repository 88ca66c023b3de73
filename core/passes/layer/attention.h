/* attention.h - private to layer/: attention of one layer, between its two linear maps. */
#pragma once
#include "core/passes/layer/block.h"

/* attention.c: from qkv to o and lse of `saved`; from the gradient of o to that of qkv. */
void weft_layer_attention (struct weft_step *s, struct weft_saved *saved);
uint32_t weft_layer_attention_backward (struct weft_step *s, struct weft_saved *saved,
                                        uint32_t d_o);

/* Fewer groups than tensor parallel ranks: from the output of the qkv map on all ranks to this
 * rank's heads and the group that they share with other ranks; the same for gradients,
 * backwards. */
uint32_t weft_heads_gather (struct weft_step *s, uint32_t made);
uint32_t weft_heads_scatter (struct weft_step *s, uint32_t dqkv);

/* scores.c: attention as separate products that keep its probabilities (attention_backend =
 * unfused). */
void weft_scores_forward (struct weft_step *s, struct weft_saved *saved);
void weft_scores_backward (struct weft_step *s, struct weft_saved *saved, uint32_t d_o,
                           uint32_t dqkv);

/* latent.c: from n1 to qkv; qkv recomputed from latents; from the gradient of qkv to that of n1. */
void weft_latent_forward (struct weft_step *s, struct weft_saved *saved);
void weft_latent_again (struct weft_step *s, struct weft_saved *saved);
uint32_t weft_latent_backward (struct weft_step *s, const struct weft_saved *saved, uint32_t dqkv);
