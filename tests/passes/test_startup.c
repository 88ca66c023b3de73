/* The startup program, which writes initial weights and broadcasts them before the first step; and
 * the scalars that ranks exchange after a step. */
#include "core/report/report.h"
#include "core/passes/step.h"
#include "tests/runner/command.h"
#include "tests/made/nano.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"

#define NANO "model=gpt2-nano topology=dgx-h100 gpus=8 launch_seconds=0 "

static weft_plan *
startup_plan (const char *words,
              weft_plan *(*new_plan) (const struct weft_job *job, GError **error))
{
  struct weft_job job;
  g_autoptr (GError) error = NULL;

  assert_true (weft_test_job (words, &job, &error));
  weft_plan *plan = new_plan (&job, &error);
  assert_non_null (plan);
  return plan;
}

/* Returns a plan whose program only broadcasts existing weights, as broadcast_params() does. */
static weft_plan *
broadcast_of (const char *words)
{
  return startup_plan (words, weft_plan_new_broadcast);
}

static weft_plan *
startup_of (const char *words)
{
  return startup_plan (words, weft_plan_new_startup);
}

/* ------------------------------------------------------------------- first weights */

static void
perform_initialization_fills_every_tensor_before_it_is_sent (void **state)
{
  g_autoptr (weft_plan) plan = startup_of (NANO);
  g_autoptr (weft_plan) none = startup_of (NANO "perform_initialization=false");
  g_autoptr (weft_plan) alone = startup_of ("model=gpt2-nano topology=dgx-h100 gpus=1");
  const weft_program *p = plan->role[0];

  (void) state;
  assert_int_equal (count_kind (p, WEFT_OP_FILL), p->n_param);
  assert_int_equal (count_kind (p, WEFT_OP_BROADCAST), p->n_param);
  for (uint32_t i = 0; i < p->n_param; i++) {
    assert_int_equal (p->op[i].kind, WEFT_OP_FILL);
    assert_int_equal (p->op[i].lane, WEFT_LANE_GPU);
    assert_int_equal (p->uses[p->op[i].uses].buf, p->param[i].weight);
    assert_int_equal (elements (p, i), p->param[i].rows * p->param[i].columns);
    for (uint32_t j = 0; j < p->n_param; j++)
      assert_true (comes_after (p, i, p->n_param + j));
  }
  assert_int_equal (count_kind (none->role[0], WEFT_OP_FILL), 0);
  assert_int_equal (none->role[0]->n_op, p->n_param);
  assert_int_equal (alone->role[0]->n_op, p->n_param);
}

/* use_cpu_initialization: the host makes one whole fp32 tensor at a time, and converts it to the
 * dtype in which it is copied to the device. */
static void
use_cpu_initialization_makes_a_tensor_on_the_host_and_copies_it (void **state)
{
  g_autoptr (weft_plan) plan = startup_of (NANO "use_cpu_initialization=true");
  g_autoptr (weft_plan) single = startup_of (NANO "use_cpu_initialization=true precision=fp32");
  const weft_program *p = plan->role[0];
  uint64_t largest = 0, sent = 0;

  (void) state;
  for (uint32_t i = 0; i < p->n_param; i++)
    largest = MAX (largest, p->param[i].rows * p->param[i].columns);
  assert_int_equal (count_kind (p, WEFT_OP_FROM_HOST), p->n_param);
  assert_int_equal (count_kind (single->role[0], WEFT_OP_CAST), 0);
  for (uint32_t op = 0; op < p->n_op; op++) {
    if (p->op[op].kind == WEFT_OP_FILL || p->op[op].kind == WEFT_OP_CAST)
      assert_int_equal (p->op[op].lane, WEFT_LANE_HOST);
    sent += p->op[op].kind == WEFT_OP_FROM_HOST ? (uint64_t) weft_op_bytes (p, op) : 0;
  }
  assert_int_equal (sent, 2 * weft_model_parameters (&plan->job.model));
  assert_in_range (plan->memory[0].planned[WEFT_POOL_HOST], 6 * largest, 6 * largest + 4096);
  assert_in_range (single->memory[0].planned[WEFT_POOL_HOST], 4 * largest, 4 * largest + 4096);
}

