/* check_for_nan_in_grad ends a real step and names the bucket; check_for_large_grads only
 * counts. */
#include "exec_cpu/exec_cpu.h"
#include "tests/made/real_job.h"
#include "tests/made/real_run.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

#define SMALL "topology=cpu model=llama-nano seq_length=8 global_batch_size=4 precision=bf16 "

static const char *const strategies[] = {
  "gpus=1",
  "gpus=2 overlap_grad_reduce=true bucket_size=20000",
  "gpus=4 pipeline_model_parallel_size=2 use_distributed_optimizer=true",
  "gpus=2 use_megatron_fsdp=true zero_dp_strategy=3",
};

/* Multiplies all weights of one tensor by a factor. */
static void
multiply (real_job *job, const char *name, float factor)
{
  for (uint32_t t = 0; t < weft_state_count (job->state); t++) {
    const struct weft_state_tensor *tensor = weft_state_at (job->state, t);
    uint64_t n = tensor->rows * tensor->columns;
    g_autofree float *value = g_new (float, n);
    if (strcmp (tensor->name, name))
      continue;
    weft_state_read (job->state, t, WEFT_STATE_WEIGHT, 0, n, value);
    for (uint64_t i = 0; i < n; i++)
      value[i] *= factor;
    weft_state_write (job->state, t, WEFT_STATE_WEIGHT, 0, n, value);
    return;
  }
  fail_msg ("no tensor %s", name);
}

static real_job *
open_job (const char *strategy, const char *checks)
{
  g_autofree char *words = g_strconcat (SMALL, strategy, checks, NULL);
  real_job *job = real_job_open (words, NULL);

  weft_state_init (job->state, 42);
  return job;
}

static void
a_gradient_that_is_not_finite_ends_the_step_and_is_named (void **state)
{
  (void) state;
  for (unsigned s = 0; s < G_N_ELEMENTS (strategies); s++) {
    g_autoptr (GError) error = NULL;
    real_job *job = open_job (strategies[s], " check_for_nan_in_grad=true");
    real_job_step (job);
    multiply (job, "final_norm.weight", NAN);
    g_autoptr (weft_timeline) t = weft_exec_step (job->x, &error);
    assert_null (t);
    assert_non_null (strstr (error->message, ": norm of bucket "));
    assert_true (g_str_has_prefix (error->message, "rank "));
    real_job_close (job);
  }
}

static void
without_the_check_the_step_is_only_skipped (void **state)
{
  (void) state;
  for (unsigned s = 0; s < G_N_ELEMENTS (strategies); s++) {
    real_job *job = open_job (strategies[s], " check_for_large_grads=true");
    multiply (job, "final_norm.weight", NAN);
    assert_true (real_job_step (job)->skipped);
    real_job_close (job);
  }
}

static uint32_t
large (const real_job *job)
{
  uint32_t n = 0;
  for (uint32_t row = 0; row < job->x->actors->n; row++)
    n += job->x->metrics[row].large;
  return n;
}

/* check_for_large_grads counts norms that are far above earlier norms, and changes no number. A
 * norm can be large only after a hundred norms have been recorded, so the first steps count
 * none. */
static void
a_large_gradient_is_counted_and_changes_nothing (void **state)
{
  real_job *job =
      open_job ("gpus=2 overlap_grad_reduce=true bucket_size=1", " check_for_large_grads=true");

  (void) state;
  for (int step = 0; step < 4; step++) {
    real_job_step (job);
    assert_int_equal (large (job), 0);
  }
  multiply (job, "final_norm.weight", 1000);
  assert_false (real_job_step (job)->skipped);
  assert_true (large (job) > 0);
  multiply (job, "final_norm.weight", 0.001f);
  real_job_step (job);
  assert_int_equal (large (job), 0);
  real_job_close (job);
}

/* Gradients of experts are in a flat buffer of their own. check_for_nan_in_grad must read this
 * buffer too, and must not change any bit. */
static void
gradients_of_experts_in_units_are_checked_without_a_change (void **state)
{
  static const char words[] =
      "topology=cpu gpus=2 num_layers=2 hidden_size=16 num_attention_heads=2 vocab_size=60 "
      "seq_length=16 global_batch_size=4 use_megatron_fsdp=true zero_dp_strategy=3 "
      "num_moe_experts=4 "
      "moe_router_topk=2 expert_model_parallel_size=2";
  g_autofree char *checked = g_strconcat (words, " check_for_large_grads=true", NULL);

  (void) state;
  struct real_result a = weft_test_run (&(struct real_run){ .words = words, .steps = 2 });
  struct real_result b = weft_test_run (&(struct real_run){ .words = checked, .steps = 2 });
  assert_true (weft_test_same_bits (&a, &b, 2));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_gradient_that_is_not_finite_ends_the_step_and_is_named),
  cmocka_unit_test (without_the_check_the_step_is_only_skipped),
  cmocka_unit_test (a_large_gradient_is_counted_and_changes_nothing),
  cmocka_unit_test (gradients_of_experts_in_units_are_checked_without_a_change),
};

WEFT_TESTS (tests)
