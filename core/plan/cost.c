#include "core/plan/cost.h"
#include "core/plan/gpu_kernels.h"
#include "core/plan/launches.h"
#include <math.h>

/* Which matrix product an op computes: forward, dgrad, wgrad or none. */
static enum weft_product
side_of (enum weft_op_kind kind)
{
  return weft_op_info[kind].product;
}

static gboolean
is_of_expert_codes (enum weft_op_kind kind)
{
  return kind == WEFT_OP_MOE_FP8_MATMUL || kind == WEFT_OP_MOE_FP8_MATMUL_DGRAD ||
         kind == WEFT_OP_MOE_FP8_MATMUL_WGRAD;
}

/* Index of the shape dimension that holds the number of experts, for ops whose kernel computes the
 * products of all experts of a rank; -1 for other ops. */
static int
many (enum weft_op_kind kind)
{
  return weft_op_info[kind].experts ? 3 : -1;
}

static gboolean
takes_codes (const struct weft_cost *cost, const struct weft_shape *s)
{
  const struct weft_stack_codes codes = { s->dim[1], s->dim[2], s->dim[7] };
  return weft_stack_takes_codes (cost->stack, cost->cluster->f.gpu_capability, &codes);
}

/* The type in which a kernel multiplies. If the stack's expert kernels do not support the fp8 codes
 * of a shape, they convert the codes to 16 bits. */
static enum weft_dtype
multiplied (const struct weft_cost *cost, enum weft_op_kind kind, const struct weft_shape *s)
{
  return is_of_expert_codes (kind) && !takes_codes (cost, s) ? WEFT_FP16 : s->dtype;
}

/* FLOP/s of a product at full efficiency. */
static double
rate_of (const struct weft_cost *cost, enum weft_op_kind kind, const struct weft_shape *s)
{
  const struct weft_cluster *c = cost->cluster;
  enum weft_dtype dtype = multiplied (cost, kind, s);
  double rate = weft_cluster_matmul_rate (c, dtype);

  if (dtype != WEFT_FP8 && dtype != WEFT_E5M2)
    return rate;
  return cost->fp8 == WEFT_FP8_PRICE_NVFP4     ? weft_cluster_nvfp4_rate (c)
         : cost->fp8 == WEFT_FP8_PRICE_ROWWISE ? rate * cost->stack->fp8_rowwise_share
                                               : rate;
}

/* The number of products of unfused attention: one for each head of each sequence, or three for
 * each in the backward of the scores. 0: other ops. */
static double
heads_of (enum weft_op_kind kind, const struct weft_shape *s)
{
  double heads = (double) s->dim[0] * s->dim[2];

  if (kind == WEFT_OP_SCORES || kind == WEFT_OP_WEIGHT_VALUES || kind == WEFT_OP_WEIGHT_VALUES_BWD)
    return heads;
  return kind == WEFT_OP_SCORES_BWD ? 3 * heads : 0;
}

static void
head_extent (enum weft_op_kind kind, const struct weft_shape *s, double *rows, double *columns,
             double *depth)
{
  gboolean square = kind == WEFT_OP_SCORES || kind == WEFT_OP_WEIGHT_VALUES_BWD;

  *rows = s->dim[1];
  *columns = square ? s->dim[1] : s->dim[4];
  *depth = square ? s->dim[4] : s->dim[1];
}

/* (rows, columns, depth) of the product of a matmul op. Tiles cover rows x columns. The rows of an
 * expert are the mean of all. */
static void
tiled_extent (enum weft_op_kind kind, const struct weft_shape *s, double *rows, double *columns,
              double *depth)
{
  double n = s->dim[1], k = s->dim[2];
  double m = many (kind) < 0 ? s->dim[0] : (double) s->dim[0] / s->dim[many (kind)];

  *rows = side_of (kind) == WEFT_PRODUCT_WGRAD ? n : m;
  *columns = side_of (kind) == WEFT_PRODUCT_FORWARD ? n : k;
  *depth = side_of (kind) == WEFT_PRODUCT_FORWARD ? k
           : side_of (kind) == WEFT_PRODUCT_WGRAD ? m
                                                  : n;
}

/* Whether each row of the operands and of the result begins at a multiple of 16 bytes, as tensor
 * cores need it for their full rate (NVIDIA "Matrix Multiplication Background", "Tensor Core
 * Requirements": 8 elements of fp16, 4 of TF32, 16 of int8). Rows of unfused attention are heads
 * and scores. The number of rows does not matter. */
static gboolean
is_aligned (enum weft_op_kind kind, const struct weft_shape *s)
{
  const uint64_t bytes = weft_dtype_bytes (s->dtype);
  uint64_t one = s->dim[1], other = heads_of (kind, s) > 0 ? s->dim[4] : s->dim[2];

  return one * bytes % 16 == 0 && other * bytes % 16 == 0;
}

/* The size and number of the matrix products of one kernel. */
struct product {
  double rows, columns, depth; /* sizes of one product */
  double times;                /* number of products in one kernel */
  double tiles;                /* number of tiles of all products */
};

