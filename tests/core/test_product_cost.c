/* The cost formula of matmuls against numbers computed by hand. The GPU computes whole tiles in
 * whole waves (one tile per SM); if there are few tiles, the inner dimension is split (split-k). */
#include "tests/made/desk.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"
#include <math.h>

static struct weft_shape
product (uint64_t m, uint64_t n, uint64_t k)
{
  return (struct weft_shape){ .dim = { m, n, k }, .dtype = WEFT_BF16, .out_dtype = WEFT_BF16 };
}

static double
work (const struct desk *d, enum weft_op_kind kind, const struct weft_shape *s)
{
  return weft_cost_split (&d->cost, kind, s).work;
}

static void
whole_waves_of_whole_tiles_are_paid (void **state)
{
  static const struct {
    uint64_t m, n;
    double waves;
  } row[] = {
    { 200, 1000, 1 }, { 101, 1000, 1 }, { 200, 1001, 2 }, { 500, 1000, 3 }, { 501, 1000, 3 }
  };
  struct desk d;

  (void) state;
  made_desk (&d);
  for (unsigned i = 0; i < G_N_ELEMENTS (row); i++) {
    struct weft_shape s = product (row[i].m, row[i].n, 5000);
    assert_near (work (&d, WEFT_OP_MATMUL, &s), row[i].waves * made_tile_seconds (5000));
  }
}

/* The prologue and the epilogue of a tile take the same time for all dtypes. With k_half = 200 for
 * bf16, they take the time of 400 elements of the inner dimension if fp8 has twice the rate of
 * bf16, and of 100 elements if fp32 has half of the rate of bf16. */
static void
the_overhead_of_a_tile_does_not_depend_on_the_dtype (void **state)
{
  static const struct {
    enum weft_op_kind kind;
    enum weft_dtype dtype;
    double rate; /* relative to bf16 */
  } row[] = {
    { WEFT_OP_MATMUL, WEFT_BF16, 1 },
    { WEFT_OP_MATMUL, WEFT_FP16, 1 },
    { WEFT_OP_FP8_MATMUL, WEFT_FP8, 2 },
    { WEFT_OP_MATMUL, WEFT_FP32, 0.5 },
  };
  struct desk d;

  (void) state;
  made_desk (&d);
  d.job.stack.matmul_k_half = 200;
  d.cluster.f.gpu_fp8 = 2 * d.cluster.f.gpu_bf16;
  d.cluster.f.gpu_fp32 = d.cluster.f.gpu_bf16 / 2;
  for (unsigned i = 0; i < G_N_ELEMENTS (row); i++) {
    struct weft_shape s = product (200, 1000, 5000);
    s.dtype = row[i].dtype;
    assert_near (work (&d, row[i].kind, &s),
                 made_tile_seconds (5000) / row[i].rate + made_tile_seconds (200));
    assert_near (weft_cost_split (&d.cost, row[i].kind, &s).depth,
                 5000 / (5000 + 200 * row[i].rate));
  }
}

/* Under the power limit, matmuls of each dtype reach the share gpu_DTYPE_sustained of the best rate
 * of this dtype. bf16 attention has the share of bf16 matmuls. */
static void
the_power_limit_slows_matmuls_and_attention (void **state)
{
  struct weft_shape s = product (200, 1000, 5000);
  struct weft_shape heads = { .dim = { 1, 4096, 8, 8, 64 }, .dtype = WEFT_BF16 };
  struct desk d;

  (void) state;
  made_desk (&d);
  d.cluster.f.gpu_fp8 = d.cluster.f.gpu_fp32 = d.cluster.f.gpu_bf16;
  double best = work (&d, WEFT_OP_MATMUL, &s);
  double attention = work (&d, WEFT_OP_ATTENTION, &heads);
  d.cluster.f.gpu_bf16_sustained = 0.8;
  d.cluster.f.gpu_fp8_sustained = 0.5;
  d.cluster.f.gpu_fp32_sustained = 0.25;
  assert_near (work (&d, WEFT_OP_MATMUL, &s), best / 0.8);
  assert_near (work (&d, WEFT_OP_ATTENTION, &heads), attention / 0.8);
  s.dtype = WEFT_FP8;
  assert_near (work (&d, WEFT_OP_FP8_MATMUL, &s), best / 0.5);
  s.dtype = WEFT_FP16;
  assert_near (work (&d, WEFT_OP_MATMUL, &s), best / 0.8);
  s.dtype = WEFT_FP32;
  assert_near (work (&d, WEFT_OP_MATMUL, &s), best / 0.25);
}

/* Bandwidth-bound kernels: each class of kernels reaches its own share of the copy bandwidth of the
 * GPU. A class for which the stack states no share uses memory_share. */
