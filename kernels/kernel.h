/* kernel.h - the contract of compute kernels.
 *
 * core/program/op.h defines the operands and the function of each op. Here every op has an fp64
 * reference, written for readability, and a CPU kernel. FLOPs and bytes are those of
 * core/program/op.h.
 *
 * Rules of CPU kernels:
 * - Arithmetic is fp32 for every operand type; a result is rounded once (to nearest, ties to even)
 *   when it is stored, as in a GPU kernel.
 * - No allocation; scratch is small and on the stack or per thread.
 * - Output bits depend only on the inputs: not on `part` and `parts`, alignment, the machine's
 *   vector width, or the number of rows computed together.
 * - `part` of `parts` computes its share of the outputs; shares never write the same element.
 * - In canonical order, a sum over tokens is one sum per chunk of a sequence (rows in order); these
 *   are added as core/base/zigzag.h and core/base/fold.h define, and every node is rounded to the
 *   type of the output.
 *
 * A gradient operand that accumulates is updated once, at the end: old + new. */
#pragma once
#include "core/exec/control.h"
#include "core/job/model.h"
#include "core/program/op.h"
#include "core/base/zigzag.h"
#include <glib.h>

#define WEFT_MOST_OPERANDS 8

struct weft_operand {
  void *data; /* NULL only where the op allows it */
  uint64_t n; /* elements */
  uint8_t dtype;
  uint8_t accumulate; /* the kernel adds to the old contents; otherwise it overwrites them */
};

/* Position of an op in a run: together with the key, all that dropout draws depend on. */
struct weft_draw {
  uint32_t layer;
  int64_t sequence; /* index in the global batch of the first sequence of the microbatch */
};

/* Where the elements of a call lie in a whole tensor, for stochastic rounding (draw.h): rows of
 * `columns` elements that lie `stride` apart in the tensor. */
struct weft_whole {
  uint64_t key; /* hash of the tensor's name */
  uint64_t start, columns, stride, offset;
};

struct weft_kernel {
  enum weft_op_kind kind;
  struct weft_shape shape;
  struct weft_place tp, cp; /* place in the group; group size 0: not parallel. cp: the ranks that
                             * share the sequence; in attention, the ring alone */
  const union weft_model *model;      /* norm, epsilon, heads, rope, sequence length */
  const struct weft_control *control; /* Adam, clipping, loss scale */
  uint32_t before; /* in a part of ring attention: the keys come from the rank this many places
                    * before; when joining sequences, 1: slice j came from the rank j places
                    * before */
  struct weft_draw draw;
  struct weft_whole whole; /* adam with stochastic rounding */
  gboolean canonical;
  gboolean fused, quicker, deterministic; /* attention on the GPU: use the vendor library if there
                                           * is one; only if it is faster; in deterministic mode */
  gboolean decay; /* adam: apply weight decay */
  struct weft_operand operand[WEFT_MOST_OPERANDS]; /* in the order of core/program/op.h */
};

/* Query groups (key and value heads) of this rank. */
static inline uint64_t
weft_kernel_groups (const struct weft_kernel *k)
{
  return MAX (1, (uint64_t) k->model->num_query_groups / (k->tp.of ? k->tp.of : 1));
}

/* Ranks that share one query group: in canonical order they hold all of its queries (tensor.c). */
static inline uint64_t
weft_kernel_together (const struct weft_kernel *k)
{
  uint64_t groups = (uint64_t) k->model->num_query_groups;
  return k->canonical && k->tp.of > groups ? k->tp.of / groups : 1;
}

static inline uint64_t
weft_kernel_heads (const struct weft_kernel *k)
{
  return (uint64_t) k->model->num_attention_heads / (k->tp.of ? k->tp.of : 1) *
         weft_kernel_together (k);
}

/* Tokens of each sequence on this rank. */
static inline uint64_t
weft_kernel_sequence (const struct weft_kernel *k)
{
  return (uint64_t) k->model->seq_length / MAX (1, k->cp.of);
}

/* Position in its sequence of a token; tokens of all sequences are numbered one after the other. */
static inline uint64_t
weft_kernel_position (const struct weft_kernel *k, uint64_t token)
{
  uint64_t sequence = weft_kernel_sequence (k);
  return weft_position (k->cp, sequence, token % sequence);
}

/* The row of the table of learned positions that a token takes. */
static inline uint64_t
weft_kernel_position_row (const struct weft_kernel *k, uint64_t token)
{
  return weft_kernel_position (k, token) + (uint64_t) k->model->position_offset;
}