/* Tiles that the rows of one product need. The rows of an expert are a random number, unless a
 * capacity fixes them (dimension 4) or the router gives each expert the same number
 * (cost->even_experts). The last tile of an expert is half full on average. */
static double
tiles_down (const struct weft_cost *cost, enum weft_op_kind kind, const struct weft_shape *s,
            double rows)
{
  double tiles = rows / cost->stack->matmul_tile_m;

  if (many (kind) < 0 || side_of (kind) == WEFT_PRODUCT_WGRAD || s->dim[4] || cost->even_experts)
    return ceil (tiles);
  return fmax (1, tiles + 0.5);
}

static struct product
product_of (const struct weft_cost *cost, enum weft_op_kind kind, const struct weft_shape *s)
{
  struct product p = { .times = many (kind) < 0 ? 1 : s->dim[many (kind)] };
  double heads = heads_of (kind, s);

  (heads > 0 ? head_extent : tiled_extent) (kind, s, &p.rows, &p.columns, &p.depth);
  if (heads > 0)
    p.times = heads;
  p.tiles = p.times * tiles_down (cost, kind, s, p.rows) *
            ceil (p.columns / cost->stack->matmul_tile_n);
  return p;
}

/* The depth that a tile could multiply in the time of its prologue and epilogue, which load the
 * first operands and store the result. This time does not depend on the dtype of the operands, so
 * the depth grows with the rate of the matrix units. */
static double
tile_overhead (const struct weft_cost *cost, double rate)
{
  double half_precision = weft_cluster_matmul_rate (cost->cluster, WEFT_BF16);

  return cost->stack->matmul_k_half * (half_precision > 0 ? rate / half_precision : 1);
}

/* Seconds of a product whose depth is split into `splits` parts: the time of whole waves of full
 * tiles, plus the time to write and read the partial sums in fp32. Sets the terms in *parts. */
static double
product_seconds (const struct weft_cost *cost, const struct product *p, double splits, double sms,
                 struct weft_cost_parts *parts)
{
  const union weft_stack *stack = cost->stack;
  double tiles = p->tiles * splits, depth = p->depth / splits;
  double overhead = tile_overhead (cost, parts->rate);
  double tile_flops = 2.0 * stack->matmul_tile_m * stack->matmul_tile_n * (depth + overhead);
  double sums = splits > 1 ? 2 * 4 * splits * p->rows * p->columns : 0;

  parts->splits = splits;
  parts->sums = sums / parts->bandwidth;
  parts->waves = tiles / (ceil (tiles / sms) * sms);
  parts->tiles =
      p->times * p->rows * p->columns / (p->tiles * stack->matmul_tile_m * stack->matmul_tile_n);
  parts->depth = depth / (depth + overhead);
  return ceil (tiles / sms) * tile_flops / (parts->rate / cost->cluster->f.gpu_sms) + parts->sums;
}

/* Largest number of parts of a product. Stacks that time the algorithms of the library, as
 * kernels/cuda/blas.c does, also find parts whose tiles need several waves; a part is at least as
 * deep as a tile is wide. */
static double
most_splits (const struct weft_cost *cost, const struct product *p, double sms)
{
  enum { MOST = 16 };

  if (p->times > 1)
    return 1;
  if (!cost->stack->own_kernels || p->tiles > sms)
    return floor (sms / p->tiles);
  return fmin (MOST, floor (p->depth / (double) cost->stack->matmul_tile_n));
}

/* Seconds of a product. If the tiles do not fill the SMs, the product is split along its depth
 * where that is faster. */
static double
matmul_seconds (const struct weft_cost *cost, enum weft_op_kind kind, const struct weft_shape *s,
                double sms, struct weft_cost_parts *parts)
{
  struct product p = product_of (cost, kind, s);
  double most = most_splits (cost, &p, sms), best = 1, seconds;
  double least = product_seconds (cost, &p, 1, sms, parts);

  for (double splits = 2; splits <= most; splits++) {
    seconds = product_seconds (cost, &p, splits, sms, parts);
    if (seconds < least) {
      least = seconds;
      best = splits;
    }
  }
  return product_seconds (cost, &p, best, sms, parts);
}

static gboolean
is_attention (enum weft_op_kind kind)
{
  return kind == WEFT_OP_ATTENTION || kind == WEFT_OP_ATTENTION_PART;
}

static gboolean
is_attention_backward (enum weft_op_kind kind)
{
  return kind == WEFT_OP_ATTENTION_BWD || kind == WEFT_OP_ATTENTION_PART_BWD;
}

/* Sets rate and share of attention for heads that the stack does not run on matrix units. The
 * kernel for such heads computes plain_attention_width elements for any width of head, so it
 * executes more FLOPs than the op's formula counts. Returns FALSE if the stack runs these heads on
 * matrix units or the rate of the kernel without matrix units is not known. */
