/* buckets.h - private to replicas/: the state of a data parallel strategy, sums of gradients over
 * microbatches, buckets. */
#pragma once
#include "core/passes/params/tensors.h"
#include "core/passes/replicas/replicas.h"
#include "core/passes/shard/shard.h"

/* The gradient of one tensor, summed over microbatches: accumulate.c. */
struct weft_sum {
  uint32_t main;       /* buffer that contains the sum after the last microbatch */
  uint64_t n;          /* elements */
  enum weft_lane lane; /* lane of the kernels that add gradients of microbatches */
  /* model chunk whose microbatches are added; NULL: all microbatches of the step */
  const struct weft_chunk *chunk;

  /* Canonical order. */
  /* nodes of the tree of additions that have not been added to their siblings yet */
  GArray *held;
  /* if this sum adds pieces of a microbatch (weft_sum_new_pieces()): number of its leaves; 0: every
   * microbatch is a leaf */
  uint32_t pieces;
  enum weft_group_kind sequence; /* group of ranks that have other parts of the same sequences */
  /* for experts: number of slices to be added, one per replica; for other tensors: 0 */
  uint32_t sources;
  /* buffer for the sum of the slices of all replicas, after the last microbatch */
  uint32_t total;
  /* TRUE: slices are added in every microbatch, and main contains the total; FALSE: main contains
   * the slices until after the last microbatch */
  gboolean each;
};

/* Data parallel state of a bucket: buffers and launched collectives. */
struct weft_bucket_state {
  /* buffers of the whole bucket; WEFT_NO_BUF while an FSDP unit is resharded */
  uint32_t grads, weights;
  /* buffers of this rank's slice of the bucket: of gradients, of weights */
  uint32_t grad_shard, weight_shard;
  /* FSDP units: the slices from which grad_shard and weight_shard are taken */
  uint32_t grad_slice, weight_slice;
  /* buffer with the slices that other ranks sent, not added yet
   * (reduce_scatter_with_fp32_accumulation); or WEFT_NO_BUF */
  uint32_t exchanged;
  /* newest reduction of the bucket, newest all-gather of the bucket; or WEFT_NO_OP */
  uint32_t reduced, gathered;
  /* sum of reduced slices over microbatches, if gradients are reduced in every microbatch */
  struct weft_sum sum;
  /* FSDP2: n_param: number of tensors; n_ready: complete gradients of this microbatch so far */
  uint32_t n_param, n_ready;
  /* range of parameter numbers that includes all parameters of the bucket */
  uint32_t first_param, end_param;
  /* Megatron-FSDP: TRUE if the bucket is resharded after use, because it belongs to a unit */
  gboolean unit;
  /* Megatron-FSDP's hybrid sharding: TRUE if weight_slice was all-gathered in this step
   * (fsdp_outer.c) */
  gboolean outer_gathered;
};

/* State of a launch group: buckets whose collectives are one launch. */
struct weft_group_state {
  uint32_t n_param;
  /* n_ready: number of gradients that are complete so far; n_due: number of gradients that must be
   * complete. For FSDP units both count gradients of one microbatch, for other launch groups
   * gradients of the whole step */
  uint32_t n_ready, n_due;
  gboolean launched; /* TRUE: the reduction of gradients was launched, or is not needed */
  /* TRUE: the kernels that convert newly gathered weights (fp8 copies) have been appended */
  gboolean gathered;
  /* TRUE: recompute does not read the unit any more, and the next all-gather of another unit
   * reshards it */
  gboolean idle;
  /* number of the pass (forward or backward of a cell) that read the unit last: fsdp.c */
  uint32_t entered;
};

/* The launch groups of a model chunk whose weights are all-gathered one after the other, each
 * before its first read. n_gather: number of these launch groups; 0: all are gathered directly
 * after the update of weights. next: the next launch group to gather. A model chunk has one chain
 * for its dense weights and one for its experts. */
struct weft_chain {
  uint32_t n_gather, next;
};

/* A reduce-scatter in flight, for which no kernel waits yet: fsdp_grads.c. */
struct weft_reduction {
  uint32_t group, op;
};

/* A data parallel strategy: functions that the functions of replicas.h call at fixed places of a
 * step. A function that is NULL is not called. wrapper.c contains the table of strategies. */
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
  /* Launches all-gathers of a model chunk before a kernel reads the chunk's first weight
   * (aligned.c). */
  void (*gather_chunk) (struct weft_step *s, uint32_t chunk);
};