struct weft_kernel_row {
  void (*cpu) (const struct weft_kernel *k, uint32_t part, uint32_t parts);

  /* The fp64 reference. Floating-point operands are arrays of double; int32 operands and row counts
   * keep their type; loss and squares are one double each. NULL for an op that computes nothing. */
  void (*reference) (const struct weft_kernel *k);

  /* Number of elements that an operand must have by shape and model; 0: any number. */
  uint64_t (*extent) (const struct weft_kernel *k, uint32_t operand);

  gboolean splits; /* whether parts > 1 helps; otherwise callers pass part 0 of 1 */
};

/* Refuses a model that the kernels would compute differently: some values of its settings (an
 * unknown rotary scaling, for example) do not define a computation. Executors with real numbers
 * call it at open; planning and simulation do not. */
gboolean weft_kernels_can (const union weft_model *model, GError **error);

/* Whether an index operand holds valid indices: token ids, expert numbers, row numbers, row counts.
 * TRUE for other operands. */
gboolean weft_kernel_trusts (const struct weft_kernel *k, uint32_t operand);

/* By op kind; cpu is NULL for ops without a kernel. */
extern const struct weft_kernel_row weft_kernels[WEFT_N_OP];

/* Compute ops and the names of their functions: weft_cpu_NAME, weft_ref_NAME, weft_extent_NAME.
 *     id                        name           splits */
