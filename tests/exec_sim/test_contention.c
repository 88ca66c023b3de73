/* Flows that share links, against max-min shares computed by hand: NICs, leaf and spine uplinks,
 * PCIe switches, host memory. made_run() also compares a folded with an unfolded simulation in
 * every case, and the field `contended` of a timeline must be set exactly if some op takes longer
 * than it does alone. */
#include "exec_sim/bridge.h"
#include "tests/made/made.h"
#include "tests/runner/runner.h"

#define MB UINT64_C (1000000)

/* Simulates a step in which every data parallel group of the mesh runs one collective. */
static weft_timeline *
run_dp (const struct weft_cluster *cluster, struct weft_mesh mesh, enum weft_op_kind kind,
        uint64_t bytes)
{
  struct weft_job job = made_job (cluster);
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);

  made_collective (b, kind, WEFT_GROUP_DP, bytes);
  g_autoptr (weft_plan) plan = made_plan (&job, mesh, &b);
  return made_run (plan);
}

/* A plan of two stages: every rank of the first stage sends `bytes` to its neighbour in the second
 * stage. If dp_bytes is not 0, each stage also all-reduces dp_bytes at the same time. */
static weft_plan *
send_plan (const struct weft_cluster *cluster, struct weft_mesh mesh, uint64_t bytes,
           uint64_t dp_bytes)
{
  struct weft_job job = made_job (cluster);
  g_autoptr (weft_builder) first = weft_builder_new (0, 2), second = weft_builder_new (1, 2);

  made_transfer (first, WEFT_OP_SEND, 1, bytes);
  made_transfer (second, WEFT_OP_RECV, -1, bytes);
  if (dp_bytes) {
    made_collective (first, WEFT_OP_ALL_REDUCE, WEFT_GROUP_DP, dp_bytes);
    made_collective (second, WEFT_OP_ALL_REDUCE, WEFT_GROUP_DP, dp_bytes);
  }
  return made_plan (&job, mesh, (weft_builder *const[]) { first, second });
}

static double
send_seconds (const struct weft_cluster *cluster, struct weft_mesh mesh, uint64_t bytes,
              gboolean contended)
{
  g_autoptr (weft_plan) plan = send_plan (cluster, mesh, bytes, 0);
  g_autoptr (weft_timeline) t = made_run (plan);

  assert_int_equal (t->contended, contended);
  return t->seconds;
}

/* ----------------------------------------------------------------- the NIC */

/* Two data parallel groups on two nodes with one NIC each: the GPUs 0 of both nodes, and the GPUs 1
 * of both nodes. Each group must get half of a NIC. */
static void
two_groups_on_one_nic_get_half_each (void **state)
{
  struct weft_cluster cluster = made_cluster (2, 2);
  struct weft_mesh mesh = weft_mesh_make (2, 1, 2, 1);

  (void) state;
  g_autoptr (weft_timeline) own = run_dp (&cluster, mesh, WEFT_OP_ALL_REDUCE, 100 * MB);
  assert_near (own->seconds, 100e6 / MADE_NIC);
  assert_false (own->contended);
  cluster.f.node_nics = 1;
  g_autoptr (weft_timeline) shared = run_dp (&cluster, mesh, WEFT_OP_ALL_REDUCE, 100 * MB);
  assert_near (shared->seconds, 2 * 100e6 / MADE_NIC);
  assert_true (shared->contended);
  assert_int_equal (shared->n, 1);
}

/* If only the flows of one group share a NIC, the collective is not contended: it takes as long as
 * it takes alone. */
static void
a_group_that_shares_with_itself_is_not_contended (void **state)
{
  struct weft_cluster cluster = made_cluster (2, 2);

  (void) state;
  cluster.f.node_nics = 1;
  /* A tree all-reduce over two nodes sends S bytes from each node. The two GPUs that share a NIC
   * send half of these bytes each. For 100 MB, a tree reaches 80 % of the rate. */
  g_autoptr (weft_timeline) t =
      run_dp (&cluster, weft_mesh_make (1, 1, 4, 1), WEFT_OP_ALL_REDUCE, 100 * MB);
  assert_near (t->seconds, 2 * 0.5 * 100e6 / MADE_NIC / 0.8);
  assert_false (t->contended);
}

