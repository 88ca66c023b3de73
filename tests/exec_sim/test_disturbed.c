/* Slow GPUs, slow links and noise of kernel times against closed formulas, and folded simulations
 * of disturbed steps against unfolded ones. */
#include "core/base/mix.h"
#include "core/report/disturbance.h"
#include "tests/made/made.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"

#define MB UINT64_C (1000000)

/* One kernel, then an all-reduce of the data parallel ranks. */
static weft_plan *
replicas (const struct weft_cluster *cluster, uint32_t microseconds, uint64_t bytes)
{
  struct weft_job job = made_job (cluster);
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);
  uint32_t kernel = made_kernel (b, microseconds);

  made_collective (b, WEFT_OP_ALL_REDUCE, WEFT_GROUP_DP, bytes);
  weft_build_dep (b, kernel);
  return made_plan (&job, weft_mesh_make (1, 1, cluster->n_gpus, 1), &b);
}

/* Two stages with one kernel each. */
static weft_plan *
pipeline (const struct weft_cluster *cluster, uint32_t first_us, uint32_t second_us)
{
  struct weft_job job = made_job (cluster);
  g_autoptr (weft_builder) first = weft_builder_new (0, 2), second = weft_builder_new (1, 2);
  uint32_t kernel = made_kernel (first, first_us);

  made_transfer (first, WEFT_OP_SEND, 1, 50 * MB);
  weft_build_dep (first, kernel);
  uint32_t got = made_transfer (second, WEFT_OP_RECV, -1, 50 * MB);
  made_kernel (second, second_us);
  weft_build_dep (second, got);
  return made_plan (&job, weft_mesh_make (1, 1, cluster->n_gpus / 2, 2),
                    (weft_builder *const[]){ first, second });
}

/* Asserts that each rank of `whole` has the times of its row in `folded`. */
static void
assert_same_ranks (const weft_plan *plan, const weft_timeline *folded, const weft_timeline *whole,
                   const char *words)
{
  assert_int_equal (whole->n, plan->mesh.n_ranks);
  for (uint32_t rank = 0; rank < whole->n; rank++) {
    uint32_t row = folded->row_of ? folded->row_of[rank] : rank;
    for (uint32_t op = 0; op < plan->role[whole->role[rank]]->n_op; op++)
      if (!(fabs (folded->end[row][op] - whole->end[rank][op]) <= 1e-9 * whole->seconds))
        fail_msg ("%s: rank %u, op %u: folded %.15g s, unfolded %.15g s", words, rank, op,
                  folded->end[row][op], whole->end[rank][op]);
  }
}

/* Simulates a disturbed step folded and unfolded, and asserts that both agree. */
static weft_timeline *
run_both (const weft_plan *plan, const char *own)
{
  g_autofree char *unfolded = g_strconcat (own, " unfolded", NULL);
  weft_timeline *folded = made_run_with (&weft_exec_sim, plan, own);
  g_autoptr (weft_timeline) whole = made_run_with (&weft_exec_sim, plan, unfolded);

  assert_true (folded->misfit <= WEFT_SAME_TIME * folded->seconds);
  assert_same_ranks (plan, folded, whole, own);
  return folded;
}

/* ------------------------------------------------------------ closed forms */

static void
one_slow_replica_delays_all_by_its_factor (void **state)
{
  struct weft_cluster cluster = made_cluster (8, 1);
  g_autoptr (weft_plan) plan = replicas (&cluster, 1000, 80 * MB);
  g_autoptr (weft_timeline) even = made_run (plan), slow = run_both (plan, "straggler=rank=5:1.2");

  (void) state;
  assert_near (slow->seconds - even->seconds, 0.2 * 1000 * MADE_US);
}

