/* Software that uses other collectives: all-reduces of gradients instead of reduce-scatters,
 * broadcasts of weights instead of all-gathers; kernels that reorder activations, or sweep over
 * sharded weights and their gradients; gathers in 16 bits. */
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

/* With all_reduces_gradients = 2, the gradients of sharded weights are summed by all-reduces too,
 * and the same kernels sweep over them. */
static void
all_reduces_gradients_of_sharded_weights (void **state)
{
  static const char job[] = JOB "distributed_config=megatron_fsdp reduction_sweeps=%d "
                                "memory_share=0.5 all_reduces_gradients=%d";
  g_autoptr (weft_plan) slices = weft_test_plan (job, 0, 1);
  g_autoptr (weft_plan) whole = weft_test_plan (job, 0, 2), swept = weft_test_plan (job, 4, 2);
  const uint64_t n = 1 << 26;
  double sweep = 2.0 * n / (0.5 * whole->job.cluster.f.gpu_memory_bandwidth);

  (void) state;
  double sum = traffic (slices, WEFT_GROUP_DP, WEFT_OP_ALL_REDUCE, n).seconds;
  double before = traffic (slices, WEFT_GROUP_DP, WEFT_OP_REDUCE_SCATTER, n).seconds;
  double after = traffic (whole, WEFT_GROUP_DP, WEFT_OP_REDUCE_SCATTER, n).seconds;
  double more = traffic (swept, WEFT_GROUP_DP, WEFT_OP_REDUCE_SCATTER, n).seconds - after;
  assert_true (after == sum && sum > 1.5 * before);
  assert_true (fabs (more - 4 * sweep) < 1e-6 * sweep);
  assert_true (traffic (whole, WEFT_GROUP_DP, WEFT_OP_ALL_GATHER, n).seconds ==
               traffic (slices, WEFT_GROUP_DP, WEFT_OP_ALL_GATHER, n).seconds);
}

static double
parts_of (const weft_plan *plan, enum weft_op_kind kind)
{
  const weft_program *p = plan->role[0];
  double parts = 0;

  for (uint32_t op = 0; op < p->n_op; op++)
    parts += p->op[op].kind == kind ? weft_software_parts (plan, p, op) : 0;
  return parts;
}

/* 32 ranks shard 20 weights in units, which are padded. Each of two microbatches gathers a unit for
 * its forward and for its backward pass, except what stays between the two, and reduces each
 * gradient. Ten weights have fewer than 5000 elements: these are gathered once a step, and the
 * gathers of units contain half of the weights. A gradient summed as a whole has no parts. */
static void
each_part_of_a_rank_is_copied_for_each_weight (void **state)
{
  static const char job[] = JOB "distributed_config=megatron_fsdp host_rank_seconds=1us "
                                "data_parallel_sharding_strategy=optim_grads_params "
                                "gather_persistent_elements=%s all_reduces_gradients=%d";
  g_autoptr (weft_plan) all = weft_test_plan (job, "0", 0);
  g_autoptr (weft_plan) large = weft_test_plan (job, "5000", 2);
  double gathered = parts_of (all, WEFT_OP_ALL_GATHER) / 32;

  (void) state;
  assert_int_equal (all->role[0]->n_param, 20);
  assert_true (gathered > 3.5 * 20 && gathered < 4.05 * 20);
  assert_true (fabs (parts_of (all, WEFT_OP_REDUCE_SCATTER) / 32 - 2 * 20) < 0.01 * 40);
  assert_true (fabs (parts_of (large, WEFT_OP_ALL_GATHER) / 32 - gathered / 2) < 0.01 * gathered);
  assert_true (parts_of (large, WEFT_OP_REDUCE_SCATTER) == 0);
  assert_true (weft_software_persistent_parts (all, all->role[0]) == 0);
  assert_true (weft_software_persistent_parts (large, large->role[0]) == 32 * 10);
}

/* 16 replicas on 4 nodes own the tensors; there are more tensors than replicas, so each replica
 * makes one broadcast. Its chunks pass from rank to rank: 11 times inside a node and 4 times
 * between nodes, in the ring whose last ranks are on the node of its first. The latency of a
 * broadcast is that of its last chunk. */
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
  double chunks = WEFT_CHUNK_BYTES * (11 / 235e9 + 4 / 24e9);
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

/* With scattered_sends = 1, each of 4 tensor parallel ranks sends a quarter of the activation to
 * the next pipeline stage. The ranks of the next stage all-gather the quarters. */
