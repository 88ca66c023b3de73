/* tensors.h - flat buffers of parameters, their buckets and views: for the wings that reduce
 * gradients, gather weights and update both. */
#pragma once
#include "core/passes/params/params.h"

/* A flat buffer of weights and a flat buffer of gradients, for tensors with the same types and the
 * same replicas (Megatron-Core param_and_grad_buffer.py groups tensors by types and separates
 * experts). Each chunk has its own pair. */
struct weft_flat {
  enum weft_dtype dtype, grad_dtype;
  gboolean expert;                 /* experts distributed over expert parallel ranks */
  gboolean cut_weights, cut_grads; /* this rank stores only a slice of every bucket */
  uint32_t weights, grads;         /* buffers; MXFP8 weights have WEFT_NO_BUF (params.c) */
  uint32_t chunk;
};

struct weft_params {
  GArray *list;       /* struct weft_param */
  uint32_t *of_layer; /* [n_layers][WEFT_N_LAYER_PARAM]: parameter or WEFT_NO_PARAM */
  uint32_t of_end[WEFT_N_END_PARAM];
  struct weft_layout layout;
  GArray *flat; /* struct weft_flat, by the layout's buffer number */
  uint32_t *weight_view, *grad_view; /* by parameter; WEFT_NO_BUF while only slices exist */
};

/* Creates a view of `n` elements of a flat buffer. The view begins where bucket k begins, or, in a
 * buffer of slices, where the slice of bucket k begins. */
uint32_t weft_params_flat_view (struct weft_step *s, uint32_t flat, uint32_t k, uint64_t n,
                                const char *name);

static inline const struct weft_flat *
weft_step_flat (const struct weft_step *s, uint32_t bucket)
{
  uint32_t buffer = s->params->layout.bucket[bucket].buffer;

  return &g_array_index (s->params->flat, struct weft_flat, buffer);
}

/* Whether a bucket holds experts that are distributed over expert parallel ranks. FALSE for buckets
 * that are not in the layout (the bucket of a tied head, buckets of PyTorch's DDP). */
static inline gboolean
weft_bucket_of_experts (const struct weft_step *s, uint32_t bucket)
{
  return bucket < s->params->layout.n_bucket && weft_step_flat (s, bucket)->expert;
}

/* Returns the group of ranks that average the gradients of a bucket. */
static inline enum weft_group_kind
weft_bucket_replicas (const struct weft_step *s, uint32_t bucket)
{
  return weft_bucket_of_experts (s, bucket) ? WEFT_GROUP_EDP : WEFT_GROUP_DP;
}

/* Returns the group of ranks that shard the optimizer state of a bucket. */
static inline enum weft_group_kind
weft_bucket_sharing (const struct weft_step *s, uint32_t bucket)
{
  return weft_bucket_of_experts (s, bucket) ? weft_mesh_expert_sharing (s->mesh)
                                            : weft_mesh_sharing (s->mesh);
}
