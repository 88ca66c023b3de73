/* op.h - the ops of core/ops.def as a table, and the lanes (queues, like CUDA streams) on which ops
 * run.
 *
 * A multiply and an add count as two FLOPs. Attention is causal, so its FLOPs count half of the
 * full square (the convention of Megatron-LM since 2024). The backward of attention counts twice
 * the forward, as in the 6 N rule, although kernels that recompute the scores execute two and a
 * half times as many FLOPs. The bytes of a kernel are the compulsory memory traffic: every operand
 * is read or written once. */
#pragma once
#include "core/program/mesh.h"
#include "core/base/words.h"

/* Lanes (queues of a rank, like CUDA streams). A row contains an identifier, a word and a doc,
 * followed by traits: fields of struct weft_lane_traits. */
#define WEFT_LANE_LIST(X)                                                                          \
  X (WEFT_LANE_GPU, "gpu", "kernels", .in_layer = TRUE)                                            \
  X (WEFT_LANE_TP, "tp", "tensor parallel collectives", .communicates = TRUE, .in_layer = TRUE)    \
  X (WEFT_LANE_CP, "cp", "context parallel exchange", .communicates = TRUE, .in_layer = TRUE)      \
  X (WEFT_LANE_EP, "ep", "expert dispatch and combine", .communicates = TRUE, .in_layer = TRUE)    \
  X (WEFT_LANE_DP, "dp", "gradient and parameter collectives", .communicates = TRUE)               \
  X (WEFT_LANE_DP_OUTER, "dp_outer", "gradient and parameter collectives between sharding groups", \
     .communicates = TRUE)                                                                         \
  X (WEFT_LANE_PP, "pp", "activations and gradients between stages", .communicates = TRUE)         \
  X (WEFT_LANE_PP_BACK, "pp_back", "second stream, if transfers are separate launches",            \
     .communicates = TRUE)                                                                         \
  X (WEFT_LANE_WORLD, "world", "reductions of scalars over all ranks", .communicates = TRUE)       \
  X (WEFT_LANE_H2D, "h2d", "copies from the host", .copies = TRUE)                                 \
  X (WEFT_LANE_D2H, "d2h", "copies to the host", .copies = TRUE)                                   \
  X (WEFT_LANE_HOST, "host", "kernels of the CPU, on buffers of the host pool")
enum weft_lane { WEFT_LANE_LIST (WEFT_WORD_ID) WEFT_N_LANE };
extern const char *const weft_lane_words[];

struct weft_lane_traits {
  gboolean communicates; /* between ranks */
  gboolean copies;       /* the lane copies between host and device */
  gboolean in_layer;     /* ops of the lane can belong to the forward or backward pass of a layer */
};
extern const struct weft_lane_traits weft_lane_traits[WEFT_N_LANE];

/* Class of an op, by the resource that the op occupies. */
enum weft_op_class {
  WEFT_CLASS_COMPUTE,    /* a kernel */
  WEFT_CLASS_COLLECTIVE, /* a collective, in which all members of a group communicate */
  WEFT_CLASS_P2P,        /* a send or a receive, between a rank and one peer */
  WEFT_CLASS_COPY,       /* host link */
};

enum weft_op_kind {
#define OP(id, ...) id,
#include "core/ops.def"
  WEFT_N_OP
};

/* Places of dropout in a model. A dropout op stores its place as `site`; random numbers of
 * different places are independent. */
enum weft_drop_site {
  WEFT_DROP_EMBEDDING,
  WEFT_DROP_PROBABILITIES,
  WEFT_DROP_ATTENTION,
  WEFT_DROP_MLP,
};

/* Which heads the ops take_heads and put_heads copy when tensor parallel ranks share a query group.
 * OWN: the queries of this rank, with keys and values. OF_GROUP: the queries of all ranks that
 * share the query group, with keys and values. QUERIES: the queries of all these ranks, without
 * keys and values. */
enum weft_heads_taken { WEFT_HEADS_OWN, WEFT_HEADS_OF_GROUP, WEFT_HEADS_QUERIES };

/* The rows of a parameter that ops of Muon cover: the whole matrix, or one of [q | k | v]
 * (muon_split_qkv). Their dimension `block`. */
