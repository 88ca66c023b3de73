#include "core/program/op.h"

const char *const weft_lane_words[] = { WEFT_LANE_LIST (WEFT_WORD_TEXT) NULL };
#define LANE_TRAITS(id, text, doc, ...) [id] = { __VA_ARGS__ },
const struct weft_lane_traits weft_lane_traits[WEFT_N_LANE] = { WEFT_LANE_LIST (LANE_TRAITS) };
const char *const weft_reduce_words[] = { WEFT_REDUCE_LIST (WEFT_WORD_TEXT) NULL };

static double
elements (const struct weft_shape *s)
{
  return (double) s->dim[0] * (s->dim[1] ? (double) s->dim[1] : 1.0);
}

static double
none_flops (const struct weft_shape *s)
{
  (void) s;
  return 0;
}

#define nothing_flops none_flops
#define nothing_bytes none_flops

static double
none_bytes (const struct weft_shape *s)
{
  return (double) s->dim[0] * weft_dtype_bytes (s->dtype);
}

/* Bytes of pointwise and row kernels: n sweeps over (rows, columns). A sweep reads or writes each
 * element once. Memory bandwidth limits these kernels, so their FLOPs count as 0. */
#define SWEEP(n)                                                                                   \
  static double sweep##n##_bytes (const struct weft_shape *s)                                      \
  {                                                                                                \
    return n * elements (s) * weft_dtype_bytes (s->dtype);                                         \
  }
SWEEP (1)
SWEEP (2)
SWEEP (3)
SWEEP (4)
SWEEP (5)
#undef SWEEP
#define sweep1_flops none_flops
#define sweep2_flops none_flops
#define sweep3_flops none_flops
#define sweep4_flops none_flops
#define sweep5_flops none_flops

#define keep_flops none_flops
#define keep_bytes none_bytes
#define cast_flops none_flops

static double
cast_bytes (const struct weft_shape *s)
{
  return elements (s) * (weft_dtype_bytes (s->dtype) + weft_dtype_bytes (s->out_dtype));
}

#define repack_flops none_flops

static double
repack_bytes (const struct weft_shape *s)
{
  return (double) s->dim[0] * s->dim[1] *
         (weft_dtype_bytes (s->dtype) + weft_dtype_bytes (s->out_dtype));
}

#define join_flops none_flops
#define take_flops none_flops

/* Bytes of join_columns: every element is read once and written once. dim[3] = 0: the op does
 * nothing. */
static double
join_bytes (const struct weft_shape *s)
{
  return s->dim[3] ? 2 * elements (s) * (double) s->dim[2] * weft_dtype_bytes (s->dtype) : 0;
}

static double
take_bytes (const struct weft_shape *s)
{
  return 2 * elements (s) / (double) (s->dim[2] * s->dim[3]) * weft_dtype_bytes (s->dtype);
}

#define embed_flops none_flops
#define embed_bytes sweep2_bytes
#define embed_bwd_flops none_flops

static double
embed_bwd_bytes (const struct weft_shape *s)
{
  return elements (s) * (weft_dtype_bytes (s->dtype) + 2.0 * weft_dtype_bytes (s->out_dtype));
}

static double
matmul_flops (const struct weft_shape *s)
{
  return 2.0 * s->dim[0] * s->dim[1] * s->dim[2];
}

static double
matmul_bytes (const struct weft_shape *s)
{
  double m = s->dim[0], n = s->dim[1], k = s->dim[2];
  return (m * k + n * k + m * n) * weft_dtype_bytes (s->dtype);
}

#define matmul_gelu_flops matmul_flops
#define matmul_dgrad_gelu_flops matmul_flops

static double
matmul_gelu_bytes (const struct weft_shape *s)
{
  double pre = s->dim[5] ? (double) s->dim[0] * s->dim[1] : 0;
  return matmul_bytes (s) + pre * weft_dtype_bytes (s->dtype);
}

static double
matmul_dgrad_gelu_bytes (const struct weft_shape *s)
{
  return matmul_bytes (s) + (double) s->dim[0] * s->dim[2] * weft_dtype_bytes (s->dtype);
}