static void
ranks_fill_the_slices_they_keep (void **state)
{
  g_autoptr (weft_plan) plan = startup_of (NANO "use_megatron_fsdp=true zero_dp_strategy=3");
  g_autoptr (weft_plan) host =
      startup_of (NANO "distributed_config=fsdp2 offload_policy=cpu use_cpu_initialization=true");
  const weft_program *p = plan->role[0];
  uint64_t filled = 0;

  (void) state;
  for (uint32_t op = 0; op < p->n_op; op++)
    filled += p->op[op].kind == WEFT_OP_FILL ? elements (p, op) : 0;
  assert_in_range (filled * 8, weft_model_parameters (&plan->job.model),
                   weft_model_parameters (&plan->job.model) * 105 / 100);
  assert_int_equal (count_kind (p, WEFT_OP_BROADCAST), 0);
  assert_int_equal (count_kind (host->role[0], WEFT_OP_FROM_HOST), 0);
  assert_int_equal (host->role[0]->op[0].lane, WEFT_LANE_HOST);
}

/* ---------------------------------------------------------------- broadcast_params */

static void
broadcast_params_sends_every_parameter_once_from_member_0 (void **state)
{
  g_autoptr (weft_plan) plan = broadcast_of (NANO "pipeline_model_parallel_size=2");
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
      /* the first member of the group is the root of the broadcast */
      assert_int_equal (p->op[i].peer, 0);
      assert_int_equal (p->op[i].lane, WEFT_LANE_DP);
      assert_int_equal (elements (p, i), param->rows * param->columns);
      assert_int_equal (p->uses[p->op[i].uses].buf, param->weight);
      assert_string_equal (p->name[p->op[i].name], p->name[param->name]);
    }
  }
}

/* The executor runs the startup program in the arena of the step, so weights must have the same
 * addresses in both programs. */
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
               { NANO "use_megatron_fsdp=true zero_dp_strategy=3", "sharded weights" },
               { NANO "distributed_config=fsdp2", "sharded weights" } };

  (void) state;
  for (unsigned j = 0; j < G_N_ELEMENTS (jobs); j++) {
    struct weft_job job;
    g_autoptr (GError) error = NULL;
    assert_true (weft_test_job (jobs[j].words, &job, NULL));
    assert_false (weft_init_broadcasts (&job));
    assert_null (weft_plan_new_broadcast (&job, &error));
    assert_non_null (strstr (error->message, jobs[j].says));
  }
}

static void
a_collective_for_each_parameter_costs_its_latency (void **state)
{
  const struct weft_exec_options options = { 0 };
  g_autoptr (weft_plan) plan = broadcast_of (NANO);
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
  assert_non_null (strstr (text.out, "before the first step\n  initialisation "));
  assert_non_null (strstr (text.out, "\n  broadcast_params "));
  assert_non_null (strstr (text.out, "100 tensors, "));
  assert_non_null (strstr (alone.out, "\n  initialisation "));
  assert_null (strstr (alone.out, "\n  broadcast_params "));
  assert_non_null (strstr (json.out, "\"startup\" : {"));
  assert_non_null (strstr (json.out, "\"broadcasts\" : 100"));
  assert_non_null (strstr (program.out, " dp broadcast O c0 \"embedding.weight\" "));
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

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (perform_initialization_fills_every_tensor_before_it_is_sent),
  cmocka_unit_test (use_cpu_initialization_makes_a_tensor_on_the_host_and_copies_it),
  cmocka_unit_test (ranks_fill_the_slices_they_keep),
  cmocka_unit_test (broadcast_params_sends_every_parameter_once_from_member_0),
  cmocka_unit_test (weights_lie_where_the_step_has_them),
  cmocka_unit_test (one_replica_and_sliced_weights_have_nothing_to_broadcast),
  cmocka_unit_test (a_collective_for_each_parameter_costs_its_latency),
  cmocka_unit_test (weft_sim_and_weft_program_tell_of_broadcast_params),
  cmocka_unit_test (stages_agree_on_success_and_on_the_largest_norm_after_the_step),
};

WEFT_TESTS (tests)