static void
two_senders_on_one_nic_get_half_each (void **state)
{
  struct weft_cluster cluster = made_cluster (2, 2);
  struct weft_mesh mesh = weft_mesh_make (1, 1, 2, 2);

  (void) state;
  assert_near (send_seconds (&cluster, mesh, 100 * MB, FALSE), 100e6 / MADE_NIC);
  cluster.f.node_nics = 1;
  assert_near (send_seconds (&cluster, mesh, 100 * MB, TRUE), 2 * 100e6 / MADE_NIC);
}

/* Nodes of eight GPUs with three NICs, shared by GPUs 0-2, 3-5 and 6-7. Each stage is a node. Sends
 * of three GPUs over one NIC take three times as long as alone, sends of two GPUs twice. */
static void
uneven_shares_of_nics_end_apart (void **state)
{
  struct weft_cluster cluster = made_cluster (2, 8);

  (void) state;
  cluster.f.node_nics = 3;
  g_autoptr (weft_plan) plan = send_plan (&cluster, weft_mesh_make (1, 1, 8, 2), 100 * MB, 0);
  g_autoptr (weft_timeline) folded = made_run (plan);
  g_autoptr (weft_timeline) t = made_run_with (&weft_exec_sim, plan, "unfolded");
  for (uint32_t row = 0; row < t->n; row++)
    assert_near (t->end[row][0], (t->rank[row] % 8 < 6 ? 3 : 2) * 100e6 / MADE_NIC);
  assert_true (folded->n < t->n);
}

/* Four nodes of one GPU: context parallel groups {0, 1} and {2, 3}, and one data parallel group.
 * Each NIC has two flows: a rank sends 1.5 S in the data parallel ring, S in the context parallel
 * ring. */
static void
two_lanes_of_one_gpu_share_its_nic (void **state)
{
  struct weft_cluster cluster = made_cluster (4, 1);
  struct weft_job job = made_job (&cluster);
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);

  (void) state;
  uint32_t small = made_collective (b, WEFT_OP_ALL_REDUCE, WEFT_GROUP_CP, 40 * MB);
  uint32_t large = made_collective (b, WEFT_OP_ALL_REDUCE, WEFT_GROUP_DP, 80 * MB);
  g_autoptr (weft_plan) plan = made_plan (&job, weft_mesh_make (1, 2, 2, 1), &b);
  g_autoptr (weft_timeline) t = made_run (plan);
  assert_near (t->end[0][small], 2 * 40e6 / MADE_NIC);
  assert_near (t->end[0][large], (40e6 + 1.5 * 80e6) / MADE_NIC);
  assert_true (t->contended);
}

/* A context parallel and a data parallel all-reduce share NICs, but run one after the other. So
 * each runs alone, and nothing is contended. */
static void
lanes_that_take_turns_share_nothing (void **state)
{
  struct weft_cluster cluster = made_cluster (4, 1);
  struct weft_job job = made_job (&cluster);
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);

  (void) state;
  uint32_t small = made_collective (b, WEFT_OP_ALL_REDUCE, WEFT_GROUP_CP, 40 * MB);
  made_collective (b, WEFT_OP_ALL_REDUCE, WEFT_GROUP_DP, 80 * MB);
  weft_build_dep (b, small);
  g_autoptr (weft_plan) plan = made_plan (&job, weft_mesh_make (1, 2, 2, 1), &b);
  g_autoptr (weft_timeline) t = made_run (plan);
  assert_near (t->seconds, (40e6 + 1.5 * 80e6) / MADE_NIC);
  assert_false (t->contended);
}

/* GPUs without NVLink use one PCIe link both for the next GPU and for the host. So a ring and
 * copies share this link. */
static void
a_ring_over_pcie_shares_with_copies (void **state)
{
  struct weft_cluster cluster = made_cluster (1, 2);
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);

  (void) state;
  cluster.f.node_intra = WEFT_PCIE;
  struct weft_job job = made_job (&cluster);
  uint32_t ring = made_collective (b, WEFT_OP_ALL_REDUCE, WEFT_GROUP_DP, 300 * MB);
  uint32_t copy = made_copy (b, WEFT_OP_COPY_OUT, 100 * MB);
  g_autoptr (weft_plan) plan = made_plan (&job, weft_mesh_make (1, 1, 2, 1), &b);
  g_autoptr (weft_timeline) t = made_run (plan);
  assert_near (t->end[0][copy], 2 * 100e6 / MADE_HOST);
  assert_near (t->end[0][ring], (100e6 + 300e6) / MADE_HOST);
  assert_true (t->contended);
}

/* ---------------------------------------------------------- leaf and spine */

/* A fabric of leaf and spine switches. Each leaf switch connects a unit of four nodes with one GPU
 * each. The uplink of a leaf has a quarter of the rate of its ports: four NICs share the rate of
 * one. */