static gboolean
price_plain_attention (const struct weft_cost *cost, enum weft_op_kind kind,
                       const struct weft_shape *s, struct weft_cost_parts *parts)
{
  const double executed = 2 * (double) cost->stack->plain_attention_width;
  double share = is_attention (kind) ? cost->stack->plain_attention_forward_share
                                     : cost->stack->plain_attention_backward_share;
  uint64_t width = s->dim[4], value = s->dim[6] ? s->dim[6] : width;

  if (share <= 0 || cost->cluster->f.gpu_cuda_core_spec <= 0 ||
      weft_stack_takes_heads (cost->stack, weft_dtype_bytes (s->dtype), width, value))
    return FALSE;
  parts->rate = cost->cluster->f.gpu_cuda_core_spec;
  parts->share = share * fmin (1, (double) (width + value) / executed);
  return TRUE;
}

static gboolean
is_ring_part (enum weft_op_kind kind)
{
  return kind == WEFT_OP_ATTENTION_PART || kind == WEFT_OP_ATTENTION_PART_BWD;
}

/* The mean number of keys that a query reads: the number of pairs of query and key in the FLOPs of
 * the op, divided by the number of queries. */
static double
keys_per_query (enum weft_op_kind kind, const struct weft_shape *s, double flops)
{
  double queries = (double) s->dim[0] * (is_ring_part (kind) ? 1 : (double) s->dim[1]);
  double width = (double) s->dim[4], value = s->dim[6] ? (double) s->dim[6] : width;
  double pairs = flops / (is_attention (kind) ? 1 : 2) / (2 * (double) s->dim[2] * (width + value));

  return pairs / queries;
}

/* x / (x + half): the part of the full rate that remains if each kernel has, besides its work x, a
 * constant amount of work as large as `half`. */
static double
saturation (double x, double half)
{
  return half > 0 ? x / (x + half) : 1;
}

/* The fraction of the attention rate that is left on a GPU newer than the kernels: a factor for
 * each major version of the compute capability. */
static double
age_share (const struct weft_cost *cost)
{
  enum { FLASH_ATTENTION_2 = 80, MAJOR = 10 };
  const union weft_stack *stack = cost->stack;
  int64_t gpu = cost->cluster->f.gpu_capability, written = stack->attention_capability;

  if (cost->deterministic && stack->deterministic_capability > 0 &&
      gpu != stack->deterministic_capability)
    written = FLASH_ATTENTION_2;
  return written > 0 && gpu > written
             ? pow (stack->attention_older_share, (double) (gpu / MAJOR - written / MAJOR))
             : 1;
}

/* The share of the matmul rate that attention reaches. A tile of queries has a constant amount of
 * work in addition to its keys, and each score an exponential in addition to its products. The
 * stack's shares are those of long sequences and heads of width 128. */
static double
attention_share (const struct weft_cost *cost, enum weft_op_kind kind, const struct weft_shape *s,
                 double flops)
{
  const union weft_stack *stack = cost->stack;
  gboolean forward = is_attention (kind);
  double width = (double) (s->dim[4] + (s->dim[6] ? s->dim[6] : s->dim[4])) / 2;
  double share = forward ? stack->attention_forward_share : stack->attention_backward_share;

  share *= saturation (keys_per_query (kind, s, flops),
                       forward ? stack->attention_keys_half : stack->attention_backward_keys_half);
  share *= saturation (width, stack->attention_width_half) /
           saturation (128, stack->attention_width_half);
  if (is_ring_part (kind))
    share *= stack->ring_attention_share;
  return fmin (1, share * age_share (cost)) *
         (cost->fp8_attention ? stack->fp8_attention_gain : 1);
}

/* Seconds in which a kernel computes the random numbers of dropout, one for each score. Integer
 * units issue a quarter of the FLOP/s without matrix units: half as many units, and one operation
 * where fp32 counts two. */
static double
random_seconds (const struct weft_cost *cost, enum weft_op_kind kind, const struct weft_shape *s,
                double flops)
{
  double integer = cost->cluster->f.gpu_cuda_core_spec / 4;
  double width = (double) (s->dim[4] + (s->dim[6] ? s->dim[6] : s->dim[4]));
  double scores = flops / (is_attention (kind) ? 1 : 2) / (2 * width);

  return cost->drops && integer > 0 ? scores * cost->stack->attention_random_ops / integer : 0;
}

/* Bytes that the loss moves beside those of the op's formula: kernels of frameworks convert the
 * logits, subtract the maximum, and take exponentials and sums one after the other. */
static double
loss_bytes (const struct weft_cost *cost, enum weft_op_kind kind, const struct weft_shape *s)
{
  const union weft_stack *stack = cost->stack;
  gboolean both = kind == WEFT_OP_XENT_GRAD;
  gboolean forward = both || kind == WEFT_OP_XENT || kind == WEFT_OP_XENT_PART;
  gboolean backward = both || kind == WEFT_OP_XENT_BWD;
  double each = (forward ? stack->loss_forward_bytes : 0) +
                (backward ? stack->loss_backward_bytes : 0);

  return cost->loss * each * (double) s->dim[0] * (double) s->dim[1];
}

