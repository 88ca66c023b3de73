/* Steps of published runs that are not one run of a pipeline between two waits of all ranks, and
 * the memory of the first step: keys measured.runs, measured.steps and measured.peak of
 * planner/assumptions.h. */
#include "planner/row_plans.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include <math.h>

/* The plans of a published run with further rules; NULL if none can be made. */
static weft_row_plans *
plans_with (const char *folder, const char *id, const char *rules)
{
  g_autofree char *path = g_build_filename (folder, "a.ini", NULL), *bundled = NULL;
  g_autoptr (weft_published) table =
      weft_published_load (WEFT_SOURCE_DIR "/validation/published.csv", NULL);
  unsigned row = 0;

  assert_true (g_file_get_contents (WEFT_SOURCE_DIR "/validation/assumptions.ini", &bundled, NULL,
                                    NULL));
  g_autofree char *all = g_strconcat (bundled, "\n", rules, NULL);
  assert_true (g_file_set_contents (path, all, -1, NULL));
  g_autoptr (weft_assumptions) assumptions = weft_assumptions_load (path, NULL);
  assert_non_null (assumptions);
  while (!g_str_equal (weft_published_cell (table, row, WEFT_COLUMN_id), id))
    row++;
  return weft_row_plans_new (weft_row_job_new (assumptions, table, row, NULL), NULL);
}

/* The predicted seconds of such a run; 0 if no plans can be made. */
static double
seconds_with (const char *folder, const char *id, const char *rules)
{
  g_autoptr (weft_row_plans) plans = plans_with (folder, id, rules);

  return plans ? weft_row_plans_seconds (plans, &weft_exec_clock, NULL) : 0;
}

/* Four runs of 8 microbatches fill and drain the pipeline four times, and update weights once:
 * they take longer than one run of 32 microbatches, and less than four steps of 8. */
static void
a_step_of_several_runs_fills_its_pipeline_in_each (void **state)
{
  static const char one[] = "[id = amodel-001 and pp = 4]\nmeasured.runs = 1\n",
                    quarter[] = "[id = amodel-001 and pp = 4]\nmeasured.runs = 1\n"
                                "train.global_batch_size = 2048\n",
                    unequal[] = "[id = amodel-001 and pp = 4]\nmeasured.runs = 5\n";
  double runs = seconds_with (*state, "amodel-001", "");

  assert_true (seconds_with (*state, "amodel-001", one) < runs);
  assert_true (runs < 4 * seconds_with (*state, "amodel-001", quarter));
  assert_true (seconds_with (*state, "amodel-001", unequal) == 0);
}

/* With ZB-2p the last stage begins late and ends late. If its next step begins later, too, the time
 * from step to step is shorter than a step, but not than the work of a stage. */
static void
steps_that_overlap_take_the_time_of_the_busiest_rank (void **state)
{
  double step = seconds_with (*state, "zb-013", "[id = zb-013]\nmeasured.steps = apart\n");
  double period = seconds_with (*state, "zb-013", "");

  assert_true (period < 0.99 * step);
  assert_true (period > 0.8 * step);
}

/* The golden values of Megatron-LM have the memory after each step (golden_values_dev_dgx_h100.json
 * of gpt3_7b_tp4_pp1_memory_speed): 50.29e9 bytes after the first, 57.14e9 after the others. */
static void
the_first_step_needs_less_memory_than_later_ones (void **state)
{
  g_autoptr (weft_row_plans) later = plans_with (*state, "mcoregold-004", "");
  g_autoptr (weft_row_plans) first = plans_with (
      *state, "mcoregold-004", "[id = mcoregold-004]\nmeasured.peak = first_step\n");

  assert_true (fabs (weft_row_plans_bytes (later) / 57143791616.0 - 1) < 0.02);
  assert_true (fabs (weft_row_plans_bytes (first) / 50289487872.0 - 1) < 0.02);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test_setup_teardown (a_step_of_several_runs_fills_its_pipeline_in_each,
                                   weft_test_folder_make, weft_test_folder_remove),
  cmocka_unit_test_setup_teardown (steps_that_overlap_take_the_time_of_the_busiest_rank,
                                   weft_test_folder_make, weft_test_folder_remove),
  cmocka_unit_test_setup_teardown (the_first_step_needs_less_memory_than_later_ones,
                                   weft_test_folder_make, weft_test_folder_remove),
};

WEFT_TESTS (tests)
