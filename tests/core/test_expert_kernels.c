/* Costs that depend on experts: tiles of a random number of rows, and kernels that software has for
 * each expert (core/plan/launches.h), on the device and on the host. */
#include "core/plan/host.h"
#include "core/plan/launches.h"
#include "tests/made/desk.h"
#include "tests/runner/runner.h"
#include <math.h>

/* The rows of an expert are a random number, so its last tile is half full on average, but for a
 * capacity (stride) or a router that gives each expert the same number. */
static void
the_last_tile_of_an_expert_is_half_full (void **state)
{
  static const struct {
    uint64_t rows, stride;
    gboolean even;
    double tiles; /* down the rows of one of 20 experts */
  } row[] = {
    { 2 * TILE_M, 0, FALSE, 2.5 },
    { 2 * TILE_M, 2 * TILE_M, FALSE, 2 },
    { 2 * TILE_M, 0, TRUE, 2 },
    { TILE_M / 5, 0, FALSE, 1 },
    { 2 * TILE_M - 1, 2 * TILE_M, FALSE, 2 },
  };
  struct desk d;

  (void) state;
  made_desk (&d);
  for (unsigned i = 0; i < G_N_ELEMENTS (row); i++) {
    struct weft_shape s = { .dim = { 20 * row[i].rows, TILE_N, TILE_N, 20, row[i].stride },
                            .dtype = WEFT_BF16,
                            .out_dtype = WEFT_BF16 };
    d.cost.even_experts = row[i].even;
    const double seconds = row[i].tiles * 2 * made_tile_seconds (TILE_N);
    assert_near (weft_cost_split (&d.cost, WEFT_OP_MOE_MATMUL, &s).work, seconds);
    assert_near (weft_cost_split (&d.cost, WEFT_OP_MOE_MATMUL_DGRAD, &s).work, seconds);
  }
}

/* Conversions of the operands of 8 experts are one kernel, or some for each expert. The biases of
 * GPT-OSS are kernels for each of 8 experts beside the activation. */
static void
kernels_for_each_expert_have_a_gap_each (void **state)
{
  static const struct {
    enum weft_op_kind kind;
    enum weft_fp8_recipe recipe;
    int64_t capability;
    double kernels;
  } row[] = {
    { WEFT_OP_MOE_AMAX, WEFT_FP8_TENSORWISE, 90, 3 * 8 },
    { WEFT_OP_MOE_QUANTISE, WEFT_FP8_TENSORWISE, 90, 8 },
    { WEFT_OP_MOE_QUANTISE, WEFT_FP8_TENSORWISE, 100, 8 },
    { WEFT_OP_MOE_QUANTISE, WEFT_FP8_DELAYED, 90, 1 },
    { WEFT_OP_MOE_QUANTISE, WEFT_FP8_DELAYED, 100, 8 },
    { WEFT_OP_MOE_QUANTISE_BLOCKS, WEFT_FP8_MX, 100, 8 },
    { WEFT_OP_MOE_ACT_BWD, WEFT_FP8_DELAYED, 90, 1 + 5 * 8 },
    { WEFT_OP_MOE_FP8_MATMUL, WEFT_FP8_MX, 100, 1 + 1 },
    { WEFT_OP_MOE_FP8_MATMUL_WGRAD, WEFT_FP8_MX, 100, 1 },
    { WEFT_OP_FP8_MATMUL_DGRAD, WEFT_FP8_MX, 100, 1 + 1 },
    { WEFT_OP_FP8_MATMUL, WEFT_FP8_TENSORWISE, 100, 1 },
    { WEFT_OP_MOE_ACT, WEFT_FP8_DELAYED, 90, 1 },
    { WEFT_OP_ADD, WEFT_FP8_DELAYED, 90, 1 },
  };
  const struct weft_shape s = { .dim = { 64, 32, 8, 8 },
                                .dtype = WEFT_BF16,
                                .out_dtype = WEFT_FP8 };
  struct desk d;

  (void) state;
  made_desk (&d);
  d.job.stack.kernel_gap = 1e-6;
  for (unsigned i = 0; i < G_N_ELEMENTS (row); i++)
    for (int apart = 0; apart < 2; apart++) {
      d.cluster.f.gpu_capability = row[i].capability;
      d.cost.fp8_recipe = row[i].recipe;
      d.cost.expert_outputs = apart;
      d.job.stack.expert_conversions = apart;
      d.job.stack.mx_swizzles = apart;
      d.job.stack.expert_bias_kernels = 5 * apart;
      d.job.stack.expert_fp8_transposes = 100 * apart;
      assert_near (weft_cost_split (&d.cost, row[i].kind, &s).gap,
                   1e-6 * (apart ? row[i].kernels : 1));
    }
}

/* On GPUs before expert_fp8_transposes, conversions of experts' operands write each code twice. */
static void
codes_of_experts_are_also_written_transposed (void **state)
{
  const struct weft_shape s = { .dim = { 64, 32, 8 }, .dtype = WEFT_BF16, .out_dtype = WEFT_FP8 };
  static const struct {
    int64_t capability, below;
    double each;
  } row[] = { { 90, 100, 4 }, { 100, 100, 3 }, { 90, 0, 3 }, { 0, 100, 3 } };
  struct desk d;

  (void) state;
  made_desk (&d);
  for (unsigned i = 0; i < G_N_ELEMENTS (row); i++) {
    d.cluster.f.gpu_capability = row[i].capability;
    d.job.stack.expert_fp8_transposes = row[i].below;
    assert_near (weft_cost_split (&d.cost, WEFT_OP_MOE_QUANTISE, &s).bytes, row[i].each * 64 * 32);
  }
}

/* Each kernel beside the first is a launch of the host. The codes of each expert are also an
 * operation of the framework, and so is each kernel that no library launches. */
static void
kernels_for_each_expert_have_a_launch_each (void **state)
{
  const struct weft_shape s = { .dim = { 64, 32, 8 }, .dtype = WEFT_BF16, .out_dtype = WEFT_FP8 };
  static const struct {
    enum weft_op_kind kind;
    double launches, operations;
  } row[] = {
    { WEFT_OP_MOE_AMAX, 3 * 8 - 1, 0 },
    { WEFT_OP_MOE_QUANTISE, 7, 7 },
    { WEFT_OP_MOE_QUANTISE_BLOCKS, 7, 7 },
    { WEFT_OP_MOE_ACT_BWD, 5 * 8, 5 * 8 },
    { WEFT_OP_MOE_ACT, 0, 0 },
  };
  struct desk d;

  (void) state;
  made_desk (&d);
  d.cluster.f.node_host_speed = 0.5;
  d.cost.fp8_recipe = WEFT_FP8_TENSORWISE;
  d.cost.expert_outputs = 1;
  d.job.stack.expert_conversions = 1;
  d.job.stack.expert_bias_kernels = 5;
  d.job.stack.host_op_seconds = 4e-6;
  for (unsigned i = 0; i < G_N_ELEMENTS (row); i++)
    assert_near (weft_launches_host (&d.cost, row[i].kind, &s, 2e-6),
                 row[i].launches * 2e-6 + row[i].operations * 8e-6);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (the_last_tile_of_an_expert_is_half_full),
  cmocka_unit_test (kernels_for_each_expert_have_a_gap_each),
  cmocka_unit_test (kernels_for_each_expert_have_a_launch_each),
  cmocka_unit_test (codes_of_experts_are_also_written_transposed),
};
WEFT_TESTS (tests)
