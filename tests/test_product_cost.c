/* The formula of products of matrices, by hand: whole waves of whole tiles, and the split of the inner
 * dimension where tiles are few. */
#include "made.h"

enum { TILE_M = 100, TILE_N = 200, SMS = 10 };
#define SM_RATE 1e9
#define BANDWIDTH 1e9

/* A GPU of ten SMs, 1 GFLOP/s each, whose tiles take no time to begin. */
struct desk {
  struct weft_cluster cluster;
  struct weft_job job;
  struct weft_cost cost;
};

static void
set_up (struct desk *d)
{
  d->cluster = made_cluster (1, 1);
  d->cluster.f.gpu_sms = SMS;
  d->cluster.f.gpu_bf16 = SMS * SM_RATE;
  d->cluster.f.gpu_memory_bandwidth = BANDWIDTH;
  d->job = made_job (&d->cluster);
  d->job.stack.matmul_tile_m = TILE_M;
  d->job.stack.matmul_tile_n = TILE_N;
  d->job.stack.matmul_k_half = 0;
  d->cost = (struct weft_cost){ .cluster = &d->cluster, .stack = &d->job.stack };
}

static struct weft_shape
product (uint64_t m, uint64_t n, uint64_t k)
{
  return (struct weft_shape){ .dim = { m, n, k }, .dtype = WEFT_BF16, .out_dtype = WEFT_BF16 };
}

static double
tile_seconds (double depth)
{
  return 2.0 * TILE_M * TILE_N * depth / SM_RATE;
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
  set_up (&d);
  for (unsigned i = 0; i < G_N_ELEMENTS (row); i++) {
    struct weft_shape s = product (row[i].m, row[i].n, 5000);
    assert_near (work (&d, WEFT_OP_MATMUL, &s), row[i].waves * tile_seconds (5000));
  }
}

/* Each pass sums over another dimension, and tiles what is left. */
static void
each_pass_has_an_inner_dimension_of_its_own (void **state)
{
  struct weft_shape s = product (1000, 2000, 4000);
  struct desk d;

  (void) state;
  set_up (&d);
  assert_near (work (&d, WEFT_OP_MATMUL, &s), 10 * tile_seconds (4000));
  assert_near (work (&d, WEFT_OP_MATMUL_DGRAD, &s), 20 * tile_seconds (2000));
  assert_near (work (&d, WEFT_OP_MATMUL_WGRAD, &s), 40 * tile_seconds (1000));
}

/* Two tiles on ten SMs: five parts of the depth each, and ten sums of 100 x 200 in fp32 that are written
 * and read. */
static void
few_deep_tiles_are_split (void **state)
{
  struct weft_shape s = product (1000000, 200, 200);
  struct desk d;
  struct weft_cost_parts parts;

  (void) state;
  set_up (&d);
  parts = weft_cost_split (&d.cost, WEFT_OP_MATMUL_WGRAD, &s);
  assert_near (parts.splits, 5);
  assert_near (parts.sums, 2 * 4 * 5 * 200.0 * 200 / BANDWIDTH);
  assert_near (parts.work, tile_seconds (200000) + parts.sums);
}

/* Three tiles: a fourth part would begin a second wave. */
static void
a_split_stays_in_one_wave (void **state)
{
  struct weft_shape s = product (300, 200, 1000000);
  struct desk d;

  (void) state;
  set_up (&d);
  assert_near (weft_cost_split (&d.cost, WEFT_OP_MATMUL, &s).splits, 3);
}

/* What is shallow is not worth its sums. */
static void
a_split_must_pay (void **state)
{
  struct weft_shape shallow = product (100, 200, 10), deep = product (100, 200, 100000);
  struct desk d;

  (void) state;
  set_up (&d);
  assert_near (weft_cost_split (&d.cost, WEFT_OP_MATMUL, &shallow).splits, 1);
  assert_near (weft_cost_split (&d.cost, WEFT_OP_MATMUL, &deep).splits, 10);
}

/* SMs that communication holds leave fewer parts: 2 tiles in 3 parts on 7 SMs. */
static void
a_split_counts_the_sms_that_are_left (void **state)
{
  struct weft_shape s = product (1000000, 200, 200);
  double sums = 2 * 4 * 3 * 200.0 * 200 / BANDWIDTH;
  struct desk d;

  (void) state;
  set_up (&d);
  assert_near (weft_cost_kernel (&d.cost, WEFT_OP_MATMUL_WGRAD, &s, 3),
               tile_seconds (1000000 / 3.0) + sums);
}

