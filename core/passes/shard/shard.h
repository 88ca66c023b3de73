/* shard.h - what tensor parallel and context parallel ranks share: collectives around linear maps,
 * products that overlap them, attention over sharded sequences.
 *
 *   tensor.c   tensor and sequence parallel: widths of a rank, collectives
 *   overlap.c  products in pieces beside their collectives: tp_comm_overlap
 *   context.c  context parallel attention: ring, all-gather, Ulysses all-to-all */
#pragma once
#include "core/passes/params/params.h"

void weft_shard_begin (struct weft_step *s);
void weft_shard_end (struct weft_step *s);

/* ----------------------------------------------------------------- tensor parallel */

/* Widths of activations on one tensor parallel rank. */
struct weft_widths weft_tensor_widths (const struct weft_job *job);

/* Whether the residual stream is sharded by rows: sequence_parallel. */
gboolean weft_tensor_scatters (const struct weft_step *s);

/* The type of partial sums that ranks reduce. */
enum weft_dtype weft_tensor_partial (const struct weft_step *s);

/* Collectives over tensor parallel ranks. A reduce-scatter leaves each rank the sum of its own
 * slice. */
void weft_tensor_all_reduce (struct weft_step *s, uint32_t buf, enum weft_reduce reduce,
                             const char *name);
uint32_t weft_tensor_all_gather (struct weft_step *s, uint32_t buf, const char *name);
uint32_t weft_tensor_reduce_scatter (struct weft_step *s, uint32_t buf, const char *name);

/* gather_rows: all-gather of this rank's rows to all tokens. reduce_rows: reduce-scatter of partial
 * sums of all tokens to this rank's rows. Without sequence_parallel gather_rows does nothing, and
 * reduce_rows is an all-reduce. */
uint32_t weft_tensor_gather_rows (struct weft_step *s, uint32_t buf, const char *name);
uint32_t weft_tensor_reduce_rows (struct weft_step *s, uint32_t buf, const char *name);

/* The all-gather and the reduce-scatter with a given destination, to overlap them with products. */
void weft_tensor_gather_into (struct weft_step *s, uint32_t buf, uint32_t all, const char *name);
void weft_tensor_scatter_into (struct weft_step *s, uint32_t buf, uint32_t mine, const char *name);

/* `grad` is this rank's partial gradient of a tensor that all tensor parallel ranks hold. If
 * data-parallel gradients are reduced in every microbatch, it is all-reduced now. Otherwise
 * weft_tensor_reduce_gradients() all-reduces it at the end of the step; `reduced` returns the
 * buffer that holds the gradient of a parameter at that time. */
void weft_tensor_share_gradient (struct weft_step *s, uint32_t param, uint32_t grad);
typedef uint32_t weft_reduced_gradient (struct weft_step *s, uint32_t param);
void weft_tensor_reduce_gradients (struct weft_step *s, weft_reduced_gradient *reduced);

/* The op appended last waits for the newest of these all-reduces. */
void weft_wait_for_shared_gradients (struct weft_step *s);

/* ---------------------------------------------------- products beside collectives */

/* A linear map's product: forward or input gradient. */
struct weft_piece {
  enum weft_op_kind kind;
  const char *name;
  enum weft_layer_param which;
  uint32_t w, bias;
  uint32_t x_scale, w_scale; /* of factors in fp8 */
  struct weft_shape shape;   /* of the whole product */
};
uint32_t weft_piece_multiply (struct weft_step *s, const struct weft_piece *p, uint32_t x,
                              uint32_t y);

/* Appends the product in pieces, overlapped with its collective. FALSE if the job does not ask for
 * overlap; nothing was appended then. dgrad: if the collective is an all-gather of dy, *dy becomes
 * the gathered gradient of all tokens. */
gboolean weft_overlap_forward (struct weft_step *s, struct weft_piece *p, uint32_t x, uint32_t *y);
gboolean weft_overlap_dgrad (struct weft_step *s, struct weft_piece *p, uint32_t *dy, uint32_t *dx);

/* Whether the all-gather of a saved input (with `wgrad` the reduce-scatter of an input gradient)
 * goes through a standing buffer; that buffer. */
gboolean weft_overlap_is_bulk (const struct weft_step *s, enum weft_layer_param which,
                               gboolean wgrad);
uint32_t weft_overlap_buffer (struct weft_step *s, enum weft_layer_param which, gboolean wgrad,
                              enum weft_dtype dtype, uint64_t elements);

/* ---------------------------------------------------------------- context parallel */

/* Buffers of attention. Ulysses replaces qkv by the qkv of whole sequences and sets whole_o, the
 * output before the second all-to-all. Without Ulysses whole_o is WEFT_NO_BUF. */
struct weft_attention {
  uint32_t qkv, o, lse, whole_o;
};
void weft_context_attention (struct weft_step *s, struct weft_attention *a);
void weft_context_attention_backward (struct weft_step *s, const struct weft_attention *a,
                                      uint32_t d_o, uint32_t dqkv);

/* Canonical order: ranks that share sequences reduce-scatter the gradient of a microbatch before
 * gradients of different sequences are added. Each rank keeps its piece of the sum at its place in
 * the gradient; the other pieces are set to zero. */
void weft_context_sum (struct weft_step *s, uint32_t grad, enum weft_group_kind group);
void weft_context_keep (struct weft_step *s, uint32_t grad, uint32_t pieces);
