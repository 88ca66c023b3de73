/* tensors.h - flat buffers of parameters with their buckets and views, for code that reduces
 * gradients, gathers weights, or updates weights. */
#pragma once
#include "core/passes/params/params.h"

/* A pair of flat buffers, one of weights and one of gradients, for tensors with equal dtypes that
 * are replicated over the same ranks (Megatron-Core param_and_grad_buffer.py groups tensors by
 * dtype and separates experts). Each model chunk has its own pairs. */
struct weft_flat {
  enum weft_dtype dtype, grad_dtype;
  /* TRUE: tensors of experts that are distributed over expert parallel ranks */
  gboolean expert;
  /* TRUE: this rank stores only a slice of every bucket of weights (cut_weights) or of gradients
   * (cut_grads) */
  gboolean cut_weights, cut_grads;
  /* numbers of the buffers; weights is WEFT_NO_BUF for MXFP8 weights (params.c) */
  uint32_t weights, grads;
  uint32_t chunk;
};

struct weft_params {
  GArray *list; /* array of struct weft_param */
  /* [n_layers][WEFT_N_LAYER_PARAM]: number of the parameter, or WEFT_NO_PARAM */
  uint32_t *of_layer;
  uint32_t of_end[WEFT_N_END_PARAM];
  struct weft_layout layout;
  GArray *flat; /* array of struct weft_flat, indexed by the layout's buffer number */
  /* by model chunk: buffer of its frozen weights, or WEFT_NO_BUF. Frozen tensors have a place (the
   * index of the first element, counted after all flat buffers), but no bucket */
  uint32_t *frozen;
  /* by parameter: view of the whole tensor, or WEFT_NO_BUF while the rank has only slices */
  uint32_t *weight_view, *grad_view;
};

/* Creates a view of `n` elements of a flat buffer. The view begins at the start of bucket k. In a
 * buffer that holds only slices, the view begins at the start of bucket k's slice. */
uint32_t weft_params_flat_view (struct weft_step *s, uint32_t flat, uint32_t k, uint64_t n,
                                const char *name);

static inline const struct weft_flat *
weft_step_flat (const struct weft_step *s, uint32_t bucket)
{
  uint32_t buffer = s->params->layout.bucket[bucket].buffer;

  return &g_array_index (s->params->flat, struct weft_flat, buffer);
}

/* Whether a bucket contains weights of experts that are distributed over expert parallel ranks.
 * FALSE for buckets outside the layout, which are the bucket of a tied output layer and the buckets
 * of PyTorch's DDP. */
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
