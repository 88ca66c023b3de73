/* Tables of the library: programs, timelines, searches and sweeps as columns. The numbers are
 * compared with those of the commands by tests/python/test_package.py; here are their form, their
 * ownership and their errors. */
#include "api/include/weft/weft.h"
#include "tests/runner/runner.h"
#include <glib.h>
#include <math.h>
#include <string.h>

static const char *const two_stages[] = { "--model=gpt2-nano", "--topology=dgx-a100",
                                          "--gpus=4",          "--pipeline-model-parallel-size=2",
                                          "--num-layers=2",    "--global-batch-size=8" };

static weft_job *
open_job (void)
{
  weft_error error;
  weft_job *job = weft_job_open (G_N_ELEMENTS (two_stages), two_stages, &error);

  if (!job)
    fail_msg ("%s", error.message);
  return job;
}

static const weft_column *
column (const weft_table *table, const char *name)
{
  for (size_t i = 0; i < weft_table_columns (table); i++)
    if (strcmp (weft_table_column (table, i)->name, name) == 0)
      return weft_table_column (table, i);
  fail_msg ("no column %s", name);
  return NULL;
}

static int64_t
integer (const weft_table *table, const char *name, size_t row)
{
  const weft_column *c = column (table, name);

  assert_int_equal (c->type, WEFT_COLUMN_INTEGERS);
  assert_true (row < weft_table_rows (table));
  return ((const int64_t *) c->data)[row];
}

static double
real (const weft_table *table, const char *name, size_t row)
{
  const weft_column *c = column (table, name);

  assert_int_equal (c->type, WEFT_COLUMN_REALS);
  return ((const double *) c->data)[row];
}

/* The word of a row; NULL if the row has none. */
static const char *
word (const weft_table *table, const char *name, size_t row)
{
  const weft_column *c = column (table, name);
  int32_t index = ((const int32_t *) c->data)[row];

  assert_int_equal (c->type, WEFT_COLUMN_WORDS);
  assert_true (index >= -1 && index < (int32_t) c->n_words);
  return index < 0 ? NULL : c->words[index];
}

static void
ops_depend_on_earlier_ops_only (void **state)
{
  weft_job *job = open_job ();

  (void) state;
  for (uint32_t role = 0; role < 2; role++) {
    weft_table *ops = weft_job_ops (job, role, NULL),
               *edges = weft_job_dependencies (job, role, NULL);
    for (size_t i = 0; i < weft_table_rows (ops); i++)
      assert_int_equal (integer (ops, "op", i), i);
    assert_true (weft_table_rows (edges) > 0);
    for (size_t i = 0; i < weft_table_rows (edges); i++) {
      int64_t op = integer (edges, "op", i), after = integer (edges, "after", i);
      assert_true (after < op);
      assert_string_not_equal (word (ops, "lane", (size_t) op), word (ops, "lane", (size_t) after));
    }
    weft_table_close (edges);
    weft_table_close (ops);
  }
  weft_job_close (job);
}

static void
every_use_lies_in_the_life_of_its_buffer (void **state)
{
  weft_job *job = open_job ();
  weft_table *buffers = weft_job_buffers (job, 1, NULL), *uses = weft_job_uses (job, 1, NULL);

  (void) state;
  for (size_t i = 0; i < weft_table_rows (uses); i++) {
    int64_t op = integer (uses, "op", i), buffer = integer (uses, "buffer", i);
    if (buffer < 0)
      continue;
    size_t owner = (size_t) integer (buffers, "owner", (size_t) buffer);
    assert_true (integer (buffers, "first", owner) <= op);
    assert_true (integer (buffers, "last", owner) >= op);
    assert_true (integer (uses, "read", i) || integer (uses, "write", i));
  }
  weft_table_close (uses);
  weft_table_close (buffers);
  weft_job_close (job);
}

static void
kernels_have_no_axis_and_transfers_have_one (void **state)
{
  weft_job *job = open_job ();
  weft_table *ops = weft_job_ops (job, 0, NULL);
  unsigned transfers = 0;

  (void) state;
  for (size_t i = 0; i < weft_table_rows (ops); i++) {
    const char *axis = word (ops, "axis", i);
    if (strcmp (word (ops, "lane", i), "gpu") == 0)
      assert_null (axis);
    transfers += axis != NULL;
  }
  assert_true (transfers > 0);
  weft_table_close (ops);
  weft_job_close (job);
}

static void
a_timeline_ends_with_the_step (void **state)
{
  weft_job *job = open_job ();
  weft_simulation *s = weft_job_simulate (job, "clock", NULL);
  weft_table *timeline = weft_simulation_timeline (s, NULL);
  weft_prediction predicted;
  double last = 0;

  (void) state;
  for (size_t i = 0; i < weft_table_rows (timeline); i++) {
    assert_true (real (timeline, "begin", i) <= real (timeline, "end", i));
    last = MAX (last, real (timeline, "end", i));
  }
  assert_true (weft_job_predict (job, "clock", &predicted, NULL));
  assert_true (last == predicted.seconds);
  assert_true (weft_simulation_numbers (s)->seconds == predicted.seconds);
  assert_non_null (strstr (weft_simulation_json (s), "\"weft.sim/1\""));
  weft_simulation_close (s);
  assert_true (weft_table_rows (timeline) > 0); /* the table outlives the simulation */
  weft_table_close (timeline);
  weft_job_close (job);
}

