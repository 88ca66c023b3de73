/* Prices of Weft's own kernels, which follow from how they run (core/gpu_kernels.def), against
 * numbers computed by hand. The grids of the table are compared with launches in
 * tests/emulated/test_cuda_sizes.c. */
#include "core/plan/gpu_kernels.h"
#include "tests/made/made.h"
#include "tests/runner/runner.h"
#include <math.h>

#define LATENCY 1e-6

struct desk {
  struct weft_cluster cluster;
  struct weft_job job;
  struct weft_cost cost;
};

/* A GPU with 100 SMs at 1 GHz, and memory that is never the limit unless a test changes it. */
static void
set_up (struct desk *d)
{
  d->cluster = made_cluster (1, 1);
  d->cluster.f.gpu_capability = 90;
  d->cluster.f.gpu_sms = 100;
  d->cluster.f.gpu_cuda_core_spec = 2.0 * 128 * 100 * 1e9;
  d->cluster.f.gpu_memory_bandwidth = 1e18;
  d->cluster.f.gpu_memory_latency = LATENCY;
  d->cluster.f.gpu_bf16_sustained = 1;
  d->job = made_job (&d->cluster);
  d->job.stack.own_kernels = 1;
  d->job.stack.kernel_gap = 0;
  d->cost = (struct weft_cost){ .cluster = &d->cluster, .stack = &d->job.stack };
}

static struct weft_shape
rows (uint64_t n, uint64_t columns)
{
  return (struct weft_shape){ .dim = { n, columns }, .dtype = WEFT_BF16 };
}

/* norm_bwd of rows of 1536: 192 threads a row, one row for each of 256 blocks at a time. */
static void
rounds_of_blocks_wait_for_memory (void **state)
{
  struct desk d;
  struct weft_shape s = rows (256 * 50, 1536);
  const struct weft_memory_kernel *k = weft_memory_kernel (WEFT_OP_NORM_BWD);

  (void) state;
  set_up (&d);
  struct weft_kernel_grid grid = weft_memory_grid (k, &s);
  assert_int_equal (grid.blocks, 256);
  assert_int_equal (grid.threads, 192);
  struct weft_cost_parts parts = weft_cost_split (&d.cost, WEFT_OP_NORM_BWD, &s);
  assert_near (parts.memory, 50 * k->waits * LATENCY);
  assert_int_equal (parts.limit, WEFT_LIMIT_FLIGHT);
  d.cluster.f.gpu_memory_bandwidth = 1e10;
  parts = weft_cost_split (&d.cost, WEFT_OP_NORM_BWD, &s);
  assert_near (parts.memory, parts.bytes / (1e10 * d.job.stack.memory_share));
  assert_int_equal (parts.limit, WEFT_LIMIT_BANDWIDTH);
}

static void
arithmetic_limits_a_kernel_whose_loads_are_short (void **state)
{
  struct desk d;
  struct weft_shape s = rows (10000, 10000);
  const struct weft_memory_kernel *k = weft_memory_kernel (WEFT_OP_SWIGLU_BWD);

  (void) state;
  set_up (&d);
  d.cluster.f.gpu_memory_latency = 1e-12;
  struct weft_cost_parts parts = weft_cost_split (&d.cost, WEFT_OP_SWIGLU_BWD, &s);
  assert_near (parts.memory, 1e8 * k->instructions / (100 * 128 * 1e9));
  assert_int_equal (parts.limit, WEFT_LIMIT_INSTRUCTIONS);
}

static void
other_software_has_the_price_of_its_shares (void **state)
{
  static const enum weft_op_kind kinds[] = { WEFT_OP_NORM_BWD, WEFT_OP_SWIGLU, WEFT_OP_CAST };
  struct weft_shape s = rows (10000, 1024),
                    heads = { .dim = { 2, 1024, 8, 8, 128 }, .dtype = WEFT_BF16 };
  struct desk d;

  (void) state;
  set_up (&d);
  d.job.stack.own_kernels = 0;
  for (unsigned i = 0; i < G_N_ELEMENTS (kinds); i++)
    assert_near (weft_cost_split (&d.cost, kinds[i], &s).bandwidth,
                 d.cluster.f.gpu_memory_bandwidth * d.job.stack.memory_share);
  assert_near (weft_cost_split (&d.cost, WEFT_OP_ATTENTION, &heads).share,
               d.job.stack.attention_forward_share);
}

/* Attention of one sequence of 128 tokens in 1 head: one block with one tile, whose products take 1
 * us each when an SM has 4.19 TFLOP/s, and whose exponentials take 128 x 128 / 16 ns. */
static void
stages_of_attention_follow_each_other (void **state)
{
  struct weft_shape s = { .dim = { 1, 128, 1, 1, 128 }, .dtype = WEFT_BF16 };
  double product = 2.0 * 128 * 128 * 128, rate = 100 * product / 1e-6;
  struct desk d;

  (void) state;
  set_up (&d);
  double slow = weft_attention_kernel_seconds (&d.cluster, WEFT_OP_ATTENTION, &s, rate, 100);
  double fast = weft_attention_kernel_seconds (&d.cluster, WEFT_OP_ATTENTION, &s, 1e30, 100);
  /* a block alone takes its own time: the first stage, the second, and the last products; half of
   * it is added for the blocks that end last */
  double work = 128 * 128 * 1e-9 * (9 / 128.0 + 1 / 16.0);
  double block = 1e-6 + fmax (1e-6, work) + 1e-6 + LATENCY;
  assert_near (slow, fmax (block, block / 100 + block / 2));
  assert_near (fast, work + LATENCY);
}

/* With one group of eight heads, a block of key gradients has eight times as many tiles as with
 * eight groups: the last blocks end later. */
static void
few_groups_of_keys_leave_sms_idle_at_the_end (void **state)
{
  struct weft_shape many = { .dim = { 32, 1024, 8, 8, 128 }, .dtype = WEFT_BF16 }, few = many;
  struct desk d;

  (void) state;
  set_up (&d);
  few.dim[3] = 1;
  assert_true (
      weft_attention_kernel_seconds (&d.cluster, WEFT_OP_ATTENTION_BWD, &few, 6e14, 100) >
      1.1 * weft_attention_kernel_seconds (&d.cluster, WEFT_OP_ATTENTION_BWD, &many, 6e14, 100));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (rounds_of_blocks_wait_for_memory),
  cmocka_unit_test (arithmetic_limits_a_kernel_whose_loads_are_short),
  cmocka_unit_test (other_software_has_the_price_of_its_shares),
  cmocka_unit_test (stages_of_attention_follow_each_other),
  cmocka_unit_test (few_groups_of_keys_leave_sms_idle_at_the_end),
};

WEFT_TESTS (tests)
