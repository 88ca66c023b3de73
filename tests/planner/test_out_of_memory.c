/* Published runs that failed for lack of memory (validation/out_of_memory.csv) and published runs
 * that nearly filled the memory of their GPUs: Weft must not say that the former fit, and must not
 * say that the latter do not fit. */
#include "planner/memory_risk.h"
#include "planner/row_plans.h"
#include "tests/runner/runner.h"
#include <math.h>

/* The bytes that a row's job needs on the GPU, with the memory of libraries. The function also
 * writes the job. */
static double
needed_bytes (const weft_published *table, const weft_assumptions *assumptions, unsigned row,
              struct weft_job *job)
{
  g_autoptr (GError) error = NULL;
  weft_row_job *of_row = weft_row_job_new (assumptions, table, row, &error);

  if (error)
    fail_msg ("%s: %s", weft_published_cell (table, row, WEFT_COLUMN_id), error->message);
  of_row->memory = WEFT_MEMORY_DEVICE;
  *job = of_row->job;
  g_autoptr (weft_row_plans) plans = weft_row_plans_new (of_row, &error);
  assert_non_null (plans);
  return weft_row_plans_bytes (plans);
}

/* A run that failed must exceed the memory of the GPU at the upper end of its memory band, which is
 * when `weft plan` calls a strategy risky. Rows of tier C are context: the source contradicts
 * them. */
static void
runs_that_failed_for_lack_of_memory_are_not_said_to_fit (void **state)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_published) table =
      weft_published_load (WEFT_SOURCE_DIR "/validation/out_of_memory.csv", &error);
  g_autoptr (weft_assumptions) assumptions = weft_assumptions_load (NULL, &error);
  g_autoptr (weft_errors) errors = weft_errors_load (NULL, &error);
  g_autoptr (weft_bands) bands = weft_bands_new (errors);
  unsigned judged = 0, exceeded = 0;
  struct weft_job job;

  (void) state;
  assert_null (error);
  for (unsigned row = 0; row < table->csv->n_row; row++) {
    if (*weft_published_cell (table, row, WEFT_COLUMN_tier) == 'C')
      continue;
    double bytes = needed_bytes (table, assumptions, row, &job);
    if (!weft_memory_is_risky (bands, &job, bytes))
      fail_msg ("%s ran out of memory, predicted are %.1f of %.1f GB",
                weft_published_cell (table, row, WEFT_COLUMN_id), bytes / 1e9,
                job.cluster.f.gpu_memory / 1e9);
    judged++;
    exceeded += bytes > job.cluster.f.gpu_memory;
  }
  assert_true (judged >= 5 && exceeded + 1 >= judged);
}

/* The runs that filled at least nine tenths of the memory of their GPUs. */
static void
runs_that_nearly_filled_the_memory_fit (void **state)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_published) table =
      weft_published_load (WEFT_SOURCE_DIR "/validation/published.csv", &error);
  g_autoptr (weft_assumptions) assumptions = weft_assumptions_load (NULL, &error);
  unsigned judged = 0;

  (void) state;
  assert_null (error);
  for (unsigned row = 0; row < table->csv->n_row; row++) {
    g_autoptr (weft_row_job) of_row = weft_row_job_new (assumptions, table, row, &error);
    struct weft_job job;
    if (error || *of_row->cell[WEFT_COLUMN_tier] == 'C' ||
        !(weft_row_job_bytes (of_row) >= 0.9 * of_row->job.cluster.f.gpu_memory)) {
      g_clear_error (&error);
      continue;
    }
    double bytes = needed_bytes (table, assumptions, row, &job);
    if (bytes > job.cluster.f.gpu_memory)
      fail_msg ("%s ran, predicted are %.1f of %.1f GB", of_row->cell[WEFT_COLUMN_id], bytes / 1e9,
                job.cluster.f.gpu_memory / 1e9);
    judged++;
  }
  assert_true (judged >= 5);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (runs_that_failed_for_lack_of_memory_are_not_said_to_fit),
  cmocka_unit_test (runs_that_nearly_filled_the_memory_fit),
};

WEFT_TESTS (tests)