static struct weft_cluster
narrow_leaf (uint32_t nodes)
{
  struct weft_cluster cluster = made_cluster (nodes, 1);

  cluster.f.fabric_nodes_per_unit = 4;
  cluster.f.fabric_leaf_oversubscription = 4;
  return cluster;
}

static void
four_flows_share_a_leaf_of_one (void **state)
{
  struct weft_cluster cluster = narrow_leaf (8);
  struct weft_mesh mesh = weft_mesh_make (1, 1, 4, 2);

  (void) state;
  assert_near (send_seconds (&cluster, mesh, 100 * MB, TRUE), 4 * 100e6 / MADE_NIC);
  cluster.f.fabric_leaf_oversubscription = 1;
  assert_near (send_seconds (&cluster, mesh, 100 * MB, FALSE), 100e6 / MADE_NIC);
}

/* Stage 0 has the units 0 and 1, stage 1 the units 2 and 3. The uplink of each leaf of stage 0
 * carries four flows. Leaves do not share links with each other. */
static void
leaves_do_not_share_with_each_other (void **state)
{
  struct weft_cluster cluster = narrow_leaf (16);

  (void) state;
  assert_near (send_seconds (&cluster, weft_mesh_make (1, 1, 8, 2), 100 * MB, TRUE),
               4 * 100e6 / MADE_NIC);
}

/* Six ranks per stage: stage 0 is unit 0 and half of unit 1, stage 1 is the other half and unit 2.
 * Rank i sends to rank i + 6: ranks 0 and 1 from unit 0 to unit 1, ranks 2 and 3 from unit 0 to
 * unit 2, ranks 4 and 5 from unit 1 to unit 2.  The uplink of unit 0's leaf has four flows, each
 * with a quarter of the rate.  The downlink of unit 2's leaf also has four flows: those of ranks 2
 * and 3 have a quarter each, and those of ranks 4 and 5 share the remaining half. */
static void
a_leaf_partly_covered_by_a_stage (void **state)
{
  struct weft_cluster cluster = narrow_leaf (12);

  (void) state;
  assert_near (send_seconds (&cluster, weft_mesh_make (1, 1, 6, 2), 100 * MB, TRUE),
               4 * 100e6 / MADE_NIC);
}

/* Five ranks per stage on units of four: rank i sends to rank i + 5.  The uplink of unit 0's leaf
 * has the flows of ranks 0, 1 and 2 to unit 1 and of rank 3 to unit 2; the uplink of unit 1's leaf
 * has the flow of rank 4 to unit 2.  Ranks 0 to 3 get a quarter of a NIC each.  Rank 4 shares the
 * downlink of unit 2's leaf with rank 3 and gets the remaining three quarters. */
static void
what_a_bottleneck_leaves_goes_to_the_others (void **state)
{
  struct weft_cluster cluster = narrow_leaf (10);
  g_autoptr (weft_plan) plan = send_plan (&cluster, weft_mesh_make (1, 1, 5, 2), 300 * MB, 0);
  g_autoptr (weft_timeline) folded = made_run (plan);
  g_autoptr (weft_timeline) t = made_run_with (&weft_exec_sim, plan, "unfolded");

  (void) state;
  for (uint32_t row = 0; row < t->n; row++)
    assert_near (t->end[row][0], 300e6 / MADE_NIC * (t->rank[row] % 5 == 4 ? 4.0 / 3 : 4));
  assert_true (folded->contended);
}

/* Each stage fills one unit, so the ring of its gradients stays inside the unit. Its four sends
 * leave over the leaf's uplink, which has the rate of one NIC, so each send gets a quarter of a
 * NIC. A concurrent ring gets the other three quarters, and the whole NIC after the sends. */
static void
a_ring_takes_what_narrow_sends_leave_of_its_nic (void **state)
{
  struct weft_cluster cluster = narrow_leaf (8);
  g_autoptr (weft_plan) plan =
      send_plan (&cluster, weft_mesh_make (1, 1, 4, 2), 100 * MB, 400 * MB);
  g_autoptr (weft_timeline) t = made_run (plan);

  (void) state;
  assert_int_equal (t->n, 2);
  assert_near (t->end[0][0], 4 * 100e6 / MADE_NIC);
  assert_near (t->end[0][1], (1.5 * 400e6 + 100e6) / MADE_NIC);
  assert_near (t->end[1][1], (1.5 * 400e6 + 100e6) / MADE_NIC);
}

