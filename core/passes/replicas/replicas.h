/* replicas.h - data parallelism: gathering weights before use, reducing gradients when they are
 * complete.
 *
 *   wrapper.c                     the strategies, one row of functions each
 *   accumulate.c                  where kernels leave gradients, how microbatches are added
 *   ddp.c, aligned.c              Megatron-Core's buckets, launched by gradients or by slots of the
 *                                 schedule
 *   fsdp.c, fsdp_grads.c, fsdp_outer.c      Megatron-FSDP
 *   fsdp2.c, fsdp2_grads.c, fsdp2_host.c    PyTorch's FSDP2
 *   torch_ddp.c                   PyTorch's DistributedDataParallel
 *   fp8_weights.c                 weights stored and gathered in fp8
 *
 * The passes above call these functions at fixed places of a step; what a strategy does there is
 * its own. */
#pragma once
#include "core/passes/params/params.h"

/* Chooses the strategy; makes the tensors (params.h) and the buffers of the strategy; begins the
 * step. */
void weft_replicas_begin (struct weft_step *s);
void weft_replicas_build (struct weft_step *s);
void weft_replicas_start (struct weft_step *s);
void weft_replicas_end (struct weft_step *s);

/* What the strategy of a job shards. */
const struct weft_shard_rule *weft_replicas_sharding (const struct weft_job *job,
                                                    const struct weft_mesh *mesh);

/* --------------------------------------------------------------------- weights */

/* A cell of the grid begins and ends; a layer begins and ends a pass. After a module: the pass
 * needs no more of the weights of half a layer, or of the embedding or head, that holds `param`. */
void weft_replicas_begin_cell (struct weft_step *s);
void weft_replicas_end_cell (struct weft_step *s);
void weft_before_layer (struct weft_step *s, uint32_t layer);
void weft_after_layer (struct weft_step *s, uint32_t layer);
void weft_after_module (struct weft_step *s, uint32_t param);

/* The buffer that the next kernel reads a parameter from, gathered if need be; WEFT_NO_BUF for
 * WEFT_NO_PARAM. */
uint32_t weft_weight_read (struct weft_step *s, uint32_t param);

/* Gathers the unit of a parameter that the next kernel does not read: Megatron-FSDP gathers it at
 * this place. */
void weft_weight_gather_unread (struct weft_step *s, uint32_t param);

/* The transposed copy of a weight stored in fp8, and its scale. */
uint32_t weft_fp8_weights_transposed (struct weft_step *s, uint32_t param, uint32_t *scale);

/* ------------------------------------------------------------------- gradients */

/* begin: the operand of a kernel for the gradient of a parameter in the current microbatch, absent
 * for WEFT_NO_PARAM. end: adds the gradient and may launch its reduction; call it after the kernel
 * was appended. */
struct weft_use weft_grad_begin (struct weft_step *s, uint32_t param);
void weft_grad_end (struct weft_step *s, uint32_t param, struct weft_use grad);

/* The same for a tied head, or for embeddings of multi-token prediction, on the stage that has the
 * embedding. Their gradients are added to the sum of the embedding; in canonical order they have a
 * sum of their own, and the optimizer adds the two sums. */
struct weft_use weft_head_grad_begin (struct weft_step *s);
void weft_head_grad_end (struct weft_step *s, struct weft_use grad);
gboolean weft_head_has_own_sum (const struct weft_step *s);

/* Canonical order: the sum of `n_pieces` leaves, which are made one after the other, in the order
 * of core/base/fold.h. weft_sum_leaf() is the buffer of the next leaf. */
struct weft_sum;
struct weft_sum *weft_sum_new_pieces (struct weft_step *s, uint32_t main, uint32_t n_pieces);
uint32_t weft_sum_leaf (struct weft_step *s, const struct weft_sum *sum);
void weft_sum_add_piece (struct weft_step *s, struct weft_sum *sum, uint32_t i, uint32_t leaf);
void weft_sum_free (struct weft_sum *sum);

/* Collectives at slots of the schedule (aligned.c): when the grid begins; before a forward cell;
 * after a backward cell, where `first` appends kernels that come before the collectives. */
void weft_aligned_start (struct weft_step *s);
void weft_aligned_before (struct weft_step *s);
void weft_aligned_after (struct weft_step *s, weft_kernels *first);

/* ------------------------------------------------------------ for the optimizer */

/* After the last backward. finish: launches the remaining reductions and waits for all of them.
 * reduced, reduced_head: the buffer with the gradient of a parameter; with the separate sum of a
 * tied head. gather_weights, after the update: gathers weights not gathered on first use. */
void weft_replicas_finish (struct weft_step *s);
uint32_t weft_replicas_reduced (struct weft_step *s, uint32_t param);
uint32_t weft_replicas_reduced_head (struct weft_step *s);
void weft_replicas_gather_weights (struct weft_step *s);

/* Properties of bucket k: this rank's slice of gradients, and of weights; the op that reduces it,
 * or WEFT_NO_OP; whether an all-to-all exchanges the slices and this rank adds them
 * (reduce_scatter_with_fp32_accumulation). */
uint32_t weft_bucket_gradients (const struct weft_step *s, uint32_t k);
uint32_t weft_bucket_weights (const struct weft_step *s, uint32_t k);
uint32_t weft_bucket_reduced (const struct weft_step *s, uint32_t k);
gboolean weft_bucket_is_exchanged (const struct weft_step *s, uint32_t k);

/* Weights in fp8 are rounded from fp32 masters, whose buffers `master` lists by bucket: after the
 * update, or when the step begins, if its forward gathers them through the gradient buffer. */
gboolean weft_fp8_weights_stages_ahead (const struct weft_step *s);
void weft_fp8_weights_stage (struct weft_step *s, const uint32_t *master);
void weft_fp8_weights_update (struct weft_step *s, const uint32_t *master);
