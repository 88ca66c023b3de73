/* fsdp.h - private to replicas/: Megatron-FSDP. Each replica stores only slices of the weights.
 * Units (parameters that are gathered together) are gathered only while kernels read them
 * (Megatron-Core distributed/fsdp, megatron_fsdp.py and param_and_grad_buffer.py).
 *
 *   fsdp.c        weights: gathered before use, resharded afterwards
 *   fsdp_grads.c  gradients: reduced in every microbatch, added in slices
 *   fsdp_outer.c  hybrid sharding: collectives between the copies of the shards
 *
 * The buckets are those of the layout (core/program/layout.h). A tied output layer whose gradient
 * has a separate sum is an additional bucket. All buckets of a launch group are gathered and
 * reduced in one launch; for example, a unit whose weights are stored in fp8 has two buckets.
 * Experts that are distributed over expert parallel ranks are a separate launch group. The ranks
 * that hold the same experts gather and reduce this launch group. */
#pragma once
#include "core/passes/replicas/buckets.h"

/* Returns the number of the additional bucket for a tied output layer, used if its gradient has a
 * separate sum. */
static inline uint32_t
weft_fsdp_head (const struct weft_step *s)
{
  return s->params->layout.n_bucket;
}

/* Returns the number of the layout's bucket that has the layout of bucket k. For the additional
 * bucket of a tied output layer this is the embedding's bucket; for any other bucket it is k. */
static inline uint32_t
weft_fsdp_like (const struct weft_step *s, uint32_t k)
{
  uint32_t embedding = weft_params_of_end (s, WEFT_EMBED_WEIGHT);

  return k < s->params->layout.n_bucket ? k : s->params->layout.place[embedding].bucket;
}

/* Number of elements of bucket k. */
uint64_t weft_fsdp_size (const struct weft_step *s, uint32_t k);
/* Number of elements of all buckets of launch group g. */
uint64_t weft_fsdp_group_size (const struct weft_step *s, uint32_t g);
/* Number of elements of this rank's slice of bucket k. */
uint64_t weft_fsdp_slice_size (const struct weft_step *s, uint32_t k);

/* Returns a view of this rank's slice of bucket k in `flat`, a flat buffer of slices. */
uint32_t weft_fsdp_slice (struct weft_step *s, uint32_t flat, uint32_t k);

/* Whether a launch group belongs to an FSDP unit that is resharded after use. */
gboolean weft_fsdp_is_unit (const struct weft_step *s, uint32_t g);

/* Returns the number of the FSDP unit that contains a launch group, or WEFT_NO_UNIT. The launch
 * group of a unit's experts has the number of the unit. */
uint32_t weft_fsdp_number (const struct weft_step *s, uint32_t g);

/* Sets view[] of all tensors of bucket k to views of the buffer `whole`, from byte `offset` on. If
 * `whole` is WEFT_NO_BUF, sets view[] to WEFT_NO_BUF. */
void weft_fsdp_set_views (struct weft_step *s, uint32_t k, uint32_t whole, uint64_t offset,
                          uint32_t *view);

/* fsdp_grads.c: creates the buffers for this rank's slices of gradients, and their sums over
 * microbatches. */
void weft_fsdp_start_grads (struct weft_step *s);

/* fsdp_outer.c: returns the part of buffer `slice` that this rank's optimizer updates. With HFSDP
 * this is a view of the buffer, otherwise the whole buffer. */
uint32_t weft_outer_owned (struct weft_step *s, uint32_t slice);

/* Collectives of bucket k's slice between the copies of the shards in hybrid sharding.
 * weft_outer_gather() all-gathers the slice; it is called before the first all-gather of the bucket
 * in a step. weft_outer_reduce() reduces the slice's gradients; it is called after the last
 * microbatch. `flags`: WEFT_OP_GROUPED if the collective joins the previous launch, else 0. */
void weft_outer_gather (struct weft_step *s, uint32_t k, uint8_t flags);
void weft_outer_reduce (struct weft_step *s, uint32_t k, uint8_t flags);

/* Returns the FSDP unit of a parameter, for Megatron-FSDP and for FSDP2. */
uint32_t weft_fsdp_unit (const struct weft_step *s, uint32_t param);

/* Functions of Megatron-FSDP that the table of strategies (wrapper.c) contains. */
void weft_fsdp_start (struct weft_step *s);
void weft_fsdp_before_read (struct weft_step *s, uint32_t param);
void weft_fsdp_gather_first (struct weft_step *s, uint32_t chunk);
/* Whether the first read of launch group g also gathers launch group `other`. TRUE if the launch
 * groups between g and `other` have fewer elements than half of the unit size. */
gboolean weft_fsdp_reaches (const struct weft_step *s, uint32_t g, uint32_t other);

/* Other functions of Megatron-FSDP that the table of strategies (wrapper.c) contains. */
void weft_fsdp_reshard_layer (struct weft_step *s, uint32_t layer);
void weft_fsdp_reshard_module (struct weft_step *s, uint32_t param);
void weft_fsdp_finish (struct weft_step *s);
struct weft_use weft_fsdp_grad_begin (struct weft_step *s, uint32_t param);
void weft_fsdp_grad_end (struct weft_step *s, uint32_t param, struct weft_use grad);
struct weft_use weft_fsdp_head_begin (struct weft_step *s);
void weft_fsdp_head_end (struct weft_step *s, struct weft_use grad);
uint32_t weft_fsdp_reduced (struct weft_step *s, uint32_t param);
uint32_t weft_fsdp_reduced_head (struct weft_step *s);
