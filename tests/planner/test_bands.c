/* Recorded errors (validation/errors.csv), and what is computed from them. The file must contain
 * the errors of today's predictions, and the errors must be within their limits. Bands
 * (planner/bands.h) must come from the narrowest group with enough rows. Predicted and measured
 * orders of strategies (planner/sweeps.h) must be compared correctly. */
#include "core/base/conf.h"
#include "exec_sim/exec_sim.h"
#include "planner/bands.h"
#include "planner/sweeps.h"
#include "planner/memory_risk.h"
#include "planner/row_plans.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HEAD                                                                                       \
  "id,source,tier,totals,gpu,capability,stack,family,gpus,layout,experts,precision,sweep,"         \
  "strategy,sequences,time_s,time_error,memory_gib,memory_error,refused_by\n"

static weft_errors *
parse (const char *rows)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *text = g_strconcat (HEAD, rows, NULL);
  weft_errors *errors = weft_errors_parse (text, "made", &error);

  if (!errors)
    fail_msg ("%s", error->message);
  return errors;
}

static weft_errors *
recorded (void)
{
  g_autoptr (GError) error = NULL;
  weft_errors *errors = weft_errors_load (NULL, &error);

  if (!errors)
    fail_msg ("%s", error->message);
  assert_true (errors->n_row > 0);
  return errors;
}

static void
near_to (double found, double wanted)
{
  if (!(fabs (found - wanted) <= 1e-9 * fabs (wanted) + 1e-12))
    fail_msg ("found %.12g, wanted %.12g", found, wanted);
}

/* ------------------------------------------------------------------------------ record */

/* Estimates how long it takes to predict a row: least for few GPUs and few sequences. */
static double
cost_of (const struct weft_error_row *row)
{
  return row->traits.gpus + row->sequences;
}

enum { SAMPLES = 2 };

/* Finds the SAMPLES rows of a source whose predictions are computed fastest. *n is the number of
 * rows found. */
static void
cheapest_rows (const weft_errors *errors, const char *source, uint32_t *rows, unsigned *n)
{
  *n = 0;
  for (uint32_t i = 0; i < errors->n_row; i++) {
    const struct weft_error_row *row = &errors->row[i];
    if (row->refused || !g_str_equal (row->source, source))
      continue;
    unsigned at = *n < SAMPLES ? (*n)++ : SAMPLES;
    while (at > 0 && cost_of (row) < cost_of (&errors->row[rows[at - 1]])) {
      if (at < SAMPLES)
        rows[at] = rows[at - 1];
      at--;
    }
    if (at < SAMPLES)
      rows[at] = i;
  }
}

static void
check_value (const char *id, const char *what, double found, double recorded_value)
{
  if (!isnan (recorded_value) && !(fabs (found / recorded_value - 1) < 1e-3))
    fail_msg ("%s: the predicted %s is %.6g, validation/errors.csv has %.6g: a change of the model "
              "needs `weft validate --record validation/errors.csv --accuracy docs/accuracy.md`",
              id, what, found, recorded_value);
}

static void
check_row (const weft_published *table, const weft_assumptions *assumptions, uint32_t i,
           const struct weft_error_row *row)
{
  g_autoptr (GError) error = NULL;
  weft_row_job *job = weft_row_job_new (assumptions, table, i, &error);

  assert_string_equal (weft_published_cell (table, i, WEFT_COLUMN_id), row->id);
  if (error)
    fail_msg ("%s: %s", row->id, error->message);
  double seconds = weft_row_job_seconds (job), bytes = weft_row_job_bytes (job);
  g_autoptr (weft_row_plans) plans = weft_row_plans_new (job, &error);
  assert_non_null (plans);
  double time = weft_row_plans_seconds (plans, &weft_exec_sim, &error);
  double memory = weft_row_plans_bytes (plans) / (1 << 30);
  check_value (row->id, "time", time, row->time_s);
  check_value (row->id, "memory", memory, row->memory_gib);
  if (!isnan (row->time_error))
    assert_true (fabs (time / seconds - 1 - row->time_error) < 1e-3);
  if (!isnan (row->memory_error))
    assert_true (fabs (memory * (1 << 30) / bytes - 1 - row->memory_error) < 1e-3);
}

static void
the_record_holds_todays_predictions (void **state)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_errors) errors = recorded ();
  g_autoptr (weft_published) table =
      weft_published_load (WEFT_SOURCE_DIR "/validation/published.csv", &error);
  g_autoptr (weft_assumptions) assumptions = weft_assumptions_load (NULL, &error);
  g_autoptr (GHashTable) seen = g_hash_table_new (g_str_hash, g_str_equal);

  (void) state;
  assert_non_null (assumptions);
  assert_int_equal (errors->n_row, table->csv->n_row);
  for (uint32_t i = 0; i < errors->n_row; i++) {
    uint32_t rows[SAMPLES];
    unsigned n;
    if (!g_hash_table_add (seen, (char *) errors->row[i].source))
      continue;
    cheapest_rows (errors, errors->row[i].source, rows, &n);
    for (unsigned k = 0; k < n; k++)
      check_row (table, assumptions, rows[k], &errors->row[rows[k]]);
  }
}

