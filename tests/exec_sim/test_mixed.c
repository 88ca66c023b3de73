/* Clusters with several kinds of nodes (core/cluster/groups.h) against clusters whose nodes are all
 * alike: the slow kind decides the step of replicas, each stage has the prices and the memory of
 * its own GPU, and groups of one kind change no bit. */
#include "core/report/report.h"
#include "tests/made/made.h"
#include "tests/made/random_job.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"

#define OLD "[nodes old]\nfrom = dgx-a100\ncount = 1\n"
#define NEW "[nodes new]\nfrom = dgx-a100\ncount = 1\n"
/* A GPU whose kernels take half the time: their rates are twice those of dgx-a100.ini. */
#define TWICE                                                                                      \
  "gpu_bf16 = 542TFLOP/s\ngpu_fp32 = 270TFLOP/s\ngpu_memory_bandwidth = 3.22TB/s\n"                \
  "gpu_cuda_core_spec = 39TFLOP/s\n"
#define MODEL "model=llama-nano num_layers=12 global_batch_size=32 micro_batch_size=1 "

static char *
write_file (void **state, const char *text)
{
  char *path = g_build_filename (*state, "mixed.ini", NULL);

  assert_true (g_file_set_contents (path, text, -1, NULL));
  return path;
}

/* A file of its own for each text, because a process reads a file once. */
static weft_plan *
plan_on (void **state, const char *name, const char *text, const char *words)
{
  g_autofree char *path = g_build_filename (*state, name, NULL);

  assert_true (g_file_set_contents (path, text, -1, NULL));
  return weft_test_plan ("%s topology=%s", words, path);
}

static void
assert_same_step (const weft_plan *mixed, const char *words, const struct weft_exec_ops *exec)
{
  g_autoptr (weft_plan) even = weft_test_plan ("%s", words);
  g_autoptr (weft_timeline) found = made_run_with (exec, mixed, ""),
                            wanted = made_run_with (exec, even, "");

  assert_near (found->seconds, wanted->seconds);
}

/* Sixteen replicas, eight of them on GPUs that are twice as fast. */
static void
the_slow_kind_decides_the_step_of_replicas (void **state)
{
  const char *words[] = { MODEL, MODEL "use_distributed_optimizer=true overlap_grad_reduce=true " };

  for (unsigned i = 0; i < G_N_ELEMENTS (words); i++) {
    g_autoptr (weft_plan) mixed = plan_on (state, "replicas.ini", OLD NEW TWICE, words[i]);
    g_autofree char *even = g_strconcat (words[i], "topology=dgx-a100 nodes=2", NULL);
    assert_true (weft_cluster_is_mixed (&mixed->job.cluster));
    assert_same_step (mixed, even, &weft_exec_sim);
    assert_same_step (mixed, even, &weft_exec_clock);
  }
}

/* An all-reduce between nodes runs at the rate of the slower ports, whichever node has them. */
static void
collectives_run_at_the_slower_port (void **state)
{
  static const char *const text[] = { OLD "node_nic_bandwidth = 5GB/s\n" NEW,
                                      OLD NEW "node_nic_bandwidth = 5GB/s\n" };

  for (unsigned i = 0; i < G_N_ELEMENTS (text); i++) {
    g_autoptr (weft_plan) mixed = plan_on (state, i ? "up.ini" : "down.ini", text[i], MODEL);
    assert_same_step (mixed, MODEL "topology=dgx-a100 nodes=2 node_nic_bandwidth=5GB/s",
                      &weft_exec_sim);
  }
}

/* Seconds of the products and the attention of the transformer layers of a stage. The first kernel
 * of the second stage differs from the others: its addition is not fused. */
static double
layer_seconds (const weft_plan *plan, uint32_t role)
{
  const weft_program *p = plan->role[role];
  double sum = 0;

  for (uint32_t op = 0; op < p->n_op; op++) {
    enum weft_kernel_class kernel = weft_op_kernel (p->op[op].kind);
    gboolean products = kernel == WEFT_KERNEL_MATMUL || kernel == WEFT_KERNEL_ATTENTION;
    if (products && p->op[op].lane == WEFT_LANE_GPU && p->op[op].layer != WEFT_NO_LAYER)
      sum += plan->seconds[role][op];
  }
  return sum;
}

/* Four layers on GPUs of half the rate take as long as eight on the others. */
static void
stages_of_different_kinds_are_balanced_by_their_layers (void **state)
{
#define STAGES                                                                                     \
  "model=gpt2-large num_layers=12 global_batch_size=32 micro_batch_size=1 tp=4 pp=2 kernel_gap=0 "
  g_autoptr (weft_plan) even = plan_on (state, "stages.ini", OLD NEW TWICE, STAGES),
                        uneven = plan_on (state, "stages.ini", OLD NEW TWICE,
                                          STAGES "decoder_first_pipeline_num_layers=4");
  g_autoptr (weft_timeline) slow = made_run (even), fast = made_run (uneven);

  assert_near (layer_seconds (even, 0), 2 * layer_seconds (even, 1));
  assert_near (layer_seconds (uneven, 0), layer_seconds (uneven, 1));
  assert_near (layer_seconds (uneven, 0), 4.0 / 6 * layer_seconds (even, 0));
  assert_true (fast->seconds < slow->seconds);
}

