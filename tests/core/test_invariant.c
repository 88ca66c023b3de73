/* A failed invariant (internal check) ends the guarded call with an error, and the process
 * continues. */
#include "core/base/error.h"
#include "core/base/invariant.h"
#include "core/plan/plan.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"

static void
count (void *data)
{
  int *n = data;

  ++*n;
}

static void
fails (void *data)
{
  int *n = data;

  WEFT_INVARIANT (*n < 0);
  *n = 100;
}

static void
fails_inside (void *data)
{
  g_autoptr (GError) error = NULL;
  int *n = data;

  assert_false (weft_guarded (fails, data, &error));
  assert_true (g_error_matches (error, WEFT_ERROR, WEFT_ERROR_BUG));
  ++*n;
}

static void
a_failed_invariant_is_an_error_with_its_place (void **state)
{
  g_autoptr (GError) error = NULL;
  int n = 0;

  (void) state;
  assert_true (weft_guarded (count, &n, &error));
  assert_int_equal (n, 1);
  assert_null (error);
  assert_false (weft_guarded (fails, &n, &error));
  assert_int_equal (n, 1);
  assert_int_equal (weft_error_exit_status (error), 70);
  assert_non_null (strstr (error->message, "test_invariant.c"));
  assert_non_null (strstr (error->message, "*n < 0"));
}

static void
guards_nest (void **state)
{
  g_autoptr (GError) error = NULL;
  int n = 0;

  (void) state;
  assert_true (weft_guarded (fails_inside, &n, &error));
  assert_int_equal (n, 1);
  assert_false (weft_guarded (fails, &n, &error));
}

/* A job that no rule has checked: 27 layers on eight stages, 4 on each of seven stages, which
 * leaves -1 for the eighth. The plan must fail with an error. */
static void
a_plan_of_an_impossible_job_is_an_error (void **state)
{
  g_autoptr (GError) error = NULL;
  struct weft_job job;

  (void) state;
  assert_true (weft_test_job ("model=llama-nano num_layers=27 topology=dgx-h100 gpus=8 "
                              "global_batch_size=8 pipeline_model_parallel_size=8 "
                              "decoder_last_pipeline_num_layers=6",
                              &job, &error));
  job.strategy.decoder_last_pipeline_num_layers = -1;
  assert_null (weft_plan_new (&job, &error));
  assert_true (g_error_matches (error, WEFT_ERROR, WEFT_ERROR_BUG));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_failed_invariant_is_an_error_with_its_place),
  cmocka_unit_test (guards_nest),
  cmocka_unit_test (a_plan_of_an_impossible_job_is_an_error),
};

WEFT_TESTS (tests)