/* Bytes that kernels for the limits and biases of GPT-OSS move beside those of the activation. The
 * bias is added to the last product of each expert. Its bytes, also those of its forward pass, are
 * counted with the backward activation, which every microbatch has once: the forward activation may
 * be recomputed without the product after it. */
static double
gpt_oss_bytes (const struct weft_cost *cost, enum weft_op_kind kind, const struct weft_shape *s)
{
  const union weft_stack *stack = cost->stack;
  double inner = (double) s->dim[0] * (double) s->dim[1], input = inner * (double) s->dim[4];

  if (cost->expert_outputs <= 0)
    return 0;
  return kind == WEFT_OP_MOE_ACT ? input * stack->expert_clamp_forward_bytes
         : kind == WEFT_OP_MOE_ACT_BWD
             ? input * stack->expert_clamp_backward_bytes +
                   inner * cost->expert_outputs * stack->expert_bias_bytes
             : 0;
}

/* Bytes that a rotary embedding of kernels one after the other moves beside those of the op's
 * formula. With latent attention only a part of each query and of the shared keys is rotated. */
static double
rotary_bytes (const struct weft_cost *cost, enum weft_op_kind kind, const struct weft_shape *s)
{
  double rows = (double) s->dim[0], each = cost->compiled ? 0 : cost->stack->rotary_bytes;

  switch (kind) {
  case WEFT_OP_ROPE:
  case WEFT_OP_ROPE_BWD:
    return each * rows * (double) s->dim[1];
  case WEFT_OP_LATENT_JOIN:
  case WEFT_OP_LATENT_JOIN_BWD:
    return each * rows * (double) (s->dim[1] + 1) * (double) s->dim[3];
  default:
    return 0;
  }
}

/* Bytes of the op's formula that a kernel for causal scores does not read: the half of the one
 * operand of softmax, or of the two of its gradient, that the mask hides. */
static double
hidden_bytes (const struct weft_cost *cost, enum weft_op_kind kind, const struct weft_shape *s)
{
  double reads = kind == WEFT_OP_SOFTMAX ? 1 : kind == WEFT_OP_SOFTMAX_BWD ? 2 : 0;
  double keys = (double) s->dim[1];

  if (!cost->stack->causal_softmax || reads == 0)
    return 0;
  return reads * (double) (s->dim[0] * s->dim[2]) * keys * keys / 2 * weft_dtype_bytes (s->dtype);
}

/* The factor by which deterministic_mode slows down a kernel; 1 for kernels without a separate
 * deterministic form. */
static double
slowdown (const struct weft_cost *cost, enum weft_op_kind kind)
{
  if (!cost->deterministic || weft_cluster_is_cpu (cost->cluster))
    return 1;
  return is_attention_backward (kind) ? cost->stack->deterministic_attention
         : kind == WEFT_OP_EMBED_BWD  ? cost->stack->deterministic_embedding
                                      : 1;
}

/* The field of a stack with the fraction of the copy bandwidth that a kernel of this class
 * reaches. */
static unsigned
memory_field (const union weft_stack *stack, enum weft_op_kind kind)
{
  static const unsigned row[WEFT_N_KERNEL] = {
    [WEFT_KERNEL_POINTWISE] = WEFT_STACK_memory_share,
    [WEFT_KERNEL_NORM] = WEFT_STACK_norm_memory_share,
    [WEFT_KERNEL_MATMUL] = WEFT_STACK_matmul_memory_share,
    [WEFT_KERNEL_ATTENTION] = WEFT_STACK_matmul_memory_share,
    [WEFT_KERNEL_SOFTMAX] = WEFT_STACK_softmax_memory_share,
    [WEFT_KERNEL_QUANTISE] = WEFT_STACK_quantise_memory_share,
    [WEFT_KERNEL_OPTIMIZER] = WEFT_STACK_optimizer_memory_share,
    [WEFT_KERNEL_DISPATCH] = WEFT_STACK_dispatch_memory_share,
  };
  unsigned own = row[weft_op_kernel (kind)];

  return stack->at[own].r > 0 ? own : WEFT_STACK_memory_share;
}

static double
memory_share (const union weft_stack *stack, enum weft_op_kind kind)
{
  return stack->at[memory_field (stack, kind)].r;
}

/* Bytes that a kernel moves: those of the op, and of a transposed copy of experts' fp8 codes. With
 * one scale per row (fp8_priced_as = rowwise), a product over the
 * rows needs other scales than one over the columns. So the transposed copy is made from 16 bits in
 * two passes, 5 bytes an element instead of 2, while the largest magnitude of a row is found when
 * the row is converted (torchao float8/float8_scaling_utils.py). */
