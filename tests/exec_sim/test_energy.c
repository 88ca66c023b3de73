/* Energy of a step against watts times seconds: made jobs whose busy and idle times are known, a
 * second summation of a real one, folded against unfolded, and no effect on the step. */
#include "exec_sim/energy.h"
#include "tests/made/made.h"
#include "tests/runner/runner.h"

#define MB UINT64_C (1000000)

static struct weft_cluster
powered (uint32_t nodes, uint32_t node_gpus)
{
  struct weft_cluster c = made_cluster (nodes, node_gpus);

  c.f.gpu_idle_power = 100;
  c.f.gpu_communication_power = 200;
  c.f.gpu_memory_power = 400;
  c.f.gpu_matmul_power = 700;
  c.f.node_power = 2000;
  c.f.node_nic_power = 50;
  return c;
}

static weft_energy
energy_of (const weft_plan *plan, const weft_timeline *t)
{
  weft_energy e;
  g_autoptr (GError) error = NULL;

  if (!weft_sim_energy (plan, t, &e, &error))
    fail_msg ("%s", error->message);
  return e;
}

/* Attention of 1 ms on all GPUs, then an all-reduce of 80 MB: a ring of n nodes sends 2 (n - 1) / n
 * of the bytes through each NIC. */
static void
a_kernel_and_a_ring_are_watts_times_their_seconds (void **state)
{
  struct weft_cluster cluster = powered (8, 1);
  struct weft_job job = made_job (&cluster);
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);
  uint32_t kernel = made_kernel (b, 1000);

  (void) state;
  made_collective (b, WEFT_OP_ALL_REDUCE, WEFT_GROUP_DP, 80 * MB);
  weft_build_dep (b, kernel);
  g_autoptr (weft_plan) plan = made_plan (&job, weft_mesh_make (1, 1, 8, 1), &b);
  g_autoptr (weft_timeline) t = made_run (plan);
  double ring = 2 * 7.0 / 8 * 80e6 / MADE_NIC, step = 1000 * MADE_US + ring;
  weft_energy e = energy_of (plan, t);

  assert_int_equal (t->n, 1);
  assert_near (e.gpu_j[WEFT_POWER_MATMULS], 8 * 700 * 1e-3);
  assert_near (e.gpu_j[WEFT_POWER_COMMUNICATION], 8 * 200 * ring);
  assert_true (e.gpu_j[WEFT_POWER_IDLE] < 1e-9 && e.gpu_j[WEFT_POWER_KERNELS] == 0);
  assert_near (e.links_j, 8 * 50 * step);
  assert_near (e.nodes_j, 8 * 2000 * step);
  assert_near (weft_energy_step (&e), 8 * (0.7 + 200 * ring + 2050 * step));
}

/* Stage 0 computes 100 us and sends, stage 1 receives and computes 300 us. */
static void
the_stage_that_waits_is_idle (void **state)
{
  struct weft_cluster cluster = powered (4, 1);
  struct weft_job job = made_job (&cluster);
  g_autoptr (weft_builder) first = weft_builder_new (0, 2), second = weft_builder_new (1, 2);
  uint32_t kernel = made_kernel (first, 100);

  (void) state;
  made_transfer (first, WEFT_OP_SEND, 1, 50 * MB);
  weft_build_dep (first, kernel);
  uint32_t got = made_transfer (second, WEFT_OP_RECV, -1, 50 * MB);
  made_kernel (second, 300);
  weft_build_dep (second, got);
  g_autoptr (weft_plan) plan =
      made_plan (&job, weft_mesh_make (1, 1, 2, 2), (weft_builder *const[]){ first, second });
  g_autoptr (weft_timeline) t = made_run (plan);
  weft_energy e = energy_of (plan, t);

  assert_near (e.gpu_j[WEFT_POWER_MATMULS], 2 * 700 * 400e-6);
  assert_near (e.gpu_j[WEFT_POWER_COMMUNICATION], 4 * 200 * 50e6 / MADE_NIC);
  assert_near (e.gpu_j[WEFT_POWER_IDLE], 2 * 100 * 400e-6);
}

/* One GPU of eight has an eighth of the node's power. */
static void
a_part_of_a_node_has_its_part_of_the_power (void **state)
{
  struct weft_cluster cluster = powered (1, 8);

  (void) state;
  cluster.n_gpus = 1;
  struct weft_job job = made_job (&cluster);
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);
  made_kernel (b, 1000);
  g_autoptr (weft_plan) plan = made_plan (&job, weft_mesh_make (1, 1, 1, 1), &b);
  g_autoptr (weft_timeline) t = made_run (plan);
  weft_energy e = energy_of (plan, t);
  assert_near (weft_energy_step (&e), 1e-3 * (700 + 2000.0 / 8 + 50));
}

/* ---------------------------------------------------------------- real jobs */

