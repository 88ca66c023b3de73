/* Hybrid sharding of Megatron-FSDP: what each rank keeps, what the outer ranks exchange, when and
 * on which lane, and which sequences each instance computes.
 *
 * D replicas form I instances of S = D / I replicas each; N is the number of padded parameters. */
#include "core/program/layout.h"
#include "tests/made/questions.h"
#include "tests/runner/runner.h"
#include <string.h>

#define LAYERS 6
#define MICROS 3
#define MODEL                                                                                      \
  "num_layers=6 hidden_size=16 num_attention_heads=2 kv_channels=8 ffn_hidden_size=24 "            \
  "vocab_size=64 seq_length=16 activation=swiglu normalization=rmsnorm topology=dgx-h100 "         \
  "use_megatron_fsdp=true "
#define EIGHT MODEL "gpus=8 global_batch_size=24 num_distributed_optimizer_instances=2 "
#define UNITS EIGHT "average_in_collective=true zero_dp_strategy=3 "
#define SPLIT UNITS "outer_dp_sharding_strategy=optim "

/* --------------------------------------------------------------- questions */

/* Returns the i-th op whose name begins with `start`, or WEFT_NO_OP. */
static uint32_t
nth (const weft_program *p, const char *start, uint32_t i)
{
  for (uint32_t op = 0; op < p->n_op; op++)
    if (has_name (p, op, start) && i-- == 0)
      return op;
  return WEFT_NO_OP;
}

static uint32_t
count (const weft_program *p, const char *start)
{
  uint32_t n = 0;
  while (nth (p, start, n) != WEFT_NO_OP)
    n++;
  return n;
}

/* Returns the first op with the name "word k", or with `last` the last op with this name. */
static uint32_t
numbered (const weft_program *p, const char *word, uint32_t k, gboolean last)
{
  g_autofree char *name = g_strdup_printf ("%s %u", word, k);
  uint32_t found = WEFT_NO_OP;

  for (uint32_t op = 0; op < p->n_op; op++)
    if (g_str_equal (p->name[p->op[op].name], name) && (last || found == WEFT_NO_OP))
      found = op;
  assert_true (found != WEFT_NO_OP);
  return found;
}

/* ------------------------------------------------------------------ memory */

/* Bytes per parameter of weights, gradients, master weights, and of the moments together with the
 * fp32 copy of 16-bit gradients, if the stack has it. */
static const struct {
  const char *words;
  uint32_t weights, grads, master, moments;
} precisions[] = {
  { "precision=bf16 grad_reduce_in_fp32=true", 2, 4, 4, 8 },
  { "precision=bf16 grad_reduce_in_fp32=false", 2, 2, 4, 8 },
  { "precision=bf16 grad_reduce_in_fp32=false copies_gradients=1", 2, 2, 4, 8 + 4 },
  { "precision=fp32", 4, 4, 0, 8 },
  { "precision=bf16 grad_reduce_in_fp32=true preserve_fp32_weights=false", 2, 4, 0, 8 },
  { "precision=bf16 grad_reduce_in_fp32=false preserve_fp32_weights=false", 2, 2, 0, 8 },
  { "precision=fp32 preserve_fp32_weights=false", 4, 4, 0, 8 },
};

/* Asserts the permanent bytes of weights, gradients and optimizer state. The bytes of each are
 * divided by the number of ranks that shard it at this level. */
static void
assert_state (int level, uint32_t replicas, uint32_t instances, gboolean outer, unsigned precision)
{
  uint32_t s = replicas / instances, optimizer = level < 1 ? 1 : outer ? replicas : s;
  g_autoptr (weft_plan) plan = weft_test_plan (
      MODEL "gpus=%u zero_dp_strategy=%d num_distributed_optimizer_instances=%u "
            "outer_dp_sharding_strategy=%s %s",
      replicas, level, instances, outer ? "optim" : "no_shard", precisions[precision].words);
  const uint64_t *found = plan->memory[0].permanent[WEFT_POOL_DEVICE];
  uint64_t n = padded_elements (plan, level, outer ? replicas : s);

  assert_int_equal (found[WEFT_BUF_WEIGHTS],
                    n * precisions[precision].weights / (level < 3 ? 1 : s));
  assert_int_equal (found[WEFT_BUF_GRADIENTS],
                    n * precisions[precision].grads / (level < 2 ? 1 : s));
  assert_int_equal (found[WEFT_BUF_OPTIMIZER],
                    n * (precisions[precision].master + precisions[precision].moments) / optimizer);
}

static void
every_rank_keeps_what_the_table_of_levels_says (void **state)
{
  static const uint32_t instances[] = { 1, 2, 4 };

  (void) state;
  for (unsigned p = 0; p < G_N_ELEMENTS (precisions); p++)
    for (unsigned i = 0; i < G_N_ELEMENTS (instances); i++)
      for (int level = 0; level < 4; level++) {
        assert_state (level, 8, instances[i], FALSE, p);
        if (level == 3 && instances[i] > 1)
          assert_state (level, 8, instances[i], TRUE, p);
      }
}

