/* fsdp.h - Megatron-FSDP: replicas keep slices, and units (layers) are made whole for as long as they
 * are needed (Megatron-Core distributed/fsdp, megatron_fsdp.py and param_and_grad_buffer.py).
 *
 *   fsdp.c        weights: gathered before use, let go after
 *   fsdp_grads.c  gradients: reduced in every microbatch, added in slices
 *   fsdp_outer.c  hybrid sharding: what groups with slices of their own exchange
 *
 * Buckets are those of the layout; one more stands for a tied head that is summed apart, in a group of
 * its own.  What a unit does, all buckets of its group do: weights in fp8 and others are in two.  Experts
 * that ranks share out are a group of their own, gathered and reduced by those who hold the same ones. */
#pragma once
#include "core/passes/replicas/buckets.h"

/* The bucket of a tied head on the embedding's stage. */
static inline uint32_t
weft_fsdp_head (const struct weft_step *s)
{
  return s->params->layout.n_bucket;
}

/* The bucket of the layout that is like bucket k. */
static inline uint32_t
weft_fsdp_like (const struct weft_step *s, uint32_t k)
{
  return k < s->params->layout.n_bucket ? k : s->params->layout.place[weft_params_of_end (s, WEFT_EMBED_WEIGHT)].bucket;
}

/* Elements of a bucket, and of all of a group; of the slice that this rank keeps. */
uint64_t weft_fsdp_size (const struct weft_step *s, uint32_t k);
uint64_t weft_fsdp_group_size (const struct weft_step *s, uint32_t g);
uint64_t weft_fsdp_slice_size (const struct weft_step *s, uint32_t k);

/* This rank's slice of a bucket in a flat buffer of slices. */
uint32_t weft_fsdp_slice (struct weft_step *s, uint32_t flat, uint32_t k);

/* Whether a group is let go after its passes; and the number of its unit, which a unit's experts and the
 * rest of it have alike, or WEFT_NO_UNIT. */
gboolean weft_fsdp_is_unit (const struct weft_step *s, uint32_t g);
uint32_t weft_fsdp_number (const struct weft_step *s, uint32_t g);

/* Views of all tensors of a bucket in the buffer that holds it whole from byte `offset` on, or none:
 * WEFT_NO_BUF. */
void weft_fsdp_set_views (struct weft_step *s, uint32_t k, uint32_t whole, uint64_t offset,
                          uint32_t *view);

/* fsdp_grads.c: slices of gradients, and how microbatches are added there. */
void weft_fsdp_start_grads (struct weft_step *s);

/* fsdp_outer.c: the part of a slice that the optimizer of this rank owns, a view or all of it. */
uint32_t weft_outer_owned (struct weft_step *s, uint32_t slice);

/* The slice as other groups have updated it, before it is gathered for the first time in a step.
 * `flags` say whether this joins the collective before it; so below. */
void weft_outer_gather (struct weft_step *s, uint32_t k, uint8_t flags);

/* What all groups have reduced, after the last microbatch. */
void weft_outer_reduce (struct weft_step *s, uint32_t k, uint8_t flags);

/* fsdp.c, fsdp_grads.c: what wrapper.c has it do. */
uint32_t weft_fsdp_unit (const struct weft_step *s, uint32_t param); /* also of FSDP2 */
void weft_fsdp_start (struct weft_step *s);
void weft_fsdp_before_read (struct weft_step *s, uint32_t param);
/* Whether group `other` is asked for when g is first used: little enough lies between the two. */
gboolean weft_fsdp_reaches (const struct weft_step *s, uint32_t g, uint32_t other);
void weft_fsdp_reshard_layer (struct weft_step *s, uint32_t layer); /* the layer is through with weights */
void weft_fsdp_reshard_module (struct weft_step *s, uint32_t param);
void weft_fsdp_finish (struct weft_step *s);
struct weft_use weft_fsdp_grad_begin (struct weft_step *s, uint32_t param);
void weft_fsdp_grad_end (struct weft_step *s, uint32_t param, struct weft_use grad);
struct weft_use weft_fsdp_head_begin (struct weft_step *s);
void weft_fsdp_head_end (struct weft_step *s, struct weft_use grad);
uint32_t weft_fsdp_reduced (struct weft_step *s, uint32_t param);
uint32_t weft_fsdp_reduced_head (struct weft_step *s);