static double
moved_bytes (const struct weft_cost *cost, enum weft_op_kind kind, const struct weft_shape *s)
{
  double bytes = weft_op_info[kind].bytes (s);

  if (weft_launches_transposed (cost, kind))
    bytes += (double) s->dim[0] * (double) s->dim[1];
  if (cost->fp8 != WEFT_FP8_PRICE_ROWWISE)
    return bytes;
  return kind == WEFT_OP_TRANSPOSE ? 2.5 * bytes : kind == WEFT_OP_AMAX ? 0 : bytes;
}

static gboolean
has_own_kernels (const struct weft_cost *cost)
{
  return cost->stack->own_kernels && !weft_cluster_is_cpu (cost->cluster);
}

/* Sets rate, share and seconds of attention by Weft's own kernels. Backward first reads outputs and
 * their gradients once, for the sum of their products in each row, and has two more launches. */
static void
price_own_attention (const struct weft_cost *cost, enum weft_op_kind kind,
                     const struct weft_shape *s, double sms, struct weft_cost_parts *parts)
{
  double rows = (double) s->dim[0] * (double) s->dim[1] * (double) s->dim[2];
  double value = (double) (s->dim[6] ? s->dim[6] : s->dim[4]);

  const struct weft_attention_run run = { parts->rate, sms, FALSE },
                                  producing = { parts->rate, sms, TRUE };

  parts->work = weft_attention_kernel_seconds (cost->cluster, kind, s, &run);
  if (cost->timed_attention)
    parts->work = fmin (parts->work,
                        weft_attention_kernel_seconds (cost->cluster, kind, s, &producing));
  if (is_attention_backward (kind))
    parts->work += 2 * parts->gap + 2 * rows * value * weft_dtype_bytes (s->dtype) /
                                        cost->cluster->f.gpu_memory_bandwidth;
  parts->work *= slowdown (cost, kind);
  parts->share = parts->flops / (parts->rate * parts->work);
}

static void
price_attention (const struct weft_cost *cost, enum weft_op_kind kind, const struct weft_shape *s,
                 double sms, struct weft_cost_parts *parts)
{
  if (has_own_kernels (cost) && weft_attention_kernel_takes (cost->cluster, kind, s)) {
    price_own_attention (cost, kind, s, sms, parts);
    return;
  }
  if (!price_plain_attention (cost, kind, s, parts))
    parts->share = attention_share (cost, kind, s, parts->flops);
  parts->share /= slowdown (cost, kind);
  parts->share = parts->flops / (parts->flops / parts->share +
                                 parts->rate * random_seconds (cost, kind, s, parts->flops));
  parts->work = parts->flops / (parts->rate * parts->share * sms / cost->cluster->f.gpu_sms);
}

/* Lowers the bandwidth to what a kernel of Weft reaches (core/gpu_kernels.def). */
static void
limit_bandwidth (const struct weft_cost *cost, enum weft_op_kind kind, const struct weft_shape *s,
                 double sms, struct weft_cost_parts *parts)
{
  enum weft_kernel_limit limit;
  double least = weft_memory_kernel_seconds (cost->cluster, kind, s, sms, &limit);

  if (least * parts->bandwidth <= parts->bytes)
    return;
  parts->bandwidth = parts->bytes / least;
  parts->limit = limit;
}

static struct weft_cost_parts
split (const struct weft_cost *cost, enum weft_op_kind kind, const struct weft_shape *s,
       uint32_t sms_taken)
{
  const struct weft_cluster *c = cost->cluster;
  const union weft_stack *stack = cost->stack;
  double sms = fmax (1, (double) c->f.gpu_sms - sms_taken), share = sms / c->f.gpu_sms;
  struct weft_cost_parts parts = { .flops = weft_op_info[kind].flops (s),
                                   .bytes = moved_bytes (cost, kind, s) +
                                            loss_bytes (cost, kind, s) +
                                            gpt_oss_bytes (cost, kind, s) +
                                            rotary_bytes (cost, kind, s) -
                                            hidden_bytes (cost, kind, s),
                                   .rate = rate_of (cost, kind, s),
                                   .gap = stack->kernel_gap *
                                          weft_launches_kernels (cost, kind, s) };

  if (is_attention (kind) || is_attention_backward (kind))
    price_attention (cost, kind, s, sms, &parts);
  /* Half of the SMs already saturate memory bandwidth; with fewer SMs, bandwidth falls in
   * proportion. */
  parts.bandwidth = c->f.gpu_memory_bandwidth * memory_share (stack, kind) * fmin (1, 2 * share);
  if (kind == WEFT_OP_EMBED_BWD)
    parts.bandwidth /= slowdown (cost, kind);
  if (has_own_kernels (cost))
    limit_bandwidth (cost, kind, s, sms, &parts);
  if (weft_op_kernel (kind) == WEFT_KERNEL_MATMUL && !weft_cluster_is_cpu (c) &&
      !is_aligned (kind, s))
    parts.rate *= stack->matmul_unaligned_share;
  if (weft_op_kernel (kind) == WEFT_KERNEL_MATMUL)
    parts.work = matmul_seconds (cost, kind, s, sms, &parts);
  parts.memory = parts.bytes / parts.bandwidth;
  return parts;
}

