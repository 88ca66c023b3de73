/* launch.h - arguments of a CUDA kernel launcher: the call of an op (kernels/kernel.h) in types
 * that both C and CUDA C++ read. Pointers to operands, control and scratch are device pointers.
 *
 * Rules of CUDA kernels, in addition to those of CPU kernels in kernels/kernel.h:
 * - Arithmetic is fp32, rounded once when a result is stored. Sums have a fixed order of their own,
 *   the same in every run: no floating-point atomics.
 * - A launcher enqueues on the stream and returns; it does not allocate and does not wait.
 * - Memory beyond its operands is scratch, whose size follows from the op's shape
 *   (weft_cuda_scratch()); ops of one stream share it, one after the other. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_CUDA_MOST_OPERANDS 8
#define WEFT_CUDA_DIMS 8
#define WEFT_CUDA_MOST_PAIRS 256 /* rotated pairs of a head: heads of up to 512 */

struct weft_cuda_operand {
  void *data; /* NULL only where the op allows it */
  uint64_t n; /* elements */
  uint8_t dtype, accumulate;
};

struct weft_cuda_spot {
  uint32_t at, of;
};

/* How the router selects experts (kernels/moe_route.c). */
struct weft_cuda_router {
  uint32_t sigmoid, before; /* before: take the softmax over all experts before the selection */
  uint64_t groups, best;    /* number of expert groups, and how many of them are eligible; 1 and 1:
                             * no groups */
  float scaling;            /* factor of the weights */
  double step;              /* step of the routing bias */
};

/* Settings of the model that kernels read. */
struct weft_cuda_model {
  double epsilon;
  uint64_t heads, groups; /* of this rank */
  uint64_t sequence;      /* tokens of each sequence on this rank */
  uint64_t whole;         /* tokens of a whole sequence */
  uint64_t all_heads;     /* heads of all ranks */
  uint32_t layernorm;     /* otherwise rmsnorm */
  uint32_t pairs;         /* rotated pairs of a head */
  double frequency[WEFT_CUDA_MOST_PAIRS]; /* rotary frequency of each pair, radians per position */
  uint32_t activation;                    /* of experts: enum weft_activation */
  struct weft_cuda_router router;
};

struct weft_control;

/* struct weft_whole of kernels/kernel.h. */
struct weft_cuda_whole {
  uint64_t key, start, columns, stride, offset;
};

struct weft_cuda_launch {
  uint64_t dim[WEFT_CUDA_DIMS];
  struct weft_cuda_operand operand[WEFT_CUDA_MOST_OPERANDS];
  struct weft_cuda_spot tp, cp;
  struct weft_cuda_model model;
  const struct weft_control *control; /* device pointer */
  uint32_t before, decay;
  uint32_t layer;
  float share;      /* factor of a row's loss gradient: xent_bwd, xent_grad */
  int64_t sequence; /* dropout: global index of the first sequence of the microbatch */
  struct weft_cuda_whole whole;

  void *stream; /* cudaStream_t */
  void *scratch;
  uint64_t scratch_bytes;
  struct weft_cuda_blas *blas;
  uint8_t warpgroups; /* use warpgroup instructions (warpgroup.cuh); the device has them */
};

/* Epilogue of a product: y = gelu (a b), or y = a b times the slope of gelu at aux. gelu sees
 * either the unrounded or the stored product, whichever is faster. */
enum weft_cuda_epilogue { WEFT_CUDA_PLAIN, WEFT_CUDA_GELU, WEFT_CUDA_GELU_SLOPE };

/* y = a b with row-major matrices: `a` is (m, k), or (k, m) if transposed; `b` is (k, n), or (n, k)
 * if transposed. May accumulate into y. */
