/* Host memory: copies between device and host, kernels that run on the host, the checks of such
 * ops, and GPUs that compete for the host links and the memory bandwidth of their node. */
#include "core/plan/check.h"
#include "exec_cpu/exec_cpu.h"
#include "tests/made/made.h"
#include "tests/runner/runner.h"

#define MB 1000000u
#define ELEMENTS 1000u

static uint32_t
add_buffer (weft_builder *b, enum weft_pool pool, uint64_t n, gboolean permanent)
{
  struct weft_buf row = { .bytes = n * 4,
                          .base = WEFT_NO_BUF,
                          .name = weft_build_name (b, weft_pool_words[pool]),
                          .layer = WEFT_NO_LAYER,
                          .micro = WEFT_NO_MICRO,
                          .pool = pool,
                          .dtype = WEFT_FP32,
                          .permanent = permanent };
  return weft_build_buf (b, &row);
}

/* Adds a copy of n elements between host and device. `first`: position of the first copied element
 * in the device buffer. */
static uint32_t
add_copy (weft_builder *b, enum weft_op_kind kind, uint32_t from, uint32_t to, uint64_t n,
          uint64_t first)
{
  struct weft_op row = made_row (b, kind, weft_op_words[kind]);
  struct weft_shape shape = { .dim = { n, first }, .dtype = WEFT_FP32, .out_dtype = WEFT_FP32 };

  row.lane = weft_op_enters_device (kind) ? WEFT_LANE_H2D : WEFT_LANE_D2H;
  uint32_t op = weft_build_op (b, &row, &shape);
  weft_build_use (b, from, TRUE, FALSE);
  weft_build_use (b, to, FALSE, TRUE);
  return op;
}

static uint32_t
add_zero (weft_builder *b, enum weft_lane lane, uint32_t buf, uint64_t n)
{
  struct weft_op row = made_row (b, WEFT_OP_ZERO, "zero");
  struct weft_shape shape = { .dim = { n }, .dtype = WEFT_FP32, .out_dtype = WEFT_FP32 };

  row.lane = lane;
  uint32_t op = weft_build_op (b, &row, &shape);
  weft_build_use (b, buf, FALSE, TRUE);
  return op;
}

/* --------------------------------------------------------------- real numbers */

/* Copies elements from the middle of a device buffer to the host and back to another place in
 * the device buffer; copies zeros from the host to the elements before them. Checks every
 * element. */
static void
elements_go_to_the_host_and_back (void **state)
{
  struct weft_cluster cluster = made_cluster (1, 1);
  struct weft_job job = made_job (&cluster);
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);
  uint32_t x = add_buffer (b, WEFT_POOL_DEVICE, ELEMENTS, TRUE);
  uint32_t y = add_buffer (b, WEFT_POOL_DEVICE, ELEMENTS, TRUE);
  uint32_t half = add_buffer (b, WEFT_POOL_HOST, ELEMENTS / 2, FALSE);
  uint32_t none = add_buffer (b, WEFT_POOL_HOST, 100, FALSE);
  float value[ELEMENTS], got[ELEMENTS];
  g_autoptr (GError) error = NULL;

  (void) state;
  add_copy (b, WEFT_OP_TO_HOST, x, half, ELEMENTS / 2, 300);
  add_copy (b, WEFT_OP_FROM_HOST, half, y, ELEMENTS / 2, 100);
  add_zero (b, WEFT_LANE_HOST, none, 100);
  add_copy (b, WEFT_OP_FROM_HOST, none, y, 100, 0);
  g_autoptr (weft_plan) plan = made_plan (&job, weft_mesh_make (1, 1, 1, 1), &b);
  for (uint32_t i = 0; i < ELEMENTS; i++)
    value[i] = (float) i + 1;
  for (uint64_t seed = 0; seed < 5; seed++) {
    const union weft_cpu_options own = { { .poison = TRUE, .stress = (int64_t) seed } };
    struct weft_exec_options options = { .own =
                                             weft_own_options_of (weft_exec_cpu.options, own.at) };
    weft_exec *e = weft_exec_cpu.open (plan, &options, &error);
    assert_non_null (e);
    assert_int_equal (e->allocated_host[0], plan->memory[0].planned[WEFT_POOL_HOST]);
    assert_int_equal (e->allocated[0], plan->memory[0].planned[WEFT_POOL_DEVICE]);
    e->ops->write (e, 0, x, 0, sizeof value, value);
    e->ops->write (e, 0, y, 0, sizeof value, value);
    g_autoptr (weft_timeline) t = weft_exec_step (e, &error);
    assert_non_null (t);
    e->ops->read (e, 0, y, 0, sizeof got, got);
    for (uint32_t i = 0; i < ELEMENTS; i++)
      assert_true (got[i] == (i < 100 ? 0 : i < 600 ? value[i + 200] : value[i]));
    weft_exec_cpu.close (e);
  }
}