static void
classes_of_kernels_have_shares_of_their_own (void **state)
{
  static const struct {
    enum weft_op_kind kind;
    double share;
  } row[] = {
    { WEFT_OP_ADD, 0.9 },
    { WEFT_OP_NORM_DGRAD, 0.8 },
    { WEFT_OP_MATMUL, 0.7 },
    { WEFT_OP_SCORES_BWD, 0.7 },
    { WEFT_OP_MOE_MATMUL_DGRAD, 0.7 },
    { WEFT_OP_ATTENTION, 0.7 },
    { WEFT_OP_XENT_GRAD, 0.6 },
    { WEFT_OP_SOFTMAX_BWD, 0.6 },
    { WEFT_OP_QUANTISE, 0.5 },
    { WEFT_OP_TRANSPOSE, 0.5 },
    { WEFT_OP_ADAM, 0.4 },
    { WEFT_OP_MOE_PERMUTE, 0.3 },
    { WEFT_OP_PACK, 0.9 },
  };
  struct weft_shape s = product (64, 64, 64);
  struct desk d;

  (void) state;
  made_desk (&d);
  union weft_stack *stack = &d.job.stack;
  s.dim[3] = 8;
  for (unsigned own = 0; own < 2; own++) {
    stack->memory_share = 0.9;
    stack->norm_memory_share = own ? 0.8 : 0;
    stack->matmul_memory_share = own ? 0.7 : 0;
    stack->softmax_memory_share = own ? 0.6 : 0;
    stack->quantise_memory_share = own ? 0.5 : 0;
    stack->optimizer_memory_share = own ? 0.4 : 0;
    stack->dispatch_memory_share = own ? 0.3 : 0;
    for (unsigned i = 0; i < G_N_ELEMENTS (row); i++)
      assert_near (weft_cost_split (&d.cost, row[i].kind, &s).bandwidth,
                   BANDWIDTH * (own ? row[i].share : 0.9));
  }
}

/* A matmul is slow if the rows of any operand are no multiple of 16 bytes long. The number of
 * rows does not matter. */
static void
rows_off_16_bytes_are_slow (void **state)
{
  static const struct {
    enum weft_op_kind kind;
    struct weft_shape shape;
    gboolean slow;
  } row[] = {
    { WEFT_OP_MATMUL, { { 512, 512, 512 }, .dtype = WEFT_BF16 }, FALSE },
    { WEFT_OP_MATMUL, { { 511, 512, 512 }, .dtype = WEFT_BF16 }, FALSE },
    { WEFT_OP_MATMUL, { { 512, 510, 512 }, .dtype = WEFT_BF16 }, TRUE },
    { WEFT_OP_MATMUL_WGRAD, { { 512, 512, 510 }, .dtype = WEFT_BF16 }, TRUE },
    { WEFT_OP_FP8_MATMUL, { { 512, 504, 512 }, .dtype = WEFT_FP8 }, TRUE },
    { WEFT_OP_SCORES, { { 1, 2048, 96, 96, 144 }, .dtype = WEFT_FP16 }, FALSE },
    { WEFT_OP_SCORES, { { 1, 2048, 96, 96, 150 }, .dtype = WEFT_FP16 }, TRUE },
    { WEFT_OP_SCORES_BWD, { { 1, 2048, 96, 96, 150 }, .dtype = WEFT_FP16 }, TRUE },
    { WEFT_OP_WEIGHT_VALUES, { { 1, 2047, 96, 96, 144 }, .dtype = WEFT_FP16 }, TRUE },
    { WEFT_OP_ATTENTION, { { 1, 2048, 96, 96, 150 }, .dtype = WEFT_FP16 }, FALSE },
  };
  struct desk d;

  (void) state;
  made_desk (&d);
  d.cluster.f.gpu_fp8 = d.cluster.f.gpu_bf16;
  for (unsigned i = 0; i < G_N_ELEMENTS (row); i++) {
    d.job.stack.matmul_unaligned_share = 1;
    double fast = work (&d, row[i].kind, &row[i].shape);
    d.job.stack.matmul_unaligned_share = 0.25;
    assert_near (work (&d, row[i].kind, &row[i].shape) / fast, row[i].slow ? 4 : 1);
  }
}

static double
attention_rate (const struct desk *d, enum weft_op_kind kind, uint64_t sequence, uint64_t width,
                uint64_t window)
{
  gboolean part = kind == WEFT_OP_ATTENTION_PART || kind == WEFT_OP_ATTENTION_PART_BWD;
  struct weft_shape s = { .dim = { part ? sequence : 1, sequence, 8, 8, width, window },
                          .dtype = WEFT_BF16 };
  struct weft_cost_parts parts = weft_cost_split (&d->cost, kind, &s);

  return parts.flops / parts.work / parts.rate;
}

/* Attention by cuDNN on an H100 (arXiv 2407.08608, figure 5): 497, 574 and 617 TFLOP/s with 512,
 * 1024 and 2048 keys per query. The figure measures attention without a causal mask. The test
 * computes causal attention, so its sequences are twice as long. */
static void
attention_of_few_keys_is_slow (void **state)
{
  static const struct {
    uint64_t keys;
    double tflops;
  } row[] = { { 512, 497 }, { 1024, 574 }, { 2048, 617 } };
  struct desk d;

  (void) state;
  made_desk (&d);
  d.job.stack.attention_forward_share = 0.8;
  assert_near (attention_rate (&d, WEFT_OP_ATTENTION, 1024, 128, 0), 0.8);
  d.job.stack.attention_keys_half = 140;
  for (unsigned i = 0; i < G_N_ELEMENTS (row); i++) {
    double rate = attention_rate (&d, WEFT_OP_ATTENTION, 2 * row[i].keys, 128, 0);
    assert_near (attention_rate (&d, WEFT_OP_ATTENTION_PART, 2 * row[i].keys, 128, 0), rate);
    assert_true (fabs (rate / 0.8 * 650 / row[i].tflops - 1) < 0.05);
  }
  /* With a window of 280 keys, the first 280 queries of the sequence have fewer keys, so a query
   * has `seen` keys on average. */
  double seen = 280 * (1 - 280.0 / (1 << 17));
  assert_near (attention_rate (&d, WEFT_OP_ATTENTION, 1 << 16, 128, 280),
               0.8 * seen / (seen + 140));
}

