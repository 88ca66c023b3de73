/* layout.h - where each parameter lies in the flat gradient (and parameter) buffers, and in which
 * bucket, and which buckets are launched together.
 *
 * Tensors that are stored and reduced alike share a flat buffer.  Places count elements through all
 * buffers, one after the other, and buckets are numbered through all of them: an element and a bucket
 * say which buffer they are in.
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
  uint32_t whole_from; /* the first chunk for which the threshold is infinite; 0: none */
};

#define WEFT_NO_UNIT 0xffffffffu

struct weft_layout_param {
  uint64_t numel;
  gboolean shared_embedding;
  uint32_t unit;    /* Megatron-FSDP: tensors gathered together, WEFT_NO_UNIT outside units */
  uint64_t columns; /* elements of a row, 1 for vectors */
  uint32_t buffer;  /* which flat buffer, from 0; all its tensors are of one chunk */
  uint32_t chunk;   /* which piece of the model */
  gboolean expert;  /* of experts that ranks share out: apart from the others, and ... */
  uint32_t ranks;   /* ... reduced by fewer ranks: how many; 0: the rule's group */
};

struct weft_layout_place {
  uint64_t start, end; /* elements, through all flat buffers; of a tensor in pieces: of its first */
  uint32_t bucket;
  uint64_t piece, stride; /* elements of a piece, and from one piece to the next; 0: in one piece */
};

struct weft_bucket {
  uint64_t start, end; /* padded */
  uint64_t unpadded;   /* elements before the padding, alignment gaps included */
  uint32_t buffer, group, chunk;
};

/* Buckets whose collectives are one launch: those at bucket_of[first] and after.  Groups of a chunk
 * follow each other; experts of chunk q of n are chunk n + q, but where groups are units. */
struct weft_bucket_group {
  uint32_t first, n, chunk;
};

struct weft_layout {
  uint32_t n_param, n_bucket, n_buffer, n_group;
  struct weft_layout_place *place; /* by parameter */
  struct weft_bucket *bucket;
  uint64_t *first; /* [n_buffer + 1]: where each buffer begins, and where the last one ends */
  uint64_t numel;  /* of all flat buffers */
  struct weft_bucket_group *group; /* weft_layout_group() makes them */
  uint32_t *bucket_of;             /* buckets, group by group */
};

/* Megatron-FSDP's rule (param_and_grad_buffer.py, _get_parameter_groups): registration order; each
 * unit is a bucket, what is outside units is cut when a bucket reaches the threshold, a tied
 * embedding has a bucket of its own where anything is split.  Buckets end at a multiple of
 * group x lcm of their tensors' row lengths: a slice holds as many elements as whole rows of any of
 * them have.  (Upstream also moves tensors to multiples of that lcm; here they follow each other.) */
void weft_layout_units_init (struct weft_layout *layout, const struct weft_layout_rule *rule,
                             const struct weft_layout_param *param, uint32_t n_param);

/* FSDP2's rule (PyTorch torch/distributed/fsdp/_fully_shard/_fsdp_param.py, _fsdp_collectives.py): of
 * each chunk what is outside units is the first bucket, then each unit is one, behind one of its experts.  A tensor is cut along its rows into a
 * piece for each rank, of equal length, as torch.chunk() does; slice r of a bucket has piece r of
 * each of its tensors, in registration order. */
void weft_layout_pieces_init (struct weft_layout *layout, const struct weft_layout_rule *rule,
                              const struct weft_layout_param *param, uint32_t n_param);

void weft_layout_init (struct weft_layout *layout, const struct weft_layout_rule *rule,
                       const struct weft_layout_param *param, uint32_t n_param);
void weft_layout_release (struct weft_layout *layout);

/* Elements of one flat buffer. */
static inline uint64_t
weft_layout_numel (const struct weft_layout *layout, uint32_t buffer)
{
  return layout->first[buffer + 1] - layout->first[buffer];
}

/* Which buckets go together (Megatron-Core partition_buckets; Megatron-FSDP: all of a unit). */
enum weft_launch {
  WEFT_LAUNCH_EACH,  /* every bucket by itself */
  WEFT_LAUNCH_ALL,   /* one group */
  WEFT_LAUNCH_BYTES, /* each bucket of the buffer of bytes; the last of them takes along all others,
                        whose tensors are spread over the whole model */
  WEFT_LAUNCH_UNITS, /* buckets of one unit, its experts' by themselves, the others alone, in the
                        order of their first tensors */
};

/* How those of one chunk go; `bytes`: the buffer of which WEFT_LAUNCH_BYTES speaks. */
struct weft_layout_launch {
  enum weft_launch launch;
  uint32_t bytes;
};

/* `how` is by chunk.  `param` are those the layout was made of. */
void weft_layout_group (struct weft_layout *layout, const struct weft_layout_launch *how,
                        uint32_t n_chunks, const struct weft_layout_param *param);

/* The threshold when bucket_size is not given: max(40e6, 1e6 x group) elements. */
uint64_t weft_layout_default_threshold (uint32_t group);
