/* op.h - the ops of core/ops.def as a table, and the lanes they run on.
 *
 * FLOPs count a multiply and an add as two.  Attention is causal: half of the full square (the
 * convention of Megatron-LM since 2024); its backward counts twice the forward, as in the 6 N rule,
 * though kernels that rebuild the scores execute two and a half times as much.  Byte counts are the
 * compulsory traffic: every operand once. */
#pragma once
#include "core/program/mesh.h"
#include "core/base/words.h"

#define WEFT_LANE_LIST(X)                                                                          \
  X (WEFT_LANE_GPU, "gpu", "kernels")                                                              \
  X (WEFT_LANE_TP, "tp", "tensor parallel collectives")                                            \
  X (WEFT_LANE_CP, "cp", "context parallel exchange")                                              \
  X (WEFT_LANE_EP, "ep", "expert dispatch and combine")                                            \
  X (WEFT_LANE_DP, "dp", "gradient and parameter collectives")                                     \
  X (WEFT_LANE_DP_OUTER, "dp_outer", "the same between groups that hold what is sharded")          \
  X (WEFT_LANE_PP, "pp", "activations and gradients between stages")                               \
  X (WEFT_LANE_PP_BACK, "pp_back", "the other way, where transfers are posted one by one")         \
  X (WEFT_LANE_WORLD, "world", "scalars that all ranks agree on")                                  \
  X (WEFT_LANE_H2D, "h2d", "copies from the host")                                                 \
  X (WEFT_LANE_D2H, "d2h", "copies to the host")                                                   \
  X (WEFT_LANE_HOST, "host", "kernels of the CPU, on buffers of the host pool")
enum weft_lane { WEFT_LANE_LIST (WEFT_WORD_ID) WEFT_N_LANE };
extern const char *const weft_lane_words[];

/* What kind of machine an op needs. */
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

/* Where dropout takes elements: the `site` of its ops, whose draws are independent. */
enum weft_drop_site {
  WEFT_DROP_EMBEDDING,
  WEFT_DROP_PROBABILITIES,
  WEFT_DROP_ATTENTION,
  WEFT_DROP_MLP,
};

/* What take_heads and put_heads have of a group that ranks share: this rank's queries with keys and values,
 * those of all these ranks, or no more than their queries, whose parts have nothing else. */
enum weft_heads_taken { WEFT_HEADS_OWN, WEFT_HEADS_OF_GROUP, WEFT_HEADS_QUERIES };

/* Interned: a program holds a few dozen.  Dimensions are in the op's own order, unused ones 0. */
struct weft_shape {
  uint64_t dim[8];
  uint8_t dtype;     /* of the operands */
  uint8_t out_dtype; /* of what is accumulated or written, where it differs */
  uint8_t pad[6];
};

/* Products of matrices, by the inner dimension of (m, n, k): k, n or m. */
enum weft_product {
  WEFT_NO_PRODUCT,
  WEFT_PRODUCT_FORWARD,
  WEFT_PRODUCT_DGRAD,
  WEFT_PRODUCT_WGRAD,
};

struct weft_op_info {
  const char *word;
  enum weft_op_class class;
  const char *dims, *operands, *doc;
  double (*flops) (const struct weft_shape *shape);
  double (*bytes) (const struct weft_shape *shape); /* memory traffic; payload for communication */
  enum weft_product product;
  gboolean experts;   /* a product for each expert: dimension 3 says how many */
  gboolean pointwise; /* a compiler may fuse it with its neighbours (enable_compile) */
  gboolean in_bound;  /* every step has it, however replicas keep weights and gradients: the
                         planner's lower bounds count it */
  gboolean serial;    /* its CPU kernel is not shared out among threads */
  enum weft_op_kind equal_shares; /* of a collective whose members have shares of unlike size: the
                                     same with equal ones */
};
extern const struct weft_op_info weft_op_info[WEFT_N_OP];

/* Whether every member has a share for every other member. */
static inline int
weft_op_swaps (enum weft_op_kind kind)
{
  return kind == WEFT_OP_ALL_TO_ALL || kind == WEFT_OP_ALL_TO_ALL_V;
}

/* Whether the shares of members are of unlike size, as counts say. */
static inline int
weft_op_is_counted (enum weft_op_kind kind)
{
  return weft_op_info[kind].equal_shares != 0;
}

/* Of an op whose shares are unlike, the op with equal ones; of others themselves. */
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

/* Which way a copy goes over the host link. */
static inline int
weft_op_enters_device (enum weft_op_kind kind)
{
  return kind == WEFT_OP_COPY_IN || kind == WEFT_OP_FROM_HOST;
}

#define WEFT_REDUCE_LIST(X)                                                                        \
  X (WEFT_REDUCE_SUM, "sum", "plain sum")                                                          \
  X (WEFT_REDUCE_AVG, "avg", "sum divided by the size of the group")                               \
  X (WEFT_REDUCE_PREMUL, "premul_sum", "sum of what each has divided by the shape's divisor")      \
  X (WEFT_REDUCE_MIN, "min", "smallest")                                                           \
  X (WEFT_REDUCE_MAX, "max", "largest")
enum weft_reduce { WEFT_REDUCE_LIST (WEFT_WORD_ID) };
extern const char *const weft_reduce_words[];

extern const char *const weft_op_words[]; /* NULL-terminated */
enum weft_lane weft_group_lane (enum weft_group_kind kind);
