/* software.h - collectives as the software of a stack launches them, where they differ from the ops
 * of a program.
 *
 *   all_reduces_gradients  the software sums each gradient with an all-reduce, and every rank uses
 *                          only its slice of the sum: an all-reduce takes the place of the
 *                          reduce-scatter. 1: with a distributed optimizer; 2: also with sharded
 *                          weights
 *   broadcasts_weights     after the update, each rank broadcasts the tensors that it has updated,
 *                          one rank after another: broadcasts take the place of the all-gather
 *
 *   scattered_sends        tensor parallel ranks hold the same activations without
 *                          sequence_parallel: each sends one slice to the next stage, whose ranks
 *                          gather the slices
 *   sequence_copies        activations are stored as (batch, sequence, width), and tensor parallel
 *                          ranks divide the sequence: a kernel reorders the whole tensor after each
 *                          all-gather and before each reduce-scatter, which is part of its latency
 *   gather_sweeps          kernels before and after an all-gather of sharded weights: zeroing of
 *                          the flat buffer, copies of the part of each rank. They are part of its
 *                          latency
 *   reduction_sweeps       the same for a reduce-scatter of gradients
 *   narrow_shards          experts, which Automodel shards without a policy of mixed precision,
 *                          reduce gradients in the training precision, whatever
 *                          mp_policy_reduce_dtype says
 *   rowwise_gathers_16     with fp8_priced_as = rowwise, tensor parallel ranks gather activations
 *                          in 16 bits, and convert them to fp8 afterwards
 *
 * A stage of T tensors on n ranks has min (T, n) broadcasts, because a tensor is not divided. Each
 * of them runs down a chain of all ranks. A rank of the chain passes a chunk on when it has
 * received all of it, so each step adds the time of one chunk [WEFT_CHUNK_BYTES] to its latency. */
#pragma once
#include "core/plan/plan.h"

/* NCCL's buffers of protocol Simple have 4 MiB in 8 parts (src/include/comm.h and device.h of
 * NVIDIA/nccl: NCCL_STEPS, DEFAULT_BUFFSIZE), and a chunk of a broadcast is one part
 * (src/enqueue.cc: BROADCAST_CHUNKSTEPS). */
#define WEFT_CHUNK_BYTES 524288.0

/* The kind of collective that the software launches instead of the program's `kind` among the ranks
 * of a group. */
enum weft_op_kind weft_software_kind (const weft_plan *plan, const struct weft_coll_shape *group,
                                      enum weft_op_kind kind);

/* Bytes of the whole tensor of a collective: all slices together. */
double weft_software_bytes (const weft_plan *plan, const struct weft_coll_shape *group,
                            enum weft_op_kind kind, const struct weft_shape *shape);

/* Adds the seconds of kernels that reorder, zero or divide a whole tensor of `bytes` bytes to the
 * latency. */
void weft_software_reorder (const weft_plan *plan, const struct weft_coll_shape *group,
                            enum weft_op_kind kind, double bytes, struct weft_traffic *traffic);

/* Changes *traffic, the traffic of a send of a whole tensor from one stage to rank `to` of another
 * stage over a route of `rate` bytes/s, into the traffic of a send of one slice. The gather of all
 * slices at the receiving stage becomes part of the latency. */
void weft_software_scatter (const weft_plan *plan, uint32_t to, const struct weft_shape *shape,
                            double rate, struct weft_traffic *traffic);

/* Multiplies *traffic of an all-gather of sharded weights by the gathers for each of the program's,
 * with full recomputation: the program gathers a weight once in forward and once in backward, but
 * software that frees weights early (gather_reuse_elements) gathers some of them again between the
 * recomputation of a layer and its backward pass. All gathers have the mean of both passes. */
void weft_software_gather_again (const weft_plan *plan, const struct weft_coll_shape *group,
                                 enum weft_op_kind kind, struct weft_traffic *traffic);

/* The parts of ranks that the host copies one by one around an all-gather of weights or a
 * reduction of gradients (host_rank_seconds): one for each rank and each weight of an op, on the
 * average of all weights, and of gathers that are repeated (gather_reuse_elements). 0 for other
 * ops, and for gradients of which the software reduces the whole tensor. In a program without
 * parameters each op has one weight. Weights with fewer elements than gather_persistent_elements
 * count in weft_software_persistent_parts(). */
double weft_software_parts (const weft_plan *plan, const weft_program *p, uint32_t op);

/* The same for the weights that are gathered once a step, after the update. */
double weft_software_persistent_parts (const weft_plan *plan, const weft_program *p);

/* The average number of launches that the software needs for an op of `elements` elements. `kind`
 * is the collective that the software launches (weft_software_kind()). */
double weft_software_launches (const weft_plan *plan, const struct weft_coll_shape *group,
                               enum weft_op_kind kind, double elements);

/* Changes *traffic, which is the traffic of one launch, to that of an op that needs `launches`
 * launches (weft_software_launches()). Each launch of a broadcast chain also adds the time of one
 * chunk per step. */
void weft_software_repeat (const weft_plan *plan, double launches, struct weft_traffic *traffic);