/* ------------------------------------------------------------------ no_shard */

static void
instances_add_a_slice_once_after_the_last_microbatch (void **state)
{
  (void) state;
  for (int level = 1; level < 4; level++) {
    g_autoptr (weft_plan) plan =
        weft_test_plan (EIGHT "average_in_collective=true overlap_grad_reduce=true "
                              "zero_dp_strategy=%d",
                        level);
    const weft_program *p = plan->role[0];
    assert_int_equal (count (p, "outer "), n_buckets (p));
    for (uint32_t k = 0; k < n_buckets (p); k++) {
      uint32_t outer = numbered (p, "outer", k, FALSE), inner = numbered (p, "bucket", k, TRUE);
      assert_int_equal (p->op[outer].kind, WEFT_OP_ALL_REDUCE);
      assert_int_equal (p->op[outer].group, WEFT_GROUP_OUTER);
      assert_int_equal (p->op[outer].lane, WEFT_LANE_DP_OUTER);
      assert_int_equal (p->op[outer].micro, MICROS - 1);
      assert_int_equal (p->op[inner].kind, WEFT_OP_REDUCE_SCATTER);
      assert_int_equal (p->op[inner].group, WEFT_GROUP_INTRA);
      assert_int_equal (elements (p, outer) * 4, elements (p, inner));
      assert_true (comes_after (p, inner, outer));
      assert_int_equal (p->op[outer].reduce, WEFT_REDUCE_AVG);
    }
  }
}

static void
what_is_not_split_is_added_whole_inside_and_outside (void **state)
{
  g_autoptr (weft_plan) plan =
      weft_test_plan (EIGHT "zero_dp_strategy=0 overlap_grad_reduce=true bucket_size=2000");
  const weft_program *p = plan->role[0];

  (void) state;
  for (uint32_t k = 0; k < n_buckets (p); k++) {
    uint32_t outer = numbered (p, "outer", k, FALSE), inner = numbered (p, "bucket", k, FALSE);
    assert_int_equal (p->op[inner].kind, WEFT_OP_ALL_REDUCE);
    assert_int_equal (p->op[inner].group, WEFT_GROUP_INTRA);
    assert_int_equal (p->op[outer].kind, WEFT_OP_ALL_REDUCE);
    assert_int_equal (elements (p, outer), elements (p, inner));
    assert_true (comes_after (p, inner, outer));
  }
}

/* While a bucket is reduced between instances (`outer` lane), the next bucket is reduced inside the
 * instances. */
static void
the_outer_lane_runs_beside_the_inner_one (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (UNITS);
  const weft_program *p = plan->role[0];

  (void) state;
  for (uint32_t k = 1; k + 2 < n_buckets (p); k++) {
    uint32_t outer = numbered (p, "outer", k + 1, FALSE), next = numbered (p, "bucket", k, TRUE);
    assert_false (comes_after (p, outer, next));
    assert_false (comes_after (p, next, outer));
  }
}

static void
the_optimizer_waits_for_the_whole_outer_lane (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (UNITS);
  const weft_program *p = plan->role[0];
  uint32_t newest = p->lane_ops[WEFT_LANE_DP_OUTER][p->lane_n[WEFT_LANE_DP_OUTER] - 1];

  (void) state;
  for (uint32_t i = 0, op; (op = nth (p, "adam", i)) != WEFT_NO_OP; i++)
    assert_true (comes_after (p, newest, op));
  assert_true (comes_after (p, newest, nth (p, "grad_norm", 0)));
}

/* --------------------------------------------------------------------- optim */

static void
optim_leaves_each_outer_rank_a_part_of_the_sum (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (SPLIT);
  const weft_program *p = plan->role[0];

  (void) state;
  assert_int_equal (plan->mesh.outer_slices, 2);
  for (uint32_t k = 0; k < n_buckets (p); k++) {
    uint32_t outer = numbered (p, "outer", k, FALSE), inner = numbered (p, "bucket", k, TRUE);
    assert_int_equal (p->op[outer].kind, WEFT_OP_REDUCE_SCATTER);
    assert_int_equal (p->op[outer].micro, MICROS - 1);
    assert_int_equal (elements (p, outer) * 4, elements (p, inner));
    assert_int_equal (elements (p, nth (p, "adam", k)) * 8, elements (p, inner));
    assert_true (comes_after (p, inner, outer));
  }
}