/* Two pods of two units of two nodes. A stage has four flows between pods. The uplink of a pod has
 * an eighth of the rate of its four NICs, that is half a NIC, for these flows. Leaf switches do not
 * limit them. */
static void
four_flows_share_a_spine_of_half_a_nic (void **state)
{
  struct weft_cluster cluster = made_cluster (8, 1);

  (void) state;
  cluster.f.fabric_nodes_per_unit = 2;
  cluster.f.fabric_units_per_pod = 2;
  cluster.f.fabric_spine_oversubscription = 8;
  assert_near (send_seconds (&cluster, weft_mesh_make (1, 1, 4, 2), 100 * MB, TRUE),
               8 * 100e6 / MADE_NIC);
}

/* A ring all-reduce over two units of two nodes of two GPUs. On each rail one flow crosses from
 * unit to unit in each direction. */
static void
a_ring_over_units_crosses_each_leaf_once_a_rail (void **state)
{
  struct weft_cluster cluster = made_cluster (4, 2);

  (void) state;
  cluster.f.fabric_nodes_per_unit = 2;
  cluster.f.fabric_leaf_oversubscription = 4;
  /* n = 8 GPUs of a group: a GPU sends 7/4 S in total, half of it over its NIC. The leaf uplink is
   * oversubscribed, so this flow gets half of a NIC's rate. */
  g_autoptr (weft_timeline) t =
      run_dp (&cluster, weft_mesh_make (1, 1, 8, 1), WEFT_OP_ALL_REDUCE, 80 * MB);
  assert_near (t->seconds, 7.0 / 4 / 2 * 80e6 / (MADE_NIC / 2));
  assert_false (t->contended);
}

/* ------------------------------------------------------------------ copies */

static double
copy_seconds (const struct weft_cluster *cluster, enum weft_op_kind kind, gboolean contended)
{
  struct weft_job job = made_job (cluster);
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);

  made_copy (b, kind, 100 * MB);
  g_autoptr (weft_plan) plan = made_plan (&job, weft_mesh_make (1, 1, cluster->n_gpus, 1), &b);
  g_autoptr (weft_timeline) t = made_run (plan);
  assert_int_equal (t->contended, contended);
  return t->seconds;
}

static void
gpus_of_one_pcie_switch_share_its_way_to_the_host (void **state)
{
  static const enum weft_op_kind kinds[] = { WEFT_OP_COPY_IN, WEFT_OP_COPY_OUT };

  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (kinds); i++) {
    struct weft_cluster cluster = made_cluster (2, 4);
    assert_near (copy_seconds (&cluster, kinds[i], FALSE), 100e6 / MADE_HOST);
    cluster.f.node_gpus_per_switch = 2;
    assert_near (copy_seconds (&cluster, kinds[i], TRUE), 2 * 100e6 / MADE_HOST);
    cluster.f.node_gpus_per_switch = 4;
    assert_near (copy_seconds (&cluster, kinds[i], TRUE), 4 * 100e6 / MADE_HOST);
  }
}

static void
gpus_of_one_node_share_its_host_memory (void **state)
{
  struct weft_cluster cluster = made_cluster (2, 4);

  (void) state;
  cluster.f.node_host_bandwidth = MADE_HOST;
  assert_near (copy_seconds (&cluster, WEFT_OP_COPY_IN, TRUE), 4 * 100e6 / MADE_HOST);
}

/* Copies to the host and from the host use different directions of PCIe. Both share the bandwidth
 * of the host memory if this is smaller. */
static void
copies_in_and_out_meet_in_host_memory (void **state)
{
  const double memory[] = { 1e15, MADE_HOST }, wanted[] = { 1, 2 };

  (void) state;
  for (int i = 0; i < 2; i++) {
    struct weft_cluster cluster = made_cluster (1, 1);
    g_autoptr (weft_builder) b = weft_builder_new (0, 1);
    cluster.f.node_host_bandwidth = memory[i];
    struct weft_job job = made_job (&cluster);
    made_copy (b, WEFT_OP_COPY_IN, 100 * MB);
    made_copy (b, WEFT_OP_COPY_OUT, 100 * MB);
    g_autoptr (weft_plan) plan = made_plan (&job, weft_mesh_make (1, 1, 1, 1), &b);
    g_autoptr (weft_timeline) t = made_run (plan);
    assert_near (t->seconds, wanted[i] * 100e6 / MADE_HOST);
    assert_int_equal (t->contended, wanted[i] > 1);
  }
}

