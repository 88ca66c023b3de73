/* shard.h - tensor and context parallelism: collectives around linear layers, matrix products that
 * overlap these collectives, attention over sharded sequences.
 *
 *   tensor.c   tensor and sequence parallel: widths of a rank, collectives
 *   overlap.c  matrix products in pieces that overlap their collectives: tp_comm_overlap
 *   context.c  context parallel attention: ring, all-gather, Ulysses all-to-all */
#pragma once
#include "core/passes/params/params.h"

void weft_shard_begin (struct weft_step *s);
void weft_shard_end (struct weft_step *s);

/* ----------------------------------------------------------------- tensor parallel */

/* Returns the widths of activations and weights on one tensor parallel rank. */
struct weft_widths weft_tensor_widths (const struct weft_job *job);

/* Whether the rows of the residual stream are divided among tensor parallel ranks
 * (sequence_parallel). */
gboolean weft_tensor_scatters (const struct weft_step *s);

/* Returns the dtype of the partial sums that tensor parallel ranks reduce. */
enum weft_dtype weft_tensor_partial (const struct weft_step *s);

/* Append a collective over tensor parallel ranks. The all-reduce is in place; the others return a
 * new buffer. After the reduce-scatter each rank has the sum of its own slice. */
void weft_tensor_all_reduce (struct weft_step *s, uint32_t buf, enum weft_reduce reduce,
                             const char *name);
uint32_t weft_tensor_all_gather (struct weft_step *s, uint32_t buf, const char *name);
uint32_t weft_tensor_reduce_scatter (struct weft_step *s, uint32_t buf, const char *name);

/* weft_tensor_gather_rows() all-gathers this rank's rows, and returns the rows of all tokens.
 * weft_tensor_reduce_rows() reduce-scatters partial sums of all tokens, and returns this rank's
 * rows of the sum. If sequence_parallel is off, the first function returns `buf`, and the second
 * one all-reduces `buf`. */
uint32_t weft_tensor_gather_rows (struct weft_step *s, uint32_t buf, const char *name);
uint32_t weft_tensor_reduce_rows (struct weft_step *s, uint32_t buf, const char *name);

/* Append the all-gather of `buf` into `all`, or the reduce-scatter of `buf` into `mine`. The
 * collective overlaps matrix products. */
void weft_tensor_gather_into (struct weft_step *s, uint32_t buf, uint32_t all, const char *name);
void weft_tensor_scatter_into (struct weft_step *s, uint32_t buf, uint32_t mine, const char *name);

/* `grad` is this rank's partial gradient of a weight that all tensor parallel ranks hold. If data
 * parallel gradients are reduced in every microbatch, `grad` is all-reduced at once. Otherwise
 * weft_tensor_reduce_gradients() all-reduces `grad` at the end of the step. */
void weft_tensor_share_gradient (struct weft_step *s, uint32_t param, uint32_t grad);

/* All-reduces, at the end of a step, the gradients that weft_tensor_share_gradient() has not
 * reduced. The callback `reduced` returns the buffer that holds the gradient of a parameter. */
typedef uint32_t weft_reduced_gradient (struct weft_step *s, uint32_t param);
void weft_tensor_reduce_gradients (struct weft_step *s, weft_reduced_gradient *reduced);

/* Makes the op appended last wait for the newest gradient all-reduce of
 * weft_tensor_share_gradient() or weft_tensor_reduce_gradients(). */
void weft_wait_for_shared_gradients (struct weft_step *s);

/* ------------------------- matrix products in pieces, overlapped with collectives */

/* The matrix product of a linear layer, in forward or for the input gradient. */
struct weft_piece {
  enum weft_op_kind kind;
  const char *name;
  enum weft_layer_param which;
  uint32_t w, bias;
  uint32_t x_scale, w_scale; /* buffers with the scales of the fp8 operands x and w */
  struct weft_shape shape;   /* shape of the whole matrix product */
};

/* Appends the matrix product of `x` and the weight, with result `y`. Returns the op. */
uint32_t weft_piece_multiply (struct weft_step *s, const struct weft_piece *p, uint32_t x,
                              uint32_t y);

/* Appends the matrix product in pieces, overlapped with its collective, into a new buffer *y or
 * *dx. Returns FALSE and appends nothing if the job does not overlap this linear layer. If dgrad
 * overlaps the all-gather of dy, *dy is set to the gathered gradient of all tokens. */
gboolean weft_overlap_forward (struct weft_step *s, struct weft_piece *p, uint32_t x, uint32_t *y);
gboolean weft_overlap_dgrad (struct weft_step *s, struct weft_piece *p, uint32_t *dy, uint32_t *dx);

/* Whether a linear layer's bulk collective uses a permanent buffer. A bulk collective runs beside a
 * whole matrix product. wgrad = FALSE: the all-gather of the saved input; TRUE: the reduce-scatter
 * of the input gradient. */
gboolean weft_overlap_is_bulk (const struct weft_step *s, enum weft_layer_param which,
                               gboolean wgrad);

/* Returns the permanent buffer of a bulk collective (weft_overlap_is_bulk()). The buffer has
 * `elements` elements. All layers share the buffer. */
uint32_t weft_overlap_buffer (struct weft_step *s, enum weft_layer_param which, gboolean wgrad,
                              enum weft_dtype dtype, uint64_t elements);

/* ---------------------------------------------------------------- context parallel */

/* Buffers of attention. With Ulysses, forward replaces qkv by the qkv of whole sequences, and sets
 * whole_o to the attention output before the second all-to-all. Without Ulysses whole_o is
 * WEFT_NO_BUF. */
struct weft_attention_buffers {
  uint32_t qkv, o, lse, whole_o;
};
void weft_context_attention (struct weft_step *s, struct weft_attention_buffers *a);
void weft_context_attention_backward (struct weft_step *s, const struct weft_attention_buffers *a,
                                      uint32_t d_o, uint32_t dqkv);

/* Used in canonical order, in which gradients of one microbatch are added over the ranks of `group`
 * before gradients of different sequences are added. These ranks hold parts of the same sequences.
 * The ranks reduce-scatter the gradient `grad`. Each rank stores its piece of the sum at the place
 * of this piece in `grad`, and sets the other pieces to zero. Does nothing if the group has one
 * rank or the step has one microbatch. */
void weft_context_sum (struct weft_step *s, uint32_t grad, enum weft_group_kind group);

/* Divides `grad` into `pieces` equal parts. Zeroes all parts except the part of this rank. */
void weft_context_keep (struct weft_step *s, uint32_t grad, uint32_t pieces);
