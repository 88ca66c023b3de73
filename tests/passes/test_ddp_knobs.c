/* Knobs of the data-parallel wrapper, one test each: the ops, sizes and order that the knob
 * changes. */
#include "tests/made/nano.h"
#include "tests/runner/runner.h"

/* ------------------------------------------- calculate_per_token_loss */

#define PER_TOKEN "--calculate-per-token-loss", "true"

/* calculate_per_token_loss: replicas reduce undivided sums of gradients. After all reductions, one
 * kernel divides the whole gradient buffer by the number of tokens of all replicas, which the last
 * stage broadcasts. */
static void
calculate_per_token_loss_divides_gradients_by_tokens_after_all_sums (void **state)
{
  g_autoptr (weft_plan) plan = plan_of (PER_TOKEN, OVERLAP, STAGES ("2"), BATCH ("16"), NULL);
  g_autoptr (weft_plan) without = plan_of (OVERLAP, STAGES ("2"), BATCH ("16"), NULL);

  (void) state;
  for (uint32_t r = 0; r < 2; r++) {
    const weft_program *p = plan->role[r];
    uint32_t told = nth (p, WEFT_OP_BROADCAST, "tokens", 0);
    uint32_t added = nth (p, WEFT_OP_ALL_REDUCE, "tokens", 0);
    uint32_t divided = nth (p, WEFT_OP_SCALE, "", 0);
    assert_int_equal (count (p, WEFT_OP_SCALE, ""), 1);
    assert_int_equal (count (without->role[r], WEFT_OP_SCALE, ""), n_buckets (p));
    assert_int_equal (count (without->role[r], WEFT_OP_BROADCAST, ""), 0);
    assert_int_equal (p->op[told].group, WEFT_GROUP_PP);
    assert_int_equal (p->op[told].peer, -1);
    assert_int_equal (p->op[added].group, WEFT_GROUP_DP);
    assert_near (weft_op_bytes (p, told), 4);
    assert_near (weft_op_bytes (p, added), 4);
    assert_true (comes_after (p, told, added) && comes_after (p, added, divided));
    for (uint32_t k = 0; k < n_buckets (p); k++)
      assert_true (comes_after (p, named (p, WEFT_OP_ALL_REDUCE, "bucket", k), divided));
    assert_true (comes_after (p, nth (p, WEFT_OP_ALL_REDUCE, "tied", 0), divided));
    assert_true (comes_after (p, divided, nth (p, WEFT_OP_GRAD_NORM, "", 0)));
    assert_int_equal (elements (p, divided) * weft_dtype_bytes (weft_op_shape (p, divided)->dtype),
                      p->buf[p->buf[p->param[0].grad].base].bytes);
  }
}

/* With calculate_per_token_loss, the loss is a sum over tokens, so its gradient is divided by 1.
 * Without calculate_per_token_loss, it is divided by the number of tokens of the replica. */
static void
calculate_per_token_loss_sums_the_loss (void **state)
{
  g_autoptr (weft_plan) plan = plan_of (PER_TOKEN, BATCH ("16"), NULL);
  g_autoptr (weft_plan) without = plan_of (BATCH ("16"), NULL);
  const weft_program *p = plan->role[0], *q = without->role[0];
  uint32_t loss = nth (p, WEFT_OP_XENT_GRAD, "", 0);

  (void) state;
  assert_int_equal (weft_op_shape (p, loss)->dim[5], 1);
  assert_int_equal (weft_op_shape (q, nth (q, WEFT_OP_XENT_GRAD, "", 0))->dim[5], 2 * 128);
  assert_true (p->uses[p->op[loss].uses + 2].buf != WEFT_NO_BUF);
}

/* ------------------------------------------- num_distributed_optimizer_instances */

#define INSTANCES(n) "--num-distributed-optimizer-instances", n

/* Eight replicas in two instances (copies of the sharded optimizer): the slice of a rank is a
 * quarter of a bucket. The slice is reduced over the four ranks of an instance, then over the two
 * instances. */