static void
assert_same_bits (const weft_plan *plan, const weft_timeline *a, const weft_timeline *b)
{
  assert_int_equal (a->n, b->n);
  assert_int_equal (a->n_activities, b->n_activities);
  for (uint32_t row = 0; row < a->n; row++)
    for (uint32_t op = 0; op < plan->role[a->role[row]]->n_op; op++)
      assert_true (a->begin[row][op] == b->begin[row][op] && a->end[row][op] == b->end[row][op]);
}

static void
groups_of_one_kind_change_no_bit (void **state)
{
#define GRID MODEL "tp=2 pp=2 use_distributed_optimizer=true "
  g_autoptr (weft_plan) grouped = plan_on (state, "one.ini", OLD NEW, GRID),
                        plain = weft_test_plan (GRID "topology=dgx-a100 nodes=2");
  g_autoptr (weft_timeline) a = made_run (grouped), b = made_run (plain);

  assert_false (weft_cluster_is_mixed (&grouped->job.cluster));
  assert_same_bits (plain, a, b);
}

/* Kinds that differ only in a number that no time depends on: the step is that of one kind, and
 * its ranks are split by kind where a stage has both. */
static void
classes_are_split_only_where_kinds_differ (void **state)
{
  static const char *const other = OLD NEW "node_power = 1kW\n";
  g_autoptr (weft_plan) replicas = plan_on (state, "power.ini", other, MODEL),
                        stages = plan_on (state, "power.ini", other, MODEL "pp=2");
  g_autoptr (weft_timeline) both = made_run (replicas), each = made_run (stages);

  assert_int_equal (both->n, 2);
  assert_int_equal (each->n, 2);
  assert_same_step (replicas, MODEL "topology=dgx-a100 nodes=2", &weft_exec_sim);
  assert_same_step (stages, MODEL "pp=2 topology=dgx-a100 nodes=2", &weft_exec_sim);
}

static void
folded_steps_are_those_of_all_ranks (void **state)
{
  g_autoptr (weft_plan) plan = plan_on (state, "replicas.ini", OLD NEW TWICE, MODEL "tp=2");
  g_autoptr (weft_timeline) folded = made_run (plan),
                            whole = made_run_with (&weft_exec_sim, plan, "unfolded");

  assert_true (folded->n < whole->n);
  assert_near (folded->seconds, whole->seconds);
}

/* A stage must fit in the memory of its own GPUs. */
static void
each_stage_has_the_memory_of_its_own_gpu (void **state)
{
  static const char *const small[] = { OLD "gpu_memory = 1.2GB\n" NEW,
                                       OLD NEW "gpu_memory = 1.2GB\n" };

  for (unsigned i = 0; i < 2; i++) {
    g_autoptr (weft_plan) plan = plan_on (state, i ? "last.ini" : "first.ini", small[i],
                                          "model=gpt2-large global_batch_size=16 pp=2 "
                                          "micro_batch_size=1");
    g_autoptr (weft_report) r = weft_report_new (plan, NULL);
    assert_int_equal (weft_plan_tightest (plan), i);
    assert_int_equal (r->capacity_bytes, 1200000000);
    assert_false (r->fits);
    assert_true (weft_plan_role_capacity (plan, !i) > 70e9);
  }
}

/* MFU counts the peak of every GPU. */
static void
the_printed_peak_is_the_mean_of_all_gpus (void **state)
{
  g_autofree char *path = write_file (state, OLD "[nodes new]\nfrom = dgx-h100\ncount = 3\n");
  g_autoptr (weft_plan) plan = weft_test_plan (MODEL "topology=%s", path);

  assert_near (weft_report_printed_peak (&plan->job), (312e12 + 3 * 989e12) / 4);
}

#define TEST(name)                                                                                 \
  cmocka_unit_test_setup_teardown (name, weft_test_folder_make, weft_test_folder_remove)

static const struct CMUnitTest tests[] = {
  TEST (the_slow_kind_decides_the_step_of_replicas),
  TEST (collectives_run_at_the_slower_port),
  TEST (stages_of_different_kinds_are_balanced_by_their_layers),
  TEST (groups_of_one_kind_change_no_bit),
  TEST (classes_are_split_only_where_kinds_differ),
  TEST (folded_steps_are_those_of_all_ranks),
  TEST (each_stage_has_the_memory_of_its_own_gpu),
  TEST (the_printed_peak_is_the_mean_of_all_gpus),
};

WEFT_TESTS (tests)