static void
a_slow_stage_delays_by_its_share (void **state)
{
  struct weft_cluster cluster = made_cluster (4, 1);
  g_autoptr (weft_plan) plan = pipeline (&cluster, 100, 300);
  g_autoptr (weft_timeline) even = made_run (plan), first = run_both (plan, "straggler=rank=0:1.5"),
                            second = run_both (plan, "straggler=node=3:1.5");

  (void) state;
  assert_near (first->seconds - even->seconds, 0.5 * 100 * MADE_US);
  assert_near (second->seconds - even->seconds, 0.5 * 300 * MADE_US);
}

/* The ring of 8 nodes sends 2 (n - 1) / n S bytes through each NIC. */
static void
half_a_nic_doubles_the_bandwidth_term (void **state)
{
  struct weft_cluster cluster = made_cluster (8, 1);
  g_autoptr (weft_plan) plan = replicas (&cluster, 1000, 80 * MB);
  double term = 2 * 7.0 / 8 * 80e6 / MADE_NIC;
  static const char *const half[] = { "link=nic3:0.5", "link=nic-up@rank3:0.5",
                                      "link=nic-down@node0:0.5", "link=nic:0.5" };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (half); i++) {
    g_autoptr (weft_timeline) t = run_both (plan, half[i]);
    assert_near (t->seconds, 1000 * MADE_US + 2 * term);
  }
  g_autoptr (weft_timeline) other = run_both (plan, "link=nvlink@node3:0.5");
  assert_near (other->seconds, 1000 * MADE_US + term);
}

static void
factors_of_one_rank_and_one_link_multiply (void **state)
{
  struct weft_cluster cluster = made_cluster (4, 2);
  g_autoptr (weft_plan) plan = pipeline (&cluster, 100, 300);
  g_autoptr (weft_timeline) t =
      run_both (plan, "straggler=rank=4:2,node=2:1.5,rank=0-1:1.25 link=nic0:0.5,nic@rank0:0.5");

  (void) state;
  assert_near (t->seconds, 1.25 * 100 * MADE_US + 4 * 50e6 / MADE_NIC + 3 * 300 * MADE_US);
}

static void
all_ranks_slow_is_a_slower_gpu (void **state)
{
  struct weft_cluster cluster = made_cluster (4, 2), slower = cluster;

  (void) state;
  slower.f.gpu_bf16 /= 1.25;
  slower.f.gpu_memory_bandwidth /= 1.25;
  g_autoptr (weft_plan) plan = pipeline (&cluster, 120, 360), other = pipeline (&slower, 120, 360);
  g_autoptr (weft_timeline) slow = run_both (plan, "straggler=rank=0-7:1.25"),
                            wanted = made_run (other);
  assert_near (slow->seconds, wanted->seconds);
  assert_int_equal (slow->n, wanted->n);
}

/* ------------------------------------------------------------------ jitter */

static void
assert_same_bits (const weft_plan *plan, const weft_timeline *a, const weft_timeline *b)
{
  assert_int_equal (a->n, b->n);
  for (uint32_t row = 0; row < a->n; row++)
    assert_memory_equal (a->end[row], b->end[row],
                         plan->role[a->role[row]]->n_op * sizeof *a->end[row]);
}

static void
jitter_zero_and_factor_one_change_no_bit (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (
      "model=llama-nano topology=dgx-h100 gpus=8 tp=2 pp=2 global_batch_size=8 micro_batch_size=1");
  g_autoptr (weft_timeline) plain = made_run_with (&weft_exec_sim, plan, ""),
                            zero = made_run_with (&weft_exec_sim, plan, "jitter=0 jitter-seed=7"),
                            one = made_run_with (&weft_exec_sim, plan, "straggler=rank=3:1"),
                            whole = made_run_with (&weft_exec_sim, plan, "unfolded"),
                            tiny = made_run_with (&weft_exec_sim, plan, "jitter=1e-12");

  (void) state;
  assert_same_bits (plan, plain, zero);
  assert_true (plain->seconds == one->seconds);
  assert_int_equal (tiny->n, whole->n);
  assert_near (tiny->seconds, whole->seconds);
}