static void
scattered_sends_sends_slices_and_gathers_them (void **state)
{
  static const char job[] = JOB "tensor_model_parallel_size=4 pipeline_model_parallel_size=2 "
                                "gpus=16 ";
  g_autoptr (weft_plan) all = weft_test_plan ("%sscattered_sends=0", job);
  g_autoptr (weft_plan) slice = weft_test_plan ("%sscattered_sends=1", job);
  g_autoptr (weft_plan) rows = weft_test_plan ("%sscattered_sends=1 sequence_parallel=true", job);
  const struct weft_shape shape = { .dim = { 1 << 24 }, .dtype = WEFT_BF16 };

  (void) state;
  struct weft_traffic a = weft_plan_transfer (all, 0, 8, &shape);
  struct weft_traffic b = weft_plan_transfer (slice, 0, 8, &shape);
  double gather = traffic (slice, WEFT_GROUP_TP, WEFT_OP_ALL_GATHER, 1 << 24).seconds;
  assert_true (b.bytes[0] == a.bytes[0] / 4);
  assert_true (fabs (b.latency - a.latency - gather) < 1e-9);
  assert_true (fabs (b.seconds - b.latency - (a.seconds - a.latency) / 4) < 1e-9);
  assert_true (weft_plan_transfer (rows, 0, 8, &shape).bytes[0] == a.bytes[0]);
}

#define SEQUENCE JOB "tensor_model_parallel_size=4 sequence_parallel=true "

/* sequence_copies = 1 adds a kernel that reorders the gathered activations. This kernel reads and
 * writes the whole tensor. The reduce-scatter of gradients needs no such kernel. */
static void
sequence_copies_adds_a_kernel_to_gathers_of_activations (void **state)
{
  g_autoptr (weft_plan) first = weft_test_plan (SEQUENCE "sequence_copies=0");
  g_autoptr (weft_plan) second = weft_test_plan (SEQUENCE "sequence_copies=1 memory_share=0.5");
  const uint64_t n = 1 << 24;
  static const enum weft_op_kind kinds[] = { WEFT_OP_ALL_GATHER, WEFT_OP_REDUCE_SCATTER };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (kinds); i++) {
    struct weft_traffic a = traffic (first, WEFT_GROUP_TP, kinds[i], n);
    struct weft_traffic b = traffic (second, WEFT_GROUP_TP, kinds[i], n);
    double copy = 2 * 2.0 * n / (0.5 * first->job.cluster.f.gpu_memory_bandwidth);
    assert_true (fabs (b.seconds - a.seconds - copy) < 1e-6 * copy);
    assert_true (traffic (first, WEFT_GROUP_DP, kinds[i], n).seconds ==
                 traffic (second, WEFT_GROUP_DP, kinds[i], n).seconds);
  }
}

/* Kernels around the collectives of sharded weights sweep over the whole tensor. Gathers of
 * activations, and replicas that share nothing, have none. */
static void
sweeps_of_sharded_weights_belong_to_gathers_and_reductions (void **state)
{
  static const char job[] = JOB "gather_sweeps=%d reduction_sweeps=%d memory_share=0.5 "
                                "tensor_model_parallel_size=2 distributed_config=%s";
  static const enum weft_op_kind kinds[] = { WEFT_OP_ALL_GATHER, WEFT_OP_REDUCE_SCATTER };
  g_autoptr (weft_plan) none = weft_test_plan (job, 0, 0, "megatron_fsdp");
  g_autoptr (weft_plan) some = weft_test_plan (job, 3, 4, "megatron_fsdp");
  g_autoptr (weft_plan) whole = weft_test_plan (job, 3, 4, "megatron_ddp");
  const uint64_t n = 1 << 24;
  double sweep = 2.0 * n / (0.5 * none->job.cluster.f.gpu_memory_bandwidth);

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (kinds); i++) {
    double plain = traffic (none, WEFT_GROUP_DP, kinds[i], n).seconds;
    double more = traffic (some, WEFT_GROUP_DP, kinds[i], n).seconds - plain;
    assert_true (fabs (more - (3 + i) * sweep) < 1e-6 * sweep);
    assert_true (traffic (whole, WEFT_GROUP_DP, kinds[i], n).seconds == plain);
    assert_true (traffic (some, WEFT_GROUP_TP, kinds[i], n).seconds ==
                 traffic (none, WEFT_GROUP_TP, kinds[i], n).seconds);
  }
}

/* Elements of the last layer's weights, and of the last ones of it, which backward uses first: from
 * parameter `name` on. */
static double
elements_from (const weft_program *p, const char *name)
{
  double n = 0;

  for (uint32_t i = 0; i < p->n_param; i++) {
    if (p->param[i].layer == 1 && g_str_has_prefix (p->name[p->param[i].name], name))
      n = 0;
    n += p->param[i].layer == 1 ? (double) (p->param[i].whole_rows * p->param[i].whole_columns) : 0;
  }
  return n;
}

/* A layer of 13 million elements, 3.1 of which are fc2's and 3.1 fc1's: with a limit of 5 million
 * elements, fc1 and all before it are gathered again, because fc2 is used twice in between. */
