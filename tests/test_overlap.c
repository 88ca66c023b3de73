/* Communication beside kernels: what is hidden, what is exposed, and the SMs that it takes
 * meanwhile, against sums worked out by hand. */
#include "tests/made.h"

#define LAYERS 6

/* Two GPUs of one node all-reduce S bytes in S / port. */
static uint64_t
bytes_for (uint32_t microseconds)
{
  return (uint64_t) microseconds * 100000;
}

static struct weft_job
job_on (uint32_t nodes, uint32_t node_gpus, uint32_t collective_sms)
{
  struct weft_cluster cluster = made_cluster (nodes, node_gpus);
  struct weft_job job = made_job (&cluster);

  job.stack.collective_sms = collective_sms;
  return job;
}

/* ---------------------------------------------------- gradients of L layers */

/* Backward passes of LAYERS equal layers on two replicas, a bucket each: launched by its layer, or
 * all of them by the last one. */
static double
backward_seconds (uint32_t kernel_us, uint32_t bucket_us, gboolean overlap, uint32_t sms)
{
  struct weft_job job = job_on (1, 2, sms);
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);

  for (uint32_t layer = 0; layer < LAYERS; layer++) {
    uint32_t kernel = made_kernel (b, kernel_us);
    if (!overlap)
      continue;
    made_collective (b, WEFT_OP_ALL_REDUCE, WEFT_GROUP_DP, bytes_for (bucket_us));
    weft_build_dep (b, kernel);
  }
  for (uint32_t layer = 0; layer < LAYERS && !overlap; layer++) {
    made_collective (b, WEFT_OP_ALL_REDUCE, WEFT_GROUP_DP, bytes_for (bucket_us));
    weft_build_dep (b, weft_build_last (b, WEFT_LANE_GPU));
  }
  g_autoptr (weft_plan) plan = made_plan (&job, weft_mesh_make (1, 1, 2, 1), &b);
  g_autoptr (weft_timeline) t = made_run (plan);
  return t->seconds;
}

static void
the_tail_of_overlapped_buckets_is_one_bucket (void **state)
{
  (void) state;
  assert_near (backward_seconds (1000, 400, TRUE, 0), (LAYERS * 1000 + 400) * MADE_US);
  assert_near (backward_seconds (1000, 1000, TRUE, 0), (LAYERS * 1000 + 1000) * MADE_US);
}

static void
buckets_slower_than_layers_queue_up (void **state)
{
  (void) state;
  assert_near (backward_seconds (1000, 1700, TRUE, 0), (1000 + LAYERS * 1700) * MADE_US);
}

static void
buckets_after_the_last_layer_are_fully_exposed (void **state)
{
  (void) state;
  assert_near (backward_seconds (1000, 400, FALSE, 0), LAYERS * (1000 + 400) * MADE_US);
  assert_near (backward_seconds (1000, 1700, FALSE, 0), LAYERS * (1000 + 1700) * MADE_US);
}

/* A bucket of 400 us beside a kernel takes 400 x 16/132 us of its work away. */
static void
overlapped_buckets_slow_the_layers_beside_them (void **state)
{
  double layer = 1000 + 400 * 16.0 / 132;

  (void) state;
  assert_near (backward_seconds (1000, 400, TRUE, 16),
               (1000 + (LAYERS - 1) * layer + 400) * MADE_US);
}

/* With buckets all the time the layers run at 116/132, but the step waits for the network. */
static void
queued_buckets_slow_layers_but_not_the_step (void **state)
{
  (void) state;
  assert_near (backward_seconds (1000, 1700, TRUE, 16), (1000 + LAYERS * 1700) * MADE_US);
}

/* Buckets of 1000 us fill the slowed layers of 1000 x 132/116 us only in part. */
static void
sms_return_between_two_buckets (void **state)
{
  double layer = 1000 + 1000 * 16.0 / 132;

  (void) state;
  assert_near (backward_seconds (1000, 1000, TRUE, 16),
               (1000 + (LAYERS - 1) * layer + 1000) * MADE_US);
}

