/* fsdp.h - private to replicas/: Megatron-FSDP. Replicas keep slices, and units are gathered while
 * they are needed (Megatron-Core distributed/fsdp, megatron_fsdp.py and param_and_grad_buffer.py).
 *
 *   fsdp.c        weights: gathered before use, resharded afterwards
 *   fsdp_grads.c  gradients: reduced in every microbatch, added in slices
 *   fsdp_outer.c  hybrid sharding: collectives between groups that have slices of their own
 *
 * Buckets are those of the layout, and one more in a group of its own for a tied head that is
 * summed apart. All buckets of a group do the same: a unit with weights in fp8 has two buckets.
 * Experts that expert parallel ranks share are a group of their own, gathered and reduced by the
 * ranks that hold the same experts. */
#pragma once
#include "core/passes/replicas/buckets.h"

/* The bucket of a tied head with its own sum. */
static inline uint32_t
weft_fsdp_head (const struct weft_step *s)
{
  return s->params->layout.n_bucket;
}

/* Bucket k, or for a tied head the bucket of the embedding, which has the same layout. */
static inline uint32_t
weft_fsdp_like (const struct weft_step *s, uint32_t k)
{
  uint32_t embedding = weft_params_of_end (s, WEFT_EMBED_WEIGHT);

  return k < s->params->layout.n_bucket ? k : s->params->layout.place[embedding].bucket;
}

/* Elements of a bucket; of a group; of this rank's slice of a bucket. */
uint64_t weft_fsdp_size (const struct weft_step *s, uint32_t k);
uint64_t weft_fsdp_group_size (const struct weft_step *s, uint32_t g);
uint64_t weft_fsdp_slice_size (const struct weft_step *s, uint32_t k);

/* This rank's slice of a bucket in a flat buffer of slices. */
uint32_t weft_fsdp_slice (struct weft_step *s, uint32_t flat, uint32_t k);

/* Whether a group is a unit, resharded after use; the number of its unit, which its experts share,
 * or WEFT_NO_UNIT. */
gboolean weft_fsdp_is_unit (const struct weft_step *s, uint32_t g);
uint32_t weft_fsdp_number (const struct weft_step *s, uint32_t g);

/* Sets views of all tensors of a bucket in `whole`, from byte `offset` on; WEFT_NO_BUF: they have
 * none. */
void weft_fsdp_set_views (struct weft_step *s, uint32_t k, uint32_t whole, uint64_t offset,
                          uint32_t *view);

/* fsdp_grads.c: slices of gradients, and how microbatches are added there. */
void weft_fsdp_start_grads (struct weft_step *s);

/* fsdp_outer.c: the part of a slice that this rank's optimizer updates: a view, or all of it. */
uint32_t weft_outer_owned (struct weft_step *s, uint32_t slice);

/* Before a bucket's first gather in a step: all-gathers its slice among groups. After the last
 * microbatch: reduces its slice among groups. `flags` say whether the collective joins the launch
 * before it. */
void weft_outer_gather (struct weft_step *s, uint32_t k, uint8_t flags);
void weft_outer_reduce (struct weft_step *s, uint32_t k, uint8_t flags);

/* The unit of a parameter, here and in FSDP2; and the row of the table in wrapper.c. */
uint32_t weft_fsdp_unit (const struct weft_step *s, uint32_t param);
void weft_fsdp_start (struct weft_step *s);
void weft_fsdp_before_read (struct weft_step *s, uint32_t param);
void weft_fsdp_gather_first (struct weft_step *s, uint32_t chunk);
/* Whether group `other` is gathered when g is first used: few enough elements lie between them. */
gboolean weft_fsdp_reaches (const struct weft_step *s, uint32_t g, uint32_t other);
void weft_fsdp_reshard_layer (struct weft_step *s, uint32_t layer);
void weft_fsdp_reshard_module (struct weft_step *s, uint32_t param);
void weft_fsdp_finish (struct weft_step *s);
struct weft_use weft_fsdp_grad_begin (struct weft_step *s, uint32_t param);
void weft_fsdp_grad_end (struct weft_step *s, uint32_t param, struct weft_use grad);
struct weft_use weft_fsdp_head_begin (struct weft_step *s);
void weft_fsdp_head_end (struct weft_step *s, struct weft_use grad);
uint32_t weft_fsdp_reduced (struct weft_step *s, uint32_t param);
uint32_t weft_fsdp_reduced_head (struct weft_step *s);