/* Three host buffers, of which at most two are live at once: the memory plan of the host must
 * reuse the first one's memory for the third. */
static void
host_memory_is_planned_like_that_of_the_device (void **state)
{
  struct weft_cluster cluster = made_cluster (1, 1);
  struct weft_job job = made_job (&cluster);
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);
  uint32_t x = add_buffer (b, WEFT_POOL_DEVICE, 1024, TRUE), host[3];

  (void) state;
  for (int i = 0; i < 3; i++)
    host[i] = add_buffer (b, WEFT_POOL_HOST, 1024, FALSE);
  add_copy (b, WEFT_OP_TO_HOST, x, host[0], 1024, 0);
  add_copy (b, WEFT_OP_TO_HOST, x, host[1], 1024, 0);
  add_copy (b, WEFT_OP_FROM_HOST, host[0], x, 1024, 0);
  uint32_t back = add_copy (b, WEFT_OP_FROM_HOST, host[1], x, 1024, 0);
  add_copy (b, WEFT_OP_TO_HOST, x, host[2], 1024, 0);
  g_autoptr (weft_plan) plan = made_plan (&job, weft_mesh_make (1, 1, 1, 1), &b);
  const struct weft_memory *m = &plan->memory[0];

  assert_int_equal (m->planned[WEFT_POOL_HOST], 2 * 4096);
  assert_int_equal (m->live[WEFT_POOL_HOST], 2 * 4096);
  assert_true (m->peak_op[WEFT_POOL_HOST] < back);
  assert_int_equal (m->planned[WEFT_POOL_DEVICE], 4096);
}

/* -------------------------------------------------------------------- proofs */