static void
exposed_buckets_slow_nothing (void **state)
{
  (void) state;
  assert_near (backward_seconds (1000, 400, FALSE, 16), LAYERS * (1000 + 400) * MADE_US);
}

/* ------------------------------------------------- kernels beside transfers */

/* A copy from the host that ends so many microseconds after the one before it: an alarm clock. */
static void
alarm_after (weft_builder *b, uint32_t microseconds)
{
  made_copy (b, WEFT_OP_COPY_IN, bytes_for (microseconds));
}

/* A collective that starts when the newest alarm rings. */
static void
collective_at_alarm (weft_builder *b, enum weft_group_kind group, uint64_t bytes)
{
  uint32_t alarm = weft_build_last (b, WEFT_LANE_H2D);

  made_collective (b, WEFT_OP_ALL_REDUCE, group, bytes);
  weft_build_dep (b, alarm);
}

static uint32_t
kernel_at (const weft_plan *plan, uint32_t role, uint32_t i)
{
  return plan->role[role]->lane_ops[WEFT_LANE_GPU][i];
}

/* 10 ms alone on 132 SMs, 116 of them from 2 ms to 7 ms: 2 + 5 x 116/132 ms are done by then. */
static void
a_matmul_beside_nccl_ends_at_10_606_ms (void **state)
{
  struct weft_job job = job_on (1, 2, 16);
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);

  (void) state;
  made_kernel (b, 10000);
  alarm_after (b, 2000);
  collective_at_alarm (b, WEFT_GROUP_DP, bytes_for (5000));
  g_autoptr (weft_plan) plan = made_plan (&job, weft_mesh_make (1, 1, 2, 1), &b);
  g_autoptr (weft_timeline) t = made_run (plan);
  double end = t->end[0][kernel_at (plan, 0, 0)];
  assert_near (end, (7 + 10 - 2 - 5 * 116.0 / 132) * 1e-3);
  assert_true (fabs (end - 10.606060606e-3) < 1e-12);
  assert_near (t->begin[0][2], 2e-3);
  assert_near (t->end[0][2], 7e-3);
  assert_true (t->contended);
}

/* Two GPUs a node and two nodes: tensor parallel groups use the ports, data parallel ones the NICs
 * (of half the rate) and PCIe once the alarms have rung, so they share SMs only. */
static weft_plan *
two_collectives (weft_builder *b, uint32_t sms)
{
  struct weft_job job = job_on (2, 2, sms);

  alarm_after (b, 2000);
  collective_at_alarm (b, WEFT_GROUP_TP, bytes_for (5000));
  alarm_after (b, 2000);
  collective_at_alarm (b, WEFT_GROUP_DP, bytes_for (5000) / 2);
  return made_plan (&job, weft_mesh_make (2, 1, 2, 1), &b);
}

/* 2 to 4 ms one, 4 to 7 ms both, 7 to 9 ms the other. */
static void
two_communications_take_their_sms_together (void **state)
{
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);

  (void) state;
  made_kernel (b, 10000);
  g_autoptr (weft_plan) plan = two_collectives (b, 16);
  g_autoptr (weft_timeline) t = made_run (plan);
  double done = 2 + 2 * 116.0 / 132 + 3 * 100.0 / 132 + 2 * 116.0 / 132;
  assert_near (t->begin[0][plan->role[0]->lane_ops[WEFT_LANE_DP][0]], 4e-3);
  assert_near (t->end[0][plan->role[0]->lane_ops[WEFT_LANE_TP][0]], 7e-3);
  assert_near (t->end[0][kernel_at (plan, 0, 0)], (9 + 10 - done) * 1e-3);
}

static void
one_sm_is_always_left_to_a_kernel (void **state)
{
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);

  (void) state;
  made_kernel (b, 10000);
  g_autoptr (weft_plan) plan = two_collectives (b, 200);
  g_autoptr (weft_timeline) t = made_run (plan);
  double done = 2 + 7 * 1.0 / 132;
  assert_near (t->end[0][kernel_at (plan, 0, 0)], (9 + 10 - done) * 1e-3);
}