#define matmul_swiglu_flops matmul_flops

/* Bytes of both kernels, of which a fused one moves fewer. */
static double
matmul_swiglu_bytes (const struct weft_shape *s)
{
  return matmul_bytes (s) + 1.5 * (double) s->dim[0] * s->dim[1] * weft_dtype_bytes (s->dtype);
}

#define matmul_fp8_flops matmul_flops

static double
matmul_fp8_bytes (const struct weft_shape *s)
{
  double m = s->dim[0], n = s->dim[1], k = s->dim[2];
  return (m * k + m * n) * weft_dtype_bytes (s->dtype) + n * k;
}

/* Bytes of fp8 codes with their block scales. Block scales add a 32nd of the codes: a byte per 32
 * elements, or four bytes per 128 elements. Scales of square blocks and of whole tensors are
 * negligible. */
static double
fp8_bytes (double elements, double block)
{
  return elements * (block > 0 ? 1 + 1 / 32.0 : 1);
}

#define fp8_matmul_flops matmul_flops

static double
fp8_matmul_bytes (const struct weft_shape *s)
{
  double m = s->dim[0], n = s->dim[1], k = s->dim[2];
  return fp8_bytes (m * k + n * k, s->dim[5]) + m * n * weft_dtype_bytes (s->out_dtype);
}

#define fp8_wgrad_flops matmul_flops

static double
fp8_wgrad_bytes (const struct weft_shape *s)
{
  double m = s->dim[0], n = s->dim[1], k = s->dim[2];
  return fp8_bytes (m * k + m * n, s->dim[4]) + 2 * n * k * weft_dtype_bytes (s->out_dtype);
}

#define quantise_blocks_flops none_flops

static double
quantise_blocks_bytes (const struct weft_shape *s)
{
  return elements (s) * weft_dtype_bytes (s->dtype) +
         (double) s->dim[4] * fp8_bytes (elements (s), s->dim[2]);
}

#define wgrad_flops matmul_flops

/* Bytes of a weight gradient product: dw is read and written in the accumulator's type. */
static double
wgrad_bytes (const struct weft_shape *s)
{
  double m = s->dim[0], n = s->dim[1], k = s->dim[2];
  return (m * k + m * n) * weft_dtype_bytes (s->dtype) +
         2 * n * k * weft_dtype_bytes (s->out_dtype);
}

/* Mean number of keys that a query reads. Without a sliding window, causal attention reads half of
 * all keys. With one, a query reads the window, less the keys that the first queries of the
 * sequence lack (a mean over all queries). */
static double
seen_keys (double keys, double window)
{
  return window > 0 && window < keys ? window - window * window / (2 * keys) : keys / 2;
}

/* FLOPs of attention: two products of (sequence, sequence, width) per head. The causal mask or the
 * window removes at least half of each. */
static double
attention_flops (const struct weft_shape *s)
{
  double batch = s->dim[0], sequence = s->dim[1], heads = s->dim[2];
  double width = s->dim[6] ? (s->dim[4] + s->dim[6]) / 2.0 : s->dim[4];
  return 4.0 * batch * heads * sequence * seen_keys (sequence, s->dim[5]) * width;
}

static double
attention_bytes (const struct weft_shape *s)
{
  double tokens = (double) s->dim[0] * s->dim[1], heads = s->dim[2], groups = s->dim[3];
  return tokens * s->dim[4] * (2 * heads + 2 * groups) * weft_dtype_bytes (s->dtype);
}

static double
attention_bwd_flops (const struct weft_shape *s)
{
  return 2 * attention_flops (s);
}

static double
attention_bwd_bytes (const struct weft_shape *s)
{
  return 2 * attention_bytes (s);
}

/* FLOPs of one product of (sequence, sequence, width) per head. The masked half counts, because a
 * batched matrix product does not skip it. Operands of the product: a score matrix per head, and
 * the rows of all heads. */
static double
scores_flops (const struct weft_shape *s)
{
  return 2.0 * s->dim[0] * s->dim[2] * s->dim[1] * s->dim[1] * s->dim[4];
}

