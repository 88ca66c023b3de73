/* attention.h - private to layer/: attention of one layer, between its two linear maps. */
#pragma once
#include "core/passes/layer/block.h"

/* attention.c: computes saved->o and saved->lse from saved->qkv. */
void weft_layer_attention (struct weft_step *s, struct weft_saved *saved);

/* Returns the gradient of saved->qkv. d_o: the gradient of saved->o. */
uint32_t weft_layer_attention_backward (struct weft_step *s, struct weft_saved *saved,
                                        uint32_t d_o);

/* For models with fewer groups of keys than tensor parallel ranks. gather: all-gathers `made`, the
 * output of the qkv map, and returns qkv of this rank's heads and of their group, which other ranks
 * share. scatter: converts the gradient of this qkv to the gradient of `made`. If the model has at
 * least one group for each rank, both functions return their input. */
uint32_t weft_heads_gather (struct weft_step *s, uint32_t made);
uint32_t weft_heads_scatter (struct weft_step *s, uint32_t dqkv);

/* scores.c: attention as separate products that store the probabilities (attention_backend =
 * unfused). */
void weft_scores_forward (struct weft_step *s, struct weft_saved *saved);
void weft_scores_backward (struct weft_step *s, struct weft_saved *saved, uint32_t d_o,
                           uint32_t dqkv);

/* latent.c: computes saved->qkv from saved->n1, the output of the first norm. */
void weft_latent_forward (struct weft_step *s, struct weft_saved *saved);

/* Recompute: computes saved->qkv again from the saved latents. */
void weft_latent_again (struct weft_step *s, struct weft_saved *saved);

/* Returns the gradient of saved->n1. dqkv: the gradient of saved->qkv. */
uint32_t weft_latent_backward (struct weft_step *s, const struct weft_saved *saved, uint32_t dqkv);