struct weft_replicas {
  const struct weft_wrapper *wrapper;
  /* private state of the strategy, freed with g_free(); or NULL */
  void *own;
  /* array [n_bucket + 1]: the last entry is for a tied output layer */
  struct weft_bucket_state *bucket;
  struct weft_group_state *group; /* [n_group + 1] */
  struct weft_chain *chain;       /* [2 n_chunks] */
  /* by parameter: sum of its gradient over microbatches; the last entry is for a tied output
   * layer */
  struct weft_sum *sum;
  /* by parameter: TRUE if a kernel has written the parameter's gradient in this microbatch */
  gboolean *grad_left;

  /* Megatron-FSDP */
  uint32_t unit_modules; /* bits of enum weft_unit: the modules that form FSDP units */
  uint64_t unit_size;    /* Megatron-FSDP: upper limit of elements in collectives in flight */
  GArray *reducing;      /* array of struct weft_reduction, oldest first */
  uint32_t n_cell;       /* number of forward and backward passes begun so far */

  /* By parameter stored in fp8: its transposed copy, and the scale of the copy. WEFT_NO_BUF: there
   * is no copy at present. */
  uint32_t *transposed, *transposed_scale;
  /* buffer with one float for each E4M3 tensor (its largest magnitude), or WEFT_NO_BUF */
  uint32_t scales;
};

/* ---------------------------------------------------------------- accumulate.c */

/* Creates the sums over microbatches for the gradients of all parameters. */
void weft_sums_build (struct weft_step *s);

/* Initializes a sum over microbatches of `n` elements in buffer `main`. */
void weft_sum_start (struct weft_sum *sum, uint32_t main, uint64_t n, enum weft_lane lane);

/* Adds buffer `leaf`, the reduced gradient of the current microbatch, to a sum of slices. */
void weft_sum_add (struct weft_step *s, struct weft_sum *sum, uint32_t leaf);

/* weft_sum_begin() returns the operand into which a kernel writes the gradient of the current
 * microbatch. weft_sum_end() adds this gradient to the sum over microbatches. */
struct weft_use weft_sum_begin (struct weft_step *s, struct weft_sum *sum);
void weft_sum_end (struct weft_step *s, struct weft_sum *sum, struct weft_use grad);
/* sets the buffer that receives the sum over all microbatches */
void weft_sum_place (struct weft_sum *sum, uint32_t total);

/* For strategies that add gradients of microbatches without weft_sum_begin(). weft_sum_sources()
 * returns the operand into which a kernel writes its gradient: `to`, or a new buffer if the sum has
 * a slice for each source replica. weft_sum_join_sources() adds these slices into `to`; it must be
 * called after the kernel has been appended. */
struct weft_use weft_sum_sources (struct weft_step *s, const struct weft_sum *sum,
                                  struct weft_use to);
void weft_sum_join_sources (struct weft_step *s, const struct weft_sum *sum, struct weft_use grad,
                            uint32_t to);

/* Returns the sum for the gradient of a tied output layer, if it is separate from the embedding's
 * sum. */
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
/* like weft_ddp_finish(), but reduces only buckets of which the rank stores whole gradients */
void weft_ddp_finish_whole (struct weft_step *s);
uint32_t weft_ddp_reduced (struct weft_step *s, uint32_t param);
uint32_t weft_ddp_reduced_head (struct weft_step *s);
void weft_ddp_before_read (struct weft_step *s, uint32_t param);
void weft_ddp_gather_weights (struct weft_step *s);

/* Launches the reduction of each launch group of a model chunk whose gradients are complete, unless
 * the reduction was launched before. */
void weft_ddp_reduce_chunk (struct weft_step *s, uint32_t chunk);

/* Launches those all-gathers of a model chunk that have not been launched yet. */
void weft_ddp_gather_chunk (struct weft_step *s, uint32_t chunk);

/* Launches only those all-gathers that the first read of the chunk's first launch group would
 * launch. */
void weft_ddp_gather_first (struct weft_step *s, uint32_t chunk);

/* Launches the all-gather of the first launch group of a chain, unless it was launched before. */
void weft_ddp_gather_ahead (struct weft_step *s, uint32_t chain);