static double
squares (const struct weft_shape *s)
{
  return (double) s->dim[0] * s->dim[2] * s->dim[1] * s->dim[1] * weft_dtype_bytes (s->dtype);
}

static double
scores_bytes (const struct weft_shape *s)
{
  double tokens = (double) s->dim[0] * s->dim[1], rows = s->dim[2] + s->dim[3];
  return squares (s) + tokens * rows * s->dim[4] * weft_dtype_bytes (s->dtype);
}

static double
scores_bwd_flops (const struct weft_shape *s)
{
  return 3 * scores_flops (s);
}

static double
scores_bwd_bytes (const struct weft_shape *s)
{
  return 2 * squares (s) + 3 * (scores_bytes (s) - squares (s));
}

#define square2_flops none_flops
#define square3_flops none_flops

static double
square2_bytes (const struct weft_shape *s)
{
  return 2 * squares (s);
}

static double
square3_bytes (const struct weft_shape *s)
{
  return 3 * squares (s);
}

/* Bytes of dropout: `passes` passes over (rows, columns), each of which reads or writes every
 * element once, and one mask byte per element. */
static double
dropped (const struct weft_shape *s, double passes)
{
  return (double) s->dim[0] * s->dim[2] * (passes * weft_dtype_bytes (s->dtype) + 1);
}

#define drop2_flops none_flops
#define drop3_flops none_flops

static double
drop2_bytes (const struct weft_shape *s)
{
  return dropped (s, 2);
}

static double
drop3_bytes (const struct weft_shape *s)
{
  return dropped (s, 3);
}

#define stats_flops none_flops

/* Bytes of cross entropy statistics: three floats per row from every vocabulary-parallel rank, and
 * one float written. */
static double
stats_bytes (const struct weft_shape *s)
{
  return (double) s->dim[0] * (3.0 * (double) s->dim[1] + 1) * 4;
}

/* Width of a value head: dimension number `value`. If that dimension is 0, values are as wide as
 * keys, and the width is dimension number `width`. */
static double
value_width (const struct weft_shape *s, unsigned width, unsigned value)
{
  return (double) (s->dim[value] ? s->dim[value] : s->dim[width]);
}

/* FLOPs of attention of one context parallel rank. Zigzag order balances the ranks: the queries of
 * any rank read on average half of the keys of the sequence, and half of the keys of any one rank
 * (core/base/zigzag.h). */
static double
attention_part_flops (const struct weft_shape *s)
{
  double tokens = s->dim[0], keys = s->dim[1], heads = s->dim[2];
  return 2.0 * tokens * seen_keys (keys, s->dim[5]) * heads *
         ((double) s->dim[4] + value_width (s, 4, 6));
}

/* Bytes of the queries, and of the keys and values of every sequence to which a query belongs. At
 * least one sequence counts. */
static double
attention_part_bytes (const struct weft_shape *s)
{
  double tokens = s->dim[0], keys = s->dim[1], heads = s->dim[2], groups = s->dim[3];
  double all_keys = tokens > keys ? tokens : keys;
  return (tokens * heads + all_keys * groups) * ((double) s->dim[4] + value_width (s, 4, 6)) *
         weft_dtype_bytes (s->dtype);
}

static double
attention_part_bwd_flops (const struct weft_shape *s)
{
  return 2 * attention_part_flops (s);
}

static double
attention_part_bwd_bytes (const struct weft_shape *s)
{
  return 2 * attention_part_bytes (s);
}

#define merge_flops none_flops

/* Bytes of merging two attention outputs: two outputs read, one written; three log-sum-exp values
 * per row and head. */
static double
merge_bytes (const struct weft_shape *s)
{
  return 3 * elements (s) * ((double) s->dim[2] * weft_dtype_bytes (s->dtype) + 4);
}

#define kv_flops none_flops

static double
kv_bytes (const struct weft_shape *s)
{
  return (double) s->dim[0] * s->dim[2] * ((double) s->dim[3] + value_width (s, 3, 4)) *
         (weft_dtype_bytes (s->dtype) + weft_dtype_bytes (s->out_dtype));
}

