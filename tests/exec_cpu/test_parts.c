/* A step that is run in parts (forward, backward, update ...): no op may wait for an op of a later
 * part, and the results must be bitwise equal to those of a whole step. */
#include "core/plan/parts.h"
#include "exec_cpu/exec_cpu.h"
#include "tests/made/own.h"
#include "tests/made/random_job.h"
#include "tests/made/real_job.h"
#include "tests/runner/runner.h"
#include <string.h>

#define NANO "model=gpt2-nano topology=cpu seq_length=32 num_layers=2 micro_batch_size=1 "

static void
assert_closed (const weft_plan *plan, const weft_parts *parts, const char *words)
{
  for (uint32_t role = 0; role < plan->n_roles; role++) {
    const weft_program *p = plan->role[role];
    const uint32_t *of = parts->of[role];
    uint32_t lane[WEFT_N_LANE] = { 0 };
    for (uint32_t op = 0; op < p->n_op; op++) {
      if (of[op] >= parts->n || of[op] < lane[p->op[op].lane])
        fail_msg ("%s: op %u is in part %u, its lane in %u", words, op, of[op],
                  lane[p->op[op].lane]);
      lane[p->op[op].lane] = of[op];
      /* so that both ends of a transfer are in one part */
      if (plan->mesh.pp > 1 && p->op[op].micro != WEFT_NO_MICRO &&
          parts->part[of[op]].kind != WEFT_PART_SCHEDULE)
        fail_msg ("%s: op %u of stage %u, of a microbatch, is in part %s", words, op, role,
                  weft_part_words[parts->part[of[op]].kind]);
      for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++)
        assert_true (of[p->deps[d]] <= of[op]);
    }
  }
}

static void
no_part_waits_for_a_later_one (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (11);

  (void) state;
  for (int i = 0; i < 60; i++) {
    g_autofree char *words = weft_random_job (rand);
    struct weft_job job;
    if (!weft_test_job (words, &job, NULL))
      continue;
    g_autoptr (weft_plan) plan = weft_plan_new (&job, NULL);
    g_autoptr (weft_parts) parts = weft_parts_new (plan);
    assert_closed (plan, parts, words);
  }
}

/* The kinds of the parts of a step, in order, each with its microbatch: "forward 0 backward 0 ...".
 * The caller frees the text. */
static char *
list_of (const char *words)
{
  g_autoptr (weft_plan) plan = weft_test_plan ("%s", words);
  g_autoptr (weft_parts) parts = weft_parts_new (plan);
  GString *text = g_string_new (NULL);

  for (uint32_t i = 0; i < parts->n; i++) {
    g_string_append_printf (text, "%s%s", i ? " " : "", weft_part_words[parts->part[i].kind]);
    if (parts->part[i].micro != WEFT_NO_MICRO)
      g_string_append_printf (text, " %u", parts->part[i].micro);
  }
  return g_string_free (text, FALSE);
}

static void
one_stage_is_cut_at_every_cell_and_several_stages_are_not (void **state)
{
  g_autofree char *one = list_of (NANO "global_batch_size=2");
  g_autofree char *two = list_of (NANO "gpus=2 pipeline_model_parallel_size=2 global_batch_size=2");

  (void) state;
  assert_string_equal (one, "zero_grad_buffer forward 0 backward 0 forward 1 backward 1 "
                            "start_grad_sync finish_grad_sync finalize_model_grads step");
  assert_string_equal (two, "zero_grad_buffer forward_backward start_grad_sync finish_grad_sync "
                            "finalize_model_grads step");
}

/* Number of collectives on lane dp of the first stage in parts of one kind and microbatch. */
static uint32_t
collectives_in (const char *words, enum weft_part_kind kind, uint32_t micro)
{
  g_autoptr (weft_plan) plan = weft_test_plan ("%s", words);
  g_autoptr (weft_parts) parts = weft_parts_new (plan);
  const weft_program *p = plan->role[0];
  uint32_t n = 0;

  for (uint32_t op = 0; op < p->n_op; op++) {
    const struct weft_part *part = &parts->part[parts->of[0][op]];
    n += p->op[op].lane == WEFT_LANE_DP && weft_op_is_comm (p->op[op].kind) && part->kind == kind &&
         part->micro == micro;
  }
  return n;
}

#define TWO NANO "gpus=2 global_batch_size=4 reduction_order=fast "
#define BUCKETS "overlap_grad_reduce=true bucket_size=30000 "
#define SHARDED "use_distributed_optimizer=true "

static void
collectives_of_gradients_are_in_the_part_that_launches_them (void **state)
{
  (void) state;
  assert_int_equal (collectives_in (TWO, WEFT_PART_START, WEFT_NO_MICRO), 1);
  assert_int_equal (collectives_in (TWO BUCKETS, WEFT_PART_START, WEFT_NO_MICRO), 0);
  assert_int_equal (collectives_in (TWO BUCKETS, WEFT_PART_BACKWARD, 0), 0);
  assert_true (collectives_in (TWO BUCKETS, WEFT_PART_BACKWARD, 1) > 2);
  /* Weights are all-gathered in the optimizer update. With overlap_param_gather they are gathered
   * in the first forward pass. */
  assert_true (collectives_in (TWO SHARDED, WEFT_PART_UPDATE, WEFT_NO_MICRO) >
               collectives_in (TWO, WEFT_PART_UPDATE, WEFT_NO_MICRO));
  assert_true (
      collectives_in (TWO SHARDED BUCKETS "overlap_param_gather=true", WEFT_PART_FORWARD, 0) > 2);
  /* Megatron-FSDP with zero_dp_strategy = 3 reduces gradients in every microbatch. */
  for (uint32_t micro = 0; micro < 2; micro++)
    assert_true (collectives_in (TWO "use_megatron_fsdp=true zero_dp_strategy=3",
                                 WEFT_PART_BACKWARD, micro) > 2);
}