/* Returns the launch group of a model chunk that forward reads first, or WEFT_NO_GROUP if the chunk
 * has none. Must be called only if launch groups are FSDP units. */
#define WEFT_NO_GROUP UINT32_MAX
uint32_t weft_ddp_first_group (const struct weft_step *s, uint32_t chunk);

/* Number of elements of bucket k, including padding. */
uint64_t weft_ddp_bucket_size (const struct weft_step *s, uint32_t k);

/* Returns the launch group of the bucket that contains a parameter. */
uint32_t weft_ddp_group_of (const struct weft_step *s, uint32_t param);

/* Returns the bucket numbers of launch group g. Sets *n to their number. */
const uint32_t *weft_ddp_members (const struct weft_step *s, uint32_t g, uint32_t *n);

/* Returns the row of a collective of bucket k. The caller sets further fields and appends the
 * op. */
struct weft_op weft_ddp_row (struct weft_step *s, enum weft_op_kind kind, const char *name,
                             uint32_t k);

/* Returns the shape of a collective that sums `n` gradient elements. */
struct weft_shape weft_ddp_shape (const struct weft_step *s, uint64_t n);

/* Appends a collective that waits for all kernels enqueued so far. Returns the op. */
uint32_t weft_ddp_collective (struct weft_step *s, struct weft_op row, struct weft_shape shape,
                              const struct weft_use *uses, uint32_t n_uses);

/* Changes a collective within an optimizer instance into a collective between instances. */
void weft_ddp_go_across (const struct weft_step *s, struct weft_op *row);

/* weft_ddp_across() all-reduces grad_shard of bucket k, which has `n` elements, between optimizer
 * instances (copies of the sharded state). weft_ddp_join_across() makes the next kernel wait for
 * all collectives between instances. */
void weft_ddp_across (struct weft_step *s, uint32_t k, uint64_t n, uint8_t flags);
void weft_ddp_join_across (struct weft_step *s);

/* Appends a check before a reduction: the host reads the norm of the gradients of bucket k. */
void weft_ddp_check (struct weft_step *s, uint32_t grads, uint64_t n, uint32_t k);

/* Divides the gradients of bucket k by the number of replicas before a reduction, unless the
 * collective or the loss performs this division. */
void weft_ddp_scale_bucket (struct weft_step *s, uint32_t k);

/* Scales gradients of experts, which are a mean over `few` ranks, to the mean over all replicas. */
void weft_ddp_scale_experts (struct weft_step *s, uint32_t grads, uint32_t few);

/* aligned.c: whether the reduction of complete gradients is delayed until a certain pass of the
 * pipeline schedule. */
gboolean weft_aligned_holds (const struct weft_step *s);

/* aligned.c: whether the first read of a chunk's last launch group also launches the gather of the
 * next chunk's first launch group. */
gboolean weft_aligned_runs_ahead (const struct weft_step *s);

/* ----------------------------------------------------------------- torch_ddp.c */

void weft_torch_ddp_start (struct weft_step *s);
void weft_torch_ddp_grad_end (struct weft_step *s, uint32_t param, struct weft_use grad);
void weft_torch_ddp_end_cell (struct weft_step *s);
void weft_torch_ddp_finish (struct weft_step *s);

/* --------------------------------------------------------------- fp8_weights.c */

void weft_fp8_weights_build (struct weft_step *s);
void weft_fp8_weights_end (struct weft_step *s);

/* MXFP8: whether the weights of bucket k are all-gathered in the memory of the bucket's gradient
 * buffer. */
gboolean weft_fp8_weights_is_staged (const struct weft_step *s, uint32_t k);

/* MXFP8: returns a new bf16 view of the gradient buffer of bucket k. */
uint32_t weft_fp8_weights_staging (struct weft_step *s, uint32_t k);

/* Appends the kernels that quantise the gathered weights of a launch group (MXFP8), or transpose
 * them (E4M3). Must be called after the all-gather of the launch group was appended. */
void weft_fp8_weights_gathered (struct weft_step *s, uint32_t group);

/* Whether the transposed copy of bucket k is stored directly after the gathered codes, in the
 * buffer of the codes. */
gboolean weft_fp8_weights_transpose_behind (const struct weft_step *s, uint32_t k);

/* Frees the transposed fp8 copies of a layer that were computed when backward first read them. */
void weft_fp8_weights_free_transposed (struct weft_step *s, uint32_t layer);