static void
jitter_depends_on_the_seed_only (void **state)
{
  struct weft_cluster cluster = made_cluster (8, 1);
  g_autoptr (weft_plan) plan = replicas (&cluster, 1000, 80 * MB);
  g_autoptr (weft_timeline) a = made_run_with (&weft_exec_sim, plan, "jitter=0.1 jitter-seed=3"),
                            b = made_run_with (&weft_exec_sim, plan, "jitter=0.1 jitter-seed=3"),
                            c = made_run_with (&weft_exec_sim, plan, "jitter=0.1 jitter-seed=4");
  double slowest = 0;

  (void) state;
  assert_same_bits (plan, a, b);
  assert_true (a->seconds != c->seconds);
  for (uint32_t rank = 0; rank < 8; rank++)
    slowest = fmax (slowest, a->end[rank][0]);
  assert_near (a->seconds, slowest + 2 * 7.0 / 8 * 80e6 / MADE_NIC);
}

/* Mean and coefficient of variation of 200,000 factors, and their median: exp (mean of the
 * logarithm), which is below the mean because the distribution is skewed. */
static void
factors_of_jitter_are_log_normal_with_mean_one (void **state)
{
  const weft_disturb d = { .jitter = 0.2, .seed = 5 };
  enum { N = 200000 };
  double sum = 0, squares = 0;
  unsigned below = 0;

  (void) state;
  for (uint32_t i = 0; i < N; i++) {
    double factor = weft_disturb_factor (&d, i % 512, i / 512);
    sum += factor;
    squares += factor * factor;
    below += factor < 1 / sqrt (1.04);
  }
  assert_true (fabs (sum / N - 1) < 0.003);
  assert_true (fabs (sqrt (squares / N - sum * sum / N / N) - 0.2) < 0.003);
  assert_true (fabs (below / (double) N - 0.5) < 0.005);
}

/* ------------------------------------------------------------------- waits */

static void
seven_replicas_wait_for_the_slow_one (void **state)
{
  struct weft_cluster cluster = made_cluster (8, 1);
  g_autoptr (weft_plan) plan = replicas (&cluster, 1000, 80 * MB);
  g_autoptr (weft_timeline) even = made_run_with (&weft_exec_sim, plan, "waits"),
                            slow =
                                made_run_with (&weft_exec_sim, plan, "waits straggler=rank=5:1.2");
  g_autoptr (weft_disturbance) d = weft_disturbance_new (even, slow, &plan->mesh);
  const struct weft_waiting *w = &g_array_index (d->waiting, struct weft_waiting, 0);

  (void) state;
  assert_int_equal (d->waiting->len, 1);
  assert_int_equal (w->lane, WEFT_LANE_DP);
  assert_int_equal (w->ranks, 7);
  assert_int_equal (w->behind, 5);
  assert_int_equal (w->behind_ranks, 1);
  assert_near (w->seconds, 0.2 * 1000 * MADE_US);
  assert_true (d->exact);
}

static void
percentiles_are_those_of_the_runs (void **state)
{
  const double seconds[] = { 5, 1, 3, 2, 4 };
  weft_disturbance d = { .step_s = 5 };

  (void) state;
  weft_disturbance_set_runs (&d, seconds, 5);
  assert_near (d.spread.mean, 3);
  assert_near (d.step_s, 3);
  assert_near (d.spread.least, 1);
  assert_near (d.spread.p5, 1.2);
  assert_near (d.spread.p50, 3);
  assert_near (d.spread.p95, 4.8);
  assert_near (d.spread.most, 5);
}

/* ----------------------------------------------------------------- folding */

/* Four stages of four nodes each, 128 ranks. Gradients are reduced while stages exchange
 * activations over the same NICs. */