#define WEFT_KERNEL_LIST(X)                                                                        \
  X (WEFT_OP_EMBED, embed, TRUE)                                                                   \
  X (WEFT_OP_EMBED_BWD, embed_bwd, TRUE)                                                           \
  X (WEFT_OP_MATMUL, matmul, TRUE)                                                                 \
  X (WEFT_OP_MATMUL_DGRAD, matmul_dgrad, TRUE)                                                     \
  X (WEFT_OP_MATMUL_WGRAD, matmul_wgrad, TRUE)                                                     \
  X (WEFT_OP_MATMUL_FP8, matmul_fp8, TRUE)                                                         \
  X (WEFT_OP_MATMUL_DGRAD_FP8, matmul_dgrad_fp8, TRUE)                                             \
  X (WEFT_OP_FP8_MATMUL, fp8_matmul, TRUE)                                                         \
  X (WEFT_OP_FP8_MATMUL_DGRAD, fp8_matmul_dgrad, TRUE)                                             \
  X (WEFT_OP_FP8_MATMUL_WGRAD, fp8_matmul_wgrad, TRUE)                                             \
  X (WEFT_OP_NORM, norm, TRUE)                                                                     \
  X (WEFT_OP_NORM_BWD, norm_bwd, FALSE)                                                            \
  X (WEFT_OP_HEAD_NORM, head_norm, TRUE)                                                           \
  X (WEFT_OP_HEAD_NORM_BWD, head_norm_bwd, FALSE)                                                  \
  X (WEFT_OP_ROPE, rope, TRUE)                                                                     \
  X (WEFT_OP_ROPE_BWD, rope_bwd, TRUE)                                                             \
  X (WEFT_OP_ATTENTION, attention, TRUE)                                                           \
  X (WEFT_OP_ATTENTION_BWD, attention_bwd, TRUE)                                                   \
  X (WEFT_OP_SCORES, scores, TRUE)                                                                 \
  X (WEFT_OP_SOFTMAX, softmax, TRUE)                                                               \
  X (WEFT_OP_CONTEXT, context, TRUE)                                                               \
  X (WEFT_OP_CONTEXT_BWD, context_bwd, TRUE)                                                       \
  X (WEFT_OP_SOFTMAX_BWD, softmax_bwd, TRUE)                                                       \
  X (WEFT_OP_SCORES_BWD, scores_bwd, TRUE)                                                         \
  X (WEFT_OP_DROPOUT, dropout, TRUE)                                                               \
  X (WEFT_OP_DROPOUT_ADD, dropout_add, TRUE)                                                       \
  X (WEFT_OP_DROPOUT_BWD, dropout_bwd, TRUE)                                                       \
  X (WEFT_OP_ATTENTION_PART, attention_part, TRUE)                                                 \
  X (WEFT_OP_ATTENTION_PART_BWD, attention_part_bwd, TRUE)                                         \
  X (WEFT_OP_ATTENTION_MERGE, attention_merge, TRUE)                                               \
  X (WEFT_OP_TAKE_KV, take_kv, TRUE)                                                               \
  X (WEFT_OP_PUT_KV, put_kv, TRUE)                                                                 \
  X (WEFT_OP_SPLIT_SEQUENCE, split_sequence, TRUE)                                                 \
  X (WEFT_OP_JOIN_SEQUENCE, join_sequence, TRUE)                                                   \
  X (WEFT_OP_SPLIT_HEADS, split_heads, TRUE)                                                       \
  X (WEFT_OP_JOIN_HEADS, join_heads, TRUE)                                                         \
  X (WEFT_OP_KEEP_PIECE, keep_piece, FALSE)                                                        \
  X (WEFT_OP_GELU, gelu, TRUE)                                                                     \
  X (WEFT_OP_GELU_BWD, gelu_bwd, TRUE)                                                             \
  X (WEFT_OP_SWIGLU, swiglu, TRUE)                                                                 \
  X (WEFT_OP_SWIGLU_BWD, swiglu_bwd, TRUE)                                                         \
  X (WEFT_OP_RELU, relu, TRUE)                                                                     \
  X (WEFT_OP_RELU_BWD, relu_bwd, TRUE)                                                             \
  X (WEFT_OP_RELU2, relu2, TRUE)                                                                   \
  X (WEFT_OP_RELU2_BWD, relu2_bwd, TRUE)                                                           \
  X (WEFT_OP_LATENT_SPLIT, latent_split, TRUE)                                                     \
  X (WEFT_OP_LATENT_SPLIT_BWD, latent_split_bwd, TRUE)                                             \
  X (WEFT_OP_LATENT_JOIN, latent_join, TRUE)                                                       \
  X (WEFT_OP_LATENT_JOIN_BWD, latent_join_bwd, TRUE)                                               \
  X (WEFT_OP_MOE_ROUTE, moe_route, TRUE)                                                           \
  X (WEFT_OP_MOE_ROUTE_BWD, moe_route_bwd, TRUE)                                                   \
  X (WEFT_OP_MOE_TALLY, moe_tally, FALSE)                                                          \
  X (WEFT_OP_MOE_BALANCE, moe_balance, FALSE)                                                      \
  X (WEFT_OP_MOE_SORT, moe_sort, FALSE)                                                            \
  X (WEFT_OP_MOE_PERMUTE, moe_permute, TRUE)                                                       \
  X (WEFT_OP_MOE_UNPERMUTE, moe_unpermute, TRUE)                                                   \
  X (WEFT_OP_MOE_GROUP, moe_group, FALSE)                                                          \
  X (WEFT_OP_MOE_UNGROUP, moe_ungroup, FALSE)                                                      \
  X (WEFT_OP_MOE_TURN, moe_turn, FALSE)                                                            \
  X (WEFT_OP_MOE_MATMUL, moe_matmul, TRUE)                                                         \
  X (WEFT_OP_MOE_MATMUL_DGRAD, moe_matmul_dgrad, TRUE)                                             \
  X (WEFT_OP_MOE_MATMUL_WGRAD, moe_matmul_wgrad, TRUE)                                             \
  X (WEFT_OP_MOE_FP8_MATMUL, moe_fp8_matmul, TRUE)                                                 \
  X (WEFT_OP_MOE_FP8_MATMUL_DGRAD, moe_fp8_matmul_dgrad, TRUE)                                     \
  X (WEFT_OP_MOE_FP8_MATMUL_WGRAD, moe_fp8_matmul_wgrad, TRUE)                                     \
  X (WEFT_OP_MOE_ACT, moe_act, TRUE)                                                               \
  X (WEFT_OP_MOE_ACT_BWD, moe_act_bwd, TRUE)                                                       \
  X (WEFT_OP_MOE_WEIGH, moe_weigh, TRUE)                                                           \
  X (WEFT_OP_MOE_WEIGH_BWD, moe_weigh_bwd, TRUE)                                                   \
  X (WEFT_OP_GATE, gate, TRUE)                                                                     \
  X (WEFT_OP_GATE_BWD, gate_bwd, TRUE)                                                             \
  X (WEFT_OP_MOE_FOLD, moe_fold, TRUE)                                                             \
  X (WEFT_OP_MOE_SQUARES, moe_squares, FALSE)                                                      \
  X (WEFT_OP_ADD, add, TRUE)                                                                       \
  X (WEFT_OP_ADD_NORM, add_norm, TRUE)                                                             \
  X (WEFT_OP_MATMUL_GELU, matmul_gelu, TRUE)                                                       \
  X (WEFT_OP_MATMUL_DGRAD_GELU, matmul_dgrad_gelu, TRUE)                                           \
  X (WEFT_OP_SOFTCAP, softcap, TRUE)                                                               \
  X (WEFT_OP_XENT, xent, FALSE)                                                                    \
  X (WEFT_OP_SCALE_LOSS, scale_loss, FALSE)                                                        \
  X (WEFT_OP_XENT_BWD, xent_bwd, TRUE)                                                             \
  X (WEFT_OP_XENT_GRAD, xent_grad, FALSE)                                                          \
  X (WEFT_OP_GRAD_ADD, grad_add, TRUE)                                                             \
  X (WEFT_OP_ZERO, zero, TRUE)                                                                     \
  X (WEFT_OP_SCALE, scale, TRUE)                                                                   \
  X (WEFT_OP_SUM_SLICES, sum_slices, TRUE)                                                         \
  X (WEFT_OP_PACK, pack, TRUE)                                                                     \
  X (WEFT_OP_UNPACK, unpack, TRUE)                                                                 \
  X (WEFT_OP_CAST, cast, TRUE)                                                                     \
  X (WEFT_OP_AMAX, amax, FALSE)                                                                    \
  X (WEFT_OP_QUANTISE, quantise, TRUE)                                                             \
  X (WEFT_OP_AMAX_UPDATE, amax_update, FALSE)                                                      \
  X (WEFT_OP_QUANTISE_DELAYED, quantise_delayed, FALSE)                                            \
  X (WEFT_OP_QUANTISE_BLOCKS, quantise_blocks, FALSE)                                              \
  X (WEFT_OP_MOE_AMAX, moe_amax, TRUE)                                                             \
  X (WEFT_OP_MOE_QUANTISE, moe_quantise, TRUE)                                                     \
  X (WEFT_OP_MOE_QUANTISE_BLOCKS, moe_quantise_blocks, TRUE)                                       \
  X (WEFT_OP_TRANSPOSE, transpose, TRUE)                                                           \
  X (WEFT_OP_GRAD_NORM, grad_norm, FALSE)                                                          \
  X (WEFT_OP_BUCKET_NORM, bucket_norm, FALSE)                                                      \
  X (WEFT_OP_UNSCALE, unscale, FALSE)                                                              \
  X (WEFT_OP_CLIP, clip, FALSE)                                                                    \
  X (WEFT_OP_ADAM, adam, TRUE)                                                                     \
  X (WEFT_OP_BIAS, bias, TRUE)                                                                     \
  X (WEFT_OP_ADD_POSITIONS, add_positions, TRUE)                                                   \
  X (WEFT_OP_NORM_DGRAD, norm_dgrad, TRUE)                                                         \
  X (WEFT_OP_NORM_WGRAD, norm_wgrad, FALSE)                                                        \
  X (WEFT_OP_HEAD_NORM_DGRAD, head_norm_dgrad, TRUE)                                               \
  X (WEFT_OP_HEAD_NORM_WGRAD, head_norm_wgrad, FALSE)                                              \
  X (WEFT_OP_SETTLE, settle, FALSE)                                                                \
  X (WEFT_OP_JOIN_COLUMNS, join_columns, TRUE)                                                     \
  X (WEFT_OP_TAKE_PART, take_part, TRUE)                                                           \
  X (WEFT_OP_TAKE_HEADS, take_heads, TRUE)                                                         \
  X (WEFT_OP_PUT_HEADS, put_heads, TRUE)                                                           \
  X (WEFT_OP_CONCAT, concat, TRUE)                                                                 \
  X (WEFT_OP_CONCAT_BWD, concat_bwd, TRUE)                                                         \
  X (WEFT_OP_XENT_MAX, xent_max, TRUE)                                                             \
  X (WEFT_OP_XENT_PART, xent_part, TRUE)                                                           \
  X (WEFT_OP_XENT_END, xent_end, FALSE)

#define WEFT_KERNEL_DECLARE(id, name, splits)                                                      \
  void weft_cpu_##name (const struct weft_kernel *k, uint32_t part, uint32_t parts);               \
  void weft_ref_##name (const struct weft_kernel *k);                                              \
  uint64_t weft_extent_##name (const struct weft_kernel *k, uint32_t operand);
WEFT_KERNEL_LIST (WEFT_KERNEL_DECLARE)
#undef WEFT_KERNEL_DECLARE
