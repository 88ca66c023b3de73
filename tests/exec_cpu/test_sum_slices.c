/* Sums of bf16 gradients, compared with sums in double: slices that are exchanged and added in fp32
 * are rounded once, while a reduction collective rounds after every addition. */
#include "exec_cpu/exec_cpu.h"
#include "kernels/float.h"
#include "tests/made/made.h"
#include "tests/runner/runner.h"

#define HALF_ULP16 0x1p-8
#define EPSILON32 0x1p-24

enum { MEMBERS = 7, SLICE = 1500, ALL = MEMBERS * SLICE };

struct exchange {
  uint32_t sent, got, sum; /* buffers */
  float value[MEMBERS][ALL];
};

static uint32_t
add_buffer (weft_builder *b, uint64_t n)
{
  struct weft_buf row = { .bytes = n * 2,
                          .base = WEFT_NO_BUF,
                          .name = weft_build_name (b, "payload"),
                          .layer = WEFT_NO_LAYER,
                          .micro = WEFT_NO_MICRO,
                          .pool = WEFT_POOL_DEVICE,
                          .dtype = WEFT_BF16,
                          .permanent = 1 };
  return weft_build_buf (b, &row);
}

static weft_plan *
exchange_plan (struct exchange *e, enum weft_reduction_order order)
{
  struct weft_cluster cluster = made_cluster (1, MEMBERS);
  struct weft_job job = made_job (&cluster);
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);
  struct weft_op row = made_row (b, WEFT_OP_ALL_TO_ALL, "slices");
  struct weft_shape all = { .dim = { ALL }, .dtype = WEFT_BF16, .out_dtype = WEFT_BF16 };
  struct weft_shape one = { .dim = { SLICE, MEMBERS }, .dtype = WEFT_BF16, .out_dtype = WEFT_BF16 };

  job.train.reduction_order = order;
  e->sent = add_buffer (b, ALL);
  e->got = add_buffer (b, ALL);
  e->sum = add_buffer (b, SLICE);
  row.group = WEFT_GROUP_DP;
  row.lane = WEFT_LANE_DP;
  weft_build_op (b, &row, &all);
  weft_build_use (b, e->sent, TRUE, FALSE);
  weft_build_use (b, e->got, FALSE, TRUE);
  row = made_row (b, WEFT_OP_SUM_SLICES, "sum");
  weft_build_op (b, &row, &one);
  weft_build_use (b, e->got, TRUE, FALSE);
  weft_build_use (b, e->sum, FALSE, TRUE);
  return made_plan (&job, weft_mesh_make (1, 1, MEMBERS, 1), &b);
}

/* Draws values of many magnitudes, so that every sum of them is rounded. */
static void
draw (struct exchange *e, weft_exec *x, uint32_t seed)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (seed);
  uint16_t raw[ALL];

  for (uint32_t m = 0; m < MEMBERS; m++) {
    for (uint32_t i = 0; i < ALL; i++)
      e->value[m][i] =
          ldexpf ((float) g_rand_double_range (rand, -1, 1), g_rand_int_range (rand, -6, 6));
    weft_round (WEFT_BF16, ALL, e->value[m]);
    weft_store (raw, WEFT_BF16, 0, ALL, e->value[m]);
    x->ops->write (x, m, e->sent, 0, sizeof raw, raw);
  }
}

static void
read_floats (weft_exec *x, uint32_t member, uint32_t buf, uint32_t n, float *out)
{
  uint16_t raw[ALL];

  x->ops->read (x, member, buf, 0, n * 2, raw);
  for (uint32_t i = 0; i < n; i++)
    out[i] = weft_bf16_float (raw[i]);
}

/* Checks the all-to-all: slice j that member i receives is slice i of member j. */
static void
assert_exchanged (const struct exchange *e, weft_exec *x, uint32_t member)
{
  float got[ALL];

  read_floats (x, member, e->got, ALL, got);
  for (uint32_t from = 0; from < MEMBERS; from++)
    for (uint32_t i = 0; i < SLICE; i++)
      assert_true (got[from * SLICE + i] == e->value[from][member * SLICE + i]);
}

/* Checks that the error of a sum is at most that of fp32 additions and one rounding to bf16. Sets
 * *nodes to the largest error of a sum that is rounded to bf16 after every addition, divided by the
 * error that this function allows. */
static void
assert_rounded_once (const struct exchange *e, weft_exec *x, uint32_t member, double *nodes)
{
  float sum[SLICE];

  read_floats (x, member, e->sum, SLICE, sum);
  for (uint32_t i = 0; i < SLICE; i++) {
    double exact = 0, size = 0;
    float node = 0;
    for (uint32_t from = 0; from < MEMBERS; from++) {
      float term = e->value[from][member * SLICE + i];
      exact += (double) term;
      size += fabs ((double) term);
      node += term;
      weft_round (WEFT_BF16, 1, &node);
    }
    double allowed = HALF_ULP16 * fabs (exact) + MEMBERS * EPSILON32 * size;
    assert_true (fabs ((double) sum[i] - exact) <= allowed);
    *nodes = fmax (*nodes, fabs ((double) node - exact) / allowed);
  }
}