static void
few_classes_behave_as_all_ranks (void **state)
{
  static const char *const disturbed[] = { "straggler=rank=5:1.2", "straggler=rank=77:3,node=2:1.1",
                                           "link=nic3:0.5", "link=nvlink@rank9:0.2",
                                           "link=nic-up@node2:0.1 straggler=rank=100:1.3" };
  g_autoptr (weft_plan) plan = weft_test_plan (
      "model=gpt3-175b num_layers=8 topology=dgx-h100 nodes=16 tp=8 pp=4 global_batch_size=16 "
      "micro_batch_size=1 use_distributed_optimizer=true overlap_grad_reduce=true "
      "batch_p2p_sync=false");

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (disturbed); i++) {
    g_autoptr (weft_timeline) t = run_both (plan, disturbed[i]);
    assert_true (t->folded);
    assert_true (t->n < 96);
  }
}

/* 64 data parallel ranks on a ring of NICs: classes do not grow with the length of the ring. */
static void
the_effect_ends_near_the_slow_link (void **state)
{
  uint32_t rows[2];

  (void) state;
  for (unsigned i = 0; i < 2; i++) {
    struct weft_cluster cluster = made_cluster (i ? 256 : 64, 1);
    g_autoptr (weft_plan) plan = pipeline (&cluster, 100, 300);
    g_autoptr (weft_timeline) t = run_both (plan, "link=nic3:0.5 straggler=rank=9:1.5");
    rows[i] = t->n;
  }
  assert_int_equal (rows[0], rows[1]);
  assert_true (rows[0] < 48);
}

static void
sixteen_thousand_ranks_need_few_classes (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (
      "model=gpt3-175b num_layers=16 topology=dgx-h100 nodes=2048 tp=8 pp=16 "
      "global_batch_size=512 micro_batch_size=1");
  g_autoptr (weft_timeline) t = made_run_with (&weft_exec_sim, plan, "straggler=rank=5000:1.2");

  (void) state;
  assert_int_equal (plan->mesh.n_ranks, 16384);
  assert_true (t->misfit <= WEFT_SAME_TIME * t->seconds);
  assert_true (t->n < 400);
}

/* A random link of a fabric as the flag names it: "nic-up7". The caller frees the text. */
static char *
random_link (GRand *rand, const struct weft_fabric *f)
{
  uint32_t kind;

  do
    kind = g_rand_int_range (rand, 0, f->ops->n_kind);
  while (f->first[kind] == f->first[kind + 1]);
  g_autofree char *word = g_strdelimit (g_strdup (f->ops->kind[kind].word), " ", '-');
  return g_strdup_printf ("%s@rank%u", word, g_rand_int_range (rand, 0, f->cluster->n_gpus));
}

/* A random disturbance of a cluster. The caller frees the text. */
static char *
random_disturbance (GRand *rand, const struct weft_fabric *f)
{
  unsigned which = g_rand_int_range (rand, 0, 3);
  GString *own = g_string_new (NULL);
  g_autofree char *link = random_link (rand, f);

  if (which != 1)
    g_string_append_printf (own, "straggler=rank=%u:1.%u,node=%u:1.0%u ",
                            g_rand_int_range (rand, 0, f->cluster->n_gpus),
                            g_rand_int_range (rand, 1, 9),
                            g_rand_int_range (rand, 0, f->cluster->n_nodes),
                            g_rand_int_range (rand, 1, 9));
  if (which != 0)
    g_string_append_printf (own, "link=%s:0.%u", link, g_rand_int_range (rand, 1, 9));
  return g_string_free (own, FALSE);
}

/* WEFT_TEST_JOBS=N draws another number of jobs, WEFT_TEST_SEED=S from another seed. */
static unsigned
asked (const char *name, unsigned otherwise)
{
  const char *text = g_getenv (name);
  return text ? (unsigned) g_ascii_strtoull (text, NULL, 10) : otherwise;
}