static void
num_distributed_optimizer_instances_reduces_twice_and_gathers_inside (void **state)
{
  g_autoptr (weft_plan) plan = plan_of (OVERLAP, SHARDED, INSTANCES ("2"), NULL);
  const weft_program *p = plan->role[0];

  (void) state;
  assert_int_equal (weft_mesh_group_size (&plan->mesh, WEFT_GROUP_INTRA), 4);
  assert_int_equal (weft_mesh_group_size (&plan->mesh, WEFT_GROUP_INTER), 2);
  assert_true (n_buckets (p) > 2);
  for (uint32_t k = 0; k < n_buckets (p); k++) {
    uint32_t scatter = named (p, WEFT_OP_REDUCE_SCATTER, "bucket", k);
    uint32_t across = named (p, WEFT_OP_ALL_REDUCE, "instances", k);
    uint32_t gather = named (p, WEFT_OP_ALL_GATHER, "gather", k);
    uint32_t adam = nth (p, WEFT_OP_ADAM, "", k);
    assert_int_equal (p->op[scatter].group, WEFT_GROUP_INTRA);
    assert_int_equal (p->op[across].group, WEFT_GROUP_INTER);
    assert_int_equal (p->op[gather].group, WEFT_GROUP_INTRA);
    assert_int_equal (p->op[across].lane, WEFT_LANE_DP);
    /* On the data-parallel lane, the all-reduce between instances directly follows the
     * reduce-scatter of the same bucket. */
    assert_int_equal (p->pos[across], p->pos[scatter] + 1);
    assert_int_equal (elements (p, across) * 4, elements (p, scatter));
    assert_int_equal (elements (p, adam) * 4, elements (p, scatter));
    assert_int_equal (elements (p, scatter) % 128, 0);
  }
}

/* With two instances, a rank holds the optimizer state of twice as many parameters as with one. */
static void
num_distributed_optimizer_instances_cuts_state_among_fewer_ranks (void **state)
{
  g_autoptr (weft_plan) one = plan_of (SHARDED, NULL);
  g_autoptr (weft_plan) two = plan_of (SHARDED, INSTANCES ("2"), NULL);
  g_autoptr (weft_plan) all = plan_of (SHARDED, INSTANCES ("8"), NULL);
  const weft_program *p = two->role[0];

  (void) state;
  for (uint32_t k = 0; k < n_buckets (p); k++) {
    uint32_t adam = nth (p, WEFT_OP_ADAM, "", k), same = nth (one->role[0], WEFT_OP_ADAM, "", k);
    assert_int_equal (elements (p, adam), 2 * elements (one->role[0], same));
  }
  /* Eight instances of one rank each: nothing is sharded, so no op scatters or gathers. */
  assert_int_equal (count (all->role[0], WEFT_OP_REDUCE_SCATTER, ""), 0);
  assert_int_equal (count (all->role[0], WEFT_OP_ALL_GATHER, ""), 0);
  assert_int_equal (all->role[0]->op[named (all->role[0], WEFT_OP_ALL_REDUCE, "bucket", 0)].group,
                    WEFT_GROUP_DP);
}

/* Each of several instances has all gradients, so the norm is reduced over the ranks of one
 * instance. The first kernel of the optimizer waits for the last reduction between instances. */
static void
num_distributed_optimizer_instances_joins_the_stream_and_sums_the_norm_of_one (void **state)
{
  g_autoptr (weft_plan) plan =
      plan_of (OVERLAP, SHARDED, STAGES ("2"), INSTANCES ("2"), BATCH ("16"), NULL);

  (void) state;
  for (uint32_t r = 0; r < 2; r++) {
    const weft_program *p = plan->role[r];
    uint32_t norm = nth (p, WEFT_OP_ALL_REDUCE, "grad_norm", 0);
    uint32_t first = WEFT_NO_OP, last = 0;
    for (uint32_t op = 0; op < p->n_op; op++) {
      gboolean kernel = p->op[op].lane == WEFT_LANE_GPU;
      if (has_name (p, op, "instances"))
        last = op;
      if (kernel && p->op[op].phase == WEFT_PHASE_OPTIMIZER && first == WEFT_NO_OP)
        first = op;
    }
    assert_int_equal (p->op[norm].group, WEFT_GROUP_INSTANCE);
    assert_true (comes_after (p, last, first));
  }
  assert_int_equal (weft_mesh_group_size (&plan->mesh, WEFT_GROUP_INSTANCE), 4);
}

