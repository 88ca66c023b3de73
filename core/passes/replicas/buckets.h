/* buckets.h - private to replicas/: the state of a data-parallel strategy, sums over microbatches,
 * buckets. */
#pragma once
#include "core/passes/params/tensors.h"
#include "core/passes/replicas/replicas.h"
#include "core/passes/shard/shard.h"

/* The gradient of one tensor, summed over microbatches: accumulate.c. */
struct weft_sum {
  uint32_t main;       /* buffer with the total at the end */
  uint64_t n;          /* elements */
  enum weft_lane lane; /* where microbatches are added */
  const struct weft_chunk *chunk; /* sums the microbatches of this chunk; NULL: of all chunks */

  /* Canonical order. */
  GArray *held;     /* nodes of the tree that wait for their siblings */
  uint32_t pieces;  /* leaves, where they are not microbatches; else 0 */
  enum weft_group_kind sequence; /* ranks with other parts of the same sequences */
  uint32_t sources; /* of experts: replicas whose tokens have slices of their own in main; else 0 */
  uint32_t total;   /* the sum of these slices, when all microbatches are in */
  gboolean each;    /* slices are added in every microbatch: main is the total, as elsewhere */
};

/* A bucket: buffers and launched collectives. */
struct weft_bucket_state {
  uint32_t grads, weights;            /* whole; WEFT_NO_BUF while a unit is resharded */
  uint32_t grad_shard, weight_shard;  /* this rank's slice */
  uint32_t grad_slice, weight_slice;  /* of units: grad_shard and weight_shard are parts of these */
  uint32_t exchanged;                 /* slices from all ranks, still to be added; or WEFT_NO_BUF */
  uint32_t reduced, gathered;         /* newest collectives, or WEFT_NO_OP */
  struct weft_sum sum;                /* of slices, where every microbatch is reduced */
  uint32_t n_param, n_ready;          /* FSDP2: tensors; gradients of this microbatch so far */
  uint32_t first_param, end_param;    /* range of parameters that includes all of the bucket's */
  gboolean unit;                      /* Megatron-FSDP: resharded after use */
  gboolean outer_gathered;            /* weight_slice is whole in this step: fsdp_outer.c */
};

/* Buckets whose collectives are one launch. */
struct weft_group_state {
  uint32_t n_param;
  uint32_t n_ready, n_due; /* gradients of the step: so far, and in all; of units per microbatch */
  gboolean launched;       /* gradients are reduced, or need no reduction */
  gboolean gathered;       /* the kernels on newly gathered weights (fp8 copies) were appended */
  gboolean idle;           /* weights stay until the next gather: recompute */
  uint32_t entered;        /* cell and direction in which its unit was entered last: fsdp.c */
};

/* Groups of buckets that are gathered one after the other, each before its first use. A chunk has
 * one chain, and a second one for its experts. */
struct weft_chain {
  uint32_t n_gather, next;
};

/* A reduce-scatter that kernels run beside: fsdp_grads.c. */
struct weft_reduction {
  uint32_t group, op;
};

/* A data-parallel strategy: functions that run at the places of a step that replicas.h names.
 * NULL: nothing happens there. wrapper.c has the table. */
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
  /* Launches gathers of a chunk before any of its weights is read (aligned.c). */
  void (*gather_chunk) (struct weft_step *s, uint32_t chunk);
};

struct weft_replicas {
  const struct weft_wrapper *wrapper;
  void *own;                        /* state of the strategy; g_free() */
  struct weft_bucket_state *bucket; /* [n_bucket + 1]: the last one is of a tied head */
  struct weft_group_state *group;   /* [n_group + 1] */
  struct weft_chain *chain;         /* [2 n_chunks] */
  struct weft_sum *sum;             /* by parameter; the last one is of a tied head */
  gboolean *grad_left;              /* by parameter: a kernel left a gradient in this microbatch */

  /* Megatron-FSDP */
  uint32_t unit_modules; /* bits of enum weft_unit: modules that are units */
  uint64_t unit_size;    /* elements that collectives may have in flight */
  GArray *reducing;      /* struct weft_reduction, oldest first */
  uint32_t n_cell;       /* cells begun so far */

  /* Weights in fp8, by parameter; WEFT_NO_BUF while there is no transposed copy. */
  uint32_t *transposed, *transposed_scale;
  uint32_t scales; /* one float for each tensor in E4M3, or WEFT_NO_BUF */
};

/* ---------------------------------------------------------------- accumulate.c */

void weft_sums_build (struct weft_step *s);
void weft_sum_start (struct weft_sum *sum, uint32_t main, uint64_t n, enum weft_lane lane);
void weft_sum_add (struct weft_step *s, struct weft_sum *sum, uint32_t leaf);
struct weft_use weft_sum_begin (struct weft_step *s, struct weft_sum *sum);
void weft_sum_end (struct weft_step *s, struct weft_sum *sum, struct weft_use grad);
void weft_sum_place (struct weft_sum *sum, uint32_t total); /* the total goes to another buffer */