/* A node of four GPUs: three share a PCIe switch. The fourth has a switch of its own and ends its
 * copy earlier. */
static void
a_switch_with_fewer_gpus_is_quicker (void **state)
{
  struct weft_cluster cluster = made_cluster (1, 4);
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);

  (void) state;
  cluster.f.node_gpus_per_switch = 3;
  struct weft_job job = made_job (&cluster);
  made_copy (b, WEFT_OP_COPY_IN, 100 * MB);
  g_autoptr (weft_plan) plan = made_plan (&job, weft_mesh_make (1, 1, 4, 1), &b);
  g_autoptr (weft_timeline) folded = made_run (plan);
  g_autoptr (weft_timeline) t = made_run_with (&weft_exec_sim, plan, "unfolded");
  for (uint32_t row = 0; row < 4; row++)
    assert_near (t->end[row][0], (row < 3 ? 3 : 1) * 100e6 / MADE_HOST);
  assert_int_equal (folded->n, 2);
}

/* ------------------------------------------------- any flows on any links */

#define LINKS 7
#define FLOWS 14

struct random_flow {
  /* start: time at which the flow's bytes begin to move, after its latency */
  double start, bytes, left, rate, end;
  uint32_t n, link[4];
};

struct random_case {
  double capacity[LINKS];
  struct random_flow flow[FLOWS];
};

/* Draws flows whose start times and sizes have only a few different values, so that many flows
 * start or end at the same time. */
static void
make_case (GRand *dice, struct random_case *c)
{
  for (uint32_t l = 0; l < LINKS; l++)
    c->capacity[l] = g_rand_int_range (dice, 1, 4) * 1e9;
  for (uint32_t i = 0; i < FLOWS; i++) {
    struct random_flow *f = &c->flow[i];
    *f = (struct random_flow) { .start = g_rand_int_range (dice, 0, 3) * 1e-3,
                               .bytes = g_rand_int_range (dice, 1, 4) * 1e6,
                               .n = g_rand_int_range (dice, 1, 5) };
    f->left = f->bytes;
    for (uint32_t l = 0; l < f->n; l++)
      f->link[l] = g_rand_int_range (dice, 0, LINKS);
  }
}

static gboolean
is_moving (const struct random_flow *f, double now)
{
  return f->start <= now && f->left > 0;
}

/* Computes max-min fair rates by water filling: finds the link with the smallest share per flow,
 * fixes the rates of the flows that cross this link, and repeats with the other flows. */
static void
share (struct random_case *c, double now)
{
  double room[LINKS];

  memcpy (room, c->capacity, sizeof room);
  for (uint32_t i = 0; i < FLOWS; i++)
    c->flow[i].rate = 0;
  for (;;) {
    double crossings[LINKS] = { 0 }, least = INFINITY;
    uint32_t tightest = 0;
    for (uint32_t i = 0; i < FLOWS; i++)
      for (uint32_t l = 0; is_moving (&c->flow[i], now) && c->flow[i].rate == 0 && l < c->flow[i].n;
           l++)
        crossings[c->flow[i].link[l]]++;
    for (uint32_t l = 0; l < LINKS; l++)
      if (crossings[l] > 0 && room[l] / crossings[l] < least) {
        least = room[l] / crossings[l];
        tightest = l;
      }
    if (least == INFINITY)
      return;
    for (uint32_t i = 0; i < FLOWS; i++) {
      struct random_flow *f = &c->flow[i];
      gboolean crosses = FALSE;
      for (uint32_t l = 0; l < f->n; l++)
        crosses |= f->link[l] == tightest;
      if (!crosses || !is_moving (f, now) || f->rate > 0)
        continue;
      f->rate = least;
      for (uint32_t l = 0; l < f->n; l++)
        room[f->link[l]] -= least;
    }
  }
}

/* Computes when each flow ends. Rates of flows change only when a flow starts or ends, so the
 * function moves from one such time to the next. */
static void
solve (struct random_case *c)
{
  for (double now = 0, next; now < INFINITY; now = next) {
    share (c, now);
    next = INFINITY;
    for (uint32_t i = 0; i < FLOWS; i++) {
      if (c->flow[i].start > now)
        next = fmin (next, c->flow[i].start);
      if (is_moving (&c->flow[i], now))
        next = fmin (next, now + c->flow[i].left / c->flow[i].rate);
    }
    for (uint32_t i = 0; i < FLOWS && next < INFINITY; i++) {
      struct random_flow *f = &c->flow[i];
      if (!is_moving (f, now))
        continue;
      f->left -= f->rate * (next - now);
      if (f->left < 1e-6 * f->bytes) {
        f->left = 0;
        f->end = next;
      }
    }
  }
}