/* Ranks 12 to 15 are stage 1 of replicas 2 and 3, which form the second instance. */
static void
num_distributed_optimizer_instances_are_contiguous_replicas (void **state)
{
  struct weft_mesh mesh = weft_mesh_make (2, 1, 4, 2);

  (void) state;
  mesh.instances = 2;
  for (uint32_t rank = 12; rank < 16; rank++) {
    struct weft_group intra = weft_mesh_group (&mesh, rank, WEFT_GROUP_INTRA);
    struct weft_group inter = weft_mesh_group (&mesh, rank, WEFT_GROUP_INTER);
    struct weft_group all = weft_mesh_group (&mesh, rank, WEFT_GROUP_INSTANCE);
    assert_int_equal (weft_group_rank (&intra, 0), 12 + rank % 2);
    assert_int_equal (weft_group_rank (&intra, 1), 14 + rank % 2);
    assert_int_equal (weft_group_rank (&inter, 0), rank - 4);
    assert_int_equal (weft_group_rank (&inter, 1), rank);
    assert_int_equal (weft_group_size (&all), 8);
    for (uint32_t i = 0; i < 8; i++)
      assert_int_equal (weft_group_rank (&all, i), i < 4 ? 4 + i : 8 + i);
    assert_int_equal (weft_group_index (&all, rank), rank - 8);
  }
}

/* ------------------------------------------- reduce_scatter_with_fp32_accumulation */

#define FP32_SUMS "--reduce-scatter-with-fp32-accumulation", "true"

/* reduce_scatter_with_fp32_accumulation replaces the reduce-scatter by an all-to-all of the slices
 * into a scratch bucket, with as many bytes. Each rank then adds the slices that it has received.
 * Here the additions follow the last backward kernel. */
static void
reduce_scatter_with_fp32_accumulation_exchanges_slices_and_adds_them (void **state)
{
  g_autoptr (weft_plan) plan = plan_of (OVERLAP, SHARDED, FP32_SUMS, NULL);
  g_autoptr (weft_plan) without = plan_of (OVERLAP, SHARDED, NULL);
  const weft_program *p = plan->role[0], *q = without->role[0];
  uint32_t backward = nth (p, WEFT_OP_EMBED_BWD, "", 0);

  (void) state;
  assert_int_equal (count (p, WEFT_OP_REDUCE_SCATTER, ""), 0);
  assert_int_equal (count (p, WEFT_OP_SUM_SLICES, ""), n_buckets (p));
  for (uint32_t k = 0; k < n_buckets (p); k++) {
    uint32_t sent = named (p, WEFT_OP_ALL_TO_ALL, "bucket", k);
    uint32_t sum = nth (p, WEFT_OP_SUM_SLICES, "", k);
    uint32_t scratch = p->uses[p->op[sent].uses + 1].buf;
    uint64_t n = elements (q, named (q, WEFT_OP_REDUCE_SCATTER, "bucket", k));
    assert_int_equal (elements (p, sent), n);
    assert_int_equal (elements (p, sum) * 8, n);
    assert_int_equal (weft_op_shape (p, sum)->dim[1], 8);
    assert_near (weft_op_bytes (p, sum), (double) (n + n / 8) * 2);
    assert_int_equal (p->buf[scratch].bytes, n * 2);
    assert_int_equal (p->buf[scratch].kind, WEFT_BUF_COMMUNICATION);
    assert_false (p->buf[scratch].permanent);
    assert_true (comes_after (p, sent, sum) && comes_after (p, backward, sum));
    assert_true (comes_after (p, sum, nth (p, WEFT_OP_ADAM, "", k)));
  }
}