static void
weights_that_are_freed_after_recomputation_are_gathered_again (void **state)
{
  static const char job[] = JOB "distributed_config=megatron_fsdp ffn_hidden_size=3072 "
                                "gather_reuse_elements=%s recompute_granularity=%s";
  static const char full[] = "full recompute_method=uniform recompute_num_layers=1";
  g_autoptr (weft_plan) kept = weft_test_plan (job, "0", full);
  g_autoptr (weft_plan) freed = weft_test_plan (job, "5e6", full);
  g_autoptr (weft_plan) large = weft_test_plan (job, "1e9", full);
  g_autoptr (weft_plan) whole = weft_test_plan (job, "5e6", "none");
  const weft_program *p = freed->role[0];
  double share = 1 - elements_from (p, "fc2.weight") / elements_from (p, "norm1.weight");

  (void) state;
  for (int reduces = 0; reduces < 2; reduces++) {
    enum weft_op_kind kind = reduces ? WEFT_OP_REDUCE_SCATTER : WEFT_OP_ALL_GATHER;
    double plain = traffic (kept, WEFT_GROUP_DP, kind, 1 << 24).seconds;
    double wanted = reduces ? plain : plain * (1 + share / 2);
    assert_true (fabs (traffic (freed, WEFT_GROUP_DP, kind, 1 << 24).seconds - wanted) < 1e-9);
    assert_true (traffic (large, WEFT_GROUP_DP, kind, 1 << 24).seconds == plain);
    assert_true (traffic (whole, WEFT_GROUP_DP, kind, 1 << 24).seconds == plain);
  }
  assert_true (share > 0.6 && share < 0.9);
}

static void
rowwise_gathers_16_gathers_twice_the_bytes_of_fp8 (void **state)
{
  static const char job[] = SEQUENCE "topology=dgx-h100 precision=fp8 rowwise_gathers_16=1 ";
  g_autoptr (weft_plan) tensor = weft_test_plan ("%s", job);
  g_autoptr (weft_plan) rows = weft_test_plan ("%sfp8_priced_as=rowwise", job);
  struct weft_group group = weft_mesh_group (&rows->mesh, 0, WEFT_GROUP_TP);
  struct weft_coll_shape ranks = { .group = group, .n = 4 };
  struct weft_shape shape = { .dim = { 1000 }, .dtype = WEFT_FP8 };

  (void) state;
  assert_true (weft_software_bytes (tensor, &ranks, WEFT_OP_ALL_GATHER, &shape) == 1000);
  assert_true (weft_software_bytes (rows, &ranks, WEFT_OP_ALL_GATHER, &shape) == 2000);
  shape.dtype = WEFT_BF16;
  assert_true (weft_software_bytes (rows, &ranks, WEFT_OP_ALL_GATHER, &shape) == 2000);
}

/* With narrow_shards, FSDP2 reduces gradients of distributed experts in the training precision, and
 * all others in mp_policy_reduce_dtype. */
static void
narrow_shards_reduce_experts_in_the_training_precision (void **state)
{
  static const char job[] = JOB "distributed_config=fsdp2 num_moe_experts=8 moe_router_topk=2 "
                                "expert_model_parallel_size=8 narrow_shards=%d";
  g_autoptr (weft_plan) wide = weft_test_plan (job, 0), narrow = weft_test_plan (job, 1);
  struct weft_shape shape = { .dim = { 1000 }, .dtype = WEFT_FP32 };
  const enum weft_op_kind reduce = WEFT_OP_REDUCE_SCATTER;

  (void) state;
  for (uint32_t i = 0; i < 2; i++) {
    struct weft_group group = weft_mesh_group (&wide->mesh, 0, i ? WEFT_GROUP_DP : WEFT_GROUP_EDP);
    struct weft_coll_shape ranks = { .group = group };
    assert_true (weft_software_bytes (wide, &ranks, reduce, &shape) == 4000);
    assert_true (weft_software_bytes (narrow, &ranks, reduce, &shape) == (i ? 4000 : 2000));
    assert_true (weft_software_bytes (narrow, &ranks, WEFT_OP_ALL_GATHER, &shape) == 4000);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (scattered_sends_sends_slices_and_gathers_them),
  cmocka_unit_test (sequence_copies_adds_a_kernel_to_gathers_of_activations),
  cmocka_unit_test (sweeps_of_sharded_weights_belong_to_gathers_and_reductions),
  cmocka_unit_test (weights_that_are_freed_after_recomputation_are_gathered_again),
  cmocka_unit_test (rowwise_gathers_16_gathers_twice_the_bytes_of_fp8),
  cmocka_unit_test (narrow_shards_reduce_experts_in_the_training_precision),
  cmocka_unit_test (all_reduces_gradients_takes_the_place_of_reduce_scatters_of_gradients_only),
  cmocka_unit_test (all_reduces_gradients_of_sharded_weights),
  cmocka_unit_test (each_part_of_a_rank_is_copied_for_each_weight),
  cmocka_unit_test (broadcasts_weights_sends_the_tensors_of_one_rank_after_another),
  cmocka_unit_test (broadcasts_weights_sends_no_part_of_a_tensor),
  cmocka_unit_test (broadcasts_weights_leaves_fully_sharded_weights),
};

WEFT_TESTS (tests)
