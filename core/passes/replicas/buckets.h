/* buckets.h - private to replicas/: the state of a data-parallel strategy, sums over microbatches,
 * buckets. */
#pragma once
#include "core/passes/params/tensors.h"
#include "core/passes/replicas/replicas.h"
#include "core/passes/shard/shard.h"

/* The gradient of one tensor, summed over microbatches: accumulate.c. */
struct weft_sum {
  uint32_t main;       /* buffer that contains the total after the last microbatch */
  uint64_t n;          /* elements */
  enum weft_lane lane; /* lane of the kernels that add microbatches */
  const struct weft_chunk *chunk; /* chunk whose microbatches are added; NULL: all microbatches of
                                   * the step */

  /* Canonical order. */
  GArray *held;     /* nodes of the tree that wait for their siblings */
  uint32_t pieces;  /* number of leaves of weft_sum_new_pieces(); 0: every microbatch is a leaf */
  enum weft_group_kind sequence; /* ranks with other parts of the same sequences */
  uint32_t sources; /* experts: number of slices to be added, one per replica; other tensors: 0 */
  uint32_t total;   /* buffer for the sum of these slices, after the last microbatch */
  gboolean each;    /* TRUE: the slices are added in every microbatch, and main contains the total;
                     * FALSE: main contains the slices */
};

/* A bucket: buffers and launched collectives. */
struct weft_bucket_state {
  uint32_t grads, weights;            /* the whole bucket; WEFT_NO_BUF while a unit is resharded */
  uint32_t grad_shard, weight_shard;  /* this rank's slice */
  uint32_t grad_slice, weight_slice;  /* units: slices that contain grad_shard and weight_shard */
  uint32_t exchanged;                 /* slices of all ranks, not added yet; or WEFT_NO_BUF */
  uint32_t reduced, gathered;         /* newest collectives, or WEFT_NO_OP */
  struct weft_sum sum;                /* sum of reduced slices, if gradients are reduced in every
                                       * microbatch */
  uint32_t n_param, n_ready;          /* FSDP2: tensors; gradients of this microbatch so far */
  uint32_t first_param, end_param;    /* range of parameters that includes all parameters of the
                                       * bucket */
  gboolean unit;                      /* Megatron-FSDP: whether the bucket is resharded after use */
  gboolean outer_gathered;            /* weight_slice was all-gathered in this step: fsdp_outer.c */
};

/* Buckets whose collectives are one launch. */
struct weft_group_state {
  uint32_t n_param;
  uint32_t n_ready, n_due; /* n_ready: complete gradients so far; n_due: number of gradients. Both
                            * count per step, for units per microbatch */
  gboolean launched;       /* the reduction of gradients was launched, or is not needed */
  gboolean gathered;       /* the kernels on newly gathered weights (fp8 copies) were appended */
  gboolean idle;           /* recompute no longer reads the unit: the next gather reshards it */
  uint32_t entered;        /* number of the pass (cell and direction) that read the unit last:
                            * fsdp.c */
};

/* Groups of buckets that are gathered one after the other, each group before its first use.
 * n_gather: number of groups; 0: groups are gathered after the update. next: the next group to
 * gather. A chunk has one chain for its dense weights and one for its experts. */
struct weft_chain {
  uint32_t n_gather, next;
};

/* A reduce-scatter in flight, for which kernels do not wait yet: fsdp_grads.c. */
struct weft_reduction {
  uint32_t group, op;
};

/* A data-parallel strategy: functions that the entry points of replicas.h call at fixed places of a
 * step. NULL: the strategy does nothing at that place. wrapper.c contains the table of
 * strategies. */
struct weft_wrapper {
  struct weft_shard_rule sharding;

  void (*start) (struct weft_step *s);
  void (*begin_cell) (struct weft_step *s);
  void (*before_layer) (struct weft_step *s, uint32_t layer);
  void (*before_read) (struct weft_step *s, uint32_t param);
  void (*after_module) (struct weft_step *s, uint32_t param);
  void (*after_layer) (struct weft_step *s, uint32_t layer);
  void (*end_cell) (struct weft_step *s);

  struct weft_use (*grad_begin) (struct weft_step *s, uint32_t param);
  void (*grad_end) (struct weft_step *s, uint32_t param, struct weft_use grad);
  struct weft_use (*head_begin) (struct weft_step *s);
  void (*head_end) (struct weft_step *s, struct weft_use grad);