enum weft_muon_block { WEFT_MUON_WHOLE, WEFT_MUON_QUERIES, WEFT_MUON_KEYS, WEFT_MUON_VALUES };

/* Number of rows of such a block in a part of a parameter with `rows` rows. tail: as in struct
 * weft_param (program.h). */
static inline uint64_t
weft_muon_rows (uint64_t rows, uint64_t tail, uint32_t block)
{
  return block == WEFT_MUON_WHOLE ? rows : block == WEFT_MUON_QUERIES ? rows - 2 * tail : tail;
}

/* The shape of an op. core/ops.def defines the order of the dimensions; unused dimensions are 0.
 * Ops with equal shapes share one row of the program, which has a few dozen rows. */
struct weft_shape {
  uint64_t dim[8];
  uint8_t dtype;     /* dtype of the operands */
  uint8_t out_dtype; /* dtype of the result or of the accumulator, if different from dtype */
  uint8_t pad[6];
};

/* Kinds of matrix products of shape (m, n, k). The dimension summed over is k in forward, n in
 * dgrad and m in wgrad. */
enum weft_product {
  WEFT_NO_PRODUCT,
  WEFT_PRODUCT_FORWARD,
  WEFT_PRODUCT_DGRAD,
  WEFT_PRODUCT_WGRAD,
};

/* Classes of kernels. For each class a software stack states which fraction of the memory bandwidth
 * its kernels reach. */
enum weft_kernel_class {
  WEFT_KERNEL_POINTWISE, /* elementwise kernels, and copies inside GPU memory */
  WEFT_KERNEL_NORM,      /* norms, and the gradients of norm weights */
  WEFT_KERNEL_MATMUL,    /* matrix products */
  WEFT_KERNEL_ATTENTION, /* fused attention, which does not store the attention scores */
  WEFT_KERNEL_SOFTMAX,   /* softmax of attention scores, and softmax of logits in the loss */
  WEFT_KERNEL_QUANTISE,  /* conversion to fp8, and the search for the largest magnitude (amax) */
  WEFT_KERNEL_OPTIMIZER, /* kernels of the optimizer update and of the gradient norm */
  WEFT_KERNEL_DISPATCH,  /* routing of tokens to experts, and permutation of token rows */
  WEFT_N_KERNEL,
};

/* Which ops of a kind an evaluation step skips. An evaluation step runs the forward pass and the
 * all-gathers of weights. */
enum weft_skipped {
  WEFT_SKIPPED_BACKWARD,      /* skips the ops of all phases except forward and optimizer */
  WEFT_SKIPPED_AFTER_FORWARD, /* skips the ops of all phases except forward */
  /* skips the ops of all phases except forward, but an op whose operand 0 is optimizer state still
   * runs: it writes weights that an all-gather then reads */
  WEFT_SKIPPED_BUT_MASTERS,
  WEFT_SKIPPED_ON_GRADIENTS, /* skips ops whose operand 0 is a gradient buffer */
  /* skips all ops of the kind, because they belong to the optimizer update */
  WEFT_SKIPPED,
};

/* The expressions of a cost as core/costs.def has them: "(m, n, k)", "2 * m * n * k". */
struct weft_op_formula {
  const char *dims, *flops, *bytes;
  const char *doc; /* what the expressions count */
};

struct weft_op_info {
  const char *word;
  enum weft_op_class class;
  const char *dims, *operands, *doc;
  double (*flops) (const struct weft_shape *shape);
  /* bytes of memory traffic for a kernel; bytes of payload for communication */
  double (*bytes) (const struct weft_shape *shape);
  const struct weft_op_formula *formula; /* as text, which core/program/formula.h prints */
  enum weft_product product;
  /* for a weight gradient product: number of the operand for the bias gradient, which a second
   * kernel computes; 0: no bias gradient */
  uint8_t bias_gradient;
  /* class of an op that is not a matrix product; weft_op_kernel() returns the class of any op */
  enum weft_kernel_class kernel;
  gboolean experts;   /* TRUE: grouped GEMM, whose dimension 3 is the number of experts */
  gboolean pointwise; /* TRUE: a compiler may fuse the op with neighbouring ops (enable_compile) */
  /* TRUE: the op occurs in every training step with sharded optimizer state, so the planner's lower
   * bound of the step time counts the op */
  gboolean in_bound;
  gboolean serial; /* TRUE: the CPU kernel of the op does not divide its work among threads */
  /* TRUE: the op needs the rank's index in its ring attention group (cp_ring) instead of its index
   * among all context parallel ranks */
  gboolean in_ring;
  /* bit i: operand i has one element for each element of a flat buffer. An op of this kind that
   * spans several parameters becomes one kernel call for each parameter */
  uint8_t bulk;
  enum weft_skipped skipped;
  gboolean enters_device; /* TRUE: a copy from host memory to the device */
  /* TRUE: a copy between the device and host memory that the host itself writes or reads (mailbox),
   * without a buffer of the host pool */
  gboolean mailbox;
  /* for a collective whose members have unequal shares: the collective with equal shares; 0 for
   * other ops */
  enum weft_op_kind equal_shares;
};
extern const struct weft_op_info weft_op_info[WEFT_N_OP];