#define zigzag_flops none_flops

static double
zigzag_bytes (const struct weft_shape *s)
{
  return 2 * elements (s) * s->dim[2] * s->dim[3] * weft_dtype_bytes (s->dtype);
}

#define deal_flops none_flops

static double
deal_bytes (const struct weft_shape *s)
{
  double width = s->dim[4], heads = s->dim[2], groups = s->dim[3];
  return 2 * (double) s->dim[0] * (heads * width + groups * (width + value_width (s, 4, 5))) *
         weft_dtype_bytes (s->dtype);
}

#define heads_flops none_flops

/* Bytes of take_heads, which reads and writes queries, keys and values. With WEFT_HEADS_OWN,
 * take_heads copies the queries of one rank; otherwise the queries of all ranks that share a query
 * group. It also copies the keys and values of the query group, except with WEFT_HEADS_QUERIES. */
static double
heads_bytes (const struct weft_shape *s)
{
  double ranks = s->dim[5] == WEFT_HEADS_OWN ? (double) s->dim[1] : (double) s->dim[3];
  double columns = (double) s->dim[2] / ranks + (s->dim[5] == WEFT_HEADS_QUERIES ? 0 : 2);

  return 2 * (double) s->dim[0] * columns * (double) s->dim[4] * weft_dtype_bytes (s->dtype);
}

#define put_heads_flops none_flops

/* Bytes of put_heads, which reads and writes columns of heads. With WEFT_HEADS_OWN, put_heads
 * copies the columns of all ranks; otherwise the columns of one rank. */
static double
put_heads_bytes (const struct weft_shape *s)
{
  double ranks = s->dim[5] == WEFT_HEADS_OWN ? 1 : (double) s->dim[1];
  double heads = (double) s->dim[2] + 2 * (double) s->dim[3];

  return 2 * (double) s->dim[0] * heads / ranks * (double) s->dim[4] * weft_dtype_bytes (s->dtype);
}

#define latent_split_flops none_flops

static double
latent_split_bytes (const struct weft_shape *s)
{
  return 2.0 * s->dim[0] * (s->dim[1] + s->dim[2]) * weft_dtype_bytes (s->dtype);
}

#define latent_join_flops none_flops

/* Bytes of joining latent attention projections: every input is read once and every output written
 * once. The shared rotary part of the keys is written for every head. */
static double
latent_join_bytes (const struct weft_shape *s)
{
  double heads = s->dim[1], nope = s->dim[2], rope = s->dim[3], value = s->dim[4];
  return s->dim[0] * (heads * (4 * nope + 3 * rope + 2 * value) + rope) *
         weft_dtype_bytes (s->dtype);
}

/* Bytes of routing: logits in the type of the matrix products, and router scores in fp32. */
#define route_flops none_flops

static double
route_bytes (const struct weft_shape *s)
{
  return elements (s) * (weft_dtype_bytes (s->dtype) + 4.0);
}

/* Bytes of a sort by expert: four bytes for the choice and four for the row number, for each pair
 * of token and chosen expert. */
#define sort_flops none_flops

static double
sort_bytes (const struct weft_shape *s)
{
  return elements (s) * 8;
}

#define turn_flops none_flops

static double
turn_bytes (const struct weft_shape *s)
{
  return 16.0 * s->dim[0] * s->dim[1] * s->dim[2];
}

#define tally_flops none_flops

static double
tally_bytes (const struct weft_shape *s)
{
  return (double) s->dim[0] * s->dim[2] * 4 + 2.0 * s->dim[1] * 4;
}

#define permute_flops none_flops

static double
permute_bytes (const struct weft_shape *s)
{
  return ((double) s->dim[0] + s->dim[3]) * s->dim[1] * weft_dtype_bytes (s->dtype);
}

#define moe_matmul_flops matmul_flops

static double
moe_matmul_bytes (const struct weft_shape *s)
{
  double m = s->dim[0], n = s->dim[1], k = s->dim[2], experts = s->dim[3];
  return (m * k + experts * n * k + m * n) * weft_dtype_bytes (s->dtype);
}

