/* deterministic_mode: which kernels and collectives become slower. finalize_model_grads_func =
 * none: which ops are left out. */
#include "core/passes/emit/emit.h"
#include "tests/made/made.h"
#include "tests/made/nano.h"
#include "tests/made/questions.h"
#include "tests/made/real_run.h"
#include "tests/runner/runner.h"

#define NANO "model=gpt2-nano topology=dgx-h100 gpus=16 global_batch_size=32 "
#define SMALL                                                                                      \
  "topology=cpu model=gpt2-nano num_layers=4 hidden_size=24 kv_channels=6 ffn_hidden_size=40 "     \
  "seq_length=16 global_batch_size=8 "

/* ------------------------------------------------------------------ deterministic_mode */

static double
time_of (const weft_plan *plan, enum weft_op_kind kind)
{
  const weft_program *p = plan->role[0];
  uint32_t op = 0;

  while (p->op[op].kind != kind)
    op++;
  return plan->seconds[0][op] - plan->job.stack.kernel_gap;
}

static void
deterministic_mode_slows_the_kernels_that_the_stack_names (void **state)
{
#define SLOW                                                                                       \
  NANO "model=llama-nano seq_length=4096 kv_channels=128 deterministic_attention=1.5 "             \
       "deterministic_embedding=3 "
  g_autoptr (weft_plan) plain = weft_test_plan (SLOW);
  g_autoptr (weft_plan) slow = weft_test_plan (SLOW "deterministic_mode=true");
  g_autofree char *a = weft_program_print (plain->role[0]);
  g_autofree char *b = weft_program_print (slow->role[0]);

  (void) state;
  assert_string_equal (a, b); /* both programs have the same ops; only their kernels differ */
  assert_near (time_of (slow, WEFT_OP_ATTENTION_BWD), 1.5 * time_of (plain, WEFT_OP_ATTENTION_BWD));
  assert_near (time_of (slow, WEFT_OP_EMBED_BWD), 3 * time_of (plain, WEFT_OP_EMBED_BWD));
  assert_near (time_of (slow, WEFT_OP_ATTENTION), time_of (plain, WEFT_OP_ATTENTION));
  assert_near (time_of (slow, WEFT_OP_EMBED), time_of (plain, WEFT_OP_EMBED));
}

static const char *
algorithm (const weft_plan *plan, uint64_t elements)
{
  struct weft_coll_shape shape;
  struct weft_group group = weft_mesh_group (&plan->mesh, 0, WEFT_GROUP_DP);
  struct weft_shape what = WEFT_SHAPE (WEFT_FP32, elements);

  weft_coll_shape_init (&shape, &plan->fabric, &group);
  struct weft_traffic t = weft_plan_traffic (plan, &shape, WEFT_OP_ALL_REDUCE, &what);
  weft_coll_shape_release (&shape);
  return t.algorithm;
}

/* NCCL uses trees for small all-reduces over many nodes. deterministic_mode sets NCCL_ALGO, which
 * fixes one algorithm (ring) for all sizes. */
static void
deterministic_mode_pins_collectives_to_rings (void **state)
{
  g_autoptr (weft_plan) plain = weft_test_plan (NANO "gpus=64 global_batch_size=64");
  g_autoptr (weft_plan) pinned =
      weft_test_plan (NANO "gpus=64 global_batch_size=64 deterministic_mode=true");

  (void) state;
  assert_string_equal (algorithm (plain, 1000), "tree");
  assert_string_equal (algorithm (pinned, 1000), "ring");
  assert_string_equal (algorithm (pinned, 1000000000), "ring");
}

static void
real_numbers_are_the_same_with_it (void **state)
{
  struct real_result plain = weft_test_run (&(struct real_run){ SMALL "gpus=2", 2 });
  struct real_result mode =
      weft_test_run (&(struct real_run){ SMALL "gpus=2 deterministic_mode=true", 2 });

  (void) state;
  assert_true (weft_test_same_bits (&plain, &mode, 2));
}

/* ----------------------------------------------------------- finalize_model_grads_func */

static void
without_finalize_nothing_is_joined_summed_or_divided (void **state)
{
#define TWO_STAGES NANO "pipeline_model_parallel_size=2 "
#define LEFT_OUT " finalize_model_grads_func=none"
  g_autoptr (weft_program) whole = built (TWO_STAGES, 0);
  g_autoptr (weft_program) left = built (TWO_STAGES LEFT_OUT, 0);
  g_autoptr (weft_program) launched = built (TWO_STAGES "overlap_grad_reduce=true" LEFT_OUT, 0);

  (void) state;
  assert_int_equal (count (whole, WEFT_OP_ALL_REDUCE, "bucket"), 1);
  assert_int_equal (count (whole, WEFT_OP_ALL_REDUCE, "tied embedding"), 1);
  assert_int_equal (count (left, WEFT_OP_ALL_REDUCE, "bucket"), 0);
  assert_int_equal (count (left, WEFT_OP_ALL_REDUCE, "tied embedding"), 0);
  /* one all-reduce, that of the bucket, is launched during backward */
  assert_int_equal (count (launched, WEFT_OP_ALL_REDUCE, "bucket"), 1);
  for (uint32_t op = 0; op < left->n_op; op++)
    assert_int_not_equal (left->op[op].phase, WEFT_PHASE_FINALIZE);
  assert_int_equal (count_kind (left, WEFT_OP_ADAM), count_kind (whole, WEFT_OP_ADAM));
}

static void
one_rank_has_nothing_to_finalize (void **state)
{
  struct real_result whole = weft_test_run (&(struct real_run){ SMALL "gpus=1", 2 });
  struct real_result left =
      weft_test_run (&(struct real_run){ SMALL "gpus=1" LEFT_OUT, 2, .poison = TRUE });
  struct real_result apart =
      weft_test_run (&(struct real_run){ SMALL "gpus=2" LEFT_OUT, 2, .poison = TRUE });

  (void) state;
  assert_true (weft_test_same_bits (&whole, &left, 2));
  /* Without the final all-reduce, each of two GPUs keeps the gradients of its own half of the
   * batch. */
  assert_true (whole.gradients != apart.gradients);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (deterministic_mode_slows_the_kernels_that_the_stack_names),
  cmocka_unit_test (deterministic_mode_pins_collectives_to_rings),
  cmocka_unit_test (real_numbers_are_the_same_with_it),
  cmocka_unit_test (without_finalize_nothing_is_joined_summed_or_divided),
  cmocka_unit_test (one_rank_has_nothing_to_finalize),
};

WEFT_TESTS (tests)
