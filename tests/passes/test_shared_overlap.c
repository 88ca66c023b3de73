/* moe_shared_expert_overlap: shared experts are computed during the all-to-all of routed experts.
 * The step must become shorter, and no bit may change. */
#include "core/exec/exec.h"
#include "tests/made/made.h"
#include "tests/made/questions.h"
#include "tests/made/real_run.h"
#include "tests/runner/runner.h"

#define ON " moe_shared_expert_overlap=true"
#define STEPS 2

#define WORDS                                                                                      \
  "num_layers=2 hidden_size=1024 num_attention_heads=8 ffn_hidden_size=2048 vocab_size=256 "       \
  "seq_length=1024 num_moe_experts=8 moe_router_topk=2 moe_ffn_hidden_size=1024 "                  \
  "moe_shared_expert_intermediate_size=2048 activation=swiglu precision=bf16 topology=dgx-h100 "   \
  "gpus=4 expert_model_parallel_size=4 global_batch_size=8 "

/* Returns the first op of a lane in layer 1 and microbatch 0 whose name begins with `name`. */
static uint32_t
find (const weft_program *p, enum weft_lane lane, const char *name, enum weft_phase phase)
{
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].lane == lane && p->op[op].layer == 1 && p->op[op].micro == 0 &&
        p->op[op].phase == phase && has_name (p, op, name))
      return op;
  fail_msg ("no %s", name);
  return 0;
}

static void
shared_experts_are_issued_behind_each_all_to_all_and_do_not_depend_on_it (void **state)
{
  g_autoptr (weft_program) p = built (WORDS ON, 0);
  uint32_t dispatch = find (p, WEFT_LANE_EP, "dispatch", WEFT_PHASE_FORWARD);
  uint32_t combine = find (p, WEFT_LANE_EP, "combine", WEFT_PHASE_FORWARD);
  uint32_t back = find (p, WEFT_LANE_EP, "combine", WEFT_PHASE_BACKWARD);
  uint32_t fc1 = find (p, WEFT_LANE_GPU, "shared_fc1", WEFT_PHASE_FORWARD);
  uint32_t fc2 = find (p, WEFT_LANE_GPU, "shared_fc2", WEFT_PHASE_FORWARD);
  uint32_t gradient = find (p, WEFT_LANE_GPU, "shared_fc2", WEFT_PHASE_BACKWARD);

  (void) state;
  assert_true (dispatch < fc1 && fc1 < combine && combine < fc2 && back < gradient);
  assert_false (comes_after (p, dispatch, fc1));
  assert_false (comes_after (p, combine, fc2));
  assert_false (comes_after (p, back, gradient));
}

static double
seconds (const char *words)
{
  g_autoptr (weft_plan) plan = weft_test_plan ("%s", words);
  g_autoptr (weft_timeline) t =
      weft_exec_run (&weft_exec_clock, plan, &(struct weft_exec_options){ 0 }, NULL);

  return t->seconds;
}

static void
the_step_is_shorter_than_with_shared_experts_after_routed_ones (void **state)
{
  (void) state;
  assert_true (seconds (WORDS ON) < 0.99 * seconds (WORDS));
}

#define SMALL                                                                                      \
  "topology=cpu model=mixtral-nano num_layers=4 hidden_size=32 num_attention_heads=4 "             \
  "num_query_groups=2 kv_channels=8 ffn_hidden_size=96 moe_ffn_hidden_size=24 seq_length=16 "      \
  "global_batch_size=8 moe_shared_expert_intermediate_size=40 precision=bf16 "

static void
no_bit_changes (void **state)
{
  static const char *const strategies[] = {
    "gpus=2 expert_model_parallel_size=2",
    "gpus=4 expert_model_parallel_size=2 pipeline_model_parallel_size=2",
    "gpus=2 expert_model_parallel_size=2 recompute_granularity=selective "
    "recompute_modules=layernorm,shared_experts",
    "gpus=2 expert_model_parallel_size=2 recompute_granularity=selective recompute_modules=moe",
    "gpus=2 expert_model_parallel_size=2 recompute_granularity=full recompute_method=uniform "
    "recompute_num_layers=1",
  };
  struct real_result one =
      weft_test_run (&(struct real_run){ .words = SMALL "gpus=1", .steps = STEPS });

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (strategies); i++) {
    g_autofree char *words = g_strconcat (SMALL, strategies[i], ON, NULL);
    weft_test_check_bits (words, STEPS, &one, i);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (shared_experts_are_issued_behind_each_all_to_all_and_do_not_depend_on_it),
  cmocka_unit_test (the_step_is_shorter_than_with_shared_experts_after_routed_ones),
  cmocka_unit_test (no_bit_changes),
};

WEFT_TESTS (tests)
