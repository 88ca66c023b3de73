/* replicas.h - data parallelism: all-gathers of weights before kernels read the weights, reductions
 * of gradients when the gradients are complete.
 *
 *   wrapper.c                     the table of strategies, with the functions of each
 *   accumulate.c                  buffers into which kernels write gradients; sums of microbatches
 *   ddp.c, aligned.c              Megatron-Core's buckets, launched by complete gradients, or at
 *                                 fixed passes of the pipeline schedule
 *   fsdp.c, fsdp_grads.c, fsdp_outer.c      Megatron-FSDP
 *   fsdp2.c, fsdp2_grads.c, fsdp2_host.c    PyTorch's FSDP2
 *   torch_ddp.c                   PyTorch's DistributedDataParallel
 *   fp8_weights.c                 weights stored and gathered in fp8
 *
 * Other folders of core/passes call these functions at fixed places of a step. Each strategy has
 * its own functions for these places. */
#pragma once
#include "core/passes/params/params.h"

/* weft_replicas_begin() chooses the strategy. weft_replicas_build() creates the tensors (params.h),
 * the fp8 copies and the sums of gradients. weft_replicas_start() creates the buffers of the
 * strategy. weft_replicas_end() frees the state that the other functions allocated. */
void weft_replicas_begin (struct weft_step *s);
void weft_replicas_build (struct weft_step *s);
void weft_replicas_start (struct weft_step *s);
void weft_replicas_end (struct weft_step *s);

/* Returns the rule by which the job's strategy shards tensors. The rule is static; the caller does
 * not free it. */
const struct weft_shard_rule *weft_replicas_sharding (const struct weft_job *job,
                                                    const struct weft_mesh *mesh);

/* --------------------------------------------------------------------- weights */

/* Must be called at the start and at the end of each cell (forward or backward pass of a microbatch
 * through a model chunk). */
void weft_replicas_begin_cell (struct weft_step *s);
void weft_replicas_end_cell (struct weft_step *s);

/* Must be called at the start and at the end of a forward or backward pass through a layer. */
void weft_before_layer (struct weft_step *s, uint32_t layer);
void weft_after_layer (struct weft_step *s, uint32_t layer);

/* Must be called when the current pass does not read the weights of a module any more. param: a
 * parameter of the module, which is attention, MLP, embedding or output layer. */
void weft_after_module (struct weft_step *s, uint32_t param);

/* Returns the buffer from which the next kernel reads a parameter. All-gathers the parameter if
 * needed, and makes the next kernel wait for the all-gather. Returns WEFT_NO_BUF for
 * WEFT_NO_PARAM. */
uint32_t weft_weight_read (struct weft_step *s, uint32_t param);

/* All-gathers the FSDP unit that contains a parameter, although the next kernel does not read the
 * parameter. Megatron-FSDP gathers the unit at this place. For other strategies the function does
 * nothing. */
void weft_weight_gather_unread (struct weft_step *s, uint32_t param);

/* Returns the transposed copy of a weight stored in fp8, and sets *scale to the buffer of the
 * copy's scale. Creates the copy if there is none. */
uint32_t weft_fp8_weights_transposed (struct weft_step *s, uint32_t param, uint32_t *scale);

/* ------------------------------------------------------------------- gradients */

/* weft_grad_begin() returns the operand into which a kernel writes the gradient of a parameter in
 * the current microbatch. For WEFT_NO_PARAM and for frozen parameters the operand has no buffer.
 * weft_grad_end() adds the gradient to the sum and may launch its reduction; it must be called
 * after the kernel has been appended. */
struct weft_use weft_grad_begin (struct weft_step *s, uint32_t param);
void weft_grad_end (struct weft_step *s, uint32_t param, struct weft_use grad);

/* Variants of weft_grad_begin() and weft_grad_end() for a tied output layer, or for the embeddings
 * of multi-token prediction, on the stage that holds the embedding. Normally these gradients are
 * added to the sum of the embedding. In canonical order they have a separate sum
 * (weft_head_has_own_sum() is TRUE), and the optimizer adds both sums. */
struct weft_use weft_head_grad_begin (struct weft_step *s);
void weft_head_grad_end (struct weft_step *s, struct weft_use grad);
gboolean weft_head_has_own_sum (const struct weft_step *s);

/* For canonical order: a sum of `n_pieces` leaves (pieces of a sequence), added into buffer `main`
 * in the order of core/base/fold.h. The caller computes the leaves one after the other.
 * weft_sum_leaf() returns the buffer for the next leaf, and weft_sum_add_piece() adds leaf number
 * `i`. The caller frees the sum. */
struct weft_sum;
struct weft_sum *weft_sum_new_pieces (struct weft_step *s, uint32_t main, uint32_t n_pieces);
uint32_t weft_sum_leaf (struct weft_step *s, const struct weft_sum *sum);
void weft_sum_add_piece (struct weft_step *s, struct weft_sum *sum, uint32_t i, uint32_t leaf);
void weft_sum_free (struct weft_sum *sum);

/* Launch the data parallel collectives that are tied to positions of the pipeline schedule
 * (aligned.c). weft_aligned_start() is called before the first pass, weft_aligned_before() before a
 * forward pass, weft_aligned_after() after a backward pass. `first` appends kernels that must
 * precede the collectives. */
void weft_aligned_start (struct weft_step *s);
void weft_aligned_before (struct weft_step *s);
void weft_aligned_after (struct weft_step *s, weft_kernels *first);

/* ------------------------------------------------------------ for the optimizer */

/* Launches the remaining reductions after the last backward. Kernels that read gradients wait for
 * all reductions. */
void weft_replicas_finish (struct weft_step *s);

/* Returns the buffer with the reduced gradient of a parameter. */
uint32_t weft_replicas_reduced (struct weft_step *s, uint32_t param);

/* Returns the buffer with the reduced gradient of a tied output layer, which has a separate sum. */
uint32_t weft_replicas_reduced_head (struct weft_step *s);

/* After the update of weights: all-gathers the weights, except those that are all-gathered at their
 * first read in the next step. */
void weft_replicas_gather_weights (struct weft_step *s);

/* weft_bucket_gradients() returns the buffer with this rank's slice of the gradients of bucket k,
 * weft_bucket_weights() the buffer with its slice of the weights. */
uint32_t weft_bucket_gradients (const struct weft_step *s, uint32_t k);
uint32_t weft_bucket_weights (const struct weft_step *s, uint32_t k);

/* Returns the newest collective that reduced bucket k, or WEFT_NO_OP. */
uint32_t weft_bucket_reduced (const struct weft_step *s, uint32_t k);

/* Whether an all-to-all exchanges the slices of bucket k, and this rank then adds them
 * (reduce_scatter_with_fp32_accumulation). */
gboolean weft_bucket_is_exchanged (const struct weft_step *s, uint32_t k);

/* Functions for weights in fp8, which are computed from fp32 master weights; master[k] is the
 * buffer of bucket k's master weights. weft_fp8_weights_update() computes the fp8 weights after
 * Adam. weft_fp8_weights_stage() converts the master weights at the start of a step, and must be
 * called if weft_fp8_weights_stages_ahead() is TRUE. This is the case if forward all-gathers
 * weights in the memory of the gradient buffer. */
gboolean weft_fp8_weights_stages_ahead (const struct weft_step *s);
void weft_fp8_weights_stage (struct weft_step *s, const uint32_t *master);
void weft_fp8_weights_update (struct weft_step *s, const uint32_t *master);
