/* layout.h - where each parameter lies in the flat gradient (and parameter) buffer, and in which
 * bucket.
 *
 * Megatron-Core's rule (ParamAndGradBuffer; restated in this project's documentation): parameters
 * are laid out in reverse registration order, so that bucket 0 holds the last layers, whose
 * gradients come first.  A bucket closes after the parameter that makes it reach the threshold.
 * With the distributed optimizer every parameter starts at a multiple of 64 elements, every bucket
 * ends at a multiple of lcm(group, 128) (lcm(group, 128, 65536) when padded for bus bandwidth) so
 * that each member owns an equal slice, and a tied embedding has a bucket of its own. */
#pragma once
#include <glib.h>
#include <stdint.h>

#define WEFT_BUCKET_INFINITE UINT64_MAX

struct weft_layout_rule {
  uint64_t threshold;  /* elements; WEFT_BUCKET_INFINITE: one bucket */
  uint32_t group;      /* ranks that reduce a bucket */
  gboolean sharded;    /* distributed optimizer */
  gboolean high_busbw; /* pad_buckets_for_high_nccl_busbw */
};

#define WEFT_NO_UNIT 0xffffffffu

struct weft_layout_param {
  uint64_t numel;
  gboolean shared_embedding;
  uint32_t unit;    /* Megatron-FSDP: tensors gathered together, WEFT_NO_UNIT outside units */
  uint64_t columns; /* elements of a row, 1 for vectors */
};

struct weft_layout_place {
  uint64_t start, end; /* elements in the flat buffer */
  uint32_t bucket;
};

struct weft_bucket {
  uint64_t start, end; /* padded */
  uint64_t unpadded;   /* elements before the padding, alignment gaps included */
};

struct weft_layout {
  uint32_t n_param, n_bucket;
  struct weft_layout_place *place; /* by parameter */
  struct weft_bucket *bucket;
  uint64_t numel; /* of the flat buffer */
};

/* Megatron-FSDP's rule (param_and_grad_buffer.py, _get_parameter_groups): registration order; each
 * unit is a bucket, what is outside units is cut when a bucket reaches the threshold, a tied
 * embedding has a bucket of its own where anything is split.  Buckets end at a multiple of
 * group x lcm of their tensors' row lengths: a slice holds as many elements as whole rows of any of
 * them have.  (Upstream also moves tensors to multiples of that lcm; here they follow each other.) */
void weft_layout_units_init (struct weft_layout *layout, const struct weft_layout_rule *rule,
                             const struct weft_layout_param *param, uint32_t n_param);

void weft_layout_init (struct weft_layout *layout, const struct weft_layout_rule *rule,
                       const struct weft_layout_param *param, uint32_t n_param);
void weft_layout_release (struct weft_layout *layout);

/* The threshold when bucket_size is not given: max(40e6, 1e6 x group) elements. */
uint64_t weft_layout_default_threshold (uint32_t group);