/* Whether an op is a single matrix product. FALSE for a grouped GEMM, which has a product for each
 * expert. */
static inline int
weft_op_is_product (enum weft_op_kind kind)
{
  return weft_op_info[kind].product != WEFT_NO_PRODUCT && !weft_op_info[kind].experts;
}

/* The kernel class of an op, by which its memory bandwidth is priced. */
static inline enum weft_kernel_class
weft_op_kernel (enum weft_op_kind kind)
{
  return weft_op_info[kind].product != WEFT_NO_PRODUCT ? WEFT_KERNEL_MATMUL
                                                       : weft_op_info[kind].kernel;
}

/* Whether every member sends a share to every other member (all-to-all). */
static inline int
weft_op_swaps (enum weft_op_kind kind)
{
  return kind == WEFT_OP_ALL_TO_ALL ||
         weft_op_info[kind].equal_shares == WEFT_OP_ALL_TO_ALL;
}

/* Whether the members of a collective may send different numbers of rows. The device then reads
 * these numbers from a table in GPU memory. */
static inline int
weft_op_is_counted (enum weft_op_kind kind)
{
  return weft_op_info[kind].equal_shares != 0;
}

/* For a collective whose members have unequal shares: the collective with equal shares. For any
 * other op: the op itself. */
static inline enum weft_op_kind
weft_op_even (enum weft_op_kind kind)
{
  return weft_op_is_counted (kind) ? weft_op_info[kind].equal_shares : kind;
}

static inline int
weft_op_is_comm (enum weft_op_kind kind)
{
  return weft_op_info[kind].class == WEFT_CLASS_COLLECTIVE ||
         weft_op_info[kind].class == WEFT_CLASS_P2P;
}

/* Whether an op copies from the host to the device. */
static inline int
weft_op_enters_device (enum weft_op_kind kind)
{
  return weft_op_info[kind].enters_device;
}

/* Whether the op is a copy between the device and a buffer of the host pool. FALSE for a copy
 * between the device and host memory outside the plan (mailbox). */
static inline int
weft_op_is_pooled_copy (enum weft_op_kind kind)
{
  return weft_op_info[kind].class == WEFT_CLASS_COPY && !weft_op_info[kind].mailbox;
}

/* Ops of the forward and backward pass of an activation function, and the word for the activation
 * in programs. The rows come from WEFT_ACTIVATION_LIST. */
struct weft_activation_ops {
  enum weft_op_kind forward, backward;
  const char *name;
};
extern const struct weft_activation_ops weft_activation_ops[];

#define WEFT_REDUCE_LIST(X)                                                                        \
  X (WEFT_REDUCE_SUM, "sum", "plain sum")                                                          \
  X (WEFT_REDUCE_AVG, "avg", "sum divided by the size of the group")                               \
  X (WEFT_REDUCE_PREMUL, "premul_sum", "sum of values divided by the divisor before the sum")      \
  X (WEFT_REDUCE_MIN, "min", "smallest")                                                           \
  X (WEFT_REDUCE_MAX, "max", "largest")
enum weft_reduce { WEFT_REDUCE_LIST (WEFT_WORD_ID) };
extern const char *const weft_reduce_words[];

extern const char *const weft_op_words[]; /* NULL-terminated */
enum weft_lane weft_group_lane (enum weft_group_kind kind);
