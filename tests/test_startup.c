/* What happens once before the first step, and the small numbers that ranks agree on after it. */
#include "core/report.h"
#include "core/step.h"
#include "tests/command.h"
#include "tests/nano.h"
#include "tests/random_job.h"

#define NANO "model=gpt2-nano topology=dgx-h100 gpus=8 "

static weft_plan *
startup_of (const char *words)
{
  struct weft_job job;
  g_autoptr (GError) error = NULL;

  assert_true (weft_test_job (words, &job, &error));
  weft_plan *plan = weft_plan_new_startup (&job, &error);
  assert_non_null (plan);
  return plan;
}

static void
broadcast_params_sends_every_parameter_once_from_member_0 (void **state)
{
  g_autoptr (weft_plan) plan = startup_of (NANO "pipeline_model_parallel_size=2");
  g_autoptr (weft_plan) step = weft_test_plan (NANO "pipeline_model_parallel_size=2");

  (void) state;
  for (uint32_t role = 0; role < 2; role++) {
    const weft_program *p = plan->role[role];
    assert_int_equal (p->n_op, p->n_param);
    assert_int_equal (p->n_param, step->role[role]->n_param);
    for (uint32_t i = 0; i < p->n_op; i++) {
      const struct weft_param *param = &p->param[i];
      assert_int_equal (p->op[i].kind, WEFT_OP_BROADCAST);
      assert_int_equal (p->op[i].group, WEFT_GROUP_DP);
      assert_int_equal (p->op[i].peer, 0); /* the first member is the root */
      assert_int_equal (p->op[i].lane, WEFT_LANE_DP);
      assert_int_equal (elements (p, i), param->rows * param->columns);
      assert_int_equal (p->uses[p->op[i].uses].buf, param->weight);
      assert_string_equal (p->name[p->op[i].name], p->name[param->name]);
    }
  }
}

/* An executor runs it in the memory of the step. */
static void
weights_lie_where_the_step_has_them (void **state)
{
  static const char *const jobs[] = {
    NANO,
    NANO "use_distributed_optimizer=true overlap_grad_reduce=true bucket_size=50000",
    NANO "use_megatron_fsdp=true zero_dp_strategy=2",
    NANO "pipeline_model_parallel_size=4",
    NANO "reduction_order=canonical precision=fp32",
  };

  (void) state;
  for (unsigned j = 0; j < G_N_ELEMENTS (jobs); j++) {
    g_autoptr (weft_plan) plan = startup_of (jobs[j]);
    g_autoptr (weft_plan) step = weft_test_plan ("%s", jobs[j]);
    for (uint32_t role = 0; role < plan->n_roles; role++) {
      const weft_program *p = plan->role[role], *q = step->role[role];
      for (uint32_t i = 0; i < p->n_param; i++) {
        assert_int_equal (weft_buf_address (p, p->param[i].weight),
                          weft_buf_address (q, q->param[i].weight));
        assert_int_equal (p->param[i].start, q->param[i].start);
      }
    }
  }
}

static void
one_replica_and_sliced_weights_have_nothing_to_broadcast (void **state)
{
  static const struct {
    const char *words, *says;
  } jobs[] = { { "model=gpt2-nano topology=dgx-h100 gpus=1", "one replica" },
               { NANO "pipeline_model_parallel_size=8", "one replica" },
               { NANO "use_megatron_fsdp=true zero_dp_strategy=3", "keeps a slice" },
               { NANO "distributed_config=fsdp2", "keeps a slice" } };

  (void) state;
  for (unsigned j = 0; j < G_N_ELEMENTS (jobs); j++) {
    struct weft_job job;
    g_autoptr (GError) error = NULL;
    assert_true (weft_test_job (jobs[j].words, &job, NULL));
    assert_false (weft_init_broadcasts (&job));
    assert_null (weft_plan_new_startup (&job, &error));
    assert_non_null (strstr (error->message, jobs[j].says));
  }
}