/* attention_backward_keys_half is the constant of the backward pass. attention_width_half: the
 * stated FLOP rate holds for heads of width 128; narrower heads are slower, wider heads faster. */
static void
attention_of_narrow_heads_is_slow (void **state)
{
  struct desk d;

  (void) state;
  made_desk (&d);
  d.job.stack.attention_forward_share = d.job.stack.attention_backward_share = 0.5;
  d.job.stack.attention_backward_keys_half = 1024;
  assert_near (attention_rate (&d, WEFT_OP_ATTENTION, 2048, 128, 0), 0.5);
  assert_near (attention_rate (&d, WEFT_OP_ATTENTION_BWD, 2048, 128, 0), 0.25);
  assert_near (attention_rate (&d, WEFT_OP_ATTENTION_PART_BWD, 2048, 128, 0), 0.25);
  d.job.stack.attention_width_half = 64;
  assert_near (attention_rate (&d, WEFT_OP_ATTENTION, 2048, 128, 0), 0.5);
  assert_near (attention_rate (&d, WEFT_OP_ATTENTION, 2048, 64, 0), 0.5 * 0.75);
  d.job.stack.attention_forward_share = 1;
  assert_near (attention_rate (&d, WEFT_OP_ATTENTION, 2048, 256, 0), 1);
}

/* attention_capability of a stack is the GPU for which its attention kernels were written. On a
 * newer GPU these kernels reach only a part of the rate (attention_older_share), once for each
 * newer major version; on all other GPUs they reach the whole rate. */
static void
attention_kernels_of_an_older_gpu_are_slow (void **state)
{
  struct desk d;

  (void) state;
  made_desk (&d);
  d.job.stack.attention_forward_share = d.job.stack.attention_backward_share = 0.8;
  d.job.stack.attention_older_share = 0.5;
  for (int64_t written = 0; written <= 90; written += 10)
    for (int64_t gpu = 80; gpu <= 100; gpu += 10) {
      double newer = written > 0 ? fmax (0, (double) (gpu - written) / 10) : 0;
      double left = 0.8 * pow (0.5, newer);
      d.job.stack.attention_capability = written;
      d.cluster.f.gpu_capability = gpu;
      assert_near (attention_rate (&d, WEFT_OP_ATTENTION, 2048, 128, 0), left);
      assert_near (attention_rate (&d, WEFT_OP_ATTENTION_BWD, 2048, 128, 0), left);
    }
}

/* Forward, dgrad and wgrad sum over different dimensions of the matmul, and split the other two
 * into tiles. */
static void
each_pass_has_an_inner_dimension_of_its_own (void **state)
{
  struct weft_shape s = product (1000, 2000, 4000);
  struct desk d;

  (void) state;
  made_desk (&d);
  assert_near (work (&d, WEFT_OP_MATMUL, &s), 10 * made_tile_seconds (4000));
  assert_near (work (&d, WEFT_OP_MATMUL_DGRAD, &s), 20 * made_tile_seconds (2000));
  assert_near (work (&d, WEFT_OP_MATMUL_WGRAD, &s), 40 * made_tile_seconds (1000));
}

/* A matmul of two tiles on ten SMs is split along its inner dimension into five parts per tile. The
 * ten partial sums of 100 x 200 fp32 numbers are then written and read. */
static void
few_deep_tiles_are_split (void **state)
{
  struct weft_shape s = product (1000000, 200, 200);
  struct desk d;
  struct weft_cost_parts parts;

  (void) state;
  made_desk (&d);
  parts = weft_cost_split (&d.cost, WEFT_OP_MATMUL_WGRAD, &s);
  assert_near (parts.splits, 5);
  assert_near (parts.sums, 2 * 4 * 5 * 200.0 * 200 / BANDWIDTH);
  assert_near (parts.work, made_tile_seconds (200000) + parts.sums);
}

/* A matmul of three tiles on ten SMs is split along its inner dimension into three parts per tile.
 * Four parts would make twelve tiles of work, which need a second wave. */
static void
a_split_stays_in_one_wave (void **state)
{
  struct weft_shape s = product (300, 200, 1000000);
  struct desk d;

  (void) state;
  made_desk (&d);
  assert_near (weft_cost_split (&d.cost, WEFT_OP_MATMUL, &s).splits, 3);
}

/* A matmul is split along its inner dimension only if the split saves more time than writing and
 * reading the partial sums costs. */
static void
a_split_must_pay (void **state)
{
  struct weft_shape shallow = product (100, 200, 10), deep = product (100, 200, 100000);
  struct desk d;

  (void) state;
  made_desk (&d);
  assert_near (weft_cost_split (&d.cost, WEFT_OP_MATMUL, &shallow).splits, 1);
  assert_near (weft_cost_split (&d.cost, WEFT_OP_MATMUL, &deep).splits, 10);
}

/* A communication kernel occupies 3 of the GPU's ten SMs. A matmul of two tiles is then split over
 * the other 7 SMs: 3 parts per tile, not 5. */
static void
a_split_counts_the_sms_that_are_left (void **state)
{
  struct weft_shape s = product (1000000, 200, 200);
  double sums = 2 * 4 * 3 * 200.0 * 200 / BANDWIDTH;
  struct desk d;

  (void) state;
  made_desk (&d);
  assert_near (weft_cost_kernel (&d.cost, WEFT_OP_MATMUL_WGRAD, &s, 3),
               made_tile_seconds (1000000 / 3.0) + sums);
}

