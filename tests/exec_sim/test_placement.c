/* Where stages and replicas lie on the nodes: what crosses the network in both orders of the ranks,
 * against closed formulas, and equal times where both orders have the same links. */
#include "tests/made/made.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"

#define LOCAL_LATENCY 3e-6
#define REMOTE_LATENCY 7e-6
#define BYTES UINT64_C (400000000)

/* Two stages of two replicas on two nodes of two GPUs. The first stage sends a tensor to the
 * second, and the replicas of each stage add another. */
static weft_plan *
two_by_two (gboolean inside)
{
  struct weft_cluster cluster = made_cluster (2, 2);
  struct weft_mesh mesh = weft_mesh_make (1, 1, 2, 2);
  g_autoptr (weft_builder) first = weft_builder_new (0, 2);
  g_autoptr (weft_builder) second = weft_builder_new (1, 2);

  cluster.f.node_intra_latency = LOCAL_LATENCY;
  cluster.f.fabric_latency = REMOTE_LATENCY;
  struct weft_job job = made_job (&cluster);
  job.stack.collective_algorithms = g_quark_from_static_string ("ring");
  mesh.stages_inside = inside;
  uint32_t sent = made_transfer (first, WEFT_OP_SEND, 1, BYTES);
  uint32_t got = made_transfer (second, WEFT_OP_RECV, -1, BYTES);
  made_collective (first, WEFT_OP_ALL_REDUCE, WEFT_GROUP_DP, BYTES);
  weft_build_dep (first, sent);
  made_collective (second, WEFT_OP_ALL_REDUCE, WEFT_GROUP_DP, BYTES);
  weft_build_dep (second, got);
  return made_plan (&job, mesh, (weft_builder *[]){ first, second });
}

/* A ring of two ranks sends the tensor once, in two steps. */
static void
the_inner_axis_stays_inside_the_node (void **state)
{
  const double local = BYTES / MADE_PORT, remote = BYTES / MADE_NIC;

  (void) state;
  for (int inside = 0; inside < 2; inside++) {
    g_autoptr (weft_plan) plan = two_by_two (inside);
    g_autoptr (weft_timeline) t = made_run (plan);
    double transfer = inside ? LOCAL_LATENCY + local : REMOTE_LATENCY + remote;
    double sum = inside ? 2 * REMOTE_LATENCY + remote : 2 * LOCAL_LATENCY + local;
    for (uint32_t row = 0; row < t->n; row++) {
      assert_near (t->end[row][0], transfer);
      assert_near (t->end[row][1], transfer + sum);
    }
    assert_near (t->seconds, transfer + sum);
  }
}

static double
step_seconds (const char *words, gboolean inside)
{
  g_autoptr (weft_plan) plan =
      weft_test_plan ("%s use_tp_pp_dp_mapping=%s", words, inside ? "true" : "false");
  g_autoptr (weft_timeline) t = made_run (plan);

  return t->seconds;
}

#define STEP                                                                                       \
  "model=gpt2-nano topology=dgx-h100 global_batch_size=8 pipeline_model_parallel_size=2 "          \
  "use_distributed_optimizer=true overlap_grad_reduce=true node_gpus_per_switch=1 "

/* A cluster with one node, and nodes that hold whole runs of tensor parallel ranks, have the same
 * links in both orders; nodes that hold two stages or two replicas of one GPU do not. Every GPU has
 * a PCIe switch of its own, which ranks of one stage would use at the same time. */
static void
orders_with_equal_links_take_equal_time (void **state)
{
  static const char *const equal[] = {
    STEP "gpus=8",
    STEP "gpus=8 tensor_model_parallel_size=2",
    STEP "gpus=8 node_gpus=2 node_nics=2 tensor_model_parallel_size=2",
    STEP "gpus=4 node_gpus=1 node_nics=1",
  };

  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (equal); i++)
    assert_near (step_seconds (equal[i], TRUE), step_seconds (equal[i], FALSE));
  assert_true (step_seconds (STEP "gpus=8 node_gpus=4 node_nics=4", TRUE) !=
               step_seconds (STEP "gpus=8 node_gpus=4 node_nics=4", FALSE));
}

/* Pipelines of three stages on nodes of four GPUs: some pass a node, others do not. */
static void
pipelines_that_lie_differently_are_simulated_apart (void **state)
{
  (void) state;
  g_autoptr (weft_plan) plan = weft_test_plan (
      "num_layers=6 hidden_size=64 num_attention_heads=4 vocab_size=256 seq_length=64 "
      "topology=dgx-h100 gpus=12 node_gpus=4 node_nics=4 pipeline_model_parallel_size=3 "
      "global_batch_size=16 use_tp_pp_dp_mapping=true");
  g_autoptr (weft_timeline) t = made_run (plan);

  assert_true (t->n > plan->n_roles);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (the_inner_axis_stays_inside_the_node),
  cmocka_unit_test (orders_with_equal_links_take_equal_time),
  cmocka_unit_test (pipelines_that_lie_differently_are_simulated_apart),
};

WEFT_TESTS (tests)