struct weft_cost_parts
weft_cost_split (const struct weft_cost *cost, enum weft_op_kind kind,
                 const struct weft_shape *shape)
{
  return split (cost, kind, shape, 0);
}

/* ------------------------------------------------------------------------ fields */

struct fields {
  struct weft_cost_field *at;
  unsigned n;
};

static void
add_field (struct fields *f, const struct weft_sheet *sheet, unsigned row)
{
  f->at[f->n++] = (struct weft_cost_field){ sheet, row };
}

static void
add_rate (const struct weft_cost *cost, enum weft_op_kind kind, const struct weft_shape *s,
          struct fields *f)
{
  enum weft_dtype dtype = multiplied (cost, kind, s);
  gboolean fp8 = dtype == WEFT_FP8 || dtype == WEFT_E5M2;
  unsigned row[WEFT_CLUSTER_RATE_FIELDS] = { WEFT_CLUSTER_gpu_nvfp4,
                                             WEFT_CLUSTER_gpu_nvfp4_sustained };

  if (!fp8 || cost->fp8 != WEFT_FP8_PRICE_NVFP4)
    weft_cluster_rate_fields (dtype, row);
  for (unsigned i = 0; i < G_N_ELEMENTS (row); i++)
    add_field (f, &weft_cluster_sheet, row[i]);
  if (fp8 && cost->fp8 == WEFT_FP8_PRICE_ROWWISE)
    add_field (f, &weft_stack_sheet, WEFT_STACK_fp8_rowwise_share);
}

static void
add_attention (const struct weft_cost *cost, enum weft_op_kind kind, const struct weft_shape *s,
               struct fields *f)
{
  struct weft_cost_parts parts = { 0 };
  gboolean forward = is_attention (kind);

  if (has_own_kernels (cost) && weft_attention_kernel_takes (cost->cluster, kind, s)) {
    add_rate (cost, kind, s, f);
    return;
  }
  if (price_plain_attention (cost, kind, s, &parts)) {
    add_field (f, &weft_cluster_sheet, WEFT_CLUSTER_gpu_cuda_core_spec);
    add_field (f, &weft_stack_sheet, forward ? WEFT_STACK_plain_attention_forward_share
                                             : WEFT_STACK_plain_attention_backward_share);
    return;
  }
  add_rate (cost, kind, s, f);
  add_field (f, &weft_stack_sheet, forward ? WEFT_STACK_attention_forward_share
                                           : WEFT_STACK_attention_backward_share);
}

unsigned
weft_cost_fields (const struct weft_cost *cost, enum weft_op_kind kind, const struct weft_shape *s,
                  struct weft_cost_field field[WEFT_COST_FIELDS])
{
  struct weft_cost_parts parts = weft_cost_split (cost, kind, s);
  struct fields f = { field, 0 };

  if (parts.memory >= parts.work) {
    add_field (&f, &weft_cluster_sheet, WEFT_CLUSTER_gpu_memory_bandwidth);
    if (!parts.limit)
      add_field (&f, &weft_stack_sheet, memory_field (cost->stack, kind));
  } else if (is_attention (kind) || is_attention_backward (kind)) {
    add_attention (cost, kind, s, &f);
  } else {
    add_rate (cost, kind, s, &f);
  }
  add_field (&f, &weft_stack_sheet, WEFT_STACK_kernel_gap);
  return f.n;
}

/* ------------------------------------------------------------------------ seconds */

/* matmul_swiglu is priced as its two kernels: that one is faster is to be measured. */
static double
roofline (const struct weft_cost *cost, enum weft_op_kind kind, const struct weft_shape *s,
          uint32_t sms_taken)
{
  if (kind == WEFT_OP_MATMUL_SWIGLU) {
    struct weft_shape gate = { .dtype = s->dtype,
                               .out_dtype = s->out_dtype,
                               .dim = { s->dim[0], s->dim[1] / 2 } };
    return roofline (cost, WEFT_OP_MATMUL, s, sms_taken) +
           roofline (cost, WEFT_OP_SWIGLU, &gate, sms_taken);
  }
  struct weft_cost_parts parts = split (cost, kind, s, sms_taken);
  return parts.gap + fmax (parts.work, parts.memory);
}

static double
formula (const void *cost, enum weft_op_kind kind, const struct weft_shape *shape, uint32_t ranks)
{
  (void) ranks;
  return roofline (cost, kind, shape, 0);
}

/* Measured seconds of a kernel; negative if the op was not measured. `sms_taken`: number of SMs
 * that concurrent communication holds. If sms_taken is not 0, the measured seconds are multiplied
 * by the ratio of roofline() without these SMs to roofline() with all SMs. */
static double
measured (const struct weft_cost *cost, enum weft_op_kind kind, const struct weft_shape *s,
          uint32_t sms_taken)
{
  double seconds =
      weft_cost_table_seconds (cost->table, kind, s, cost->cluster->n_gpus, formula, cost);

  return sms_taken == 0 || seconds < 0
             ? seconds
             : seconds * roofline (cost, kind, s, sms_taken) / roofline (cost, kind, s, 0);
}

