/* weft sweep as a shell runs it. */
#include "tests/runner/command.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include <json-glib/json-glib.h>
#include <math.h>
#include <string.h>

#define SWEEP                                                                                      \
  "sweep --model llama-nano --topology dgx-h100 --gpus 8 --global-batch-size 16 "                  \
  "--micro-batch-size 1 "

/* Runs a command that prints JSON and must succeed. *parser owns the result. */
static JsonObject *
answer_of (const char *words, JsonParser **parser)
{
  struct answer a = weft_test_answer (words);

  if (a.status)
    fail_msg ("%s", a.err);
  *parser = json_parser_new ();
  assert_true (json_parser_load_from_data (*parser, a.out, -1, NULL));
  weft_test_answer_free (&a);
  return json_node_get_object (json_parser_get_root (*parser));
}

static double
step_of (const char *words)
{
  JsonParser *parser;
  JsonObject *root = answer_of (words, &parser);
  double seconds =
      json_object_get_double_member (json_object_get_object_member (root, "iteration"), "time_s");

  g_object_unref (parser);
  return seconds;
}

/* A combination has the step of weft sim; one that a rule refuses has its rule. */
static void
rows_are_the_predictions_of_weft_sim (void **state)
{
  JsonParser *parser;
  JsonObject *root = answer_of (SWEEP "tp=1,2,3 recompute_granularity=none,full --json", &parser);
  JsonArray *rows = json_object_get_array_member (root, "rows");

  (void) state;
  assert_string_equal (json_object_get_string_member (root, "schema"), "weft.sweep/1");
  assert_int_equal (json_array_get_length (rows), 6);
  JsonObject *row = json_array_get_object_element (rows, 2),
             *values = json_object_get_object_member (row, "values");
  assert_string_equal (json_object_get_string_member (values, "tp"), "2");
  assert_string_equal (json_object_get_string_member (values, "recompute_granularity"), "none");
  assert_string_equal (json_object_get_string_member (row, "fate"), "ok");
  assert_true (json_object_get_double_member (row, "step_s") ==
               step_of ("sim --model llama-nano --topology dgx-h100 --gpus 8 --global-batch-size "
                        "16 --micro-batch-size 1 --tp 2 --json"));
  row = json_array_get_object_element (rows, 4);
  assert_string_equal (json_object_get_string_member (row, "fate"), "refused");
  assert_true (json_object_get_null_member (row, "step_s"));
  assert_true (
      g_str_has_prefix (json_object_get_string_member (row, "reason"), "rule world: gpus = 8"));
  g_object_unref (parser);
}

static char *
contents (const char *path)
{
  char *text = NULL;

  assert_true (g_file_get_contents (path, &text, NULL, NULL));
  return text;
}

/* A later run takes the rows of the file: here with a step time that no prediction has. */
static void
a_run_resumes_from_its_file (void **state)
{
  g_autofree char *path = g_build_filename (*state, "s.csv", NULL);
  g_autofree char *one = g_strconcat (SWEEP "tp=1,2 pp=1 --csv ", path, NULL),
                  *more = g_strconcat (SWEEP "tp=2,4 pp=1,2 --json --csv ", path, NULL);
  struct answer a = weft_test_answer (one);
  JsonParser *parser;

  assert_int_equal (a.status, 0);
  weft_test_answer_free (&a);
  g_autofree char *text = contents (path);
  char *row = strstr (text, ",2,1,ok,"), *number = row + strlen (",2,1,ok,");
  assert_non_null (row);
  g_autofree char *end = g_strdup (strchr (number, ','));
  *number = '\0';
  g_autofree char *marked = g_strconcat (text, "77", end, NULL);
  assert_true (g_file_set_contents (path, marked, -1, NULL));
  JsonObject *root = answer_of (more, &parser);
  JsonArray *rows = json_object_get_array_member (root, "rows");
  assert_int_equal (json_object_get_int_member (root, "resumed"), 1);
  assert_int_equal (json_array_get_length (rows), 4);
  assert_true (json_object_get_double_member (json_array_get_object_element (rows, 0), "step_s") ==
               77);
  g_object_unref (parser);
  g_autofree char *all = contents (path);
  g_auto (GStrv) line = g_strsplit (g_strchomp (all), "\n", -1);
  assert_int_equal (g_strv_length (line), 1 + 5); /* tp 1 pp 1 stays */
}

static void
files_of_other_jobs_are_refused_unchanged (void **state)
{
  g_autofree char *path = g_build_filename (*state, "s.csv", NULL);
  g_autofree char *own = g_strconcat (SWEEP "tp=1 --csv ", path, NULL),
                  *batch = g_strconcat (SWEEP "--num-layers 4 tp=1 --csv ", path, NULL),
                  *clock = g_strconcat (SWEEP "tp=1 --executor clock --csv ", path, NULL),
                  *knobs = g_strconcat (SWEEP "pp=1 --csv ", path, NULL);
  struct answer a = weft_test_answer (own);

  assert_int_equal (a.status, 0);
  weft_test_answer_free (&a);
  g_autofree char *before = contents (path);
  weft_test_refused (batch, 2, "found a row of another job");
  weft_test_refused (clock, 2, "found a row of another job");
  weft_test_refused (knobs, 2, "found another table");
  g_autofree char *after = contents (path);
  assert_string_equal (before, after);
}