struct weft_cuda_gemm {
  uint64_t m, n, k;
  const void *a, *b, *bias; /* bias: n elements of the type of y, or NULL; fp8 products with an fp32
                             * result take none */
  void *y;
  uint8_t a_turned, b_turned, accumulate;
  uint8_t dtype, y_dtype; /* of a and b; of y */
  uint8_t epilogue;       /* enum weft_cuda_epilogue */
  void *aux; /* input of gelu, in the type of y: written by GELU unless NULL, read by GELU_SLOPE */
  const float *scale;     /* device pointer: alpha, the factor of a b, followed by beta (0 or 1),
                           * the factor of the old y; NULL: 1 and `accumulate` */

  /* fp8 factors, whose terms must be contiguous (a not transposed, b transposed); otherwise
   * NULL. */
  const void *a_scale, *b_scale; /* device pointers, in the layout of fp8_scales.h */
  uint8_t b_dtype;               /* fp8 format of b, which may differ from that of a */
  uint8_t block;                 /* elements per scale; 0: one scale per tensor */
  uint8_t square;                /* the scales of b are per square */
  uint8_t fast;                  /* allow accumulation with reduced precision */
};

/* NULL, or an error as static text. */
const char *
weft_cuda_multiply (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *gemm);

/* Applies the epilogue of a product that ran without it: gelu reads aux, or y if aux is NULL; the
 * slope is applied to y. */
const char *weft_cuda_follow (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *gemm);

/* Fills every row of y with the bias, for a product that accumulates. */
const char *
weft_cuda_put_bias (const struct weft_cuda_launch *on, const struct weft_cuda_gemm *gemm);

/* Converts a bias of another type than the product, in memory taken from the end of the scratch. */
const char *
weft_cuda_convert_bias (struct weft_cuda_launch *l, const struct weft_cuda_operand *from,
                        const struct weft_cuda_operand *y, const void **bias);

/* While on, launchers of this thread load their kernels without launching them. CUDA loads a kernel
 * at its first use, which may wait for all work on the GPU (CUDA programming guide, "Lazy
 * Loading"); if that work is a collective that waits for another GPU whose host is loading a kernel
 * too, both deadlock. Scratch may be written. */
void weft_cuda_load_only (int on);
int weft_cuda_loads_only (void);

/* Largest number of adam calls in one launch. */
#define WEFT_CUDA_MOST_TOGETHER 24
const char *weft_cuda_adam_together (const struct weft_cuda_launch *l, uint32_t n);

/* Stable sort: order[i] = the old index of the i-th smallest of n keys, keys[i] = that key. Both
 * arrays have n elements in scratch from `room` on; the sort needs weft_cuda_sort_bytes (n)
 * more. */
uint64_t weft_cuda_sort_bytes (uint64_t n);
const char *weft_cuda_sort (const struct weft_cuda_launch *on, const int32_t *keys, uint64_t n,
                            int32_t *sorted, int32_t *order, void *room);