/* Slowdown of a kernel during communication on a CPU: a rank is one thread, which does not compute
 * while it moves bytes. The factor is finite so that times stay finite. */
#define PAUSED 1e9

double
weft_cost_kernel (const struct weft_cost *cost, enum weft_op_kind kind, const struct weft_shape *s,
                  uint32_t sms_taken)
{
  if (kind == WEFT_OP_RELEASE)
    return 0;
  if (sms_taken > 0 && weft_cluster_is_cpu (cost->cluster))
    return PAUSED * weft_cost_kernel (cost, kind, s, 0);
  double seconds = cost->table ? measured (cost, kind, s, sms_taken) : -1;
  return seconds >= 0 ? seconds : roofline (cost, kind, s, sms_taken);
}

double
weft_cost_host_kernel (const struct weft_cost *cost, enum weft_op_kind kind,
                       const struct weft_shape *s)
{
  if (weft_cluster_is_cpu (cost->cluster))
    return weft_cost_kernel (cost, kind, s, 0);
  return weft_op_info[kind].bytes (s) / cost->cluster->f.node_host_bandwidth;
}

static double
price (const struct weft_cost *cost, const weft_program *p, const struct weft_op *row,
       uint32_t sms_taken)
{
  const struct weft_shape *shape = &p->shape[row->shape];

  return row->lane == WEFT_LANE_HOST ? weft_cost_host_kernel (cost, row->kind, shape)
                                     : weft_cost_kernel (cost, row->kind, shape, sms_taken);
}

/* Bytes that a fused kernel does not move a second time: buffers of both ops that `op` reads, and
 * buffers that both ops write. */
static double
shared_bytes (const weft_program *p, uint32_t op, uint32_t before)
{
  double bytes = 0;

  for (uint32_t u = p->op[op].uses; u < p->op[op + 1].uses; u++)
    for (uint32_t v = p->op[before].uses; v < p->op[before + 1].uses; v++)
      if (p->uses[u].buf != WEFT_NO_BUF && p->uses[u].buf == p->uses[v].buf)
        bytes += (double) p->buf[p->uses[u].buf].bytes *
                 (p->uses[u].read + (p->uses[u].write && p->uses[v].write));
  return bytes;
}

/* Seconds of a fused op: the seconds of the op as a separate kernel, measured or computed,
 * multiplied by the ratio of the computed seconds with fusion to the computed seconds without
 * fusion. */
static double
fused_price (const struct weft_cost *cost, const weft_program *p, uint32_t op, uint32_t sms_taken)
{
  const struct weft_shape *shape = weft_op_shape (p, op);
  uint32_t before = p->lane_ops[p->op[op].lane][p->pos[op] - 1];
  struct weft_cost_parts parts = split (cost, p->op[op].kind, shape, sms_taken);
  double alone = weft_cost_kernel (cost, p->op[op].kind, shape, sms_taken);
  double left = fmax (0, parts.bytes - shared_bytes (p, op, before));

  if (weft_cluster_is_cpu (cost->cluster))
    return alone;
  return alone * fmax (parts.work, left / parts.bandwidth) /
         roofline (cost, p->op[op].kind, shape, sms_taken);
}

/* Seconds of a piece whose next piece runs on another stream. The tiles of the next piece fill the
 * SMs that the last wave leaves free, and no time passes between the two kernels. */
static double
piece_price (const struct weft_cost *cost, enum weft_op_kind kind, const struct weft_shape *shape,
             uint32_t sms_taken)
{
  struct weft_cost_parts parts = split (cost, kind, shape, sms_taken);
  double alone = weft_cost_kernel (cost, kind, shape, sms_taken);
  double filled = (parts.work - parts.sums) * parts.waves + parts.sums;

  if (weft_cluster_is_cpu (cost->cluster))
    return alone;
  filled /= cost->stack->piece_rate_share;
  return alone * fmax (filled, parts.memory) / roofline (cost, kind, shape, sms_taken);
}

/* Whether an op computes the fp8 codes of weights: it writes a buffer of converted weights. */
static gboolean
converts_weights (const weft_program *p, uint32_t op)
{
  for (uint32_t u = p->op[op].uses; u < p->op[op + 1].uses; u++) {
    if (p->uses[u].buf == WEFT_NO_BUF || !p->uses[u].write)
      continue;
    const struct weft_buf *b = &p->buf[weft_buf_owner (p, p->uses[u].buf)];
    if (b->kind == WEFT_BUF_WEIGHTS && b->dtype == WEFT_FP8 && !b->permanent)
      return TRUE;
  }
  return FALSE;
}

gboolean
weft_cost_converts_kept (const struct weft_cost *cost, const weft_program *p, uint32_t op)
{
  return cost->fp8_weights >= WEFT_FP8_FOR_STEP &&
         weft_op_kernel (p->op[op].kind) == WEFT_KERNEL_QUANTISE && converts_weights (p, op);
}

