/* nccl_ub: SMs that collectives on registered buffers take from kernels, against sms.def and
 * numbers computed by hand; and which buffers of a step are in the registered pool. */
#include "core/report/report.h"
#include "tests/made/made.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"

/* ------------------------------------------------------------- SMs by domain */

/* Duration of a kernel that begins together with a collective and ends after it. The SMs that the
 * collective uses follow from the time by which the kernel becomes longer. */
#define KERNEL_US 5000
#define COLLECTIVE_US 1000

static double
taken (const struct weft_cluster *cluster, enum weft_op_kind kind, gboolean registered,
       gboolean symmetric)
{
  struct weft_job job = made_job (cluster);
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);
  struct weft_buf row = { .bytes = 4,
                          .permanent = 1,
                          .base = WEFT_NO_BUF,
                          .pool = registered ? WEFT_POOL_SYMMETRIC : WEFT_POOL_DEVICE };

  job.stack.collective_sms = 20;
  weft_table_defaults (&weft_strategy_table, job.strategy.at);
  job.strategy.disable_symmetric_registration = !symmetric;
  uint32_t kernel = made_kernel (b, KERNEL_US), buf = weft_build_buf (b, &row);
  made_collective (b, kind, WEFT_GROUP_DP, 100000000);
  weft_build_use (b, buf, TRUE, TRUE);
  g_autoptr (weft_plan) plan = made_plan (&job, weft_mesh_make (1, 1, cluster->n_gpus, 1), &b);
  g_autoptr (weft_timeline) t = made_run (plan);
  double collective = t->end[0][kernel + 1];
  assert_true (collective > 1e-4 && collective < t->end[0][kernel]);
  return (t->end[0][kernel] - KERNEL_US * MADE_US) / collective * MADE_SMS;
}

static void
assert_taken (const struct weft_cluster *cluster, gboolean symmetric, double gather, double scatter)
{
  const struct {
    enum weft_op_kind kind;
    double sms;
  } rows[] = { { WEFT_OP_ALL_GATHER, gather },
               { WEFT_OP_REDUCE_SCATTER, scatter },
               { WEFT_OP_ALL_REDUCE, 20 } };

  for (unsigned i = 0; i < G_N_ELEMENTS (rows); i++) {
    double found = taken (cluster, rows[i].kind, TRUE, symmetric);
    if (fabs (found - rows[i].sms) > 1e-6)
      fail_msg ("%s takes %.9g SMs, wanted %g", weft_op_info[rows[i].kind].word, found,
                rows[i].sms);
    assert_true (fabs (taken (cluster, rows[i].kind, FALSE, symmetric) - 20) < 1e-6);
  }
}

static void
nccl_ub_takes_the_sms_of_the_domain_between_the_replicas (void **state)
{
  static const struct {
    uint32_t nodes, node_gpus;
    int64_t sharp;
    double gather, scatter;
  } rows[] = {
    { 1, 4, 0, 4, 5 }, { 1, 4, 1, 4, 5 }, { 2, 4, 0, 16, 16 },
    { 2, 4, 1, 6, 6 }, { 4, 1, 0, 1, 4 }, { 4, 1, 1, 1, 1 },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (rows); i++) {
    struct weft_cluster cluster = made_cluster (rows[i].nodes, rows[i].node_gpus);
    cluster.f.fabric_sharp = rows[i].sharp;
    assert_taken (&cluster, TRUE, rows[i].gather, rows[i].scatter);
  }
}

static void
disable_symmetric_registration_keeps_the_network_rows_and_loses_that_of_nvlink (void **state)
{
  struct weft_cluster inside = made_cluster (1, 4), both = made_cluster (2, 4),
                      network = made_cluster (4, 1);

  (void) state;
  assert_taken (&inside, FALSE, 20, 20);
  assert_taken (&both, FALSE, 16, 16);
  assert_taken (&network, FALSE, 1, 4);
}

static void
registration_helps_nothing_over_pcie_and_never_takes_more (void **state)
{
  struct weft_cluster cluster = made_cluster (1, 4);
  union weft_stack stack = { .collective_sms = 2 };
  struct weft_cost cost = { &cluster, &stack, NULL };

  (void) state;
  assert_int_equal (
      weft_cost_registered_sms (&cost, WEFT_OP_REDUCE_SCATTER, WEFT_DOMAIN_SWITCH, TRUE), 2);
  cluster.f.node_intra = WEFT_PCIE;
  assert_int_equal (weft_cost_domain (&cluster, 1, 4), WEFT_DOMAIN_OTHER);
  assert_int_equal (weft_cost_domain (&cluster, 2, 4), WEFT_DOMAIN_OTHER);
  assert_int_equal (weft_cost_domain (&cluster, 2, 1), WEFT_DOMAIN_NETWORK);
  stack.collective_sms = 20;
  assert_int_equal (
      weft_cost_registered_sms (&cost, WEFT_OP_REDUCE_SCATTER, WEFT_DOMAIN_OTHER, TRUE), 20);
}

/* -------------------------------------------------------------- whose buffers */