#define moe_wgrad_flops matmul_flops

static double
moe_wgrad_bytes (const struct weft_shape *s)
{
  double m = s->dim[0], n = s->dim[1], k = s->dim[2], experts = s->dim[3];
  return (m * k + m * n) * weft_dtype_bytes (s->dtype) +
         2 * experts * n * k * weft_dtype_bytes (s->out_dtype);
}

#define moe_fp8_matmul_flops matmul_flops

static double
moe_fp8_matmul_bytes (const struct weft_shape *s)
{
  double m = s->dim[0], n = s->dim[1], k = s->dim[2], experts = s->dim[3];
  return fp8_bytes (m * k + experts * n * k, s->dim[7]) + m * n * weft_dtype_bytes (s->out_dtype);
}

#define moe_fp8_wgrad_flops matmul_flops

static double
moe_fp8_wgrad_bytes (const struct weft_shape *s)
{
  double m = s->dim[0], n = s->dim[1], k = s->dim[2], experts = s->dim[3];
  return fp8_bytes (m * k + m * n, s->dim[7]) +
         2 * experts * n * k * weft_dtype_bytes (s->out_dtype);
}

#define moe_quantise_blocks_flops none_flops

static double
moe_quantise_blocks_bytes (const struct weft_shape *s)
{
  return elements (s) * weft_dtype_bytes (s->dtype) +
         (double) s->dim[6] * fp8_bytes (elements (s), s->dim[4]);
}

#define moe_act_flops none_flops

static double
moe_act_bytes (const struct weft_shape *s)
{
  return elements (s) * (s->dim[4] + 1.0) * weft_dtype_bytes (s->dtype);
}

#define moe_act_bwd_flops none_flops

static double
moe_act_bwd_bytes (const struct weft_shape *s)
{
  return elements (s) * (2.0 * s->dim[4] + 1) * weft_dtype_bytes (s->dtype);
}

#define slices_flops none_flops

static double
slices_bytes (const struct weft_shape *s)
{
  return (double) s->dim[0] * ((double) s->dim[1] + 1) * weft_dtype_bytes (s->dtype);
}

#define adam_flops none_flops

/* Bytes of Adam. Master weights and both moments are fp32. The kernel reads them and the gradient,
 * and writes all but the gradient and also the 16-bit parameter. Without master weights, the kernel
 * reads and writes the parameter instead. */
static double
adam_bytes (const struct weft_shape *s)
{
  double parameter = s->dtype == WEFT_FP32 ? 0 : weft_dtype_bytes (s->dtype);
  double gradient = s->dim[3] ? s->dim[3] : 4;
  return s->dim[0] * (gradient + (s->dim[1] ? 4 * 4.0 + 2 * parameter : 6 * 4.0 + parameter));
}

const struct weft_op_info weft_op_info[WEFT_N_OP] = {
#define OP(id, name, kind, cost, dimensions, uses, what, ...)                                      \
  [id] = { .word = #name,                                                                          \
           .class = kind,                                                                          \
           .dims = dimensions,                                                                     \
           .operands = uses,                                                                       \
           .doc = what,                                                                            \
           .flops = cost##_flops,                                                                  \
           .bytes = cost##_bytes,                                                                  \
           __VA_ARGS__ },
#include "core/ops.def"
};

const char *const weft_op_words[] = {
#define OP(id, name, ...) #name,
#include "core/ops.def"
  NULL
};

#define ACTIVATION_OPS(id, text, doc, ups, forward, backward, name) { forward, backward, name },
const struct weft_activation_ops weft_activation_ops[] = { WEFT_ACTIVATION_LIST (ACTIVATION_OPS) };

enum weft_lane
weft_group_lane (enum weft_group_kind kind)
{
  static const uint8_t lanes[WEFT_N_GROUP] = {
#define WEFT_GROUP_ROW(id, word, lane, doc) [id] = lane,
    WEFT_GROUP_LIST (WEFT_GROUP_ROW)
#undef WEFT_GROUP_ROW
  };
  return lanes[kind];
}