/* ------------------------------------------------------------------------------ limits */

static double
limit_of (const char *key)
{
  g_autoptr (weft_conf) conf = weft_conf_load (WEFT_SOURCE_DIR "/validation/accuracy.ini", NULL);

  assert_non_null (conf);
  for (unsigned i = 0; i < conf->n_entry; i++)
    if (g_str_equal (conf->entry[i].section, "limits") && g_str_equal (conf->entry[i].key, key))
      return g_ascii_strtod (conf->entry[i].value, NULL);
  fail_msg ("validation/accuracy.ini has no limit %s", key);
  return NAN;
}

static void
recorded_errors_are_within_their_limits (void **state)
{
  g_autoptr (weft_errors) errors = recorded ();
  g_autoptr (GPtrArray) sources = weft_errors_group (errors, weft_errors_source_name);

  (void) state;
  assert_true (weft_errors_mean (sources, WEFT_TIME) <= limit_of ("time_by_source"));
  assert_true (weft_errors_mean (sources, WEFT_MEMORY) <= limit_of ("memory_by_source"));
}

/* Margins are chosen so that bands contain 80 % of all rows. The test makes each band without the
 * rows of the source that it checks, so the share found may be lower. */
static void
bands_cover_the_runs_of_other_sources (void **state)
{
  g_autoptr (weft_errors) errors = recorded ();
  g_autoptr (weft_bands) bands = weft_bands_new (errors);

  (void) state;
  for (int quantity = 0; quantity < WEFT_N_QUANTITY; quantity++) {
    struct weft_coverage all = weft_bands_coverage (bands, quantity, WEFT_NOTHING_NEAR);
    assert_true (all.sources > 3);
    assert_true (1 - all.share <= limit_of ("uncovered"));
  }
  struct weft_coverage near = weft_bands_coverage (bands, WEFT_TIME, WEFT_NEAR);
  assert_true (1 - near.share <= limit_of ("uncovered"));
}

/* ------------------------------------------------------------------------------ ladder */

/* Appends an invented row of validation/errors.csv: a published run of the stack `stack` on GPUs
 * `gpu`. `error`: predicted / measured step time - 1. */
static void
append_row (GString *rows, const char *source, const char *gpu, const char *stack, int gpus,
            double error)
{
  static int number;

  g_string_append_printf (rows,
                          "%s-%d,%s,A,counted,%s,90,%s,%s,%d,data,0,bf16,sweep,,8,1,%.9g,,,\n",
                          source, number++, source, gpu, stack, stack, gpus, error);
}

/* Returns the traits of a job to which the rows that append_row() writes with these arguments are
 * similar. */
static struct weft_traits
traits_of (const char *gpu, const char *stack, uint32_t gpus)
{
  struct weft_traits t = { .capability = 90, .gpus = gpus, .layout = WEFT_LAYOUT_DATA };

  g_strlcpy (t.precision, "bf16", sizeof t.precision);
  g_strlcpy (t.gpu, gpu, sizeof t.gpu);
  g_strlcpy (t.stack, stack, sizeof t.stack);
  g_strlcpy (t.family, stack, sizeof t.family);
  return t;
}

/* Ten rows of source a resemble the job; the rows of source b have many more GPUs. The errors of
 * source a go from -10 % to +8 % in steps of 2 %, so measured / predicted goes from 1 / 1.08 to 1 /
 * 0.90. The tenth at each end is one row. */
static void
a_band_has_the_percentiles_of_the_narrowest_group_with_ten_rows (void **state)
{
  g_autoptr (GString) rows = g_string_new (NULL);

  (void) state;
  for (int i = 0; i < 10; i++) {
    append_row (rows, "a", "g", "s", 8, -0.10 + 0.02 * i);
    append_row (rows, "b", "g", "s", 64, 0.5);
  }
  g_autoptr (weft_errors) errors = parse (rows->str);
  g_autoptr (weft_bands) bands = weft_bands_new (errors);
  struct weft_traits traits = traits_of ("g", "s", 4);
  struct weft_band band = weft_bands_of (bands, &traits, WEFT_TIME);
  assert_int_equal (band.rows, 10);
  assert_int_equal (band.sources, 1);
  assert_int_equal (band.rung, 0);
  assert_int_equal (band.nearness, WEFT_NEAR);
  near_to ((1 + band.low) * (1 + band.margin), 1 / 1.08);
  near_to ((1 + band.high) / (1 + band.margin), 1 / 0.90);
  near_to (band.median, 0.04);
}