/* A grouped GEMM is one kernel for all experts, and is never split. */
static void
products_of_experts_stay_whole (void **state)
{
  struct weft_shape s = { .dim = { 1000000, 200, 200, 2 },
                          .dtype = WEFT_BF16,
                          .out_dtype = WEFT_BF16 };
  struct desk d;

  (void) state;
  made_desk (&d);
  assert_near (weft_cost_split (&d.cost, WEFT_OP_MOE_MATMUL_WGRAD, &s).splits, 1);
  assert_near (work (&d, WEFT_OP_MOE_MATMUL_WGRAD, &s), made_tile_seconds (500000));
}

/* ------------------------------------------------------------------------- codes of experts */

#define EXPERTS 4
enum { CAPABLE = 90, OTHER = 100 };

static struct weft_shape
codes (uint64_t n, uint64_t k, uint64_t block)
{
  return (struct weft_shape){ .dim = { EXPERTS * TILE_M, n, k, EXPERTS, [7] = block },
                              .dtype = WEFT_FP8,
                              .out_dtype = WEFT_BF16 };
}

/* Expected seconds of a grouped GEMM of fp8 values on the ten SMs of the test's GPU. `rate`: FLOP
 * rate relative to bf16. */
static double
seconds_of_codes (double columns, double depth, double rate)
{
  double tiles = EXPERTS * ceil (columns / TILE_N);
  return ceil (tiles / SMS) * made_tile_seconds (depth) / rate;
}

static const struct {
  /* `only`: compute capability for which the stack has fp8 kernels (0: any); `has`: compute
   * capability of the GPU */
  int64_t only, has;
  uint64_t n, k, block;
  double rate; /* FLOP rate of the grouped GEMM relative to bf16: 2 if it runs on fp8 values */
} of_codes[] = {
  { 0, OTHER, 480, 320, 0, 2 },         { 0, OTHER, 480, 320, 32, 2 },
  { CAPABLE, CAPABLE, 480, 320, 0, 2 }, { CAPABLE, CAPABLE, 480, 320, 128, 2 },
  { CAPABLE, 0, 480, 320, 0, 2 },       { CAPABLE, OTHER, 480, 320, 0, 1 },
  { CAPABLE, OTHER, 480, 320, 128, 1 }, { CAPABLE, CAPABLE, 480, 320, 32, 1 },
  { CAPABLE, CAPABLE, 488, 320, 0, 1 }, { CAPABLE, CAPABLE, 480, 328, 0, 1 },
};

/* A stack may have fp8 grouped GEMMs only for one GPU, some shapes and some scalings. In all other
 * cases its kernels convert the fp8 values to bf16, and the grouped GEMM runs at the bf16 rate.
 * Other fp8 matmuls run at the fp8 rate in all cases. */
static void
codes_of_experts_are_halves_where_kernels_make_them_so (void **state)
{
  struct desk d;

  (void) state;
  made_desk (&d);
  d.cluster.f.gpu_fp8 = 2 * d.cluster.f.gpu_bf16;
  d.cost.even_experts = TRUE;
  for (unsigned i = 0; i < G_N_ELEMENTS (of_codes); i++) {
    struct weft_shape s = codes (of_codes[i].n, of_codes[i].k, of_codes[i].block);
    double n = (double) of_codes[i].n, k = (double) of_codes[i].k, rate = of_codes[i].rate;
    d.job.stack.expert_fp8_capability = of_codes[i].only;
    d.job.stack.expert_fp8_multiple = of_codes[i].only ? 16 : 1;
    d.job.stack.expert_fp8_mx = !of_codes[i].only;
    d.cluster.f.gpu_capability = of_codes[i].has;
    assert_near (work (&d, WEFT_OP_MOE_FP8_MATMUL, &s), seconds_of_codes (n, k, rate));
    assert_near (work (&d, WEFT_OP_MOE_FP8_MATMUL_DGRAD, &s), seconds_of_codes (k, n, rate));
    assert_near (weft_cost_split (&d.cost, WEFT_OP_MOE_FP8_MATMUL_WGRAD, &s).rate,
                 rate * SMS * SM_RATE);
    assert_near (weft_cost_split (&d.cost, WEFT_OP_FP8_MATMUL, &s).rate, 2 * SMS * SM_RATE);
  }
}

/* With deterministic_mode, only GPUs of deterministic_capability run their own attention kernels.
 * All other GPUs run kernels written for capability 80. These reach half of the rate
 * (attention_older_share here) for each major version by which the GPU is newer. */
static void
deterministic_attention_runs_older_kernels_elsewhere (void **state)
{
  static const struct {
    int64_t gpu;
    double left;
  } row[] = { { 80, 1 }, { 90, 1 }, { 100, 0.25 }, { 103, 0.25 }, { 120, 0.0625 } };
  struct weft_shape s = { .dim = { 1, 4096, 1, 1, 128 }, .dtype = WEFT_BF16 };
  struct desk d;

  (void) state;
  made_desk (&d);
  d.job.stack.attention_forward_share = 0.5;
  d.job.stack.attention_older_share = 0.5;
  for (unsigned i = 0; i < G_N_ELEMENTS (row); i++)
    for (int mode = 0; mode < 3; mode++) {
      d.cluster.f.gpu_capability = row[i].gpu;
      d.cost.deterministic = mode > 0;
      d.job.stack.deterministic_capability = mode < 2 ? 90 : 0;
      assert_near (weft_cost_split (&d.cost, WEFT_OP_ATTENTION, &s).share,
                   mode == 1 ? 0.5 * row[i].left : 0.5);
    }
}