static void
optim_puts_a_slice_together_once_before_its_first_gather (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (SPLIT);
  const weft_program *p = plan->role[0];

  (void) state;
  assert_int_equal (count (p, "outer gather"), n_buckets (p));
  for (uint32_t k = 0; k < n_buckets (p); k++) {
    uint32_t outer = numbered (p, "outer gather", k, FALSE),
             inner = numbered (p, "gather", k, FALSE);
    assert_int_equal (p->op[outer].kind, WEFT_OP_ALL_GATHER);
    assert_int_equal (p->op[outer].lane, WEFT_LANE_DP_OUTER);
    assert_int_equal (p->op[outer].phase, WEFT_PHASE_FORWARD);
    assert_int_equal (p->op[outer].micro, 0);
    assert_int_equal (elements (p, outer) * 4, elements (p, inner));
    assert_true (comes_after (p, outer, inner));
  }
}

/* outer_dp_sharding_strategy=optim without prefetch: before a unit is gathered inside an instance,
 * its slice is gathered over the instances (outer ranks). Both gathers come just before the unit is
 * needed, not at the begin of the step. */
static void
slices_are_put_together_as_late_as_units_are_gathered (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (SPLIT "suggested_communication_unit_size=1");
  const weft_program *p = plan->role[0];
  g_autofree uint32_t *before = weft_program_order (p);
  uint32_t last = 0;

  (void) state;
  for (uint32_t k = 0; k < n_buckets (p); k++) {
    uint32_t op = numbered (p, "outer gather", k, FALSE);
    uint32_t kernels = before[(size_t) op * WEFT_N_LANE + WEFT_LANE_GPU];
    assert_true (k == 0 || kernels > last);
    last = kernels;
  }
}

/* -------------------------------------------------------------------- groups */

static enum weft_group_kind
norm_group (const char *words)
{
  g_autoptr (weft_plan) plan = weft_test_plan ("%s", words);
  const weft_program *p = plan->role[0];

  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == WEFT_OP_ALL_REDUCE && has_name (p, op, "grad_norm"))
      return p->op[op].group;
  return WEFT_GROUP_NONE;
}

static void
the_norm_is_summed_over_all_who_hold_different_slices (void **state)
{
  (void) state;
  assert_int_equal (norm_group (UNITS), WEFT_GROUP_INSTANCE);
  assert_int_equal (norm_group (SPLIT), WEFT_GROUP_WORLD);
}

/* The slot of a rank is the number of the rank's slice. Eight ranks must have eight different
 * slots, so that each element of a bucket has one owner. */
static void
slots_of_a_hybrid_deal_each_slice_out_once (void **state)
{
  struct weft_mesh mesh = weft_mesh_make (1, 1, 8, 1);
  uint32_t seen = 0;

  (void) state;
  mesh.instances = mesh.outer_slices = 2;
  mesh.hybrid = 1;
  assert_int_equal (weft_mesh_slots (&mesh), 8);
  for (uint32_t place = 0; place < 8; place++) {
    struct weft_group intra = weft_mesh_group (&mesh, place, WEFT_GROUP_INTRA);
    struct weft_group outer = weft_mesh_group (&mesh, place, WEFT_GROUP_OUTER);
    assert_int_equal (weft_mesh_slot (&mesh, place),
                      weft_group_index (&intra, place) * 2 + weft_group_index (&outer, place));
    seen |= 1u << weft_mesh_slot (&mesh, place);
  }
  assert_int_equal (seen, 0xff);
}

/* In canonical order, the ranks of an instance must compute neighbouring sequences of the batch, in
 * each microbatch and over all microbatches. Then the instance's sum is one node of the summation
 * tree. */
static void
sequences_of_an_instance_stand_together (void **state)
{
  struct weft_job job;

  (void) state;
  assert_true (weft_test_job (MODEL "gpus=8 global_batch_size=32 micro_batch_size=2 "
                                    "num_distributed_optimizer_instances=2 zero_dp_strategy=2",
                              &job, NULL));
  for (int64_t replica = 0; replica < 8; replica++)
    for (int64_t micro = 0; micro < 2; micro++)
      assert_int_equal (weft_job_sequence (&job, replica, micro),
                        replica / 4 * 16 + micro * 8 + replica % 4 * 2);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_rank_keeps_what_the_table_of_levels_says),
  cmocka_unit_test (instances_add_a_slice_once_after_the_last_microbatch),
  cmocka_unit_test (what_is_not_split_is_added_whole_inside_and_outside),
  cmocka_unit_test (the_outer_lane_runs_beside_the_inner_one),
  cmocka_unit_test (the_optimizer_waits_for_the_whole_outer_lane),
  cmocka_unit_test (optim_leaves_each_outer_rank_a_part_of_the_sum),
  cmocka_unit_test (optim_puts_a_slice_together_once_before_its_first_gather),
  cmocka_unit_test (slices_are_put_together_as_late_as_units_are_gathered),
  cmocka_unit_test (the_norm_is_summed_over_all_who_hold_different_slices),
  cmocka_unit_test (slots_of_a_hybrid_deal_each_slice_out_once),
  cmocka_unit_test (sequences_of_an_instance_stand_together),
};

WEFT_TESTS (tests)