  void (*finish) (struct weft_step *s);
  uint32_t (*reduced) (struct weft_step *s, uint32_t param);
  uint32_t (*reduced_head) (struct weft_step *s);
  void (*gather_weights) (struct weft_step *s);
  /* Launches gathers of a chunk before a kernel reads its first weight (aligned.c). */
  void (*gather_chunk) (struct weft_step *s, uint32_t chunk);
};

struct weft_replicas {
  const struct weft_wrapper *wrapper;
  void *own;                        /* state of the strategy, freed with g_free(), or NULL */
  struct weft_bucket_state *bucket; /* [n_bucket + 1]: the last entry is for a tied head */
  struct weft_group_state *group;   /* [n_group + 1] */
  struct weft_chain *chain;         /* [2 n_chunks] */
  struct weft_sum *sum;             /* by parameter; the last entry is for a tied head */
  gboolean *grad_left;              /* by parameter: whether its gradient was written in this
                                     * microbatch */

  /* Megatron-FSDP */
  uint32_t unit_modules; /* bits of enum weft_unit: modules that are units */
  uint64_t unit_size;    /* limit of elements in flight in collectives */
  GArray *reducing;      /* struct weft_reduction, oldest first */
  uint32_t n_cell;       /* cells begun so far */

  /* Weights in fp8, by parameter: the transposed copy and its scale. WEFT_NO_BUF: no copy now. */
  uint32_t *transposed, *transposed_scale;
  uint32_t scales; /* buffer with one float for each E4M3 tensor, or WEFT_NO_BUF */
};

/* ---------------------------------------------------------------- accumulate.c */

/* Creates the sums of all parameters. */
void weft_sums_build (struct weft_step *s);

/* Initializes a sum of `n` elements into buffer `main`. */
void weft_sum_start (struct weft_sum *sum, uint32_t main, uint64_t n, enum weft_lane lane);

/* Adds buffer `leaf`, the reduced gradient of the current microbatch, to a sum of slices. */
void weft_sum_add (struct weft_step *s, struct weft_sum *sum, uint32_t leaf);

/* begin: returns the operand into which a kernel writes the gradient of the current microbatch.
 * end: adds this gradient to the sum. */
struct weft_use weft_sum_begin (struct weft_step *s, struct weft_sum *sum);
void weft_sum_end (struct weft_step *s, struct weft_sum *sum, struct weft_use grad);
void weft_sum_place (struct weft_sum *sum, uint32_t total); /* sets the buffer for the total */

/* For strategies that add microbatches themselves. sources: returns the operand into which a kernel
 * writes its gradient: `to`, or a new buffer if the sum has a slice for each source replica.
 * join_sources: call it after the kernel; adds these slices into `to`. */
struct weft_use weft_sum_sources (struct weft_step *s, const struct weft_sum *sum,
                                  struct weft_use to);
void weft_sum_join_sources (struct weft_step *s, const struct weft_sum *sum, struct weft_use grad,
                            uint32_t to);

/* Returns the separate sum of a tied head. */
static inline struct weft_sum *
weft_head_sum (const struct weft_step *s)
{
  return &s->replicas->sum[weft_params_count (s)];
}

/* ----------------------------------------------------------------------- ddp.c */

void weft_ddp_start (struct weft_step *s);
struct weft_use weft_ddp_grad_begin (struct weft_step *s, uint32_t param);
void weft_ddp_grad_end (struct weft_step *s, uint32_t param, struct weft_use grad);
struct weft_use weft_ddp_head_begin (struct weft_step *s);
void weft_ddp_head_end (struct weft_step *s, struct weft_use grad);
void weft_ddp_finish (struct weft_step *s);
void weft_ddp_finish_whole (struct weft_step *s); /* only buckets with whole gradients */
uint32_t weft_ddp_reduced (struct weft_step *s, uint32_t param);
uint32_t weft_ddp_reduced_head (struct weft_step *s);
void weft_ddp_before_read (struct weft_step *s, uint32_t param);
void weft_ddp_gather_weights (struct weft_step *s);

/* Launches the reductions of a chunk whose gradients are complete. */
void weft_ddp_reduce_chunk (struct weft_step *s, uint32_t chunk);

/* Launches all gathers of a chunk that were not launched yet. */
void weft_ddp_gather_chunk (struct weft_step *s, uint32_t chunk);

