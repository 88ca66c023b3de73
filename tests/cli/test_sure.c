/* Every prediction states its accuracy: a band around time and memory (planner/bands.h), in text
 * and in JSON. `weft plan` marks strategies that may not fit and strategies that may be faster than
 * the best. */
#include "tests/runner/command.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include <json-glib/json-glib.h>
#include <math.h>
#include <string.h>

#define JOB "--model gpt2 --topology dgx-h100 --gpus 8 --global-batch-size 64 "
#define JOB_32 "--model llama3-8b --topology dgx-h100 --nodes 4 --global-batch-size 256 "

static JsonNode *
json_of (const char *words)
{
  struct answer answer = weft_test_answer (words);
  JsonNode *root = json_from_string (answer.out, NULL);

  if (!root)
    fail_msg ("weft %s: %s", words, answer.err);
  weft_test_answer_free (&answer);
  return root;
}

/* Returns the band of a quantity ("time" or "memory") from the member "accuracy" of the JSON
 * answer; NULL: the quantity has no band. */
static JsonObject *
band_of (JsonObject *object, const char *quantity)
{
  JsonObject *accuracy = json_object_get_object_member (object, "accuracy");
  return json_object_has_member (accuracy, quantity)
             ? json_object_get_object_member (accuracy, quantity)
             : NULL;
}

static double
real_of (JsonObject *object, const char *member)
{
  return json_object_get_double_member (object, member);
}

static void
check_band (JsonObject *band, double value)
{
  assert_true (real_of (band, "low") <= real_of (band, "high"));
  assert_true (fabs (real_of (band, "low_value") / (value * (1 + real_of (band, "low"))) - 1) <
               1e-9);
  assert_true (fabs (real_of (band, "high_value") / (value * (1 + real_of (band, "high"))) - 1) <
               1e-9);
  assert_true (json_object_get_int_member (band, "rows") >= 10);
  assert_true (json_object_get_int_member (band, "sources") >= 1);
  assert_true (*json_object_get_string_member (band, "group"));
}

static void
sim_has_a_band_around_time_and_memory (void **state)
{
  g_autoptr (JsonNode) root = json_of ("sim " JOB "--stack nemo-2 --json");
  JsonObject *object = json_node_get_object (root);
  JsonObject *iteration = json_object_get_object_member (object, "iteration");
  JsonObject *memory = json_object_get_object_member (object, "memory");

  (void) state;
  assert_string_equal (json_object_get_string_member (object, "schema"), "weft.sim/1");
  check_band (band_of (object, "time"), real_of (iteration, "time_s"));
  check_band (band_of (object, "memory"),
              (double) json_object_get_int_member (memory, "peak_bytes"));
  assert_string_equal (json_object_get_string_member (band_of (object, "time"), "nearness"),
                       "near");
}

static void
memory_has_a_band_around_memory_only (void **state)
{
  g_autoptr (JsonNode) root = json_of ("memory " JOB "--json");
  JsonObject *object = json_node_get_object (root);
  JsonObject *memory = json_object_get_object_member (object, "memory");

  (void) state;
  assert_null (band_of (object, "time"));
  check_band (band_of (object, "memory"),
              (double) json_object_get_int_member (memory, "peak_bytes"));
}

static void
explain_has_both_bands (void **state)
{
  g_autoptr (JsonNode) root = json_of ("explain " JOB "--json");
  JsonObject *object = json_node_get_object (root);

  (void) state;
  assert_non_null (band_of (object, "time"));
  assert_non_null (band_of (object, "memory"));
}

/* No published run used the stack weft or the topology cpu, so weft must print a warning with its
 * prediction. The text must also explain what a band is. */
static void
text_says_what_was_never_measured (void **state)
{
  static const struct {
    const char *words, *part;
  } cases[] = {
    { "sim " JOB, "software like stack weft was never measured" },
    { "explain " JOB, "band in which 80 % of published runs lie" },
    { "memory " JOB, "band in which 80 % of published runs lie" },
    { "sim --model gpt2-nano --topology cpu --gpus 2", "nothing near was ever measured" },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    struct answer answer = weft_test_answer (cases[i].words);
    g_auto (GStrv) lines = g_strsplit (answer.out, "\n", -1);
    g_autoptr (GString) text = g_string_new (NULL);
    for (unsigned k = 0; lines[k]; k++)
      g_string_append_printf (text, "%s ", g_strstrip (lines[k]));
    if (!strstr (text->str, cases[i].part))
      fail_msg ("weft %s: found no \"%s\" in\n%s", cases[i].words, cases[i].part, answer.out);
    weft_test_answer_free (&answer);
  }
}

/* A strategy is marked "may not fit" if the upper end of its memory band exceeds the memory of the
 * GPU. A strategy is marked "may be faster than the best" if its predicted step time exceeds that
 * of the best strategy by at most the fraction ratio_error, the usual error of a ratio of two
 * predicted times (planner/sweeps.h). */