/* Stage 0 sends at 2 ms, stage 1 receives from 6 ms on for 1 ms: the kernel of stage 0 misses the
 * SMs of its send for 5 ms, that of stage 1 those of its receive for 1 ms. */
static void
communication_that_waits_holds_its_sms (void **state)
{
  struct weft_job job = job_on (1, 2, 0);
  g_autoptr (weft_builder) first = weft_builder_new (0, 2), second = weft_builder_new (1, 2);

  (void) state;
  job.stack.p2p_sms = 33;
  made_kernel (first, 10000);
  alarm_after (first, 2000);
  made_transfer (first, WEFT_OP_SEND, 1, bytes_for (1000));
  weft_build_dep (first, 1);
  made_kernel (second, 10000);
  alarm_after (second, 6000);
  made_transfer (second, WEFT_OP_RECV, -1, bytes_for (1000));
  weft_build_dep (second, 1);
  g_autoptr (weft_plan) plan =
      made_plan (&job, weft_mesh_make (1, 1, 1, 2), (weft_builder *const[]) { first, second });
  g_autoptr (weft_timeline) t = made_run (plan);
  assert_near (t->end[0][0], (10 + 5 * 0.25) * 1e-3);
  assert_near (t->end[1][0], (10 + 1 * 0.25) * 1e-3);
  assert_near (t->begin[0][2], 6e-3);
  assert_near (t->end[0][2], 7e-3);
}

/* ---------------------------------------------- a run of kernels, interrupted */

#define RUN 40
#define BURSTS 5

/* Work done, in seconds on all SMs, by the date `at` when `sms` are missing in each burst. */
static double
work_by (double at, const double burst[][2], double sms)
{
  double work = at;

  for (int i = 0; i < BURSTS; i++) {
    double overlap = fmin (at, burst[i][1]) - burst[i][0];
    work -= fmax (overlap, 0) * sms / MADE_SMS;
  }
  return work;
}

/* Kernels of 100, 113, 126 ... us in one run, and bursts that begin and end inside them. */
static weft_plan *
interrupted_run (double burst[][2])
{
  static const uint32_t waits[BURSTS] = { 137, 901, 2222, 1500, 55 };
  static const uint32_t lasts[BURSTS] = { 61, 640, 1999, 3, 900 };
  struct weft_job job = job_on (1, 2, 24);
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);
  double alarm = 0, free_at = 0;

  for (uint32_t i = 0; i < RUN; i++)
    made_kernel (b, 100 + 13 * i);
  for (uint32_t i = 0; i < BURSTS; i++) {
    alarm_after (b, waits[i]);
    collective_at_alarm (b, WEFT_GROUP_DP, bytes_for (lasts[i]));
    alarm += waits[i] * MADE_US;
    burst[i][0] = fmax (alarm, free_at);
    burst[i][1] = free_at = burst[i][0] + lasts[i] * MADE_US;
  }
  return made_plan (&job, weft_mesh_make (1, 1, 2, 1), &b);
}

static void
an_interrupted_run_of_kernels_adds_up (void **state)
{
  double burst[BURSTS][2], work = 0;
  g_autoptr (weft_plan) plan = interrupted_run (burst);
  g_autoptr (weft_timeline) t = made_run (plan);

  (void) state;
  assert_true (t->begin[0][0] == 0);
  for (uint32_t i = 0; i < RUN; i++) {
    uint32_t op = kernel_at (plan, 0, i);
    work += (100 + 13 * i) * MADE_US;
    assert_near (work_by (t->end[0][op], burst, 24), work);
    if (i + 1 < RUN)
      assert_true (t->end[0][op] == t->begin[0][kernel_at (plan, 0, i + 1)]);
  }
}