static void
the_picture_has_a_line_for_each_other_combination (void **state)
{
  g_autofree char *path = g_build_filename (*state, "s.svg", NULL);
  g_autofree char *words = g_strconcat (SWEEP "tp=1,2,4 pp=1,2 --svg ", path, NULL); /* --figure */
  struct answer a = weft_test_answer (words);

  assert_int_equal (a.status, 0);
  weft_test_answer_free (&a);
  g_autofree char *text = contents (path);
  g_auto (GStrv) circle = g_strsplit (text, "<circle", -1);
  assert_int_equal (g_strv_length (circle), 1 + 3 + 1); /* and one in the key */
  assert_non_null (strstr (text, ">pp 1</text>"));
  assert_non_null (strstr (text, ">pp 2</text>"));
}

/* Elasticities of one GPU: links do not matter, and batch and rates of the GPU do. */
static void
sensitivity_is_sorted_and_signed (void **state)
{
  JsonParser *parser;
  JsonObject *root = answer_of ("sweep --model llama3-8b --topology dgx-h100 --gpus 1 "
                                "--global-batch-size 10 --micro-batch-size 1 --num-layers 2 "
                                "--sensitivity --json",
                                &parser);
  JsonArray *rows = json_object_get_array_member (root, "rows");
  double last = INFINITY;

  (void) state;
  assert_int_equal (json_array_get_length (rows), 5);
  for (unsigned i = 0; i < 5; i++) {
    JsonObject *row = json_array_get_object_element (rows, i);
    const char *what = json_object_get_string_member (row, "quantity");
    double step = json_object_get_double_member (row, "step_elasticity"),
           rate = json_object_get_double_member (row, "tokens_per_s_elasticity");
    assert_true (fabs (rate) <= last);
    last = fabs (rate);
    if (strcmp (what, "NIC bandwidth") == 0 || strcmp (what, "NVLink bandwidth") == 0)
      assert_true (step == 0 && rate == 0);
    else if (strcmp (what, "batch size") == 0)
      assert_true (step > 0.5 && step < 1 && fabs (step + rate - 1) < 1e-9);
    else
      assert_true (step < 0 && step > -1 && fabs (step + rate) < 1e-9);
    if (strcmp (what, "FLOP/s") == 0)
      assert_true (step < -0.5);
  }
  g_object_unref (parser);
}

static void
wrong_lists_are_refused (void **state)
{
  static const struct {
    const char *flags, *part;
  } wrong[] = {
    { "", "wanted KNOB=a,b,c or --sensitivity" },
    { "tensor_parralel=1,2", "unknown flag --tensor_parralel" },
    { "overlap_grad_reduc=true", "did you mean --overlap-grad-reduce?" },
    { "tp=1,1", "wanted different values" },
    { "tp=1,,2", "wanted different values" },
    { "tp=", "wanted a setting and its values" },
    { "tp=1 tp=2", "found two lists" },
    { "tp=1 --sensitivity", "--sensitivity takes no lists" },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (wrong); i++) {
    g_autofree char *words = g_strchomp (g_strconcat (SWEEP, wrong[i].flags, NULL));
    weft_test_refused (words, 2, wrong[i].part);
  }
}

/* A picture that exists stays when there is nothing to draw. */
static void
a_sweep_of_refusals_has_a_status_and_no_picture (void **state)
{
  g_autofree char *path = g_build_filename (*state, "all.svg", NULL);
  g_autofree char *words = g_strdup_printf (SWEEP "tp=3,5 --svg %s", path);
  struct answer a = weft_test_answer (words);

  assert_int_equal (a.status, 4);
  assert_non_null (strstr (a.out, "rule world"));
  assert_non_null (strstr (a.err, "every combination is refused: no picture is written"));
  weft_test_answer_free (&a);
  assert_false (g_file_test (path, G_FILE_TEST_EXISTS));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (rows_are_the_predictions_of_weft_sim),
  cmocka_unit_test_setup_teardown (a_run_resumes_from_its_file, weft_test_folder_make,
                                   weft_test_folder_remove),
  cmocka_unit_test_setup_teardown (files_of_other_jobs_are_refused_unchanged, weft_test_folder_make,
                                   weft_test_folder_remove),
  cmocka_unit_test_setup_teardown (the_picture_has_a_line_for_each_other_combination,
                                   weft_test_folder_make, weft_test_folder_remove),
  cmocka_unit_test (sensitivity_is_sorted_and_signed),
  cmocka_unit_test (wrong_lists_are_refused),
  cmocka_unit_test_setup_teardown (a_sweep_of_refusals_has_a_status_and_no_picture,
                                   weft_test_folder_make, weft_test_folder_remove),
};

WEFT_TESTS (tests)