/* Without overlap_grad_reduce, the slices of a bucket are added before the next bucket is
 * exchanged, so all buckets can use one scratch buffer. With overlap_grad_reduce, no exchange waits
 * for an addition. */
static void
reduce_scatter_with_fp32_accumulation_takes_a_scratch_for_each_bucket_on_its_way (void **state)
{
  g_autoptr (weft_plan) late = plan_of (OVERLAP, SHARDED, FP32_SUMS, NULL);
  g_autoptr (weft_plan) plan = plan_of (SHARDED, FP32_SUMS, NULL);
  const weft_program *p = plan->role[0], *q = late->role[0];

  (void) state;
  for (uint32_t k = 0; k + 1 < n_buckets (p); k++)
    assert_true (comes_after (p, nth (p, WEFT_OP_SUM_SLICES, "", k),
                              named (p, WEFT_OP_ALL_TO_ALL, "bucket", k + 1)));
  for (uint32_t k = 0; k < n_buckets (q); k++)
    assert_false (comes_after (q, nth (q, WEFT_OP_SUM_SLICES, "", 0),
                               named (q, WEFT_OP_ALL_TO_ALL, "bucket", k)));
}

/* ------------------------------------------- check_for_nan_in_grad, check_for_large_grads */

#define CHECKED "--check-for-nan-in-grad", "true"

/* check_for_nan_in_grad adds to every bucket a kernel for its norm and a copy of the norm to the
 * host. The next kernel and the collective of the bucket wait for the copy. */
static void
check_for_nan_in_grad_holds_up_every_bucket (void **state)
{
  g_autoptr (weft_plan) plan = plan_of (OVERLAP, CHECKED, BATCH ("16"), NULL);
  g_autoptr (weft_plan) without = plan_of (OVERLAP, BATCH ("16"), NULL);
  const weft_program *p = plan->role[0], *q = without->role[0];

  (void) state;
  assert_int_equal (p->n_op, q->n_op + 2 * n_buckets (p));
  for (uint32_t k = 0; k < n_buckets (p); k++) {
    uint32_t norm = nth (p, WEFT_OP_BUCKET_NORM, "", k);
    uint32_t copy = named (p, WEFT_OP_COPY_OUT, "norm of bucket", k);
    uint32_t sum = named (p, WEFT_OP_ALL_REDUCE, "bucket", k);
    uint32_t next = p->lane_ops[WEFT_LANE_GPU][p->pos[norm] + 1];
    assert_int_equal (elements (p, norm), elements (p, sum));
    assert_int_equal (p->op[copy].lane, WEFT_LANE_D2H);
    assert_near (weft_op_bytes (p, copy), 4);
    assert_true (comes_after (p, norm, copy));
    /* the next op must be the kernel that divides the gradients */
    assert_int_equal (p->op[next].kind, WEFT_OP_SCALE);
    assert_true (comes_after (p, copy, next) && comes_after (p, copy, sum));
  }
}

static void
check_for_large_grads_shares_the_norm (void **state)
{
  g_autoptr (weft_plan) both = plan_of (OVERLAP, CHECKED, "--check-for-large-grads", "true", NULL);
  g_autoptr (weft_plan) large = plan_of (OVERLAP, "--check-for-large-grads", "true", NULL);
  g_autoptr (weft_plan) nan = plan_of (OVERLAP, CHECKED, NULL);

  (void) state;
  assert_int_equal (both->role[0]->n_op, nan->role[0]->n_op);
  assert_int_equal (large->role[0]->n_op, nan->role[0]->n_op);
}

