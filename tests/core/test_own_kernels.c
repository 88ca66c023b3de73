/* Prices of Weft's own kernels, which follow from how they run (core/gpu_kernels.def), against
 * numbers computed by hand. The grids of the table are compared with launches in
 * tests/emulated/test_cuda_sizes.c. */
#include "core/plan/gpu_kernels.h"
#include "tests/made/made.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* norm_bwd of rows of 1536: 192 threads a row. 660 blocks are launched, of which 500 run at once on
 * 100 SMs; each has a row in flight. */
static void
rounds_of_blocks_wait_for_memory (void **state)
{
  struct desk d;
  struct weft_shape s = rows (500 * 50, 1536);
  const struct weft_memory_kernel *k = weft_memory_kernel (WEFT_OP_NORM_BWD);

  (void) state;
  set_up (&d);
  d.cluster.f.gpu_memory_latency = 10 * LATENCY; /* longer than the arithmetic of a row */
  struct weft_kernel_grid grid = weft_memory_grid (k, &s);
  assert_int_equal (grid.blocks, 132 * (1024 / 192));
  assert_int_equal (grid.threads, 192);
  struct weft_cost_parts parts = weft_cost_split (&d.cost, WEFT_OP_NORM_BWD, &s);
  assert_near (parts.memory, 50 * k->block_waits * 10 * LATENCY);
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
 * us each when an SM has 4.19 TFLOP/s, and whose exponentials take 128 x 128 / 16 ns. Each stage
 * ends with 100 cycles. */
static void
stages_of_attention_follow_each_other (void **state)
{
  struct weft_shape s = { .dim = { 1, 128, 1, 1, 128 }, .dtype = WEFT_BF16 };
  double product = 2.0 * 128 * 128 * 128, rate = 100 * product / 1e-6;
  const struct weft_attention_run known = { rate, 100, FALSE }, endless = { 1e30, 100, FALSE };
  struct desk d;

  (void) state;
  set_up (&d);
  double slow = weft_attention_kernel_seconds (&d.cluster, WEFT_OP_ATTENTION, &s, &known);
  double fast = weft_attention_kernel_seconds (&d.cluster, WEFT_OP_ATTENTION, &s, &endless);
  /* a block alone takes its own time: the first stage, the second, and the last products; half of
   * it is added for the blocks that end last */
  double work = 128 * 128 * 1e-9 * (9 / 128.0 + 1 / 16.0);
  double block = 1e-6 + fmax (1e-6, work) + 2 * 100e-9 + 1e-6 + LATENCY;
  assert_near (slow, fmax (block, block / 100 + block / 2));
  assert_near (fast, work + 2 * 100e-9 + LATENCY);
}

/* Warpgroups that take turns (ping-pong) hide the shorter of products and exponentials. */
static void
turns_of_warpgroups_hide_the_shorter_work (void **state)
{
  struct weft_shape s = { .dim = { 1, 128, 1, 1, 128 }, .dtype = WEFT_BF16 };
  const struct weft_attention_run endless = { 1e30, 100, TRUE };
  struct desk d;

  (void) state;
  set_up (&d);
  assert_near (weft_attention_kernel_seconds (&d.cluster, WEFT_OP_ATTENTION, &s, &endless),
               128 * 128 * 1e-9 * (9 / 128.0 + 1 / 16.0) + LATENCY);
}

/* With one group of eight heads, a block of key gradients has eight times as many tiles as with
 * eight groups: the last blocks end later. */
static void
few_groups_of_keys_leave_sms_idle_at_the_end (void **state)
{
  struct weft_shape many = { .dim = { 32, 1024, 8, 8, 128 }, .dtype = WEFT_BF16 }, few = many;
  const struct weft_attention_run run = { 6e14, 100, FALSE };
  struct desk d;

  (void) state;
  set_up (&d);
  few.dim[3] = 1;
  assert_true (
      weft_attention_kernel_seconds (&d.cluster, WEFT_OP_ATTENTION_BWD, &few, &run) >
      1.1 * weft_attention_kernel_seconds (&d.cluster, WEFT_OP_ATTENTION_BWD, &many, &run));
}

/* attention_backend = auto has the price of the faster of two kernels. */
static void
a_choice_of_attention_has_the_price_of_the_faster (void **state)
{
  static const enum weft_op_kind kinds[] = { WEFT_OP_ATTENTION, WEFT_OP_ATTENTION_BWD };
  unsigned faster = 0, n = 0;
  struct desk d;

  (void) state;
  set_up (&d);
  for (uint64_t width = 64; width <= 128; width += 64)
    for (unsigned i = 0; i < G_N_ELEMENTS (kinds); i++, n++) {
      struct weft_shape s = { .dim = { 32, 1024, 16, 16, width }, .dtype = WEFT_BF16 };
      double seconds[2];
      for (int producer = 0; producer < 2; producer++) {
        const struct weft_attention_run run = { weft_cost_split (&d.cost, kinds[i], &s).rate,
                                                (double) d.cluster.f.gpu_sms, producer };
        seconds[producer] = weft_attention_kernel_seconds (&d.cluster, kinds[i], &s, &run);
      }
      d.cost.timed_attention = FALSE;
      double own = weft_cost_split (&d.cost, kinds[i], &s).work;
      d.cost.timed_attention = TRUE;
      assert_near (own - weft_cost_split (&d.cost, kinds[i], &s).work,
                   fmax (0, seconds[0] - seconds[1]));
      faster += seconds[1] < seconds[0];
    }
  assert_true (faster > 0 && faster <= n);
}

/* ------------------------------------------------------------------- the compiler's numbers */

/* Sets the least and the most registers of a kernel's variants in bf16 for sm_90a, by the lines of
 * kernels/cuda/RESOURCES.md: of hot kernels, or of all if it is not hot. FALSE: no line. */
static gboolean
registers_of (char **page, const char *kernel, uint32_t *least, uint32_t *most)
{
  enum { HOT_COLUMN = 5, ALL_COLUMN = 4 }; /* of sm_90a, in tables of 7 and 5 columns */
  g_autofree char *start = g_strdup_printf ("| `%s", kernel);
  gboolean hot = FALSE, found = FALSE;

  for (char **line = page; *line; line++) {
    g_auto (GStrv) cell = g_strsplit (*line, " | ", -1);
    guint n = g_strv_length (cell);
    if (!g_str_has_prefix (*line, start) || !strchr ("<`", (*line)[strlen (start)]) ||
        (hot && n < HOT_COLUMN + 2))
      continue;
    hot = n >= HOT_COLUMN + 2;
    const char *text = cell[hot ? HOT_COLUMN - 1 : ALL_COLUMN - 1], *to = strstr (text, " to ");
    uint32_t low = (uint32_t) atoi (text);
    uint32_t high = to && to < strchr (text, '/') ? (uint32_t) atoi (to + 4) : low;
    *least = found ? MIN (*least, low) : low;
    *most = found ? MAX (*most, high) : high;
    found = TRUE;
  }
  return found;
}

/* A change of a kernel changes its registers, and with them the blocks that run at once. */
static void
registers_are_those_of_the_compiler (void **state)
{
  g_autofree char *text = NULL;
  uint32_t least = 0, most = 0, checked = 0;

  (void) state;
  if (!g_file_get_contents (WEFT_SOURCE_DIR "/kernels/cuda/RESOURCES.md", &text, NULL, NULL))
    fail ();
  g_auto (GStrv) page = g_strsplit (text, "\n", -1);
  for (enum weft_op_kind kind = 0; kind < WEFT_N_OP; kind++) {
    const struct weft_memory_kernel *k = weft_memory_kernel (kind);
    if (!k || !k->kernel)
      continue;
    if (!registers_of (page, k->kernel, &least, &most))
      fail_msg ("kernels/cuda/RESOURCES.md has no kernel %s", k->kernel);
    for (unsigned i = 0; i < (k->team[0] ? G_N_ELEMENTS (k->team_registers) : 1); i++) {
      uint32_t says = k->team[0] ? k->team_registers[i] : k->registers;
      if (says && (says < least || says > most))
        fail_msg ("%s: core/gpu_kernels.def says %u registers, RESOURCES.md %u to %u", k->kernel,
                  says, least, most);
    }
    checked++;
  }
  assert_in_range (checked, 10, WEFT_N_OP);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (rounds_of_blocks_wait_for_memory),
  cmocka_unit_test (arithmetic_limits_a_kernel_whose_loads_are_short),
  cmocka_unit_test (other_software_has_the_price_of_its_shares),
  cmocka_unit_test (stages_of_attention_follow_each_other),
  cmocka_unit_test (turns_of_warpgroups_hide_the_shorter_work),
  cmocka_unit_test (few_groups_of_keys_leave_sms_idle_at_the_end),
  cmocka_unit_test (a_choice_of_attention_has_the_price_of_the_faster),
  cmocka_unit_test (registers_are_those_of_the_compiler),
};

WEFT_TESTS (tests)