static void
each_side_of_the_host_link_is_reached_by_its_own_lanes (void **state)
{
  static const struct sample {
    enum weft_op_kind kind;
    enum weft_lane lane;
    enum weft_pool first, second;
    const char *wanted; /* part of the error message; NULL: the check accepts the op */
  } samples[] = {
    { WEFT_OP_TO_HOST, WEFT_LANE_D2H, WEFT_POOL_DEVICE, WEFT_POOL_HOST, NULL },
    { WEFT_OP_TO_HOST, WEFT_LANE_D2H, WEFT_POOL_SYMMETRIC, WEFT_POOL_HOST, NULL },
    { WEFT_OP_FROM_HOST, WEFT_LANE_H2D, WEFT_POOL_HOST, WEFT_POOL_DEVICE, NULL },
    { WEFT_OP_CAST, WEFT_LANE_HOST, WEFT_POOL_HOST, WEFT_POOL_HOST, NULL },
    { WEFT_OP_CAST, WEFT_LANE_GPU, WEFT_POOL_DEVICE, WEFT_POOL_DEVICE, NULL },
    { WEFT_OP_TO_HOST, WEFT_LANE_D2H, WEFT_POOL_DEVICE, WEFT_POOL_DEVICE,
      "in pool device, wanted host memory" },
    { WEFT_OP_TO_HOST, WEFT_LANE_D2H, WEFT_POOL_HOST, WEFT_POOL_HOST,
      "in pool host, wanted device memory" },
    { WEFT_OP_FROM_HOST, WEFT_LANE_H2D, WEFT_POOL_DEVICE, WEFT_POOL_DEVICE,
      "in pool device, wanted host memory" },
    { WEFT_OP_CAST, WEFT_LANE_HOST, WEFT_POOL_DEVICE, WEFT_POOL_HOST,
      "on lane host uses buffer 0 (device) in pool device, wanted host memory" },
    { WEFT_OP_CAST, WEFT_LANE_GPU, WEFT_POOL_DEVICE, WEFT_POOL_HOST,
      "on lane gpu uses buffer 1 (host) in pool host, wanted device memory" },
    { WEFT_OP_CAST, WEFT_LANE_DP, WEFT_POOL_HOST, WEFT_POOL_DEVICE,
      "on lane dp uses buffer 0 (host) in pool host, wanted device memory" },
  };

  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (samples); i++) {
    g_autoptr (weft_builder) b = weft_builder_new (0, 1);
    uint32_t x = add_buffer (b, samples[i].first, 16, TRUE);
    uint32_t y = add_buffer (b, samples[i].second, 16, TRUE);
    struct weft_op row = made_row (b, samples[i].kind, "op");
    struct weft_shape shape = { .dim = { 16 }, .dtype = WEFT_FP32, .out_dtype = WEFT_FP32 };
    g_autoptr (GError) error = NULL;
    row.lane = samples[i].lane;
    weft_build_op (b, &row, &shape);
    weft_build_use (b, x, TRUE, FALSE);
    weft_build_use (b, y, FALSE, TRUE);
    g_autoptr (weft_program) p = weft_builder_freeze (b);
    assert_int_equal (weft_check_program (p, &error), samples[i].wanted == NULL);
    if (samples[i].wanted && !strstr (error->message, samples[i].wanted))
      fail_msg ("sample %zu: \"%s\", wanted \"%s\"", i, error->message, samples[i].wanted);
  }
}

/* A program with a copy to the host, a kernel on the host and a copy back. */
static weft_program *
round_trip (gboolean with_deps)
{
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);
  uint32_t x = add_buffer (b, WEFT_POOL_DEVICE, 64, TRUE);
  uint32_t y = add_buffer (b, WEFT_POOL_HOST, 64, FALSE);

  add_zero (b, WEFT_LANE_GPU, x, 64);
  add_copy (b, WEFT_OP_TO_HOST, x, y, 64, 0);
  add_zero (b, WEFT_LANE_HOST, y, 64);
  add_copy (b, WEFT_OP_FROM_HOST, y, x, 64, 0);
  weft_program *p = weft_builder_freeze (b);
  struct weft_memory memory;
  weft_memory_plan (p, NULL, G_MAXUINT64, &memory);
  for (uint32_t op = 0; op <= p->n_op && !with_deps; op++)
    p->op[op].deps = 0;
  return p;
}

static void
a_copy_that_nobody_waits_for_is_a_race (void **state)
{
  g_autoptr (weft_program) good = round_trip (TRUE), bad = round_trip (FALSE);
  g_autoptr (GError) error = NULL;

  (void) state;
  assert_true (weft_check_program (good, &error));
  assert_false (weft_check_program (bad, &error));
  assert_non_null (strstr (error->message, "a race"));
}

static void
programs_with_host_memory_print_and_parse (void **state)
{
  g_autoptr (weft_program) p = round_trip (TRUE);
  g_autofree char *text = weft_program_print (p);
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_program) q = weft_program_parse (text, "text", &error);

  (void) state;
  assert_non_null (q);
  g_autofree char *again = weft_program_print (q);
  assert_string_equal (text, again);
  assert_non_null (strstr (text, "d2h to_host"));
  assert_non_null (strstr (text, "h2d from_host"));
  assert_true (weft_check_program (q, &error));
}

/* -------------------------------------------------------------- simulated time */

/* Simulated seconds of a step in which every GPU runs a single op of kind `kind`. Asserts that the
 * folded and the unfolded simulation agree. */
