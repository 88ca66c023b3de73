/* kernel.h - one contract for every op that computes.
 *
 * core/program/op.h says which operands an op takes and what it does; here every op has an fp64 reference,
 * plain and readable, and a CPU kernel.  FLOPs and bytes are those of core/program/op.h.
 *
 * Rules of CPU kernels:
 *  - arithmetic is fp32, whatever the operands; results are rounded (to nearest, ties to even) once,
 *    when they are stored in their operand's type, as a GPU kernel does;
 *  - nothing is allocated; scratch is small and on the stack or per thread;
 *  - the bits of an output depend only on the inputs: not on `part` and `parts`, on alignment, on
 *    the machine's vector width, or on how many other rows are computed with it;
 *  - `part` of `parts` computes its share of the outputs; shares never write the same element;
 *  - in canonical order a sum over tokens is one sum for each chunk of a sequence (rows in order),
 *    and those are added as core/base/zigzag.h and core/base/fold.h say, every node rounded to the type of the
 *    output.
 *
 * A gradient operand that accumulates is added to once, after everything else: old + new. */
#pragma once
#include "core/exec/control.h"
#include "core/job/model.h"
#include "core/program/op.h"
#include "core/base/zigzag.h"
#include <glib.h>

#define WEFT_MOST_OPERANDS 8

struct weft_operand {
  void *data; /* NULL where the op's list allows it */
  uint64_t n; /* elements */
  uint8_t dtype;
  uint8_t accumulate; /* read and written: keeps what is there; otherwise it is overwritten */
};

/* Where in a run an op works, for dropout: draws depend on nothing else. */
struct weft_draw {
  uint32_t layer;
  int64_t sequence; /* the first of the global batch that is here */
};

/* Where the elements of a call lie in a whole tensor, for what is drawn (draw.h): rows of `columns` of it,
 * which in the tensor are `stride` apart. */
struct weft_whole {
  uint64_t key; /* of the tensor */
  uint64_t start, columns, stride, offset;
};

struct weft_kernel {
  enum weft_op_kind kind;
  struct weft_shape shape;
  struct weft_place tp, cp; /* of 0 where nothing asks: one rank.  Rows are of this rank's part of
                               sequences; of attention cp is its ring alone */
  const union weft_model *model;      /* norm, epsilon, heads, rope, sequence length */
  const struct weft_control *control; /* adam, clip, loss scale */
  uint32_t before; /* a part of attention: keys are those of the rank so many places before; to join
                      sequences, 1: slice j came from the rank j places before */
  struct weft_draw draw;
  struct weft_whole whole; /* of adam that rounds by lot */
  gboolean canonical;
  gboolean fused, quicker, deterministic; /* attention: by the vendor's library where there is one; and
                                             where it is quicker; with the same bits in every run */
  gboolean decay; /* adam: weight decay applies to these elements */
  struct weft_operand operand[WEFT_MOST_OPERANDS]; /* in the order of core/program/op.h */
};

/* Heads of this rank. */
static inline uint64_t
weft_kernel_groups (const struct weft_kernel *k)
{
  return MAX (1, (uint64_t) k->model->num_query_groups / (k->tp.of ? k->tp.of : 1));
}

/* Ranks that attend together: in canonical order those that share a group of keys and values have all of
 * its queries (tensor.c). */
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

/* Tokens that a rank has of each sequence. */
static inline uint64_t
weft_kernel_sequence (const struct weft_kernel *k)
{
  return (uint64_t) k->model->seq_length / MAX (1, k->cp.of);
}

/* Where a token, of all sequences one after the other, stands in its own. */
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

  /* Operands of a floating type are arrays of double here; int32 stays, and so do counts of rows.  loss and squares are one
   * double each.  NULL where an op computes nothing. */
  void (*reference) (const struct weft_kernel *k);

  /* Elements of an operand as the shape and the model imply; 0: whatever is given. */
  uint64_t (*extent) (const struct weft_kernel *k, uint32_t operand);

  gboolean splits; /* parts > 1 is of use; otherwise callers pass 0 of 1 */
};

/* Refuses a model that the kernels would compute as another: they do what its fields say, but some
 * values of a field say too little to compute with.  Executors of real numbers ask when they open;
 * plans and simulations need not. */
gboolean weft_kernels_can (const union weft_model *model, GError **error);

/* Whether the indices that an operand is read for can be true: token ids, numbers of experts and rows,
 * counts of rows.  Other operands hold what they hold. */
gboolean weft_kernel_trusts (const struct weft_kernel *k, uint32_t operand);

/* By op kind; cpu is NULL for ops that are no kernels. */
extern const struct weft_kernel_row weft_kernels[WEFT_N_OP];

/* Ops that compute, by the names their functions have: weft_cpu_NAME, weft_ref_NAME,
 * weft_extent_NAME.
 *  id                        name           splits */
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