/* The stack's fp8_attention_gain multiplies the FLOP rate of attention kernels, in forward and
 * backward, if the job prices attention in fp8. */
static void
attention_in_fp8_has_a_rate_of_its_own (void **state)
{
  const enum weft_op_kind kind[] = { WEFT_OP_ATTENTION, WEFT_OP_ATTENTION_BWD, WEFT_OP_MATMUL };
  struct weft_shape s = { .dim = { 2, 1024, 3, 1, 128 }, .dtype = WEFT_BF16 };
  struct desk d;

  (void) state;
  made_desk (&d);
  d.job.stack.fp8_attention_gain = 1.5;
  for (unsigned i = 0; i < G_N_ELEMENTS (kind); i++) {
    d.cost.fp8_attention = FALSE;
    double wide = work (&d, kind[i], &s);
    d.cost.fp8_attention = TRUE;
    assert_near (work (&d, kind[i], &s), wide / (kind[i] == WEFT_OP_MATMUL ? 1 : 1.5));
  }
}

/* If attention drops probabilities inside its kernel, it computes a random number for each score,
 * in forward and in backward. Here a random number takes 10 integer operations, and the GPU does
 * 1e9 integer operations per second. */
static void
dropout_in_attention_costs_random_numbers (void **state)
{
  const enum weft_op_kind kind[] = { WEFT_OP_ATTENTION, WEFT_OP_ATTENTION_BWD };
  struct weft_shape s = { .dim = { 2, 1024, 3, 1, 128 }, .dtype = WEFT_BF16 };
  struct desk d;

  (void) state;
  made_desk (&d);
  d.cluster.f.gpu_cuda_core_spec = 4e9;
  d.job.stack.attention_random_ops = 10;
  for (unsigned i = 0; i < G_N_ELEMENTS (kind); i++) {
    d.cost.drops = FALSE;
    double none = work (&d, kind[i], &s);
    d.cost.drops = TRUE;
    double scores = 2.0 * 3 * 1024 * 1024 / 2;
    assert_true (fabs (work (&d, kind[i], &s) - none - scores * 10 / 1e9) < 2e-3 * none);
  }
}

/* A loss kernel without fusion writes and reads copies of the logits: here 30 bytes per logit in
 * forward and 10 in backward, and both in a kernel that computes loss and gradient. d.cost.loss:
 * fraction of these bytes that the job moves. */
static void
a_loss_that_is_not_fused_moves_copies_of_the_logits (void **state)
{
  static const struct {
    enum weft_op_kind kind;
    double bytes;
  } row[] = { { WEFT_OP_XENT, 30 },      { WEFT_OP_XENT_PART, 30 }, { WEFT_OP_XENT_BWD, 10 },
              { WEFT_OP_XENT_GRAD, 40 }, { WEFT_OP_XENT_MAX, 0 },   { WEFT_OP_ADD, 0 } };
  struct weft_shape s = { .dim = { 64, 512 }, .dtype = WEFT_BF16 };
  struct desk d;

  (void) state;
  made_desk (&d);
  d.job.stack.loss_forward_bytes = 30;
  d.job.stack.loss_backward_bytes = 10;
  for (unsigned i = 0; i < G_N_ELEMENTS (row); i++) {
    d.cost.loss = 0;
    double fused = weft_cost_split (&d.cost, row[i].kind, &s).bytes;
    d.cost.loss = 0.5;
    assert_near (weft_cost_split (&d.cost, row[i].kind, &s).bytes,
                 fused + 0.5 * row[i].bytes * 64 * 512);
  }
}

/* Which fraction of the logits' memory traffic the loss kernels move: all of it without
 * cross_entropy_loss_fusion, loss_native_share with the native fusion, nothing with the fusion of
 * Transformer Engine. */
static void
fusion_of_the_loss_decides_what_it_moves (void **state)
{
  static const struct {
    const char *words;
    double part;
  } row[] = {
    { "", 1 },
    { "cross_entropy_loss_fusion=true cross_entropy_fusion_impl=native", 0.25 },
    { "cross_entropy_loss_fusion=true cross_entropy_fusion_impl=te", 0 },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (row); i++) {
    g_autoptr (weft_plan) plan = weft_test_plan (
        "model=gpt2-nano topology=dgx-h100 gpus=1 loss_native_share=0.25 %s", row[i].words);
    assert_near (weft_plan_cost (plan).loss, row[i].part);
  }
}

/* experts_priced_as_gpt_oss: the activation of 64 x 32 inner elements has inputs twice as wide and
 * moves more bytes; the biases of 3 outputs for each inner element count with its derivative. */