/* Ops with a kernel and the names of their launchers: weft_cuda_NAME. */
#define WEFT_CUDA_LIST(X)                                                                          \
  X (EMBED, embed)                                                                                 \
  X (EMBED_BWD, embed_bwd)                                                                         \
  X (MATMUL, matmul)                                                                               \
  X (MATMUL_DGRAD, matmul_dgrad)                                                                   \
  X (MATMUL_WGRAD, matmul_wgrad)                                                                   \
  X (MATMUL_GELU, matmul_gelu)                                                                     \
  X (MATMUL_DGRAD_GELU, matmul_dgrad_gelu)                                                         \
  X (MATMUL_FP8, matmul_fp8)                                                                       \
  X (MATMUL_DGRAD_FP8, matmul_dgrad_fp8)                                                           \
  X (FP8_MATMUL, fp8_matmul)                                                                       \
  X (FP8_MATMUL_DGRAD, fp8_matmul_dgrad)                                                           \
  X (FP8_MATMUL_WGRAD, fp8_matmul_wgrad)                                                           \
  X (NORM, norm)                                                                                   \
  X (ADD_NORM, add_norm)                                                                           \
  X (NORM_BWD, norm_bwd)                                                                           \
  X (NORM_DGRAD, norm_dgrad)                                                                       \
  X (NORM_WGRAD, norm_wgrad)                                                                       \
  X (HEAD_NORM, head_norm)                                                                         \
  X (HEAD_NORM_BWD, head_norm_bwd)                                                                 \
  X (ROPE, rope)                                                                                   \
  X (ROPE_BWD, rope_bwd)                                                                           \
  X (ATTENTION, attention)                                                                         \
  X (ATTENTION_BWD, attention_bwd)                                                                 \
  X (ATTENTION_PART, attention_part)                                                               \
  X (ATTENTION_PART_BWD, attention_part_bwd)                                                       \
  X (SCORES, scores)                                                                               \
  X (SOFTMAX, softmax)                                                                             \
  X (CONTEXT, context)                                                                             \
  X (CONTEXT_BWD, context_bwd)                                                                     \
  X (SOFTMAX_BWD, softmax_bwd)                                                                     \
  X (SCORES_BWD, scores_bwd)                                                                       \
  X (GELU, gelu)                                                                                   \
  X (GELU_BWD, gelu_bwd)                                                                           \
  X (SWIGLU, swiglu)                                                                               \
  X (SWIGLU_BWD, swiglu_bwd)                                                                       \
  X (RELU2, relu2)                                                                                 \
  X (RELU2_BWD, relu2_bwd)                                                                         \
  X (ADD, add)                                                                                     \
  X (DROPOUT, dropout)                                                                             \
  X (DROPOUT_ADD, dropout_add)                                                                     \
  X (DROPOUT_BWD, dropout_bwd)                                                                     \
  X (XENT, xent)                                                                                   \
  X (XENT_BWD, xent_bwd)                                                                           \
  X (XENT_GRAD, xent_grad)                                                                         \
  X (SCALE_LOSS, scale_loss)                                                                       \
  X (GRAD_ADD, grad_add)                                                                           \
  X (ZERO, zero)                                                                                   \
  X (SCALE, scale)                                                                                 \
  X (CAST, cast)                                                                                   \
  X (AMAX, amax)                                                                                   \
  X (QUANTISE, quantise)                                                                           \
  X (AMAX_UPDATE, amax_update)                                                                     \
  X (QUANTISE_DELAYED, quantise_delayed)                                                           \
  X (QUANTISE_BLOCKS, quantise_blocks)                                                             \
  X (TRANSPOSE, transpose)                                                                         \
  X (BIAS, bias)                                                                                   \
  X (ADD_POSITIONS, add_positions)                                                                 \
  X (GRAD_NORM, grad_norm)                                                                         \
  X (BUCKET_NORM, bucket_norm)                                                                     \
  X (UNSCALE, unscale)                                                                             \
  X (CLIP, clip)                                                                                   \
  X (ADAM, adam)                                                                                   \
  X (HEAD_NORM_DGRAD, head_norm_dgrad)                                                             \
  X (HEAD_NORM_WGRAD, head_norm_wgrad)                                                             \
  X (ATTENTION_MERGE, attention_merge)                                                             \
  X (TAKE_KV, take_kv)                                                                             \
  X (PUT_KV, put_kv)                                                                               \
  X (SPLIT_SEQUENCE, split_sequence)                                                               \
  X (JOIN_SEQUENCE, join_sequence)                                                                 \
  X (SPLIT_HEADS, split_heads)                                                                     \
  X (JOIN_HEADS, join_heads)                                                                       \
  X (KEEP_PIECE, keep_piece)                                                                       \
  X (PACK, pack)                                                                                   \
  X (UNPACK, unpack)                                                                               \
  X (SUM_SLICES, sum_slices)                                                                       \
  X (MOE_ROUTE, moe_route)                                                                         \
  X (MOE_ROUTE_BWD, moe_route_bwd)                                                                 \
  X (MOE_TALLY, moe_tally)                                                                         \
  X (MOE_BALANCE, moe_balance)                                                                     \
  X (MOE_SORT, moe_sort)                                                                           \
  X (MOE_PERMUTE, moe_permute)                                                                     \
  X (MOE_UNPERMUTE, moe_unpermute)                                                                 \
  X (MOE_GROUP, moe_group)                                                                         \
  X (MOE_UNGROUP, moe_ungroup)                                                                     \
  X (MOE_TURN, moe_turn)                                                                           \
  X (MOE_MATMUL, moe_matmul)                                                                       \
  X (MOE_MATMUL_DGRAD, moe_matmul_dgrad)                                                           \
  X (MOE_MATMUL_WGRAD, moe_matmul_wgrad)                                                           \
  X (MOE_FP8_MATMUL, moe_fp8_matmul)                                                               \
  X (MOE_FP8_MATMUL_DGRAD, moe_fp8_matmul_dgrad)                                                   \
  X (MOE_FP8_MATMUL_WGRAD, moe_fp8_matmul_wgrad)                                                   \
  X (MOE_AMAX, moe_amax)                                                                           \
  X (MOE_QUANTISE, moe_quantise)                                                                   \
  X (MOE_QUANTISE_BLOCKS, moe_quantise_blocks)                                                     \
  X (MOE_ACT, moe_act)                                                                             \
  X (MOE_ACT_BWD, moe_act_bwd)                                                                     \
  X (MOE_WEIGH, moe_weigh)                                                                         \
  X (MOE_WEIGH_BWD, moe_weigh_bwd)                                                                 \
  X (GATE, gate)                                                                                   \
  X (GATE_BWD, gate_bwd)                                                                           \
  X (MOE_FOLD, moe_fold)                                                                           \
  X (MOE_SQUARES, moe_squares)                                                                     \
  X (SETTLE, settle)                                                                               \
  X (JOIN_COLUMNS, join_columns)                                                                   \
  X (TAKE_PART, take_part)                                                                         \
  X (TAKE_HEADS, take_heads)                                                                       \
  X (PUT_HEADS, put_heads)                                                                         \
  X (CONCAT, concat)                                                                               \
  X (CONCAT_BWD, concat_bwd)                                                                       \
  X (LATENT_SPLIT, latent_split)                                                                   \
  X (LATENT_SPLIT_BWD, latent_split_bwd)                                                           \
  X (LATENT_JOIN, latent_join)                                                                     \
  X (LATENT_JOIN_BWD, latent_join_bwd)                                                             \
  X (XENT_MAX, xent_max)                                                                           \
  X (XENT_PART, xent_part)                                                                         \
  X (XENT_END, xent_end)