/* The bursts' own dates: each begins when its alarm rings and the one before it has ended. */
static void
bursts_begin_and_end_where_they_should (void **state)
{
  double burst[BURSTS][2];
  g_autoptr (weft_plan) plan = interrupted_run (burst);
  g_autoptr (weft_timeline) t = made_run (plan);
  const weft_program *p = plan->role[0];

  (void) state;
  for (uint32_t i = 0; i < BURSTS; i++) {
    assert_near (t->begin[0][p->lane_ops[WEFT_LANE_DP][i]], burst[i][0]);
    assert_near (t->end[0][p->lane_ops[WEFT_LANE_DP][i]], burst[i][1]);
  }
}

/* A kernel that waits for a collective leaves a gap; the run after it starts at the collective's
 * end with all SMs back. */
static void
a_kernel_that_waits_starts_with_all_sms (void **state)
{
  struct weft_job job = job_on (1, 2, 66);
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);

  (void) state;
  uint32_t before = made_kernel (b, 1000);
  uint32_t collective = made_collective (b, WEFT_OP_ALL_REDUCE, WEFT_GROUP_DP, bytes_for (3000));
  weft_build_dep (b, before);
  uint32_t beside = made_kernel (b, 1000);
  uint32_t after = made_kernel (b, 1000);
  weft_build_dep (b, collective);
  g_autoptr (weft_plan) plan = made_plan (&job, weft_mesh_make (1, 1, 2, 1), &b);
  g_autoptr (weft_timeline) t = made_run (plan);
  assert_near (t->end[0][beside], 3e-3);
  assert_near (t->begin[0][after], 4e-3);
  assert_near (t->end[0][after], 5e-3);
}

/* Half of the SMs already saturate memory: a copy kernel loses nothing to 24 of 132 and half of its
 * rate to 99. */
static void
memory_bound_kernels_lose_only_what_saturates_memory (void **state)
{
  static const struct {
    uint32_t sms;
    double end_ms;
  } cases[] = { { 24, 10 }, { 66, 10 }, { 99, 10 + 5 * 0.5 } };

  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (cases); i++) {
    struct weft_job job = job_on (1, 2, cases[i].sms);
    g_autoptr (weft_builder) b = weft_builder_new (0, 1);
    struct weft_op row = made_row (b, WEFT_OP_ZERO, "zero");
    struct weft_shape shape = made_bytes (10000000000);
    job.cluster.f.gpu_memory_bandwidth = 1e12;
    weft_build_op (b, &row, &shape);
    alarm_after (b, 2000);
    collective_at_alarm (b, WEFT_GROUP_DP, bytes_for (5000));
    g_autoptr (weft_plan) plan = made_plan (&job, weft_mesh_make (1, 1, 2, 1), &b);
    g_autoptr (weft_timeline) t = made_run (plan);
    assert_near (t->end[0][0], cases[i].end_ms * 1e-3);
    assert_int_equal (t->contended, cases[i].end_ms > 10);
  }
}

int
main (void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test (the_tail_of_overlapped_buckets_is_one_bucket),
    cmocka_unit_test (buckets_slower_than_layers_queue_up),
    cmocka_unit_test (buckets_after_the_last_layer_are_fully_exposed),
    cmocka_unit_test (overlapped_buckets_slow_the_layers_beside_them),
    cmocka_unit_test (queued_buckets_slow_layers_but_not_the_step),
    cmocka_unit_test (sms_return_between_two_buckets),
    cmocka_unit_test (exposed_buckets_slow_nothing),
    cmocka_unit_test (a_matmul_beside_nccl_ends_at_10_606_ms),
    cmocka_unit_test (two_communications_take_their_sms_together),
    cmocka_unit_test (one_sm_is_always_left_to_a_kernel),
    cmocka_unit_test (communication_that_waits_holds_its_sms),
    cmocka_unit_test (an_interrupted_run_of_kernels_adds_up),
    cmocka_unit_test (bursts_begin_and_end_where_they_should),
    cmocka_unit_test (a_kernel_that_waits_starts_with_all_sms),
    cmocka_unit_test (memory_bound_kernels_lose_only_what_saturates_memory),
  };
  return cmocka_run_group_tests (tests, NULL, NULL);
}