static void
check_for_nan_in_grad_looks_at_units_in_every_microbatch_and_at_single_replicas (void **state)
{
  g_autoptr (weft_plan) units = plan_of (CHECKED, "--use-megatron-fsdp", "true",
                                         "--zero-dp-strategy", "3", BATCH ("24"), NULL);
  g_autoptr (weft_plan) alone = plan_of (CHECKED, STAGES ("8"), BATCH ("8"), NULL);
  const weft_program *p = units->role[0];

  (void) state;
  assert_int_equal (count (p, WEFT_OP_BUCKET_NORM, ""), count (p, WEFT_OP_REDUCE_SCATTER, ""));
  assert_int_equal (count (p, WEFT_OP_BUCKET_NORM, ""), 3 * n_buckets (p));
  for (uint32_t r = 0; r < 8; r++)
    assert_int_equal (count (alone->role[r], WEFT_OP_BUCKET_NORM, ""), 1);
}

/* check_for_nan_in_grad makes a step longer, because kernels after the copy wait for the host. */
static void
check_for_nan_in_grad_costs_time (void **state)
{
  g_autoptr (weft_plan) plan = plan_of (OVERLAP, CHECKED, NULL);
  g_autoptr (weft_plan) without = plan_of (OVERLAP, NULL);
  g_autoptr (weft_timeline) slow = made_run (plan), quick = made_run (without);

  (void) state;
  assert_true (slow->seconds > quick->seconds);
}

/* The group of ranks that hold the same slice in different instances. With hybrid sharding this is
 * the group `outer`, which has a lane of its own; otherwise it is the group `inter`, on the
 * data-parallel lane. */
static void
ranks_that_hold_one_slice_of_a_hybrid_meet_on_the_outer_lane (void **state)
{
  struct weft_mesh mesh = weft_mesh_make (1, 1, 6, 2), hybrid = mesh;

  (void) state;
  mesh.instances = hybrid.instances = 2;
  hybrid.hybrid = 1;
  assert_int_equal (weft_mesh_across (&mesh), WEFT_GROUP_INTER);
  assert_int_equal (weft_mesh_across (&hybrid), WEFT_GROUP_OUTER);
  assert_int_equal (weft_mesh_group_size (&mesh, WEFT_GROUP_OUTER), 1);
  assert_int_equal (weft_mesh_group_size (&hybrid, WEFT_GROUP_INTER), 1);
  for (uint32_t rank = 0; rank < mesh.n_ranks; rank++) {
    struct weft_group inter = weft_mesh_group (&mesh, rank, WEFT_GROUP_INTER);
    struct weft_group outer = weft_mesh_group (&hybrid, rank, WEFT_GROUP_OUTER);
    assert_memory_equal (&inter, &outer, sizeof inter);
  }
  assert_int_equal (weft_group_lane (WEFT_GROUP_INTER), WEFT_LANE_DP);
  assert_int_equal (weft_group_lane (WEFT_GROUP_OUTER), WEFT_LANE_DP_OUTER);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (calculate_per_token_loss_divides_gradients_by_tokens_after_all_sums),
  cmocka_unit_test (calculate_per_token_loss_sums_the_loss),
  cmocka_unit_test (num_distributed_optimizer_instances_reduces_twice_and_gathers_inside),
  cmocka_unit_test (num_distributed_optimizer_instances_cuts_state_among_fewer_ranks),
  cmocka_unit_test (
      num_distributed_optimizer_instances_joins_the_stream_and_sums_the_norm_of_one),
  cmocka_unit_test (num_distributed_optimizer_instances_are_contiguous_replicas),
  cmocka_unit_test (ranks_that_hold_one_slice_of_a_hybrid_meet_on_the_outer_lane),
  cmocka_unit_test (reduce_scatter_with_fp32_accumulation_exchanges_slices_and_adds_them),
  cmocka_unit_test (
      reduce_scatter_with_fp32_accumulation_takes_a_scratch_for_each_bucket_on_its_way),
  cmocka_unit_test (check_for_nan_in_grad_holds_up_every_bucket),
  cmocka_unit_test (check_for_large_grads_shares_the_norm),
  cmocka_unit_test (
      check_for_nan_in_grad_looks_at_units_in_every_microbatch_and_at_single_replicas),
  cmocka_unit_test (check_for_nan_in_grad_costs_time),
};

WEFT_TESTS (tests)