static void
experts_of_gpt_oss_move_more (void **state)
{
  const struct weft_shape s = { .dim = { 64, 32, 4, 0, 2 }, .dtype = WEFT_BF16 };
  static const struct {
    enum weft_op_kind kind;
    double bytes;
  } row[] = {
    { WEFT_OP_MOE_ACT, 8 * 2 },
    { WEFT_OP_MOE_ACT_BWD, 10 * 2 + 28 * 3 },
    { WEFT_OP_MOE_PERMUTE, 0 },
  };
  struct desk d;

  (void) state;
  made_desk (&d);
  d.job.stack.expert_clamp_forward_bytes = 8;
  d.job.stack.expert_clamp_backward_bytes = 10;
  d.job.stack.expert_bias_bytes = 28;
  for (unsigned i = 0; i < G_N_ELEMENTS (row); i++) {
    d.cost.expert_outputs = 0;
    double plain = weft_cost_split (&d.cost, row[i].kind, &s).bytes;
    d.cost.expert_outputs = 3;
    assert_near (weft_cost_split (&d.cost, row[i].kind, &s).bytes, plain + row[i].bytes * 64 * 32);
  }
}

/* A latent query has a rotary part for each head, and all heads share that of the key. */
static void
rotary_embeddings_of_single_kernels_move_more (void **state)
{
  static const struct {
    enum weft_op_kind kind;
    struct weft_shape shape;
    double rotated;
  } row[] = {
    { WEFT_OP_ROPE, { .dim = { 64, 32 }, .dtype = WEFT_BF16 }, 64 * 32 },
    { WEFT_OP_ROPE_BWD, { .dim = { 64, 32 }, .dtype = WEFT_BF16 }, 64 * 32 },
    { WEFT_OP_LATENT_JOIN, { .dim = { 64, 4, 8, 2, 8 }, .dtype = WEFT_BF16 }, 64 * 5 * 2 },
    { WEFT_OP_LATENT_JOIN_BWD, { .dim = { 64, 4, 8, 2, 8 }, .dtype = WEFT_BF16 }, 64 * 5 * 2 },
    { WEFT_OP_ADD, { .dim = { 64, 32 }, .dtype = WEFT_BF16 }, 0 },
  };
  struct desk d;

  (void) state;
  made_desk (&d);
  for (unsigned i = 0; i < G_N_ELEMENTS (row); i++) {
    d.job.stack.rotary_bytes = 0;
    double plain = weft_cost_split (&d.cost, row[i].kind, &row[i].shape).bytes;
    d.job.stack.rotary_bytes = 17;
    d.cost.compiled = FALSE;
    assert_near (weft_cost_split (&d.cost, row[i].kind, &row[i].shape).bytes,
                 plain + 17 * row[i].rotated);
    d.cost.compiled = TRUE;
    assert_near (weft_cost_split (&d.cost, row[i].kind, &row[i].shape).bytes, plain);
  }
}

/* A kernel for causal scores reads half of each operand, and writes all: 1.5 sweeps instead of 2
 * forward, and 2 instead of 3 backward. */
static void
softmax_of_causal_scores_reads_half (void **state)
{
  static const struct {
    enum weft_op_kind kind;
    double all, seen;
  } row[] = { { WEFT_OP_SOFTMAX, 2, 1.5 }, { WEFT_OP_SOFTMAX_BWD, 3, 2 } };
  const struct weft_shape s = { .dim = { 2, 64, 4, 4, 16 }, .dtype = WEFT_BF16 };
  const double square = 2.0 * 4 * 64 * 64 * 2;
  struct desk d;

  (void) state;
  made_desk (&d);
  for (unsigned i = 0; i < G_N_ELEMENTS (row); i++) {
    d.job.stack.causal_softmax = 0;
    assert_near (weft_cost_split (&d.cost, row[i].kind, &s).bytes, row[i].all * square);
    d.job.stack.causal_softmax = 1;
    assert_near (weft_cost_split (&d.cost, row[i].kind, &s).bytes, row[i].seen * square);
    assert_near (weft_cost_split (&d.cost, WEFT_OP_SCORES, &s).bytes,
                 weft_op_info[WEFT_OP_SCORES].bytes (&s));
  }
}

/* The knob fp8_priced_as changes the rate of fp8 matmuls, and not that of bf16 matmuls. */
static void
a_priced_scaling_has_a_rate_of_its_own (void **state)
{
  struct desk d;
  struct weft_shape s = product (512, 512, 512), narrow = s;

  (void) state;
  made_desk (&d);
  d.cluster.f.gpu_fp8 = 2 * d.cluster.f.gpu_bf16;
  d.cluster.f.gpu_nvfp4 = 4 * d.cluster.f.gpu_bf16;
  d.cluster.f.gpu_nvfp4_sustained = 0.5;
  d.job.stack.fp8_rowwise_share = 0.75;
  narrow.dtype = WEFT_E5M2;
  for (int price = 0; price <= WEFT_FP8_PRICE_NVFP4; price++) {
    static const double wanted[] = { 2, 1.5, 2 };
    d.cluster.f.gpu_fp8_sustained = price == WEFT_FP8_PRICE_NVFP4 ? 0.25 : 1;
    d.cost.fp8 = (enum weft_fp8_price) price;
    double rate = weft_cost_split (&d.cost, WEFT_OP_FP8_MATMUL_DGRAD, &narrow).rate;
    assert_near (rate, wanted[price] * SMS * SM_RATE);
    assert_near (weft_cost_split (&d.cost, WEFT_OP_MATMUL, &s).rate, SMS * SM_RATE);
  }
}

/* Returns the FLOP rate of an op with a bundled stack and topology, and loads the topology into
 * `cluster`. */
static double
rate_of (const char *stack_name, const char *topology, enum weft_op_kind kind,
         const struct weft_shape *s, struct weft_cluster *cluster)
{
  g_autoptr (GError) error = NULL;
  union weft_stack stack;

  assert_true (weft_cluster_load (topology, cluster, &error));
  assert_true (weft_stack_load (stack_name, &stack, &error));
  const struct weft_cost cost = { .cluster = cluster, .stack = &stack };
  return weft_cost_split (&cost, kind, s).rate;
}