/* ------------------------------------------------------------------------ for real */

static void
step_in_parts (real_job *job, const weft_parts *parts)
{
  g_autofree int32_t *tokens = real_tokens (job->plan, (uint32_t) ++job->control.step);
  g_autoptr (GError) error = NULL;

  job->control.tokens = tokens;
  for (uint32_t part = 0; part < parts->n; part++)
    if (!weft_exec_part (job->x, parts, part, &error))
      fail_msg ("%s: %s", weft_part_words[parts->part[part].kind], error->message);
  g_autoptr (weft_timeline) t = weft_exec_end_parts (job->x, &error);
  assert_non_null (t);
  /* every op has a begin and an end: no part of the step was left out */
  for (uint32_t row = 0; row < t->n; row++)
    for (uint32_t op = 0; op < job->plan->role[t->role[row]]->n_op; op++)
      assert_true (t->end[row][op] >= t->begin[row][op]);
}

static void
step_whole (real_job *job)
{
  g_autofree int32_t *tokens = real_tokens (job->plan, (uint32_t) ++job->control.step);
  g_autoptr (GError) error = NULL;

  job->control.tokens = tokens;
  g_autoptr (weft_timeline) t = weft_exec_step (job->x, &error);
  assert_non_null (t);
}

static void
compare_runs (const char *words, const struct weft_exec_options *how)
{
  g_autoptr (real_job) whole = real_job_open (words, how), cut = real_job_open (words, how);
  g_autoptr (weft_parts) parts = weft_parts_new (cut->plan);

  weft_state_init (whole->state, 3);
  weft_state_init (cut->state, 3);
  for (int i = 0; i < 3; i++) {
    step_whole (whole);
    step_in_parts (cut, parts);
    const struct weft_metrics *a = &whole->x->metrics[whole->x->actors->n - 1];
    const struct weft_metrics *b = &cut->x->metrics[cut->x->actors->n - 1];
    assert_memory_equal (&a->loss, &b->loss, sizeof a->loss);
    assert_memory_equal (&a->grad_norm, &b->grad_norm, sizeof a->grad_norm);
  }
  for (int kind = 0; kind < WEFT_N_STATE_KIND; kind++)
    if (real_hash (whole->state, kind) != real_hash (cut->state, kind))
      fail_msg ("%s: %s has other bits", words, weft_state_kind_words[kind]);
}

static const char *const strategies[] = {
  NANO "global_batch_size=3",
  NANO "gpus=2 global_batch_size=4",
  TWO BUCKETS,
  TWO SHARDED BUCKETS "overlap_param_gather=true",
  TWO SHARDED "reduce_scatter_with_fp32_accumulation=true",
  TWO "use_megatron_fsdp=true zero_dp_strategy=2",
  NANO "gpus=2 global_batch_size=4 use_megatron_fsdp=true zero_dp_strategy=3",
  NANO "gpus=2 global_batch_size=4 distributed_config=fsdp2",
  NANO "gpus=2 global_batch_size=4 distributed_config=fsdp2 offload_policy=cpu",
  NANO "gpus=2 global_batch_size=4 distributed_config=ddp",
  NANO "gpus=2 pipeline_model_parallel_size=2 global_batch_size=3",
  NANO "gpus=4 pipeline_model_parallel_size=2 global_batch_size=4 " SHARDED BUCKETS,
  NANO "gpus=2 global_batch_size=4 calculate_per_token_loss=true",
  NANO "gpus=2 global_batch_size=4 precision=bf16 check_for_nan_in_grad=true",
};

static void
a_step_in_parts_has_the_bits_of_the_whole (void **state)
{
  const struct weft_exec_options how = { .own = made_own (&weft_exec_cpu, "poison") };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (strategies); i++)
    compare_runs (strategies[i], &how);
}

static void
parts_in_any_legal_order_of_ops_have_the_same_bits (void **state)
{
  const struct weft_exec_options how = { .own = made_own (&weft_exec_cpu, "stress=5") };

  (void) state;
  for (unsigned i = 1; i < G_N_ELEMENTS (strategies); i += 3)
    compare_runs (strategies[i], &how);
}

static void
a_step_may_end_early_and_the_next_one_is_whole (void **state)
{
  const char *words = TWO BUCKETS;
  g_autoptr (real_job) a = real_job_open (words, NULL), b = real_job_open (words, NULL);
  g_autoptr (weft_parts) parts = weft_parts_new (b->plan);
  g_autoptr (GError) error = NULL;

  (void) state;
  weft_state_init (a->state, 3);
  weft_state_init (b->state, 3);
  step_whole (a);
  g_autofree int32_t *tokens = real_tokens (b->plan, 9);
  b->control.tokens = tokens;
  for (uint32_t part = 0; part < 3; part++)
    assert_true (weft_exec_part (b->x, parts, part, &error));
  g_autoptr (weft_timeline) t = weft_exec_end_parts (b->x, &error);
  assert_non_null (t);
  step_in_parts (b, parts);
  assert_null (real_other_tensor (a->state, b->state, WEFT_STATE_WEIGHT));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (no_part_waits_for_a_later_one),
  cmocka_unit_test (one_stage_is_cut_at_every_cell_and_several_stages_are_not),
  cmocka_unit_test (collectives_of_gradients_are_in_the_part_that_launches_them),
  cmocka_unit_test (a_step_in_parts_has_the_bits_of_the_whole),
  cmocka_unit_test (parts_in_any_legal_order_of_ops_have_the_same_bits),
  cmocka_unit_test (a_step_may_end_early_and_the_next_one_is_whole),
};

WEFT_TESTS (tests)
