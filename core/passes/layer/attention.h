/* attention.h - private to layer/: attention of one layer, between its two linear maps. */
#pragma once
#include "core/passes/layer/block.h"

/* attention.c: computes o and lse of `saved` from its qkv. */
void weft_layer_attention (struct weft_step *s, struct weft_saved *saved);

/* Returns the gradient of qkv, from the gradient d_o of o. */
uint32_t weft_layer_attention_backward (struct weft_step *s, struct weft_saved *saved,
                                        uint32_t d_o);

/* For models with fewer groups of keys than tensor parallel ranks. gather: from `made`, the output
 * of the qkv map, to the qkv of this rank's heads and their group, which other ranks share.
 * scatter: from the gradient of that qkv to the gradient of `made`. With enough groups both return
 * their input. */
uint32_t weft_heads_gather (struct weft_step *s, uint32_t made);
uint32_t weft_heads_scatter (struct weft_step *s, uint32_t dqkv);

/* scores.c: attention as separate products that store the probabilities (attention_backend =
 * unfused). */
void weft_scores_forward (struct weft_step *s, struct weft_saved *saved);
void weft_scores_backward (struct weft_step *s, struct weft_saved *saved, uint32_t d_o,
                           uint32_t dqkv);

/* latent.c: computes qkv from n1, the output of the first norm. */
void weft_latent_forward (struct weft_step *s, struct weft_saved *saved);

/* Recompute: computes qkv again from the saved latents. */
void weft_latent_again (struct weft_step *s, struct weft_saved *saved);

/* Returns the gradient of n1, from the gradient of qkv. */
uint32_t weft_latent_backward (struct weft_step *s, const struct weft_saved *saved, uint32_t dqkv);