static void
note_end (void *user, uint64_t tag)
{
  double *end = user;
  end[tag] = weft_bridge_now ();
}

static void
flows_that_start_and_end_at_once_share_max_min (void **state)
{
  g_autoptr (GRand) dice = g_rand_new_with_seed (20);

  (void) state;
  for (int repeat = 0; repeat < 400; repeat++) {
    struct random_case c;
    double end[FLOWS] = { 0 };
    make_case (dice, &c);
    assert_true (weft_bridge_open (note_end, end, NULL));
    for (uint32_t l = 0; l < LINKS; l++)
      weft_bridge_link (c.capacity[l]);
    for (uint32_t i = 0; i < FLOWS; i++)
      weft_bridge_flow (c.flow[i].bytes, c.flow[i].link, c.flow[i].n, c.flow[i].start, i);
    assert_true (weft_bridge_run (NULL));
    weft_bridge_close ();
    solve (&c);
    for (uint32_t i = 0; i < FLOWS; i++)
      assert_near (end[i], c.flow[i].end);
  }
}

/* ---------------------------------------------------------------- real jobs */

/* Steps of real jobs with pipelines and buckets, on clusters with many shared links: folded and
 * unfolded simulations must agree. The stages of the second job end inside a node, so each of its
 * ranks is simulated (none are folded). */
static void
a_real_step_folds_without_a_trace (void **state)
{
  static const char *const jobs[][16] = {
    { "--nodes", "2", "--topology", "dgx-h100", "--pipeline-model-parallel-size", "2",
      "--overlap-grad-reduce", "true", "--global-batch-size", "32", NULL },
    { "--nodes", "3", "--topology", "l40s-pcie", "--pipeline-model-parallel-size", "2",
      "--use-distributed-optimizer", "true", "--global-batch-size", "48", NULL },
    { "--nodes", "4", "--topology", "dgx-a100", "--pipeline-model-parallel-size", "4",
      "--use-distributed-optimizer", "true", "--overlap-grad-reduce", "true", "--global-batch-size",
      "32", NULL },
  };
  static const uint32_t actors[] = { 2, 24, 4 };

  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (jobs); i++) {
    const char *flags[20] = { "--model", "gpt2-nano" };
    struct weft_job job;
    for (int f = 0; jobs[i][f]; f++)
      flags[2 + f] = jobs[i][f];
    made_real_job (&job, flags);
    job.cluster.f.fabric_nodes_per_unit = 1;
    job.cluster.f.fabric_leaf_oversubscription = 3;
    g_autoptr (weft_plan) plan = made_real_plan (&job);
    g_autoptr (weft_timeline) t = made_run (plan);
    assert_int_equal (t->n, actors[i]);
    assert_true (t->contended);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (two_groups_on_one_nic_get_half_each),
  cmocka_unit_test (a_group_that_shares_with_itself_is_not_contended),
  cmocka_unit_test (two_senders_on_one_nic_get_half_each),
  cmocka_unit_test (uneven_shares_of_nics_end_apart),
  cmocka_unit_test (two_lanes_of_one_gpu_share_its_nic),
  cmocka_unit_test (lanes_that_take_turns_share_nothing),
  cmocka_unit_test (a_ring_over_pcie_shares_with_copies),
  cmocka_unit_test (four_flows_share_a_leaf_of_one),
  cmocka_unit_test (leaves_do_not_share_with_each_other),
  cmocka_unit_test (a_leaf_partly_covered_by_a_stage),
  cmocka_unit_test (what_a_bottleneck_leaves_goes_to_the_others),
  cmocka_unit_test (a_ring_takes_what_narrow_sends_leave_of_its_nic),
  cmocka_unit_test (four_flows_share_a_spine_of_half_a_nic),
  cmocka_unit_test (a_ring_over_units_crosses_each_leaf_once_a_rail),
  cmocka_unit_test (gpus_of_one_pcie_switch_share_its_way_to_the_host),
  cmocka_unit_test (gpus_of_one_node_share_its_host_memory),
  cmocka_unit_test (copies_in_and_out_meet_in_host_memory),
  cmocka_unit_test (a_switch_with_fewer_gpus_is_quicker),
  cmocka_unit_test (flows_that_start_and_end_at_once_share_max_min),
  cmocka_unit_test (a_real_step_folds_without_a_trace),
};

WEFT_TESTS (tests)