/* A grouped GEMM of fp8 values runs at the fp8 rate in two cases: with Weft's kernels on Hopper,
 * and with Transformer Engine on every GPU that supports fp8. The test reads the bundled files. */
static void
only_hopper_multiplies_codes_of_experts_by_our_kernels (void **state)
{
  static const struct {
    const char *stack, *topology;
    gboolean codes;
  } row[] = {
    { "weft", "dgx-h100", TRUE },          { "weft", "hgx-h200", TRUE },
    { "weft", "dgx-b200", FALSE },         { "weft", "gb300-nvl72", FALSE },
    { "weft", "l40s-pcie", FALSE },        { "megatron-core", "dgx-h100", TRUE },
    { "megatron-core", "dgx-b200", TRUE }, { "megatron-core", "gb300-nvl72", TRUE },
  };
  struct weft_shape s = codes (512, 512, 0);

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (row); i++) {
    struct weft_cluster cluster = { 0 };
    double rate = rate_of (row[i].stack, row[i].topology, WEFT_OP_MOE_FP8_MATMUL, &s, &cluster);
    assert_near (rate, weft_cluster_matmul_rate (&cluster, row[i].codes ? WEFT_FP8 : WEFT_BF16));
  }
}

/* Causal attention over 4096 tokens, with heads of several widths. Only some widths have tensor
 * core kernels (`tiles`). Other widths run at the rate of CUDA cores, if the stack states such a
 * kernel and the topology its rate. */
static void
heads_that_matrix_units_do_not_take_have_the_other_rate (void **state)
{
  static const struct {
    uint64_t width, value;
    enum weft_dtype dtype;
    gboolean tiles;
  } row[] = {
    { 64, 0, WEFT_BF16, TRUE },     { 40, 0, WEFT_FP16, TRUE },     { 72, 0, WEFT_BF16, TRUE },
    { 128, 0, WEFT_BF16, TRUE },    { 192, 128, WEFT_BF16, TRUE },  { 104, 64, WEFT_BF16, TRUE },
    { 32, 0, WEFT_BF16, FALSE },    { 68, 0, WEFT_BF16, FALSE },    { 136, 0, WEFT_BF16, FALSE },
    { 256, 0, WEFT_BF16, FALSE },   { 192, 192, WEFT_BF16, FALSE }, { 200, 128, WEFT_BF16, FALSE },
    { 128, 132, WEFT_BF16, FALSE }, { 128, 0, WEFT_FP32, FALSE },   { 1024, 0, WEFT_BF16, FALSE },
  };
  const double cores = 7e10, forward = 0.25, backward = 0.125;
  struct desk d;

  (void) state;
  for (unsigned i = 0; i < 3 * G_N_ELEMENTS (row); i++) {
    uint64_t width = row[i / 3].width, value = row[i / 3].value;
    struct weft_shape s = { .dim = { 2, 4096, 3, 3, width, 0, value }, .dtype = row[i / 3].dtype };
    double sum = (double) (width + (value ? value : width)), pairs = 2.0 * 3 * 4096 * 4096 / 2;
    made_desk (&d);
    d.cluster.f.gpu_fp32 = d.cluster.f.gpu_bf16;
    d.job.stack.attention_tiles = g_quark_from_string ("33..64x64 65..128x128 129..192x128");
    d.job.stack.attention_tile_multiple = 8;
    d.job.stack.attention_tile_bytes = 2;
    /* 0: the stack has no attention kernels without tensor cores */
    d.job.stack.plain_attention_forward_share = i % 3 ? forward : 0;
    d.job.stack.plain_attention_backward_share = i % 3 ? backward : 0;
    /* 0: the topology states no rate of the CUDA cores */
    d.cluster.f.gpu_cuda_core_spec = i % 3 == 1 ? 0 : cores;
    gboolean plain = i % 3 == 2 && !row[i / 3].tiles;
    double rate = SMS * SM_RATE, most = fmax (1024, sum);
    assert_near (work (&d, WEFT_OP_ATTENTION, &s),
                 plain ? 2 * pairs * most / (cores * forward)
                       : 2 * pairs * sum / (rate * d.job.stack.attention_forward_share));
    assert_near (work (&d, WEFT_OP_ATTENTION_BWD, &s),
                 plain ? 4 * pairs * most / (cores * backward)
                       : 4 * pairs * sum / (rate * d.job.stack.attention_backward_share));
  }
}

/* Attention without tensor cores has kernels for one head width, plain_attention_width of the stack
 * file. Narrower heads take as long as heads of this width. */
static void
plain_attention_takes_as_long_as_heads_of_its_width (void **state)
{
  struct weft_shape s = { .dim = { 2, 4096, 3, 3, 8 }, .dtype = WEFT_BF16 };
  struct desk d;

  (void) state;
  made_desk (&d);
  d.job.stack.attention_tiles = g_quark_from_string ("16..16x16");
  d.job.stack.plain_attention_forward_share = 0.25;
  d.cluster.f.gpu_cuda_core_spec = 7e10;
  d.job.stack.plain_attention_width = 24;
  double narrow = work (&d, WEFT_OP_ATTENTION, &s);
  s.dim[4] = 24;
  assert_near (work (&d, WEFT_OP_ATTENTION, &s), narrow);
  d.job.stack.plain_attention_width = 48;
  assert_near (work (&d, WEFT_OP_ATTENTION, &s), 2 * narrow);
}