#define WEFT_CUDA_DECLARE(id, name) const char *weft_cuda_##name (const struct weft_cuda_launch *l);
WEFT_CUDA_LIST (WEFT_CUDA_DECLARE)
#undef WEFT_CUDA_DECLARE

/* Bytes of scratch of individual kernels, used by weft_cuda_scratch() of table.h. */
uint64_t weft_cuda_scratch_norm (uint64_t rows, uint64_t columns);
uint64_t weft_cuda_scratch_embed (uint64_t tokens, uint64_t hidden);
uint64_t weft_cuda_scratch_xent (uint64_t rows);
uint64_t weft_cuda_scratch_squares (uint64_t n);
uint64_t weft_cuda_scratch_bias (uint64_t rows, uint64_t columns);
uint64_t weft_cuda_scratch_attention (uint64_t queries);
uint64_t weft_cuda_scratch_amax (uint64_t n);
uint64_t weft_cuda_scratch_fp8 (uint64_t weights, uint32_t dtype);
/* rows of both factors, terms, elements per scale. */
uint64_t weft_cuda_scratch_fp8_matmul (const uint64_t rows[2], uint64_t terms, uint64_t block);
uint64_t weft_cuda_scratch_moe_sort (uint64_t choices);
uint64_t weft_cuda_scratch_moe_permute (uint64_t rows);
uint64_t weft_cuda_scratch_moe_group (uint64_t experts, uint64_t sources);
uint64_t weft_cuda_scratch_moe_matmul (uint64_t experts);
/* dim: rows, columns, groups of rows. */
uint64_t weft_cuda_scratch_moe_amax (const uint64_t *dim);

#ifdef __cplusplus
}
#endif