static void
a_ranking_is_sorted_and_its_words_open_jobs (void **state)
{
  static const char *const words[] = { "--model=gpt2-nano", "--topology=dgx-a100", "--gpus=8",
                                       "--global-batch-size=16", "--context-parallel-size=1" };
  const weft_ranking_options options = { .finalists = 3 };
  weft_error error;
  weft_ranking *r = weft_ranking_open (G_N_ELEMENTS (words), words, &options, &error);
  weft_ranking_facts facts;
  const char *made[128];
  size_t n = 0;

  (void) state;
  if (!r)
    fail_msg ("%s", error.message);
  weft_ranking_describe (r, &facts);
  weft_table *table = weft_ranking_table (r, NULL);
  size_t rows = weft_table_rows (table); /* families that are ruled out whole have no rows */
  assert_in_range (rows, facts.simulated, facts.space);
  assert_int_equal (facts.simulated, 3);
  for (size_t i = 0; i < rows; i++)
    if (i < 3)
      assert_true (real (table, "step_s", i) >= (i ? real (table, "step_s", i - 1) : 0));
    else
      assert_true (isnan (real (table, "step_s", i)));
  assert_string_equal (word (table, "context_parallel_size", 0), "1");
  while (n < G_N_ELEMENTS (made) && (made[n] = weft_ranking_word (r, 0, n)))
    n++;
  weft_job *best = weft_job_open (n, made, &error);
  if (!best)
    fail_msg ("%s", error.message);
  assert_null (weft_ranking_word (r, rows, 0));
  weft_job_close (best);
  weft_table_close (table);
  weft_ranking_close (r);
}

static weft_ranking_facts
facts_of_search (bool whole_space)
{
  static const char *const words[] = { "--model=gpt2-nano",
                                       "--topology=dgx-a100",
                                       "--gpus=8",
                                       "--global-batch-size=16",
                                       "--tp=1",
                                       "--cp=1" };
  const weft_ranking_options options = { .finalists = 1, .whole_space = whole_space };
  weft_error error;
  weft_ranking *r = weft_ranking_open (G_N_ELEMENTS (words), words, &options, &error);
  weft_ranking_facts facts;

  if (!r)
    fail_msg ("%s", error.message);
  weft_ranking_describe (r, &facts);
  weft_ranking_close (r);
  return facts;
}

static void
the_whole_space_has_more_strategies (void **state)
{
  (void) state;
  assert_true (facts_of_search (true).space > 2 * facts_of_search (false).space);
}

static void
a_sweep_keeps_the_reason_of_a_refusal (void **state)
{
  static const char *const lists[] = { "tp=1,3", "micro_batch_size=1,2" };
  weft_table *table =
      weft_sweep_table (G_N_ELEMENTS (two_stages), two_stages, 2, lists, "clock", NULL);

  (void) state;
  assert_int_equal (weft_table_rows (table), 4);
  assert_string_equal (word (table, "micro_batch_size", 1), "2");
  assert_string_equal (word (table, "fate", 0), "ok");
  assert_null (word (table, "reason", 0));
  assert_string_equal (word (table, "fate", 2), "refused");
  assert_non_null (strstr (word (table, "reason", 2), "tensor"));
  assert_true (isnan (real (table, "step_s", 2)) && real (table, "step_s", 0) > 0);
  weft_table_close (table);
}

static void
wrong_arguments_are_errors (void **state)
{
  static const char *const nowhere[] = { "--model=gpt3-175b", "--topology=dgx-a100", "--gpus=8",
                                         "--global-batch-size=8" };
  static const char *const wrong[] = { "no_such=1" };
  weft_error error;
  weft_job *job = open_job ();

  (void) state;
  assert_null (weft_job_ops (job, 2, &error));
  assert_string_equal (error.message, "job_ops: found role 2, wanted 0..1");
  assert_null (weft_job_buffers (NULL, 0, &error));
  assert_int_equal (error.status, WEFT_STATUS_BAD_INPUT);
  assert_null (weft_job_simulate (job, "guess", &error));
  assert_non_null (strstr (error.message, "wanted sim or clock"));
  assert_null (weft_ranking_open (4, nowhere, NULL, &error));
  assert_int_equal (error.status, WEFT_STATUS_INFEASIBLE);
  assert_null (weft_sweep_table (G_N_ELEMENTS (two_stages), two_stages, 1, wrong, NULL, &error));
  assert_int_equal (error.status, WEFT_STATUS_BAD_INPUT);
  assert_null (weft_table_column (NULL, 0));
  assert_int_equal (weft_table_rows (NULL), 0);
  weft_table_close (NULL);
  weft_ranking_close (NULL);
  weft_simulation_close (NULL);
  weft_job_close (job);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (ops_depend_on_earlier_ops_only),
  cmocka_unit_test (every_use_lies_in_the_life_of_its_buffer),
  cmocka_unit_test (kernels_have_no_axis_and_transfers_have_one),
  cmocka_unit_test (a_timeline_ends_with_the_step),
  cmocka_unit_test (a_ranking_is_sorted_and_its_words_open_jobs),
  cmocka_unit_test (the_whole_space_has_more_strategies),
  cmocka_unit_test (a_sweep_keeps_the_reason_of_a_refusal),
  cmocka_unit_test (wrong_arguments_are_errors),
};

WEFT_TESTS (tests)