/* Of the bundled stacks, only Weft's has attention kernels that run without tensor cores. */
static void
only_our_kernels_are_plain (void **state)
{
  static const struct {
    const char *stack, *topology;
    gboolean plain;
  } row[] = { { "weft", "dgx-h100", TRUE },
              { "weft", "dgx-a100", TRUE },
              { "weft", "cpu", FALSE },
              { "megatron-core", "dgx-h100", FALSE },
              { "torchtitan", "dgx-h100", FALSE } };
  const struct weft_shape s = { .dim = { 1, 4096, 16, 16, 256 }, .dtype = WEFT_BF16 };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (row); i++) {
    struct weft_cluster cluster = { 0 };
    double rate = rate_of (row[i].stack, row[i].topology, WEFT_OP_ATTENTION, &s, &cluster);
    assert_near (rate, row[i].plain ? cluster.f.gpu_cuda_core_spec
                                    : weft_cluster_matmul_rate (&cluster, WEFT_BF16));
  }
}

/* ring_attention_share = 0.5 halves the FLOP rate of the kernels that compute parts of ring
 * attention. Attention to all keys at once keeps its rate. */
static void
parts_of_ring_attention_have_a_share_of_their_own (void **state)
{
  const struct weft_shape whole = { .dim = { 1, 64, 2, 2, 16 }, .dtype = WEFT_BF16 };
  const struct weft_shape part = { .dim = { 64, 64, 2, 2, 16 }, .dtype = WEFT_BF16 };
  struct desk d;

  (void) state;
  made_desk (&d);
  double whole_before = work (&d, WEFT_OP_ATTENTION, &whole),
         part_before = work (&d, WEFT_OP_ATTENTION_PART_BWD, &part);
  d.job.stack.ring_attention_share = 0.5;
  assert_near (work (&d, WEFT_OP_ATTENTION, &whole), whole_before);
  assert_near (work (&d, WEFT_OP_ATTENTION_PART_BWD, &part), 2 * part_before);
}

/* Row-wise fp8 scaling: the kernel that converts a row also finds its largest magnitude, so no
 * separate amax kernel moves bytes. The transposed copy reads the 16-bit matrix twice, which makes
 * it 2.5 times as expensive. */
static void
scales_of_rows_are_found_twice (void **state)
{
  const struct weft_shape s = { .dim = { 64, 32 }, .dtype = WEFT_FP8, .out_dtype = WEFT_FP8 };
  struct desk d;

  (void) state;
  made_desk (&d);
  double before = weft_cost_split (&d.cost, WEFT_OP_TRANSPOSE, &s).memory;
  d.cost.fp8 = WEFT_FP8_PRICE_ROWWISE;
  assert_near (weft_cost_split (&d.cost, WEFT_OP_TRANSPOSE, &s).memory, 2.5 * before);
  assert_true (weft_cost_split (&d.cost, WEFT_OP_AMAX, &s).memory == 0);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (the_overhead_of_a_tile_does_not_depend_on_the_dtype),
  cmocka_unit_test (parts_of_ring_attention_have_a_share_of_their_own),
  cmocka_unit_test (scales_of_rows_are_found_twice),
  cmocka_unit_test (whole_waves_of_whole_tiles_are_paid),
  cmocka_unit_test (the_power_limit_slows_matmuls_and_attention),
  cmocka_unit_test (classes_of_kernels_have_shares_of_their_own),
  cmocka_unit_test (rows_off_16_bytes_are_slow),
  cmocka_unit_test (attention_of_few_keys_is_slow),
  cmocka_unit_test (attention_of_narrow_heads_is_slow),
  cmocka_unit_test (attention_kernels_of_an_older_gpu_are_slow),
  cmocka_unit_test (each_pass_has_an_inner_dimension_of_its_own),
  cmocka_unit_test (few_deep_tiles_are_split),
  cmocka_unit_test (a_split_stays_in_one_wave),
  cmocka_unit_test (a_split_must_pay),
  cmocka_unit_test (a_split_counts_the_sms_that_are_left),
  cmocka_unit_test (products_of_experts_stay_whole),
  cmocka_unit_test (codes_of_experts_are_halves_where_kernels_make_them_so),
  cmocka_unit_test (deterministic_attention_runs_older_kernels_elsewhere),
  cmocka_unit_test (attention_in_fp8_has_a_rate_of_its_own),
  cmocka_unit_test (dropout_in_attention_costs_random_numbers),
  cmocka_unit_test (a_loss_that_is_not_fused_moves_copies_of_the_logits),
  cmocka_unit_test (fusion_of_the_loss_decides_what_it_moves),
  cmocka_unit_test (experts_of_gpt_oss_move_more),
  cmocka_unit_test (rotary_embeddings_of_single_kernels_move_more),
  cmocka_unit_test (softmax_of_causal_scores_reads_half),
  cmocka_unit_test (a_priced_scaling_has_a_rate_of_its_own),
  cmocka_unit_test (only_hopper_multiplies_codes_of_experts_by_our_kernels),
  cmocka_unit_test (heads_that_matrix_units_do_not_take_have_the_other_rate),
  cmocka_unit_test (plain_attention_takes_as_long_as_heads_of_its_width),
  cmocka_unit_test (only_our_kernels_are_plain),
};

WEFT_TESTS (tests)