static void
nine_rows_are_too_few_for_a_rung (void **state)
{
  g_autoptr (GString) rows = g_string_new (NULL);

  (void) state;
  for (int i = 0; i < 9; i++)
    append_row (rows, "a", "g", "s", 8, 0);
  append_row (rows, "b", "g", "s", 4096, 0);
  g_autoptr (weft_errors) errors = parse (rows->str);
  g_autoptr (weft_bands) bands = weft_bands_new (errors);
  struct weft_traits traits = traits_of ("g", "s", 8);
  struct weft_band band = weft_bands_of (bands, &traits, WEFT_TIME);
  assert_int_equal (band.rows, 10);
  assert_int_equal (band.same & WEFT_SAME_SIZE, 0);
  assert_int_equal (band.nearness, WEFT_NEAR);
}

/* Three sources, whose published runs have prediction errors of 0, -20 % and -40 %. A band that is
 * made from two sources contains the third source only if a margin is added. */
static void
a_margin_covers_what_sources_differ_by (void **state)
{
  g_autoptr (GString) rows = g_string_new (NULL);

  (void) state;
  for (int i = 0; i < 10; i++) {
    append_row (rows, "a", "g", "s", 8, 0);
    append_row (rows, "b", "g", "s", 8, -0.2);
    append_row (rows, "c", "g", "s", 8, -0.4);
  }
  g_autoptr (weft_errors) errors = parse (rows->str);
  g_autoptr (weft_bands) bands = weft_bands_new (errors);
  struct weft_traits traits = traits_of ("g", "s", 8);
  struct weft_band band = weft_bands_of (bands, &traits, WEFT_TIME);
  near_to (1 + band.margin, 0.8 / 0.6);
  near_to (band.low, 0.6 / 0.8 - 1);
}

static void
what_was_never_measured_is_said (void **state)
{
  g_autoptr (GString) rows = g_string_new (NULL);

  (void) state;
  for (int i = 0; i < 10; i++)
    append_row (rows, "a", "g", "s", 8, 0);
  g_autoptr (weft_errors) errors = parse (rows->str);
  g_autoptr (weft_bands) bands = weft_bands_new (errors);
  struct weft_traits near = traits_of ("g", "s", 8), other = traits_of ("g", "t", 8);
  struct weft_band band = weft_bands_of (bands, &near, WEFT_TIME);
  assert_null (weft_band_warning (&band, &near));
  band = weft_bands_of (bands, &other, WEFT_TIME);
  g_autofree char *software = weft_band_warning (&band, &other);
  assert_non_null (strstr (software, "software like stack t was never measured"));
  other.capability = 0;
  g_strlcpy (other.gpu, "h", sizeof other.gpu);
  band = weft_bands_of (bands, &other, WEFT_TIME);
  g_autofree char *nothing = weft_band_warning (&band, &other);
  assert_non_null (strstr (nothing, "nothing near was ever measured"));
  assert_int_equal (weft_bands_of (bands, &near, WEFT_MEMORY).rows, 0);
}

/* ------------------------------------------------------------------------------- sweeps */

static int number; /* of strategies so far */

/* Appends a row of a strategy on 8 GPUs, with its predicted and measured seconds. */
static void
append_strategy (GString *rows, const char *sweep, int sequences, double predicted, double measured)
{
  g_string_append_printf (rows, "x-%d,x,A,counted,g,90,s,s,8,data,0,bf16,%s,%d,%d,%.9g,%.9g,,,\n",
                          number, sweep, number, sequences, predicted, predicted / measured - 1);
  number++;
}

/* Eight strategies, measured 1 to 8 s. The predictions of the first two are exchanged, so 1 of 28
 * pairs is in the wrong order, and Spearman's correlation is 1 - 6 * 2 / (8 * 63). The second
 * sweep, "small", has only seven strategies, too few for a correlation. */
static void
an_exchanged_pair_lowers_the_rank_correlations (void **state)
{
  g_autoptr (GString) rows = g_string_new (NULL);

  (void) state;
  for (int i = 1; i <= 8; i++)
    append_strategy (rows, "one", 8, i == 1 ? 2 : i == 2 ? 1 : i, i);
  for (int i = 1; i <= 7; i++)
    append_strategy (rows, "small", 8, i, i);
  g_autoptr (weft_errors) errors = parse (rows->str);
  g_autoptr (GArray) orders = weft_sweeps_order (errors);
  assert_int_equal (orders->len, 1);
  const struct weft_sweep_order *order = &g_array_index (orders, struct weft_sweep_order, 0);
  assert_int_equal (order->rows, 8);
  near_to (order->spearman, 1 - 12.0 / 504);
  near_to (order->reachable, 1);
  near_to (order->kendall, 26.0 / 28);
  near_to (order->right, 27.0 / 28);
  assert_int_equal (order->place, 2);
  assert_false (order->top);
}