/* Launches only the gathers that the first use of the chunk's first group would launch. */
void weft_ddp_gather_first (struct weft_step *s, uint32_t chunk);

/* Launches the gather of the first group of a chain, unless it was launched. */
void weft_ddp_gather_ahead (struct weft_step *s, uint32_t chain);

/* Returns the group that forward of a chunk reads first, or WEFT_NO_GROUP if the chunk has no
 * group. Call it only if groups are units. */
#define WEFT_NO_GROUP UINT32_MAX
uint32_t weft_ddp_first_group (const struct weft_step *s, uint32_t chunk);

/* Returns the number of elements of bucket k, including padding. */
uint64_t weft_ddp_bucket_size (const struct weft_step *s, uint32_t k);

/* Returns the group of the bucket that contains a parameter. */
uint32_t weft_ddp_group_of (const struct weft_step *s, uint32_t param);

/* Returns the buckets of group g; sets *n to their number. */
const uint32_t *weft_ddp_members (const struct weft_step *s, uint32_t g, uint32_t *n);

/* Returns the op of a collective of bucket k. The caller completes and appends the op. */
struct weft_op weft_ddp_row (struct weft_step *s, enum weft_op_kind kind, const char *name,
                             uint32_t k);

/* Returns the shape of a collective that sums `n` elements. */
struct weft_shape weft_ddp_shape (const struct weft_step *s, uint64_t n);

/* Appends a collective that waits for all kernels enqueued so far. Returns the op. */
uint32_t weft_ddp_collective (struct weft_step *s, struct weft_op row, struct weft_shape shape,
                              const struct weft_use *uses, uint32_t n_uses);

/* Changes the op of a collective within an instance into a collective between instances. */
void weft_ddp_go_across (const struct weft_step *s, struct weft_op *row);

/* across: all-reduces grad_shard of bucket k, `n` elements, between instances. join_across: makes
 * the next kernel wait for all collectives between instances. */
void weft_ddp_across (struct weft_step *s, uint32_t k, uint64_t n, uint8_t flags);
void weft_ddp_join_across (struct weft_step *s);

/* Before a reduction: the host checks the norm of the gradients of bucket k. */
void weft_ddp_check (struct weft_step *s, uint32_t grads, uint64_t n, uint32_t k);

/* Before a reduction: divides the gradients of bucket k by the number of replicas, unless the
 * collective or the loss performs this division. */
void weft_ddp_scale_bucket (struct weft_step *s, uint32_t k);

/* Converts gradients of experts that are a mean over `few` ranks to the mean over all replicas. */
void weft_ddp_scale_experts (struct weft_step *s, uint32_t grads, uint32_t few);

/* aligned.c: whether the reduction of complete gradients waits for a slot of the schedule. */
gboolean weft_aligned_holds (const struct weft_step *s);

/* aligned.c: whether the first use of the last group of a chunk launches the gather of the first
 * group of the next chunk. */
gboolean weft_aligned_runs_ahead (const struct weft_step *s);

/* ----------------------------------------------------------------- torch_ddp.c */

void weft_torch_ddp_start (struct weft_step *s);
void weft_torch_ddp_grad_end (struct weft_step *s, uint32_t param, struct weft_use grad);
void weft_torch_ddp_end_cell (struct weft_step *s);
void weft_torch_ddp_finish (struct weft_step *s);

/* --------------------------------------------------------------- fp8_weights.c */

void weft_fp8_weights_build (struct weft_step *s);
void weft_fp8_weights_end (struct weft_step *s);

/* MXFP8: whether the weights of bucket k are all-gathered in the memory of its gradient buffer. */
gboolean weft_fp8_weights_is_staged (const struct weft_step *s, uint32_t k);

/* MXFP8: creates a view of the gradient buffer of bucket k as bf16. */
uint32_t weft_fp8_weights_staging (struct weft_step *s, uint32_t k);

/* Call it after a group was gathered: appends the kernels that quantise the group's weights (MXFP8)
 * or transpose them (E4M3). */
void weft_fp8_weights_gathered (struct weft_step *s, uint32_t group);

/* Whether the transposed copy of bucket k lies behind its gathered codes in one buffer. */
gboolean weft_fp8_weights_transpose_behind (const struct weft_step *s, uint32_t k);

/* Frees the transposed copies that were made when backward of the layer first read them. */
void weft_fp8_weights_free_transposed (struct weft_step *s, uint32_t layer);
