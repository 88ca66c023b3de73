/* layout.h - flat gradient (and parameter) buffers: the place of each parameter, its bucket, and
 * which buckets are launched together.
 *
 * Tensors with equal dtypes that the same ranks reduce share a flat buffer. Elements are counted
 * through all flat buffers, one buffer after the other, and so are buckets. The number of an
 * element or of a bucket therefore determines the flat buffer.
 *
 * Megatron-Core's rule (ParamAndGradBuffer; restated in this project's documentation): parameters
 * are laid out in reverse registration order, so that bucket 0 contains the last layers, whose
 * gradients are ready first. A bucket ends with the parameter that fills the bucket up to the
 * threshold. With the distributed optimizer every parameter starts at a multiple of 64 elements.
 * Every bucket then ends at a multiple of lcm(group, 128), or of lcm(group, 128, 65536) if padded
 * for bus bandwidth, so that each rank of the group owns an equal slice. A tied embedding then has
 * a separate bucket.
 *
 * Tensors with work are dealt out whole (layer_wise_optimizer.py,
 * _compute_per_buffer_param_layout): those of a bucket go, in falling order of work, to the slice
 * with the least work so far that they leave below 1.3 times the mean length, or to the shortest.
 * Slices are as long as the longest. (Upstream also fills short slices from the next bucket.) */
#pragma once
#include <glib.h>
#include <stdint.h>

#define WEFT_BUCKET_INFINITE UINT64_MAX

struct weft_layout_rule {
  /* bucket size in elements; WEFT_BUCKET_INFINITE: all tensors are in one bucket */
  uint64_t threshold;
  uint32_t group;   /* number of ranks that reduce the gradients of a bucket */
  gboolean sharded; /* distributed optimizer */
  /* whether buckets are padded for bus bandwidth (setting pad_buckets_for_high_nccl_busbw) */
  gboolean high_busbw;
  /* number of the first model chunk whose bucket threshold is infinite; 0: no such chunk */
  uint32_t whole_from;
};

#define WEFT_NO_UNIT 0xffffffffu

struct weft_layout_param {
  uint64_t numel;
  gboolean shared_embedding;
  /* number of the Megatron-FSDP unit (tensors that one all-gather gathers); WEFT_NO_UNIT: outside
   * units */
  uint32_t unit;
  uint64_t columns; /* number of elements in a row of the tensor; 1 for vectors */
  /* number of the flat buffer that contains the tensor; all tensors of a flat buffer belong to one
   * model chunk */
  uint32_t buffer;
  uint32_t chunk; /* model chunk */
  /* TRUE: expert weights of a model with expert parallelism; they have separate flat buffers */
  gboolean expert;
  /* number of ranks that reduce the tensor's gradient; 0: `group` of the layout rule */
  uint32_t ranks;
  /* elements that share a scale of 8-bit moments: the tensor and every rank's slice of its bucket
   * begin at a multiple; 0: none. The same for all tensors of a flat buffer */
  uint32_t block;
  /* work of the optimizer on the whole tensor, for tensors that the distributed optimizer deals out
   * whole (Muon); 0: others. All tensors of a flat buffer have such work, or none has */
  double work;
};

struct weft_layout_place {
  /* start, end: index of the tensor's first element and index after its last element, counted
   * through all flat buffers; for a tensor in row pieces, of its first piece */
  uint64_t start, end;
  uint32_t bucket;
  /* piece: elements of one row piece; stride: distance in elements between two pieces; both are 0
   * for a tensor that is not in pieces */
  uint64_t piece, stride;
};

struct weft_bucket {
  uint64_t start, end; /* range, with padding */
  /* number of elements without the padding at the end of the bucket; gaps that align tensors
   * count */
  uint64_t unpadded;
  uint32_t buffer, group, chunk;
};

/* A launch group: n buckets of one model chunk whose collectives are issued as one group launch.
 * Their numbers are bucket_of[first] to bucket_of[first + n - 1]. The launch groups of a chunk have
 * consecutive numbers. Expert buckets of chunk q of n count as chunk n + q, except with
 * WEFT_LAUNCH_UNITS. */
struct weft_bucket_group {
  uint32_t first, n, chunk;
};