static double
seconds_of (const struct weft_cluster *cluster, enum weft_op_kind kind, uint64_t bytes)
{
  struct weft_job job = made_job (cluster);
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);

  if (kind == WEFT_OP_ADAM) {
    struct weft_op row = made_row (b, kind, "adam");
    struct weft_shape shape = { .dim = { bytes / 28 }, .dtype = WEFT_FP32, .out_dtype = WEFT_FP32 };
    row.lane = WEFT_LANE_HOST;
    weft_build_op (b, &row, &shape);
  } else {
    made_copy (b, kind, bytes);
  }
  g_autoptr (weft_plan) plan = made_plan (&job, weft_mesh_make (1, 1, cluster->n_gpus, 1), &b);
  g_autoptr (weft_timeline) t = made_run (plan);
  return t->seconds;
}

static void
copies_share_a_pcie_switch_and_the_memory_of_their_node (void **state)
{
  static const enum weft_op_kind kinds[] = { WEFT_OP_TO_HOST, WEFT_OP_FROM_HOST };

  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (kinds); i++) {
    struct weft_cluster cluster = made_cluster (2, 4);
    assert_near (seconds_of (&cluster, kinds[i], 100 * MB), 100e6 / MADE_HOST);
    cluster.f.node_gpus_per_switch = 2;
    assert_near (seconds_of (&cluster, kinds[i], 100 * MB), 2 * 100e6 / MADE_HOST);
    cluster.f.node_host_bandwidth = MADE_HOST;
    assert_near (seconds_of (&cluster, kinds[i], 100 * MB), 4 * 100e6 / MADE_HOST);
  }
}

/* Adam on the host reads and writes 28 bytes per element. The four ranks of the first node share
 * the memory bandwidth of their node; so do the ranks of the second node. */
static void
adam_of_the_host_shares_the_memory_of_its_node (void **state)
{
  struct weft_cluster cluster = made_cluster (2, 4);

  (void) state;
  cluster.f.node_host_bandwidth = 10e9;
  assert_near (seconds_of (&cluster, WEFT_OP_ADAM, 28 * MB), 4 * 28e6 / 10e9);
  cluster = made_cluster (1, 1);
  cluster.f.node_host_bandwidth = 10e9;
  assert_near (seconds_of (&cluster, WEFT_OP_ADAM, 28 * MB), 28e6 / 10e9);
}

/* A node with one GPU: Adam and a copy to the host run at once and share the memory bandwidth of
 * the host equally, until the shorter one ends. */
static void
adam_and_copies_meet_in_host_memory (void **state)
{
  struct weft_cluster cluster = made_cluster (1, 1);
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);
  struct weft_op row = made_row (b, WEFT_OP_ADAM, "adam");
  struct weft_shape shape = { .dim = { 1000 * MB / 28 }, .dtype = WEFT_FP32 };

  (void) state;
  cluster.f.node_host_bandwidth = MADE_HOST;
  struct weft_job job = made_job (&cluster);
  row.lane = WEFT_LANE_HOST;
  weft_build_op (b, &row, &shape);
  made_copy (b, WEFT_OP_TO_HOST, 100 * MB);
  g_autoptr (weft_plan) plan = made_plan (&job, weft_mesh_make (1, 1, 1, 1), &b);
  g_autoptr (weft_timeline) t = made_run (plan);
  assert_near (t->end[0][1], 2 * 100e6 / MADE_HOST);
  assert_near (t->end[0][0], (28.0 * (1000 * MB / 28) + 100e6) / MADE_HOST);
  assert_true (t->contended);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (elements_go_to_the_host_and_back),
  cmocka_unit_test (host_memory_is_planned_like_that_of_the_device),
  cmocka_unit_test (each_side_of_the_host_link_is_reached_by_its_own_lanes),
  cmocka_unit_test (a_copy_that_nobody_waits_for_is_a_race),
  cmocka_unit_test (programs_with_host_memory_print_and_parse),
  cmocka_unit_test (copies_share_a_pcie_switch_and_the_memory_of_their_node),
  cmocka_unit_test (adam_of_the_host_shares_the_memory_of_its_node),
  cmocka_unit_test (adam_and_copies_meet_in_host_memory),
};

WEFT_TESTS (tests)
