/* layout.h - flat gradient (and parameter) buffers: the place of each parameter, its bucket, and
 * which buckets are launched together.
 *
 * Tensors that are stored and reduced alike share a flat buffer. Places count elements through all
 * buffers, one after the other, and buckets are numbered through all buffers: an element or a
 * bucket number identifies its buffer.
 *
 * Megatron-Core's rule (ParamAndGradBuffer; restated in this project's documentation): parameters
 * are laid out in reverse registration order, so that bucket 0 holds the last layers, whose
 * gradients are ready first. A bucket ends with the parameter that fills the bucket up to the
 * threshold. With the distributed optimizer every parameter starts at a multiple of 64 elements,
 * every bucket ends at a multiple of lcm(group, 128) (lcm(group, 128, 65536) if padded for bus
 * bandwidth) so that each member owns an equal slice, and a tied embedding has a separate
 * bucket. */
#pragma once
#include <glib.h>
#include <stdint.h>

#define WEFT_BUCKET_INFINITE UINT64_MAX

struct weft_layout_rule {
  uint64_t threshold;  /* elements; WEFT_BUCKET_INFINITE: one bucket */
  uint32_t group;      /* number of ranks that reduce a bucket */
  gboolean sharded;    /* distributed optimizer */
  gboolean high_busbw; /* pad_buckets_for_high_nccl_busbw */
  uint32_t whole_from; /* first chunk with an infinite threshold; 0: none */
};

#define WEFT_NO_UNIT 0xffffffffu

struct weft_layout_param {
  uint64_t numel;
  gboolean shared_embedding;
  uint32_t unit;    /* Megatron-FSDP unit: tensors gathered together; WEFT_NO_UNIT: none */
  uint64_t columns; /* elements per row, 1 for vectors */
  uint32_t buffer;  /* number of the flat buffer; all its tensors are of one chunk */
  uint32_t chunk;   /* model chunk */
  gboolean expert;  /* expert weights with expert parallelism: they have separate buffers */
  uint32_t ranks;   /* number of ranks that reduce the tensor; 0: the rule's group */
};

struct weft_layout_place {
  uint64_t start, end; /* elements, counted through all flat buffers; for a tensor in pieces, of the
                        * first piece */
  uint32_t bucket;
  uint64_t piece, stride; /* elements of a piece; distance from piece to piece; 0: not in pieces */
};

struct weft_bucket {
  uint64_t start, end; /* with padding */
  uint64_t unpadded;   /* elements before the padding, including alignment gaps */
  uint32_t buffer, group, chunk;
};

/* Buckets whose collectives are one group launch: those at bucket_of[first] and after. Groups of a
 * chunk are contiguous; expert buckets of chunk q of n belong to chunk n + q, unless groups are
 * units. */
struct weft_bucket_group {
  uint32_t first, n, chunk;
};

struct weft_layout {
  uint32_t n_param, n_bucket, n_buffer, n_group;
  struct weft_layout_place *place; /* by parameter */
  struct weft_bucket *bucket;
  uint64_t *first; /* [n_buffer + 1]: start of each buffer, and the end of the last */
  uint64_t numel;  /* elements of all flat buffers */
  struct weft_bucket_group *group; /* filled by weft_layout_group() */
  uint32_t *bucket_of;             /* bucket numbers, group by group */
};

/* Megatron-FSDP's rule (param_and_grad_buffer.py, _get_parameter_groups): registration order; each
 * unit is a bucket; tensors outside units are cut into buckets at the threshold; a tied embedding
 * has a separate bucket if any state is sharded. Buckets end at a multiple of group x lcm of their
 * tensors' row lengths, so that a slice holds as many elements as whole rows of any of them.
 * (Upstream also moves tensors to multiples of that lcm; here they are contiguous.) */
void weft_layout_units_init (struct weft_layout *layout, const struct weft_layout_rule *rule,
                             const struct weft_layout_param *param, uint32_t n_param);

/* FSDP2's rule (PyTorch torch/distributed/fsdp/_fully_shard/_fsdp_param.py, _fsdp_collectives.py):
 * in each chunk, all tensors outside units are the first bucket, then each unit is a bucket,
 * preceded by one for its experts. A tensor is cut along its rows into one piece per rank, all of
 * the same length, as torch.chunk() does; slice r of a bucket has piece r of each tensor in
 * registration order. */
void weft_layout_pieces_init (struct weft_layout *layout, const struct weft_layout_rule *rule,
                              const struct weft_layout_param *param, uint32_t n_param);

/* Megatron-Core's rule, described at the top. The caller releases the layout. */
void weft_layout_init (struct weft_layout *layout, const struct weft_layout_rule *rule,
                       const struct weft_layout_param *param, uint32_t n_param);
void weft_layout_release (struct weft_layout *layout);

/* Elements of one flat buffer. */
static inline uint64_t
weft_layout_numel (const struct weft_layout *layout, uint32_t buffer)
{
  return layout->first[buffer + 1] - layout->first[buffer];
}

/* Which buckets are launched together (Megatron-Core partition_buckets; Megatron-FSDP: all of a
 * unit). */
enum weft_launch {
  WEFT_LAUNCH_EACH,  /* every bucket separately */
  WEFT_LAUNCH_ALL,   /* all in one group */
  WEFT_LAUNCH_BYTES, /* each fp8 (byte) bucket separately; the last of them together with all other
                      * buckets, whose tensors are spread over the model */
  WEFT_LAUNCH_UNITS, /* buckets of one unit together, but buckets of the unit's experts
                      * separately; buckets outside units alone, in the order of their first
                      * tensors */
};

/* Grouping of the buckets of one chunk; `bytes`: the byte buffer for WEFT_LAUNCH_BYTES. */
struct weft_layout_launch {
  enum weft_launch launch;
  uint32_t bytes;
};

/* Groups the buckets of a layout. how[chunk]: the grouping of a chunk. `param`: the parameters from
 * which the layout was made. */
void weft_layout_group (struct weft_layout *layout, const struct weft_layout_launch *how,
                        uint32_t n_chunks, const struct weft_layout_param *param);

/* The default bucket_size: max(40e6, 1e6 x group) elements. */
uint64_t weft_layout_default_threshold (uint32_t group);