struct weft_layout {
  uint32_t n_param, n_bucket, n_buffer, n_group;
  struct weft_layout_place *place; /* by parameter */
  struct weft_bucket *bucket;
  /* [n_buffer + 1]: index of the first element of each flat buffer, then the end of the last flat
   * buffer */
  uint64_t *first;
  uint64_t numel; /* number of elements of all flat buffers together */
  /* array of n_group launch groups, which weft_layout_group() sets */
  struct weft_bucket_group *group;
  uint32_t *bucket_of; /* bucket numbers, sorted by launch group */
};

/* Lays out flat buffers by Megatron-FSDP's rule (param_and_grad_buffer.py, _get_parameter_groups):
 * tensors are in registration order, and each FSDP unit is a bucket. Tensors outside units are cut
 * into buckets at the threshold. A tied embedding has a separate bucket if any state is sharded.
 * Buckets end at a multiple of group x lcm of their tensors' row lengths; a rank's slice therefore
 * holds as many elements as a whole number of rows of any of them. (Upstream also aligns tensors to
 * multiples of that lcm; here the tensors of a bucket are contiguous.) The caller frees the content
 * of *layout with weft_layout_release(). */
void weft_layout_units_init (struct weft_layout *layout, const struct weft_layout_rule *rule,
                             const struct weft_layout_param *param, uint32_t n_param);

/* Lays out flat buffers by FSDP2's rule (PyTorch
 * torch/distributed/fsdp/_fully_shard/_fsdp_param.py, _fsdp_collectives.py). In each model chunk,
 * all tensors outside FSDP units form the first bucket. Then each unit is a bucket; the unit's
 * expert tensors form a bucket of their own before the unit's bucket. A tensor is cut along its
 * rows into one piece per rank, all of equal length, as torch.chunk() does. Slice r of a bucket
 * contains piece r of each tensor, in registration order. The caller frees the content of *layout
 * with weft_layout_release(). */
void weft_layout_pieces_init (struct weft_layout *layout, const struct weft_layout_rule *rule,
                              const struct weft_layout_param *param, uint32_t n_param);

/* Lays out flat buffers by Megatron-Core's rule, described at the top of this file. The caller
 * frees the content of *layout with weft_layout_release(). */
void weft_layout_init (struct weft_layout *layout, const struct weft_layout_rule *rule,
                       const struct weft_layout_param *param, uint32_t n_param);
void weft_layout_release (struct weft_layout *layout);

/* Number of elements of one flat buffer. */
static inline uint64_t
weft_layout_numel (const struct weft_layout *layout, uint32_t buffer)
{
  return layout->first[buffer + 1] - layout->first[buffer];
}

/* How the collectives of buckets are combined into group launches (Megatron-Core partition_buckets;
 * Megatron-FSDP: all buckets of a unit in one launch). */
enum weft_bucket_launch {
  WEFT_LAUNCH_EACH, /* every bucket of the chunk is launched separately */
  WEFT_LAUNCH_ALL,  /* all buckets of the chunk are launched together */
  /* every bucket of one flat buffer of the chunk (`apart`) is launched separately; all other
   * buckets of the chunk are launched with the last of them, because their tensors are spread over
   * the chunk */
  WEFT_LAUNCH_APART,
  /* one launch group for the dense buckets of each FSDP unit, one for the expert buckets of the
   * unit, and one for each bucket outside units; the launch groups are in the order of their first
   * tensors */
  WEFT_LAUNCH_UNITS,
};

/* How the buckets of one model chunk are combined. `apart`: number of the flat buffer for
 * WEFT_LAUNCH_APART. */
struct weft_layout_launch {
  enum weft_bucket_launch launch;
  uint32_t apart;
};

/* Assigns the buckets of a layout to launch groups. how[chunk] states how the buckets of a model
 * chunk are combined. `param` must be the array from which the layout was made. */
void weft_layout_group (struct weft_layout *layout, const struct weft_layout_launch *how,
                        uint32_t n_chunks, const struct weft_layout_param *param);

/* Megatron-Core's default bucket_size in elements: max(40e6, 1e6 x group), where `group` is the
 * number of ranks that reduce a bucket. */
uint64_t weft_layout_default_threshold (uint32_t group);
