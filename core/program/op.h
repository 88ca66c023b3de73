/* op.h - the ops of core/ops.def as a table, and the lanes they run on.
 *
 * FLOPs count a multiply and an add as two. Attention is causal: half of the full square (the
 * convention of Megatron-LM since 2024). Its backward counts twice the forward, as in the 6 N rule,
 * though kernels that recompute the scores execute two and a half times as much. Byte counts are
 * the compulsory traffic: every operand once. */
#pragma once
#include "core/program/mesh.h"
#include "core/base/words.h"

/* After the doc a row can name traits: fields of struct weft_lane_traits. */
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
  gboolean copies;       /* over the host link */
  gboolean in_layer;     /* ops of the lane can be part of a layer's forward or backward pass */
};
extern const struct weft_lane_traits weft_lane_traits[WEFT_N_LANE];

/* The class of an op: the resource that it needs. */
enum weft_op_class {
  WEFT_CLASS_COMPUTE,    /* a kernel */
  WEFT_CLASS_COLLECTIVE, /* all members of a group take part */
  WEFT_CLASS_P2P,        /* send or recv: one peer */
  WEFT_CLASS_COPY,       /* host link */
};

enum weft_op_kind {
#define OP(id, ...) id,
#include "core/ops.def"
  WEFT_N_OP
};

/* Sites of dropout, the `site` of its ops: their random numbers are independent. */
enum weft_drop_site {
  WEFT_DROP_EMBEDDING,
  WEFT_DROP_PROBABILITIES,
  WEFT_DROP_ATTENTION,
  WEFT_DROP_MLP,
};

/* The heads that take_heads and put_heads copy if tensor parallel ranks share a query group. OWN:
 * this rank's queries, with keys and values. OF_GROUP: the queries of all ranks that share the
 * group, with keys and values. QUERIES: only the queries of these ranks. */
enum weft_heads_taken { WEFT_HEADS_OWN, WEFT_HEADS_OF_GROUP, WEFT_HEADS_QUERIES };

/* The shape of an op. core/ops.def defines the order of its dimensions; unused ones are 0. Shapes
 * are interned: a program has a few dozen. */
struct weft_shape {
  uint64_t dim[8];
  uint8_t dtype;     /* type of the operands */
  uint8_t out_dtype; /* type of the result or accumulator, if different */
  uint8_t pad[6];
};

/* Kinds of matrix products of shape (m, n, k). The inner dimension is k in forward, n in dgrad and
 * m in wgrad. */
enum weft_product {
  WEFT_NO_PRODUCT,
  WEFT_PRODUCT_FORWARD,
  WEFT_PRODUCT_DGRAD,
  WEFT_PRODUCT_WGRAD,
};

/* Classes of kernels, by which a software stack states what they reach of the memory bandwidth. */
enum weft_kernel_class {
  WEFT_KERNEL_POINTWISE, /* elementwise ops and copies */
  WEFT_KERNEL_NORM,      /* norms, and the gradients of their weights */
  WEFT_KERNEL_MATMUL,    /* matrix products */
  WEFT_KERNEL_ATTENTION, /* attention that does not store its scores */
  WEFT_KERNEL_SOFTMAX,   /* softmax of scores, and of logits with the loss */
  WEFT_KERNEL_QUANTISE,  /* conversion to fp8, and the search for the largest magnitude */
  WEFT_KERNEL_OPTIMIZER, /* the update, and the gradient norm */
  WEFT_KERNEL_DISPATCH,  /* routing of tokens to experts, and the order of their rows */
  WEFT_N_KERNEL,
};

/* Which ops of a kind an evaluation skips. An evaluation runs the forward pass and the all-gathers
 * of weights. */
enum weft_skipped {
  WEFT_SKIPPED_BACKWARD,      /* ops of all phases except forward and optimizer */
  WEFT_SKIPPED_AFTER_FORWARD, /* ops of all phases except forward */
  WEFT_SKIPPED_BUT_MASTERS,   /* as WEFT_SKIPPED_AFTER_FORWARD, but an op whose operand 0 is
                               * optimizer state runs: it writes weights that are then gathered */
  WEFT_SKIPPED_ON_GRADIENTS,  /* ops whose operand 0 is a gradient buffer */
  WEFT_SKIPPED,               /* all ops of the kind: they belong to the update */
};

struct weft_op_info {
  const char *word;
  enum weft_op_class class;
  const char *dims, *operands, *doc;
  double (*flops) (const struct weft_shape *shape);
  double (*bytes) (const struct weft_shape *shape); /* memory traffic; payload of communication */
  enum weft_product product;
  uint8_t bias_gradient; /* of a product: the operand for the gradient of a bias, which a second
                          * kernel computes; 0: none */
  enum weft_kernel_class kernel; /* of ops other than products: use weft_op_kernel() */
  gboolean experts;   /* grouped GEMM: dimension 3 is the number of experts */
  gboolean pointwise; /* a compiler may fuse it with its neighbours (enable_compile) */
  gboolean in_bound;  /* occurs in every step with any data-parallel sharding: counted by the
                       * planner's lower bounds */
  gboolean serial;    /* the CPU kernel of the op is not divided among threads */
  gboolean in_ring;   /* the op uses the rank's index in its ring (cp_ring) instead of its index
                       * among all context parallel ranks */
  uint8_t bulk;       /* bits: operands with one element for each element of a flat buffer; an op
                       * that spans several parameters becomes one kernel call for each of them */
  enum weft_skipped skipped;
  gboolean enters_device; /* a copy from the host */
  gboolean mailbox;       /* a copy that the host writes or reads itself, without a buffer of the
                           * host pool */
  enum weft_op_kind equal_shares; /* for a collective with unequal shares: the op with equal
                                   * shares */
};
extern const struct weft_op_info weft_op_info[WEFT_N_OP];

/* Whether an op is one matrix product: not a product for each expert. */
static inline int
weft_op_is_product (enum weft_op_kind kind)
{
  return weft_op_info[kind].product != WEFT_NO_PRODUCT && !weft_op_info[kind].experts;
}

/* The class of a kernel. */
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

/* Whether the members of a collective may have different numbers of rows. A table of row counts on
 * the device contains these numbers. */
static inline int
weft_op_is_counted (enum weft_op_kind kind)
{
  return weft_op_info[kind].equal_shares != 0;
}

/* For an op with unequal shares, the op with equal ones; otherwise the op itself. */
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

/* Whether a host copy has a buffer of the host pool on its other side. */
static inline int
weft_op_is_pooled_copy (enum weft_op_kind kind)
{
  return weft_op_info[kind].class == WEFT_CLASS_COPY && !weft_op_info[kind].mailbox;
}

/* Forward and backward op of an activation, and their name in programs; from the rows of
 * WEFT_ACTIVATION_LIST. */
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
