/* Software that replaces collectives of weights and gradients: gradients by all-reduces instead of
 * reduce-scatters, weights by broadcasts instead of all-gathers. */
#include "core/plan/software.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"
#include <math.h>

#define JOB                                                                                        \
  "num_layers=2 hidden_size=1024 num_attention_heads=8 ffn_hidden_size=3072 seq_length=64 "        \
  "vocab_size=512 precision=bf16 topology=dgx-a100 gpus=32 global_batch_size=64 "
#define ZERO JOB "tensor_model_parallel_size=2 use_distributed_optimizer=true "

static struct weft_traffic
traffic (const weft_plan *plan, enum weft_group_kind kind, enum weft_op_kind op, uint64_t elements)
{
  struct weft_group group = weft_mesh_group (&plan->mesh, 0, kind);
  struct weft_shape shape = { .dim = { elements }, .dtype = WEFT_BF16 };
  struct weft_coll_shape ranks;

  weft_coll_shape_init (&ranks, &plan->fabric, &group);
  struct weft_traffic t = weft_plan_traffic (plan, &ranks, op, &shape);
  weft_coll_shape_release (&ranks);
  return t;
}

static uint64_t
elements_of (const weft_plan *plan)
{
  const weft_program *p = plan->role[0];
  uint64_t all = 0;

  for (uint32_t i = 0; i < p->n_param; i++)
    all += p->param[i].rows * p->param[i].columns;
  return all;
}

static void
all_reduces_gradients_takes_the_place_of_reduce_scatters_of_gradients_only (void **state)
{
  g_autoptr (weft_plan) ring = weft_test_plan (ZERO "all_reduces_gradients=0");
  g_autoptr (weft_plan) whole = weft_test_plan (ZERO "all_reduces_gradients=1");
  uint64_t n = elements_of (ring);

  (void) state;
  struct weft_traffic sum = traffic (ring, WEFT_GROUP_DP, WEFT_OP_ALL_REDUCE, n);
  struct weft_traffic before = traffic (ring, WEFT_GROUP_DP, WEFT_OP_REDUCE_SCATTER, n);
  struct weft_traffic after = traffic (whole, WEFT_GROUP_DP, WEFT_OP_REDUCE_SCATTER, n);
  assert_true (after.seconds == sum.seconds && after.seconds > 1.5 * before.seconds);
  assert_true (traffic (whole, WEFT_GROUP_TP, WEFT_OP_REDUCE_SCATTER, n).seconds ==
               traffic (ring, WEFT_GROUP_TP, WEFT_OP_REDUCE_SCATTER, n).seconds);
}

/* 16 replicas on 4 nodes own the tensors; there are more tensors than replicas, so each replica
 * makes one broadcast. Its chunks pass from rank to rank: 12 times inside a node (3 on each node)
 * and 3 times between nodes. The latency of a broadcast is that of its last chunk. */
static void
broadcasts_weights_sends_the_tensors_of_one_rank_after_another (void **state)
{
  g_autoptr (weft_plan) gather = weft_test_plan (ZERO "broadcasts_weights=0");
  g_autoptr (weft_plan) turns = weft_test_plan (ZERO "broadcasts_weights=1");
  uint64_t n = elements_of (gather);

  (void) state;
  assert_true (gather->role[0]->n_param > 16);
  struct weft_traffic one = traffic (gather, WEFT_GROUP_DP, WEFT_OP_BROADCAST, n / 16);
  struct weft_traffic all = traffic (turns, WEFT_GROUP_DP, WEFT_OP_ALL_GATHER, n);
  double chunks = WEFT_CHUNK_BYTES * (12 / 235e9 + 3 / 24e9);
  assert_true (fabs (all.seconds - 16 * (one.seconds + chunks)) < 1e-3 * all.seconds);
  assert_true (fabs (all.bytes[WEFT_WAY_REMOTE] - 16 * one.bytes[WEFT_WAY_REMOTE]) <= 32);
  assert_true (all.latency > 10 * traffic (gather, WEFT_GROUP_DP, WEFT_OP_ALL_GATHER, n).latency);
}

/* A broadcast contains whole tensors. So the number of broadcasts grows with the number of ranks
 * only until each tensor has its own broadcast. */
static void
broadcasts_weights_sends_no_part_of_a_tensor (void **state)
{
  g_autoptr (weft_plan) few = weft_test_plan (ZERO "broadcasts_weights=1 num_layers=1");
  const uint32_t tensors = few->role[0]->n_param;
  struct weft_coll_shape ranks = { .n = 1000 };

  (void) state;
  uint64_t n = elements_of (few);
  assert_true (weft_software_launches (few, &ranks, WEFT_OP_BROADCAST, n) == tensors);
  ranks.n = 4;
  assert_true (weft_software_launches (few, &ranks, WEFT_OP_BROADCAST, n) == 4);
  assert_true (weft_software_launches (few, &ranks, WEFT_OP_ALL_GATHER, n) == 1);
}

/* Weights that are sharded in forward and backward are gathered by all-gathers also if
 * broadcasts_weights is set. */
static void
broadcasts_weights_leaves_fully_sharded_weights (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (JOB "distributed_config=fsdp2 broadcasts_weights=1");
  struct weft_group group = weft_mesh_group (&plan->mesh, 0, WEFT_GROUP_DP);
  struct weft_coll_shape ranks = { .group = group, .n = 32 };

  (void) state;
  assert_int_equal (weft_software_kind (plan, &ranks, WEFT_OP_ALL_GATHER), WEFT_OP_ALL_GATHER);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (all_reduces_gradients_takes_the_place_of_reduce_scatters_of_gradients_only),
  cmocka_unit_test (broadcasts_weights_sends_the_tensors_of_one_rank_after_another),
  cmocka_unit_test (broadcasts_weights_sends_no_part_of_a_tensor),
  cmocka_unit_test (broadcasts_weights_leaves_fully_sharded_weights),
};

WEFT_TESTS (tests)