#define MODEL                                                                                      \
  "num_layers=6 hidden_size=64 num_attention_heads=4 ffn_hidden_size=256 vocab_size=512 "          \
  "seq_length=64 topology=dgx-h100 gpus=8 global_batch_size=16 "
#define OPTIMIZER MODEL "use_distributed_optimizer=true overlap_grad_reduce=true bucket_size=20000 "
#define UNITS MODEL "use_megatron_fsdp=true zero_dp_strategy=3 fsdp_double_buffer=true "

static gboolean
is_bucket_collective (const weft_program *p, uint32_t op)
{
  const char *name = p->name[p->op[op].name];
  return g_str_has_prefix (name, "bucket ") || g_str_has_prefix (name, "gather ");
}

/* Asserts that all buffers of bucket collectives, and no others, are in the registered pool. */
static void
check_pools (const weft_program *p, uint64_t *permanent)
{
  g_autofree gboolean *touched = g_new0 (gboolean, p->n_buf + 1);

  *permanent = 0;
  for (uint32_t op = 0; op < p->n_op; op++)
    for (uint32_t u = p->op[op].uses; u < p->op[op + 1].uses && is_bucket_collective (p, op); u++)
      touched[weft_buf_owner (p, p->uses[u].buf)] = TRUE;
  for (uint32_t i = 0; i < p->n_buf; i++) {
    uint32_t owner = weft_buf_owner (p, i);
    assert_int_equal (p->buf[i].pool, touched[owner] ? WEFT_POOL_SYMMETRIC : WEFT_POOL_DEVICE);
    *permanent += i == owner && touched[i] && p->buf[i].permanent ? p->buf[i].bytes : 0;
  }
}

static void
nccl_ub_puts_flat_buffers_into_the_registered_pool (void **state)
{
  g_autoptr (weft_plan) plain = weft_test_plan (OPTIMIZER);
  g_autoptr (weft_plan) plan = weft_test_plan (OPTIMIZER "nccl_ub=true");
  const uint64_t *was = plain->memory[0].permanent[WEFT_POOL_DEVICE];
  uint64_t flat;

  (void) state;
  check_pools (plan->role[0], &flat);
  assert_int_equal (flat, was[WEFT_BUF_WEIGHTS] + was[WEFT_BUF_GRADIENTS]);
  assert_int_equal (plan->role[0]->n_op, plain->role[0]->n_op);
  assert_int_equal (plain->memory[0].planned[WEFT_POOL_SYMMETRIC], 0);
  g_autoptr (weft_report) report = weft_report_new (plan, NULL);
  assert_int_equal (report->role[0].registered_bytes, plan->memory[0].planned[WEFT_POOL_SYMMETRIC]);
  assert_in_range (report->role[0].registered_bytes, flat, flat + 2 * WEFT_ALIGN);
}

/* Megatron-FSDP level 3 with nccl_ub: the registered pool contains the slices of all units, at most
 * two gathered units and the gradients of two units, and the parameters outside units (embedding
 * and head, which are smaller than a unit). */
static void
nccl_ub_keeps_two_units_in_the_registered_pool (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (UNITS "nccl_ub=true");
  const weft_program *p = plan->role[0];
  uint64_t kept, unit = 0;

  (void) state;
  check_pools (p, &kept);
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == WEFT_OP_ALL_GATHER)
      unit = MAX (unit, (uint64_t) weft_op_bytes (p, op));
  assert_true (plan->memory[0].live[WEFT_POOL_SYMMETRIC] > kept + 2 * unit);
  assert_true (plan->memory[0].live[WEFT_POOL_SYMMETRIC] < kept + (2 + 2 + 2 + 1) * unit);
}

static void
overlapped_steps_are_quicker_with_nccl_ub (void **state)
{
  static const char wide[] =
      "hidden_size=4096 num_attention_heads=32 ffn_hidden_size=16384 seq_length=4096";
  static const char *const words[] = { OPTIMIZER, UNITS };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (words); i++) {
    double seconds[3];
    static const char *const more[] = { "", "nccl_ub=true",
                                        "nccl_ub=true disable_symmetric_registration=true" };
    for (int k = 0; k < 3; k++) {
      g_autoptr (weft_plan) plan = weft_test_plan ("%s%s %s", words[i], wide, more[k]);
      g_autoptr (weft_timeline) t = made_run (plan);
      seconds[k] = t->seconds;
    }
    assert_true (seconds[1] < seconds[0]);
    assert_near (seconds[2], seconds[0]);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (nccl_ub_takes_the_sms_of_the_domain_between_the_replicas),
  cmocka_unit_test (
      disable_symmetric_registration_keeps_the_network_rows_and_loses_that_of_nvlink),
  cmocka_unit_test (registration_helps_nothing_over_pcie_and_never_takes_more),
  cmocka_unit_test (nccl_ub_puts_flat_buffers_into_the_registered_pool),
  cmocka_unit_test (nccl_ub_keeps_two_units_in_the_registered_pool),
  cmocka_unit_test (overlapped_steps_are_quicker_with_nccl_ub),
};

WEFT_TESTS (tests)