static weft_plan *
real (void)
{
  struct weft_job job;

  made_real_job (&job, (const char *const[]){
                           "--config", "llama-nano", "--topology", "dgx-h100", "--nodes", "2",
                           "--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size",
                           "2", "--global-batch-size", "32", "--micro-batch-size", "1", NULL });
  return made_real_plan (&job);
}

/* Watts of a row while no op begins or ends: from `date` on. */
static double
watts_at (const weft_plan *plan, const weft_timeline *t, uint32_t row, double date)
{
  const weft_program *p = plan->role[t->role[row]];
  double watts = plan->job.cluster.f.gpu_idle_power;

  for (uint32_t op = 0; op < p->n_op; op++) {
    gboolean computes = weft_op_info[p->op[op].kind].class == WEFT_CLASS_COMPUTE;
    enum weft_kernel_class kernel = weft_op_kernel (p->op[op].kind);
    gboolean matmul = kernel == WEFT_KERNEL_MATMUL || kernel == WEFT_KERNEL_ATTENTION;
    double own = !computes ? plan->job.cluster.f.gpu_communication_power
                 : matmul  ? plan->job.cluster.f.gpu_matmul_power
                           : plan->job.cluster.f.gpu_memory_power;
    if (t->begin[row][op] <= date && date < t->end[row][op])
      watts = fmax (watts, own);
  }
  return watts;
}

static int
by_value (const void *a, const void *b)
{
  const double *x = a, *y = b;
  return *x < *y ? -1 : *x > *y;
}

/* Joules of a row, interval by interval between all dates of its ops. */
static double
joules_of_row (const weft_plan *plan, const weft_timeline *t, uint32_t row)
{
  const weft_program *p = plan->role[t->role[row]];
  uint32_t n = 2 * p->n_op + 2;
  g_autofree double *date = g_new0 (double, n);
  double joules = 0;

  for (uint32_t op = 0; op < p->n_op; op++) {
    date[2 * op] = t->begin[row][op];
    date[2 * op + 1] = t->end[row][op];
  }
  date[n - 1] = t->seconds;
  qsort (date, n, sizeof *date, by_value);
  for (uint32_t i = 0; i + 1 < n; i++)
    if (date[i + 1] > date[i])
      joules += watts_at (plan, t, row, date[i]) * (date[i + 1] - date[i]);
  return joules;
}

static void
a_real_step_is_the_sum_over_its_intervals (void **state)
{
  g_autoptr (weft_plan) plan = real ();
  g_autoptr (weft_timeline) t = made_run (plan);
  weft_energy e = energy_of (plan, t);
  double joules = 0, seconds = 0, watts[WEFT_N_POWER];

  (void) state;
  weft_energy_watts (&plan->job.cluster, 0, watts);
  for (uint32_t row = 0; row < t->n; row++)
    joules += t->stands_for[row] * joules_of_row (plan, t, row);
  assert_near (weft_energy_gpus (&e), joules);
  for (int i = 0; i < WEFT_N_POWER; i++) {
    assert_near (e.gpu_j[i], e.gpu_s[i] * watts[i]);
    seconds += e.gpu_s[i];
  }
  assert_near (seconds, 16 * t->seconds);
}

static void
folded_ranks_count_as_often_as_they_are (void **state)
{
  g_autoptr (weft_plan) plan = real ();
  g_autoptr (weft_timeline) t = made_run (plan),
                            whole = made_run_with (&weft_exec_sim, plan, "unfolded");
  weft_energy e = energy_of (plan, t), all = energy_of (plan, whole);

  (void) state;
  assert_true (t->n < whole->n);
  for (int i = 0; i < WEFT_N_POWER; i++)
    assert_near (e.gpu_j[i], all.gpu_j[i]);
}

static void
the_step_has_the_same_bits_before_and_after (void **state)
{
  g_autoptr (weft_plan) plan = real ();
  g_autoptr (weft_timeline) before = made_run (plan);

  (void) state;
  energy_of (plan, before);
  g_autoptr (weft_timeline) after = made_run (plan);
  for (uint32_t row = 0; row < before->n; row++)
    for (uint32_t op = 0; op < plan->role[before->role[row]]->n_op; op++)
      assert_true (before->begin[row][op] == after->begin[row][op] &&
                   before->end[row][op] == after->end[row][op]);
  assert_int_equal (before->n_activities, after->n_activities);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_kernel_and_a_ring_are_watts_times_their_seconds),
  cmocka_unit_test (the_stage_that_waits_is_idle),
  cmocka_unit_test (a_part_of_a_node_has_its_part_of_the_power),
  cmocka_unit_test (a_real_step_is_the_sum_over_its_intervals),
  cmocka_unit_test (folded_ranks_count_as_often_as_they_are),
  cmocka_unit_test (the_step_has_the_same_bits_before_and_after),
};

WEFT_TESTS (tests)
