/* fsdp.h - private to replicas/: Megatron-FSDP. Replicas keep slices, and units are gathered only
 * while kernels read them (Megatron-Core distributed/fsdp, megatron_fsdp.py and
 * param_and_grad_buffer.py).
 *
 *   fsdp.c        weights: gathered before use, resharded afterwards
 *   fsdp_grads.c  gradients: reduced in every microbatch, added in slices
 *   fsdp_outer.c  hybrid sharding: collectives between groups of replicas
 *
 * Buckets are those of the layout, and one more bucket in its own group for a tied head with a
 * separate sum. All buckets of a group are gathered and reduced together: a unit whose weights are
 * stored in fp8 has two buckets. Experts that are distributed over expert parallel ranks are a
 * separate group, gathered and reduced by the ranks that hold the same experts. */
#pragma once
#include "core/passes/replicas/buckets.h"

/* Returns the bucket of a tied head with a separate sum. */
static inline uint32_t
weft_fsdp_head (const struct weft_step *s)
{
  return s->params->layout.n_bucket;
}

/* Returns k, or for the bucket of a tied head the bucket of the embedding, which has the same
 * layout. */
static inline uint32_t
weft_fsdp_like (const struct weft_step *s, uint32_t k)
{
  uint32_t embedding = weft_params_of_end (s, WEFT_EMBED_WEIGHT);

  return k < s->params->layout.n_bucket ? k : s->params->layout.place[embedding].bucket;
}

/* Returns the number of elements of bucket k. */
uint64_t weft_fsdp_size (const struct weft_step *s, uint32_t k);
/* Returns the number of elements of all buckets of group g. */
uint64_t weft_fsdp_group_size (const struct weft_step *s, uint32_t g);
/* Returns the number of elements of this rank's slice of bucket k. */
uint64_t weft_fsdp_slice_size (const struct weft_step *s, uint32_t k);

/* Returns a view of this rank's slice of bucket k in the flat buffer of slices `flat`. */
uint32_t weft_fsdp_slice (struct weft_step *s, uint32_t flat, uint32_t k);

/* Whether a group belongs to a unit that is resharded after use. */
gboolean weft_fsdp_is_unit (const struct weft_step *s, uint32_t g);

/* Returns the number of the unit that a group belongs to, or WEFT_NO_UNIT. The experts of a unit
 * have the same number. */
uint32_t weft_fsdp_number (const struct weft_step *s, uint32_t g);

/* Sets view[] of all tensors of bucket k to views of `whole`, from byte `offset` on. `whole` =
 * WEFT_NO_BUF: sets them to WEFT_NO_BUF. */
void weft_fsdp_set_views (struct weft_step *s, uint32_t k, uint32_t whole, uint64_t offset,
                          uint32_t *view);

/* fsdp_grads.c: creates the slices of gradients and their sums over microbatches. */
void weft_fsdp_start_grads (struct weft_step *s);

/* fsdp_outer.c: returns the part of a slice that this rank's optimizer updates: a view, or `slice`
 * itself. */
uint32_t weft_outer_owned (struct weft_step *s, uint32_t slice);

/* gather: all-gathers the slice of bucket k between groups of replicas; call it before the first
 * gather of the bucket in a step. reduce: reduces the slice of bucket k between groups; call it
 * after the last microbatch. `flags`: WEFT_OP_GROUPED if the collective joins the previous launch,
 * else 0. */
void weft_outer_gather (struct weft_step *s, uint32_t k, uint8_t flags);
void weft_outer_reduce (struct weft_step *s, uint32_t k, uint8_t flags);

/* Returns the unit of a parameter, in Megatron-FSDP and in FSDP2. */
uint32_t weft_fsdp_unit (const struct weft_step *s, uint32_t param);

/* Functions of the table in wrapper.c. */
void weft_fsdp_start (struct weft_step *s);
void weft_fsdp_before_read (struct weft_step *s, uint32_t param);
void weft_fsdp_gather_first (struct weft_step *s, uint32_t chunk);
/* Whether the first use of group g also gathers group `other`. TRUE: the groups between g and
 * `other` have fewer elements than half of the unit size. */
gboolean weft_fsdp_reaches (const struct weft_step *s, uint32_t g, uint32_t other);

/* Further functions of the table in wrapper.c. */
void weft_fsdp_reshard_layer (struct weft_step *s, uint32_t layer);
void weft_fsdp_reshard_module (struct weft_step *s, uint32_t param);
void weft_fsdp_finish (struct weft_step *s);
struct weft_use weft_fsdp_grad_begin (struct weft_step *s, uint32_t param);
void weft_fsdp_grad_end (struct weft_step *s, uint32_t param, struct weft_use grad);
struct weft_use weft_fsdp_head_begin (struct weft_step *s);
void weft_fsdp_head_end (struct weft_step *s, struct weft_use grad);
uint32_t weft_fsdp_reduced (struct weft_step *s, uint32_t param);
uint32_t weft_fsdp_reduced_head (struct weft_step *s);