static void
random_disturbances_fold_exactly (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (asked ("WEFT_TEST_SEED", 20));
  unsigned folded = 0, jobs = 0, drawn = asked ("WEFT_TEST_JOBS", 60);

  (void) state;
  for (unsigned i = 0; i < drawn; i++) {
    g_autofree char *words = weft_random_job (rand);
    struct weft_job job;
    if (!weft_test_job (words, &job, NULL) || job.cluster.n_gpus < 8)
      continue;
    g_autoptr (weft_plan) plan = made_real_plan (&job);
    g_autofree char *own = random_disturbance (rand, &plan->fabric);
    g_autofree char *unfolded = g_strconcat (own, " unfolded", NULL);
    g_autoptr (weft_timeline) t = made_run_with (&weft_exec_sim, plan, own),
                              whole = made_run_with (&weft_exec_sim, plan, unfolded);
    g_autofree char *all = g_strconcat (words, " ", own, NULL);
    assert_same_ranks (plan, t, whole, all);
    folded += t->folded;
    jobs++;
  }
  print_message ("%u of %u disturbed jobs fold\n", folded, jobs);
  assert_true (folded > jobs / 4);
}

/* ---------------------------------------------------------------- messages */

static void
wrong_names_are_refused_by_name (void **state)
{
  static const struct {
    const char *text, *part;
    gboolean link;
  } wrong[] = {
    { "rank=8:1.2", "found rank 8, wanted numbers from 0 to 7", FALSE },
    { "rnk=1:1.2", "did you mean rank?", FALSE },
    { "rank=5", "wanted a name, a colon and a factor", FALSE },
    { "rank=5:0", "found the factor 0", FALSE },
    { "rank=x:2", "wanted a number or two numbers", FALSE },
    { "5:2", "wanted rank=5:1.2", FALSE },
    { ",", "wanted a name, a colon and a factor", FALSE },
    { "nci3:0.5", "wanted one of port, nvlink, pcie, host, host-memory, nic", TRUE },
    { "nvlnk:0.5", "did you mean nvlink?", TRUE },
    { "leaf:0.5", "cannot be a bottleneck of this cluster", TRUE },
    { "nic8:0.5", "found nic 8, wanted numbers from 0 to 7", TRUE },
    { "nic:2", "found the factor 2, wanted a number from 0.001 to 1", TRUE },
    { "nic3@rank5:0.5", "found a number and a place", TRUE },
    { "nic@gpu5:0.5", "wanted rank or node", TRUE },
    { "nic@node9:0.5", "found node 9, wanted numbers from 0 to 3", TRUE },
  };
  struct weft_cluster cluster = made_cluster (4, 2);
  struct weft_fabric f = weft_fabric_make (&cluster);

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (wrong); i++) {
    g_auto (weft_disturb) d = { 0 };
    g_autoptr (GError) error = NULL;
    gboolean good = wrong[i].link ? weft_disturb_links (&d, &f, wrong[i].text, &error)
                                  : weft_disturb_stragglers (&d, &f, wrong[i].text, &error);
    assert_false (good);
    if (!strstr (error->message, wrong[i].part))
      fail_msg ("%s: found no \"%s\" in: %s", wrong[i].text, wrong[i].part, error->message);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (one_slow_replica_delays_all_by_its_factor),
  cmocka_unit_test (a_slow_stage_delays_by_its_share),
  cmocka_unit_test (half_a_nic_doubles_the_bandwidth_term),
  cmocka_unit_test (factors_of_one_rank_and_one_link_multiply),
  cmocka_unit_test (all_ranks_slow_is_a_slower_gpu),
  cmocka_unit_test (jitter_zero_and_factor_one_change_no_bit),
  cmocka_unit_test (jitter_depends_on_the_seed_only),
  cmocka_unit_test (factors_of_jitter_are_log_normal_with_mean_one),
  cmocka_unit_test (seven_replicas_wait_for_the_slow_one),
  cmocka_unit_test (percentiles_are_those_of_the_runs),
  cmocka_unit_test (few_classes_behave_as_all_ranks),
  cmocka_unit_test (the_effect_ends_near_the_slow_link),
  cmocka_unit_test (sixteen_thousand_ranks_need_few_classes),
  cmocka_unit_test (random_disturbances_fold_exactly),
  cmocka_unit_test (wrong_names_are_refused_by_name),
};

WEFT_TESTS (tests)