/* Eight strategies, of which the last ran twice, and took 8 and 5.5 s.
 * A predictor has one time for both runs, and cannot order the second run before the sixth
 * strategy and the first one after the seventh. */
static void
runs_of_one_job_lower_what_is_reachable (void **state)
{
  g_autoptr (GString) rows = g_string_new (NULL);

  (void) state;
  for (int i = 1; i <= 8; i++)
    append_strategy (rows, "one", 8, i, i);
  g_string_append (rows, "y-1,x,A,counted,g,90,s,s,8,data,0,bf16,one,");
  g_string_append_printf (rows, "%d,8,8,%.9g,,,\n", number - 1, 8 / 5.5 - 1);
  g_autoptr (weft_errors) errors = parse (rows->str);
  g_autoptr (GArray) orders = weft_sweeps_order (errors);
  const struct weft_sweep_order *order = &g_array_index (orders, struct weft_sweep_order, 0);
  assert_int_equal (order->rows, 9);
  assert_true (order->reachable < 1 && order->reachable >= order->spearman);
}

/* Each row has another batch size, so no two rows can be compared by step time. Rows are then
 * ordered by GPU-seconds per sequence, in which prediction and measurement agree. */
static void
rows_of_different_batches_compare_by_sequence (void **state)
{
  g_autoptr (GString) rows = g_string_new (NULL);

  (void) state;
  for (int i = 1; i <= 8; i++)
    append_strategy (rows, "one", i, i * i, i * i);
  g_autoptr (weft_errors) errors = parse (rows->str);
  g_autoptr (GArray) orders = weft_sweeps_order (errors);
  const struct weft_sweep_order *order = &g_array_index (orders, struct weft_sweep_order, 0);
  near_to (order->spearman, 1);
  assert_int_equal (order->pairs, 0);
  assert_int_equal (order->place, 1);
  assert_true (order->top);
}

/* Eight runs of one strategy with different batch sizes cannot be ranked by strategy, so no order
 * of strategies is computed. */
static void
one_strategy_has_no_order (void **state)
{
  g_autoptr (GString) rows = g_string_new (NULL);

  (void) state;
  for (int i = 1; i <= 8; i++)
    g_string_append_printf (rows, "x-%d,x,A,counted,g,90,s,s,8,data,0,bf16,one,a,%d,1,0,,,\n", i,
                            i);
  g_autoptr (weft_errors) errors = parse (rows->str);
  g_autoptr (GArray) orders = weft_sweeps_order (errors);
  assert_int_equal (orders->len, 0);
}

/* The predictions of three strategies are 30 % too fast, which cancels in their ratios. The
 * prediction of a fourth strategy is 40 % too fast, so its ratios with the other three are off by 7
 * / 6. */
static void
what_a_cluster_has_in_common_does_not_count_in_ratios (void **state)
{
  g_autoptr (GString) rows = g_string_new (NULL);

  (void) state;
  for (int i = 0; i < 3; i++)
    append_strategy (rows, "one", 8, 0.7, 1);
  g_autoptr (weft_errors) same = parse (rows->str);
  near_to (weft_sweeps_ratio_error (same).error, 0);
  append_strategy (rows, "one", 8, 0.6, 1);
  g_autoptr (weft_errors) errors = parse (rows->str);
  struct weft_ratio_error ratio = weft_sweeps_ratio_error (errors);
  assert_int_equal (ratio.pairs, 6);
  near_to (ratio.error, 1.0 / 6);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (the_record_holds_todays_predictions),
  cmocka_unit_test (recorded_errors_are_within_their_limits),
  cmocka_unit_test (bands_cover_the_runs_of_other_sources),
  cmocka_unit_test (a_band_has_the_percentiles_of_the_narrowest_group_with_ten_rows),
  cmocka_unit_test (nine_rows_are_too_few_for_a_rung),
  cmocka_unit_test (a_margin_covers_what_sources_differ_by),
  cmocka_unit_test (what_was_never_measured_is_said),
  cmocka_unit_test (an_exchanged_pair_lowers_the_rank_correlations),
  cmocka_unit_test (runs_of_one_job_lower_what_is_reachable),
  cmocka_unit_test (rows_of_different_batches_compare_by_sequence),
  cmocka_unit_test (one_strategy_has_no_order),
  cmocka_unit_test (what_a_cluster_has_in_common_does_not_count_in_ratios),
};

WEFT_TESTS (tests)