static void
slices_are_exchanged_and_rounded_once (void **state)
{
  static const enum weft_reduction_order orders[] = { WEFT_ORDER_CANONICAL, WEFT_ORDER_FAST };
  g_autofree struct exchange *e = g_new0 (struct exchange, 1);
  g_autoptr (GError) error = NULL;
  double nodes = 0;

  (void) state;
  for (unsigned o = 0; o < G_N_ELEMENTS (orders); o++) {
    g_autoptr (weft_plan) plan = exchange_plan (e, orders[o]);
    const union weft_cpu_options own = { { .poison = TRUE, .stress = o } };
    struct weft_exec_options options = { .own =
                                             weft_own_options_of (weft_exec_cpu.options, own.at) };
    weft_exec *x = weft_exec_cpu.open (plan, &options, &error);
    assert_non_null (x);
    for (uint32_t step = 0; step < 2; step++) {
      draw (e, x, step);
      g_autoptr (weft_timeline) t = weft_exec_step (x, &error);
      assert_non_null (t);
      for (uint32_t member = 0; member < MEMBERS; member++) {
        assert_exchanged (e, x, member);
        assert_rounded_once (e, x, member, &nodes);
      }
    }
    weft_exec_cpu.close (x);
  }
  assert_true (nodes > 3);
}

/* ------------------------------------------------------------------- collectives */

static weft_plan *
reduction_plan (struct exchange *e, enum weft_reduction_order order)
{
  struct weft_cluster cluster = made_cluster (1, MEMBERS);
  struct weft_job job = made_job (&cluster);
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);
  struct weft_op row = made_row (b, WEFT_OP_ALL_REDUCE, "sum");
  struct weft_shape all = { .dim = { ALL }, .dtype = WEFT_BF16, .out_dtype = WEFT_BF16 };

  job.train.reduction_order = order;
  e->sent = e->sum = add_buffer (b, ALL);
  row.group = WEFT_GROUP_DP;
  row.lane = WEFT_LANE_DP;
  weft_build_op (b, &row, &all);
  weft_build_use (b, e->sent, TRUE, TRUE);
  return made_plan (&job, weft_mesh_make (1, 1, MEMBERS, 1), &b);
}

/* Checks the error of a sum in which every value passes `nodes` roundings against its bound
 * (Higham, Accuracy and Stability of Numerical Algorithms, 4.2). Returns the largest error, in
 * units of one rounding of the exact sum. */
static double
assert_rounded_at_nodes (const struct exchange *e, weft_exec *x, uint32_t member, uint32_t nodes)
{
  g_autofree float *sum = g_new (float, ALL);
  double worst = 0;

  read_floats (x, member, e->sum, ALL, sum);
  for (uint32_t i = 0; i < ALL; i++) {
    double exact = 0, size = 0;
    for (uint32_t from = 0; from < MEMBERS; from++) {
      exact += (double) e->value[from][i];
      size += fabs ((double) e->value[from][i]);
    }
    double error = fabs ((double) sum[i] - exact);
    assert_true (error <= (pow (1 + HALF_ULP16, nodes) - 1) * size);
    worst = fmax (worst, error / (HALF_ULP16 * fabs (exact) + EPSILON32 * size));
  }
  return worst;
}

static void
sums_in_bf16_are_rounded_at_every_node (void **state)
{
  static const struct {
    enum weft_reduction_order order;
    /* number of times that a value is rounded: depth of the summation tree, or number of additions
     * in the ring */
    uint32_t nodes;
  } ways[] = { { WEFT_ORDER_CANONICAL, 3 }, { WEFT_ORDER_FAST, MEMBERS - 1 } };
  g_autofree struct exchange *e = g_new0 (struct exchange, 1);
  g_autoptr (GError) error = NULL;

  (void) state;
  for (unsigned w = 0; w < G_N_ELEMENTS (ways); w++) {
    g_autoptr (weft_plan) plan = reduction_plan (e, ways[w].order);
    struct weft_exec_options options = { .own = made_own (&weft_exec_cpu, "poison") };
    weft_exec *x = weft_exec_cpu.open (plan, &options, &error);
    assert_non_null (x);
    draw (e, x, w);
    g_autoptr (weft_timeline) t = weft_exec_step (x, &error);
    assert_non_null (t);
    for (uint32_t member = 0; member < MEMBERS; member++)
      assert_true (assert_rounded_at_nodes (e, x, member, ways[w].nodes) > 3);
    weft_exec_cpu.close (x);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (sums_in_bf16_are_rounded_at_every_node),
  cmocka_unit_test (slices_are_exchanged_and_rounded_once),
};

WEFT_TESTS (tests)