/* One microbatch of a sum whose result other code adds: the operand for a kernel, where the
 * gradient belongs in `to`; then the slices of its sources are added into `to`. */
struct weft_use weft_sum_sources (struct weft_step *s, const struct weft_sum *sum,
                                  struct weft_use to);
void weft_sum_join_sources (struct weft_step *s, const struct weft_sum *sum, struct weft_use grad,
                            uint32_t to);

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
void weft_ddp_finish_whole (struct weft_step *s); /* buckets whose gradients are not in slices */
uint32_t weft_ddp_reduced (struct weft_step *s, uint32_t param);
uint32_t weft_ddp_reduced_head (struct weft_step *s);
void weft_ddp_before_read (struct weft_step *s, uint32_t param);
void weft_ddp_gather_weights (struct weft_step *s);

/* Launches the reductions of a chunk whose gradients are complete. */
void weft_ddp_reduce_chunk (struct weft_step *s, uint32_t chunk);

/* Launches all gathers of a chunk that were not launched; only those that the chunk's first group
 * launches when it is used. */
void weft_ddp_gather_chunk (struct weft_step *s, uint32_t chunk);
void weft_ddp_gather_first (struct weft_step *s, uint32_t chunk);

/* The group of a chunk that its forward uses first where groups are units, or WEFT_NO_GROUP. */
#define WEFT_NO_GROUP UINT32_MAX
uint32_t weft_ddp_first_group (const struct weft_step *s, uint32_t chunk);

/* Elements of a bucket; the group of a parameter's bucket; the buckets of a group. */
uint64_t weft_ddp_bucket_size (const struct weft_step *s, uint32_t k);
uint32_t weft_ddp_group_of (const struct weft_step *s, uint32_t param);
const uint32_t *weft_ddp_members (const struct weft_step *s, uint32_t g, uint32_t *n);

/* A collective of bucket k: its row; its shape, of n elements that are summed; the op, which waits
 * for the kernels enqueued so far; the row of the same collective between instances. */
struct weft_op weft_ddp_row (struct weft_step *s, enum weft_op_kind kind, const char *name,
                             uint32_t k);
struct weft_shape weft_ddp_shape (const struct weft_step *s, uint64_t n);
uint32_t weft_ddp_collective (struct weft_step *s, struct weft_op row, struct weft_shape shape,
                              const struct weft_use *uses, uint32_t n_uses);
void weft_ddp_go_across (const struct weft_step *s, struct weft_op *row);

/* All-reduces grad_shard, n elements, between instances; waits for all that was launched between
 * them. */
void weft_ddp_across (struct weft_step *s, uint32_t k, uint64_t n, uint8_t flags);
void weft_ddp_join_across (struct weft_step *s);

/* Before a reduction, check: the host checks the norm of a bucket; scale_bucket: divides gradients
 * by the number of replicas. After the reduction of experts, scale_experts: turns the mean over
 * `few` ranks into the mean over all replicas. */
void weft_ddp_check (struct weft_step *s, uint32_t grads, uint64_t n, uint32_t k);
void weft_ddp_scale_bucket (struct weft_step *s, uint32_t k);
void weft_ddp_scale_experts (struct weft_step *s, uint32_t grads, uint32_t few);

/* aligned.c: whether complete gradients wait for a slot of the schedule. */
gboolean weft_aligned_holds (const struct weft_step *s);

/* ----------------------------------------------------------------- torch_ddp.c */

void weft_torch_ddp_start (struct weft_step *s);
void weft_torch_ddp_grad_end (struct weft_step *s, uint32_t param, struct weft_use grad);
void weft_torch_ddp_end_cell (struct weft_step *s);
void weft_torch_ddp_finish (struct weft_step *s);

/* --------------------------------------------------------------- fp8_weights.c */

void weft_fp8_weights_build (struct weft_step *s);
void weft_fp8_weights_end (struct weft_step *s);

/* MXFP8: whether bucket k is gathered through its gradient buffer; that buffer as bf16. */
gboolean weft_fp8_weights_is_staged (const struct weft_step *s, uint32_t k);
uint32_t weft_fp8_weights_staging (struct weft_step *s, uint32_t k);

/* A group was gathered: rounds or transposes its weights. */
void weft_fp8_weights_gathered (struct weft_step *s, uint32_t group);

/* Whether the transposed copy of a gathered bucket lies behind its codes; frees the copies of a
 * layer that were made for one pass. */
gboolean weft_fp8_weights_transpose_behind (const struct weft_step *s, uint32_t k);
void weft_fp8_weights_free_transposed (struct weft_step *s, uint32_t layer);