static void
plan_marks_strategies_by_their_bands (void **state)
{
  g_autoptr (JsonNode) root = json_of ("plan " JOB_32 "--micro-batch-size 1 --cp 1 --json");
  JsonObject *object = json_node_get_object (root);
  JsonArray *best = json_object_get_array_member (object, "best");
  double ratio = real_of (object, "ratio_error"), gpu = 79.11 * (1 << 30), first = 0;
  gboolean risky = FALSE, tied = FALSE;

  (void) state;
  for (guint i = 0; i < json_array_get_length (best); i++) {
    JsonObject *one = json_array_get_object_element (best, i);
    double time = real_of (json_object_get_object_member (one, "iteration"), "time_s");
    double bytes = (double) json_object_get_int_member (
        json_object_get_object_member (one, "memory"), "peak_bytes");
    double high = fmax (0, real_of (band_of (one, "memory"), "high"));
    first = i ? first : time;
    check_band (band_of (one, "time"), time);
    assert_int_equal (json_object_get_boolean_member (one, "memory_risk"),
                      bytes * (1 + high) > gpu);
    assert_int_equal (json_object_get_boolean_member (one, "tied_with_best"),
                      i > 0 && time <= first * (1 + ratio));
    risky |= json_object_get_boolean_member (one, "memory_risk");
    tied |= json_object_get_boolean_member (one, "tied_with_best");
  }
  struct answer text = weft_test_answer ("plan " JOB_32 "--micro-batch-size 1 --cp 1");
  assert_int_equal (strstr (text.out, "! may not fit: ") != NULL, risky);
  assert_int_equal (strstr (text.out, "~ may be faster than the best: ") != NULL, tied);
  assert_non_null (strstr (text.out, "of the optimum of this space under the model."));
  weft_test_answer_free (&text);
}

/* `weft validate --record` writes one line for each published run of the table, here of a table
 * other than the bundled one. `--accuracy` then writes the page of accuracy from the recorded
 * file. */
static void
a_record_has_a_line_for_each_row (void **state)
{
  const char *folder = *state;
  g_autofree char *words = g_strdup_printf ("validate " WEFT_SOURCE_DIR
                                            "/tests/data/published-small.csv --executor clock "
                                            "--json --record %s/e.csv --accuracy %s/e.md",
                                            folder, folder);
  g_autoptr (JsonNode) root = json_of (words);
  JsonObject *object = json_node_get_object (root);
  g_autofree char *path = g_build_filename (folder, "e.csv", NULL), *text = NULL;
  g_autofree char *page = g_build_filename (folder, "e.md", NULL);

  assert_true (g_file_get_contents (path, &text, NULL, NULL));
  g_auto (GStrv) lines = g_strsplit (g_strchomp (text), "\n", -1);
  assert_int_equal (g_strv_length (lines), 1 + json_object_get_int_member (object, "rows"));
  assert_true (g_str_has_prefix (lines[0], "id,source,tier,totals,gpu,"));
  assert_true (json_object_has_member (object, "sweeps"));
  assert_true (json_object_has_member (object, "ratio_error"));
  assert_true (g_file_test (page, G_FILE_TEST_EXISTS));
}

/* docs/accuracy.md is generated from validation/errors.csv, and must be up to date. */
static void
the_page_of_errors_is_that_of_the_record (void **state)
{
  static const char *const names[] = { "accuracy.md", "accuracy.svg" };
  const char *folder = *state;
  g_autofree char *words = g_strdup_printf ("validate --accuracy %s/accuracy.md", folder);
  struct answer answer = weft_test_answer (words);

  assert_int_equal (answer.status, 0);
  for (unsigned i = 0; i < G_N_ELEMENTS (names); i++) {
    g_autofree char *made = g_build_filename (folder, names[i], NULL);
    g_autofree char *committed = g_build_filename (WEFT_SOURCE_DIR, "docs", names[i], NULL);
    g_autofree char *a = NULL, *b = NULL;
    assert_true (g_file_get_contents (made, &a, NULL, NULL));
    assert_true (g_file_get_contents (committed, &b, NULL, NULL));
    if (!g_str_equal (a, b))
      fail_msg ("docs/%s is not what weft validate --accuracy docs/accuracy.md writes", names[i]);
  }
  weft_test_answer_free (&answer);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (sim_has_a_band_around_time_and_memory),
  cmocka_unit_test (memory_has_a_band_around_memory_only),
  cmocka_unit_test (explain_has_both_bands),
  cmocka_unit_test (text_says_what_was_never_measured),
  cmocka_unit_test_setup_teardown (a_record_has_a_line_for_each_row, weft_test_folder_make,
                                   weft_test_folder_remove),
  cmocka_unit_test_setup_teardown (the_page_of_errors_is_that_of_the_record,
                                   weft_test_folder_make, weft_test_folder_remove),
  cmocka_unit_test (plan_marks_strategies_by_their_bands),
};

WEFT_TESTS (tests)