gboolean
weft_cost_omits (const struct weft_cost *cost, const weft_program *p, uint32_t op)
{
  return !cost->stack->own_kernels &&
         (p->op[op].micro > 0 || cost->fp8_weights == WEFT_FP8_ALWAYS) &&
         weft_cost_converts_kept (cost, p, op);
}

double
weft_cost_bias (const struct weft_cost *cost, const weft_program *p, uint32_t op)
{
  const struct weft_op *row = &p->op[op];
  uint8_t at = weft_op_info[row->kind].bias_gradient;

  if (row->kind != WEFT_OP_MATMUL_WGRAD || !has_own_kernels (cost) ||
      cost->cluster->f.gpu_memory_latency <= 0 ||
      p->uses[row->uses + at].buf == WEFT_NO_BUF)
    return 0;
  return 2 * cost->stack->kernel_gap +
         weft_bias_sum_seconds (cost->cluster, &p->shape[row->shape],
                                cost->cluster->f.gpu_memory_bandwidth * cost->stack->memory_share);
}

/* A program has thousands of ops but only a few dozen shapes, so the seconds of each (shape, kind)
 * are computed once for the GPU, once for the host and once for pieces. The seconds of fused ops
 * are computed op by op. */
void
weft_cost_program (const struct weft_cost *cost, const weft_program *p, uint32_t sms_taken,
                   double *seconds)
{
  enum { ON_GPU, ON_HOST, PIECE, N_PRICE };
  size_t n = (size_t) p->n_shape * WEFT_N_OP * N_PRICE;
  g_autofree double *known = g_new (double, n + 1);

  for (size_t i = 0; i < n; i++)
    known[i] = NAN;
  for (uint32_t op = 0; op < p->n_op; op++) {
    const struct weft_op *row = &p->op[op];
    gboolean piece = (row->flags & WEFT_OP_PIECE) != 0;
    unsigned which = row->lane == WEFT_LANE_HOST ? ON_HOST : piece ? PIECE : ON_GPU;
    double *at = &known[((size_t) row->shape * WEFT_N_OP + row->kind) * N_PRICE + which];
    if (weft_op_info[row->kind].class != WEFT_CLASS_COMPUTE)
      continue;
    if (weft_cost_omits (cost, p, op)) {
      seconds[op] = 0;
      continue;
    }
    if (row->flags & WEFT_OP_FUSED) {
      seconds[op] = fused_price (cost, p, op, sms_taken);
      continue;
    }
    if (isnan (*at))
      *at = which == PIECE ? piece_price (cost, row->kind, &p->shape[row->shape], sms_taken)
                           : price (cost, p, row, sms_taken);
    seconds[op] = *at + weft_cost_bias (cost, p, op);
  }
}

uint32_t
weft_cost_sms (const union weft_stack *stack, enum weft_op_kind kind)
{
  if (kind == WEFT_OP_SHIFT) /* a shift sends to one neighbour and receives from the other
                              * neighbour */
    return stack->p2p_sms;
  switch (weft_op_info[kind].class) {
  case WEFT_CLASS_COLLECTIVE:
    return stack->collective_sms;
  case WEFT_CLASS_P2P:
    return stack->p2p_sms;
  default:
    return 0;
  }
}

enum weft_domain
weft_cost_domain (const struct weft_cluster *cluster, uint32_t n_nodes, uint32_t n_local)
{
  if (n_nodes > 1 && n_local == 1)
    return WEFT_DOMAIN_NETWORK;
  if (cluster->f.node_intra != WEFT_NVLINK)
    return WEFT_DOMAIN_OTHER;
  return n_nodes > 1 ? WEFT_DOMAIN_BOTH : WEFT_DOMAIN_SWITCH;
}

uint32_t
weft_cost_piece_sms (const union weft_stack *stack, enum weft_op_kind kind)
{
  return kind == WEFT_OP_SHIFT ? stack->piece_shift_sms : stack->piece_collective_sms;
}

uint32_t
weft_cost_registered_sms (const struct weft_cost *cost, enum weft_op_kind kind,
                          enum weft_domain domain, gboolean symmetric)
{
  static const struct {
    enum weft_domain domain;
    int64_t sharp;
    uint32_t gather, scatter;
  } table[] = {
#define SMS_ROW(domain, sharp, gather, scatter) { domain, sharp, gather, scatter },
#include "core/sms.def"
  };
  uint32_t plain = weft_cost_sms (cost->stack, kind);

  if ((kind != WEFT_OP_ALL_GATHER && kind != WEFT_OP_REDUCE_SCATTER) ||
      (domain == WEFT_DOMAIN_SWITCH && !symmetric))
    return plain;
  for (unsigned i = 0; i < G_N_ELEMENTS (table); i++)
    if (table[i].domain == domain && table[i].sharp == cost->cluster->f.fabric_sharp)
      return MIN (plain, kind == WEFT_OP_ALL_GATHER ? table[i].gather : table[i].scatter);
  return plain;
}