/* Products of experts are one kernel of many, which nobody splits. */
static void
products_of_experts_stay_whole (void **state)
{
  struct weft_shape s = { .dim = { 1000000, 200, 200, 2 },
                          .dtype = WEFT_BF16,
                          .out_dtype = WEFT_BF16 };
  struct desk d;

  (void) state;
  set_up (&d);
  assert_near (weft_cost_split (&d.cost, WEFT_OP_MOE_MATMUL_WGRAD, &s).splits, 1);
  assert_near (work (&d, WEFT_OP_MOE_MATMUL_WGRAD, &s), tile_seconds (500000));
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

/* Tiles of so many experts on ten SMs, at the rate of halves or twice that. */
static double
seconds_of_codes (double columns, double depth, double rate)
{
  double tiles = EXPERTS * ceil (columns / TILE_N);
  return ceil (tiles / SMS) * tile_seconds (depth) / rate;
}

static const struct {
  int64_t only, has; /* of the stack, of the GPU */
  uint64_t n, k, block;
  double rate; /* 1: halves, 2: codes */
} of_codes[] = {
  { 0, OTHER, 480, 320, 0, 2 },       { 0, OTHER, 480, 320, 32, 2 },
  { CAPABLE, CAPABLE, 480, 320, 0, 2 }, { CAPABLE, CAPABLE, 480, 320, 128, 2 },
  { CAPABLE, 0, 480, 320, 0, 2 },     { CAPABLE, OTHER, 480, 320, 0, 1 },
  { CAPABLE, OTHER, 480, 320, 128, 1 }, { CAPABLE, CAPABLE, 480, 320, 32, 1 },
  { CAPABLE, CAPABLE, 488, 320, 0, 1 }, { CAPABLE, CAPABLE, 480, 328, 0, 1 },
};

/* Experts' codes are halves where the stack's kernels make halves of them; no other product is. */
static void
codes_of_experts_are_halves_where_kernels_make_them_so (void **state)
{
  struct desk d;

  (void) state;
  set_up (&d);
  d.cluster.f.gpu_fp8 = 2 * d.cluster.f.gpu_bf16;
  for (unsigned i = 0; i < G_N_ELEMENTS (of_codes); i++) {
    struct weft_shape s = codes (of_codes[i].n, of_codes[i].k, of_codes[i].block);
    double n = (double) of_codes[i].n, k = (double) of_codes[i].k, rate = of_codes[i].rate;
    d.job.stack.expert_fp8_capability = of_codes[i].only;
    d.cluster.f.gpu_capability = of_codes[i].has;
    assert_near (work (&d, WEFT_OP_MOE_FP8_MATMUL, &s), seconds_of_codes (n, k, rate));
    assert_near (work (&d, WEFT_OP_MOE_FP8_MATMUL_DGRAD, &s), seconds_of_codes (k, n, rate));
    assert_near (weft_cost_split (&d.cost, WEFT_OP_MOE_FP8_MATMUL_WGRAD, &s).rate,
                 rate * SMS * SM_RATE);
    assert_near (weft_cost_split (&d.cost, WEFT_OP_FP8_MATMUL, &s).rate, 2 * SMS * SM_RATE);
  }
}

/* Of the bundled files: Weft's own kernels have codes on Hopper, Transformer Engine wherever there is fp8. */
static void
only_hopper_multiplies_codes_of_experts_by_our_kernels (void **state)
{
  static const struct {
    const char *stack, *topology;
    gboolean codes;
  } row[] = {
    { "weft", "dgx-h100", TRUE },           { "weft", "hgx-h200", TRUE },
    { "weft", "dgx-b200", FALSE },          { "weft", "gb300-nvl72", FALSE },
    { "weft", "l40s-pcie", FALSE },         { "megatron-core", "dgx-h100", TRUE },
    { "megatron-core", "dgx-b200", TRUE },  { "megatron-core", "gb300-nvl72", TRUE },
  };
  struct weft_shape s = codes (512, 512, 0);

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (row); i++) {
    g_autoptr (GError) error = NULL;
    struct weft_cluster cluster = { 0 };
    union weft_stack stack;
    assert_true (weft_cluster_load (row[i].topology, &cluster, &error));
    assert_true (weft_stack_load (row[i].stack, &stack, &error));
    const struct weft_cost cost = { .cluster = &cluster, .stack = &stack };
    assert_near (weft_cost_split (&cost, WEFT_OP_MOE_FP8_MATMUL, &s).rate,
                 row[i].codes ? cluster.f.gpu_fp8 : cluster.f.gpu_bf16);
  }
}

int
main (void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test (whole_waves_of_whole_tiles_are_paid),
    cmocka_unit_test (each_pass_has_an_inner_dimension_of_its_own),
    cmocka_unit_test (few_deep_tiles_are_split),
    cmocka_unit_test (a_split_stays_in_one_wave),
    cmocka_unit_test (a_split_must_pay),
    cmocka_unit_test (a_split_counts_the_sms_that_are_left),
    cmocka_unit_test (products_of_experts_stay_whole),
    cmocka_unit_test (codes_of_experts_are_halves_where_kernels_make_them_so),
    cmocka_unit_test (only_hopper_multiplies_codes_of_experts_by_our_kernels),
  };

  return cmocka_run_group_tests (tests, NULL, NULL);
}