static void
a_collective_for_each_parameter_costs_its_latency (void **state)
{
  const struct weft_exec_options options = { 0 };
  g_autoptr (weft_plan) plan = startup_of (NANO);
  g_autoptr (weft_timeline) clock = weft_exec_run (&weft_exec_clock, plan, &options, NULL);
  g_autoptr (weft_timeline) sim = weft_exec_run (&weft_exec_sim, plan, &options, NULL);
  double sum = 0;

  (void) state;
  for (uint32_t op = 0; op < plan->role[0]->n_op; op++)
    sum += weft_plan_comm_seconds (plan, 0, op);
  assert_near (clock->seconds, sum);
  assert_near (sim->seconds, sum);
}

static void
weft_sim_and_weft_program_tell_of_broadcast_params (void **state)
{
  struct answer text = weft_test_answer ("sim --model gpt2-nano --topology dgx-h100 --gpus 2");
  struct answer alone = weft_test_answer ("sim --model gpt2-nano --topology dgx-h100 --gpus 1");
  struct answer json =
      weft_test_answer ("sim --model gpt2-nano --topology dgx-h100 --gpus 2 --json");
  struct answer program =
      weft_test_answer ("program --init --model gpt2-nano --topology dgx-h100 --gpus 2");

  (void) state;
  assert_non_null (strstr (text.out, "before the first step\n  broadcast_params "));
  assert_non_null (strstr (text.out, "100 tensors, "));
  assert_null (strstr (alone.out, "before the first step"));
  assert_non_null (strstr (json.out, "\"startup\" : {"));
  assert_non_null (strstr (json.out, "\"broadcasts\" : 100"));
  assert_non_null (strstr (program.out, "op 0 dp broadcast O c0 \"embedding.weight\" "));
  weft_test_answer_free (&text);
  weft_test_answer_free (&alone);
  weft_test_answer_free (&json);
  weft_test_answer_free (&program);
  weft_test_refused ("program --init --schedule --model gpt2-nano --topology dgx-h100", 2,
                     "--schedule and --init");
}

/* ------------------------------------------------------------------ after the step */

static void
stages_agree_on_success_and_on_the_largest_norm_after_the_step (void **state)
{
  g_autoptr (weft_plan) two = weft_test_plan (NANO "pipeline_model_parallel_size=2");
  g_autoptr (weft_plan) one = weft_test_plan (NANO "");
  g_autoptr (weft_plan) unclipped =
      weft_test_plan (NANO "pipeline_model_parallel_size=2 clip_grad=0");

  (void) state;
  for (uint32_t role = 0; role < 2; role++) {
    const weft_program *p = two->role[role];
    uint32_t success = nth (p, WEFT_OP_ALL_REDUCE, "update_successful", 0);
    uint32_t norm = nth (p, WEFT_OP_ALL_REDUCE, "largest_norm", 0);
    assert_int_equal (p->op[success].group, WEFT_GROUP_MP);
    assert_int_equal (p->op[success].reduce, WEFT_REDUCE_MIN);
    assert_int_equal (p->op[norm].reduce, WEFT_REDUCE_MAX);
    assert_true (weft_op_bytes (p, success) == 4 && weft_op_bytes (p, norm) == 4);
    for (uint32_t i = 0; i < count (p, WEFT_OP_ADAM, "adam"); i++)
      assert_true (comes_after (p, nth (p, WEFT_OP_ADAM, "adam", i), success));
    assert_true (comes_after (p, success, norm));
    assert_int_equal (count (unclipped->role[role], WEFT_OP_ALL_REDUCE, "largest_norm"), 0);
  }
  assert_int_equal (count (one->role[0], WEFT_OP_ALL_REDUCE, "largest_norm"), 0);
}

int
main (void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test (broadcast_params_sends_every_parameter_once_from_member_0),
    cmocka_unit_test (weights_lie_where_the_step_has_them),
    cmocka_unit_test (one_replica_and_sliced_weights_have_nothing_to_broadcast),
    cmocka_unit_test (a_collective_for_each_parameter_costs_its_latency),
    cmocka_unit_test (weft_sim_and_weft_program_tell_of_broadcast_params),
    cmocka_unit_test (stages_agree_on_success_and_on_the_largest_norm_after_the_step),
  };
  return cmocka_run_group_tests (tests, NULL, NULL);
}
