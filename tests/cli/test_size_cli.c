/* weft size as a shell runs it. */
#include "tests/runner/command.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include <json-glib/json-glib.h>
#include <string.h>

/* A model and clusters whose searches take a fraction of a second. */
#define NANO "size --model llama-nano --micro-batch-size 1 --global-batch-size 16 --finalists 1 "
#define SMALL NANO "--tokens 1G --topologies dgx-h100,dgx-b200 --sizes 1,2 "

static void
assert_contains (const char *text, const char *part)
{
  if (!strstr (text, part))
    fail_msg ("found no \"%s\" in:\n%s", part, text);
}

static void
the_text_has_table_answer_and_formulas (void **state)
{
  static const char *const parts[] = {
    "llama-nano, 1 G tokens, stack weft, bf16\n",
    "  cluster     GPUs  strategy  batch ",
    "* dgx-b200       2  dp 2 ",
    "cheapest of each topology, within the limits\n",
    "cheapest that meets the deadline: ",
    "steps x ",
    " / goodput 0.99",
    "by failures: ",
    "by errors of predictions: ",
    "Young: sqrt (2 x ",
    "; Daly: ",
    "sequences (microbatches: ",
    "band in which 80 % of published runs lie",
  };
  struct answer a = weft_test_answer (SMALL "--days 10");

  (void) state;
  assert_int_equal (a.status, 0);
  for (unsigned i = 0; i < G_N_ELEMENTS (parts); i++)
    assert_contains (a.out, parts[i]);
  weft_test_answer_free (&a);
}

static void
json_is_one_document_with_all_points (void **state)
{
  struct answer a = weft_test_answer (SMALL "--json");
  g_autoptr (JsonParser) parser = json_parser_new ();

  (void) state;
  assert_int_equal (a.status, 0);
  assert_true (json_parser_load_from_data (parser, a.out, -1, NULL));
  JsonObject *root = json_node_get_object (json_parser_get_root (parser));
  assert_string_equal (json_object_get_string_member (root, "schema"), "weft.size/1");
  assert_true (json_object_get_null_member (root, "deadline_days"));
  JsonArray *points = json_object_get_array_member (root, "points");
  assert_int_equal (json_array_get_length (points), 4);
  for (unsigned i = 0; i < 4; i++) {
    JsonObject *p = json_array_get_object_element (points, i);
    double days = json_object_get_double_member (p, "days");
    assert_true (json_object_get_double_member (p, "days_low") <= days &&
                 json_object_get_double_member (p, "days_high") >= days);
    assert_true (json_object_get_double_member (p, "cost") > 0);
    assert_true (json_object_has_member (p, "accuracy"));
  }
  weft_test_answer_free (&a);
}

static void
the_answer_is_no_if_no_cluster_meets_the_limits (void **state)
{
  struct answer a = weft_test_answer (NANO "--tokens 1e15 --days 1 --topology dgx-h100 --sizes 1");

  (void) state;
  assert_int_equal (a.status, 3);
  assert_contains (a.out, "no cluster that was searched meets the limits");
  weft_test_answer_free (&a);
}

static void
a_model_that_fits_nowhere_ends_with_status_4 (void **state)
{
  struct answer a =
      weft_test_answer ("size --model llama3-8b --topology dgx-h100 --sizes 1 --tokens 1G "
                        "--micro-batch-size 1 --global-batch-size 1 --finalists 1 "
                        "--recompute-granularity none --data-parallel-sharding-strategy no_shard "
                        "--no-use-megatron-fsdp");

  (void) state;
  assert_int_equal (a.status, 4);
  assert_contains (a.out, "unfit: none of ");
  weft_test_answer_free (&a);
}

static void
a_job_that_breaks_a_rule_says_which (void **state)
{
  struct answer a = weft_test_answer (
      NANO "--tokens 1G --topology dgx-h100 --sizes 8 --tensor-model-parallel-size 7");

  (void) state;
  assert_int_equal (a.status, 4);
  assert_contains (a.out, "refused: none of ");
  assert_contains (a.out, " break a rule, most often rule ");
  weft_test_answer_free (&a);
}

/* A job that gives its size has this size only, and tokens follow from the model. */
static void
a_job_with_a_size_is_one_cluster (void **state)
{
  struct answer a = weft_test_answer (NANO "--topology dgx-h100 --gpus 4");

  (void) state;
  assert_int_equal (a.status, 0);
  assert_contains (a.out, "(20 for each parameter that a token uses)");
  assert_contains (a.out, "cheapest: 4 x dgx-h100");
  weft_test_answer_free (&a);
}

static void
the_picture_is_an_svg_with_every_cluster (void **state)
{
  g_autofree char *path = g_build_filename (*state, "front.svg", NULL), *text = NULL;
  g_autofree char *words = g_strdup_printf (SMALL "--svg %s", path);
  struct answer a = weft_test_answer (words);

  assert_int_equal (a.status, 0);
  assert_true (g_file_get_contents (path, &text, NULL, NULL));
  assert_true (g_str_has_prefix (text, "<svg "));
  assert_contains (text, ">dgx-b200</text>");
  assert_contains (text, ">days against cost</text>");
  assert_contains (text, ">tokens/s, with the time that failures take</text>");
  assert_null (strstr (text, "nan"));
  weft_test_answer_free (&a);
}

static void
a_site_of_the_user_sets_prices (void **state)
{
  g_autofree char *path = g_build_filename (*state, "site.ini", NULL);
  g_autofree char *words = g_strdup_printf (SMALL "--site %s", path);
  g_autofree char *budget = g_strdup_printf (SMALL "--budget 10 --site %s", path);

  assert_true (
      g_file_set_contents (path, "[dgx-h100]\ngpu_hour_price = 3\ncurrency = EUR\n", -1, NULL));
  struct answer a = weft_test_answer (words);
  assert_int_equal (a.status, 0);
  assert_contains (a.out, "no cost: the site gives no price for some");
  weft_test_answer_free (&a);
  weft_test_refused (budget, 2, "gives no gpu_hour_price for dgx-b200");
  assert_true (g_file_set_contents (path, "[all]\ngpu_hour_price = -3\n", -1, NULL));
  weft_test_refused (words, 2,
                     "site.ini:2: [all] gpu_hour_price: found \"-3\", wanted none|0..1e6");
}

static void
absurd_values_are_refused_with_their_flags (void **state)
{
  static const char *const bad[][2] = {
    { "--tokens 0", "--tokens: found \"0\", wanted none|1..1e18 (tokens of the run)" },
    { "--tokens 2Q", "--tokens: found \"2Q\"" },
    { "--batch-tokens 0", "--batch-tokens: found \"0\", wanted 1..1e12 (tokens of a step, " },
    { "--days -1", "--days: found \"-1\", wanted none|0.01..36500 (days until" },
    { "--days 40000", "--days: found \"40000\", wanted none|0.01..36500" },
    { "--budget -1", "--budget: found \"-1\", wanted none|0..1e15 (money" },
    { "--sizes 8..4", "--sizes: found \"8..4\", wanted" },
    { "--sizes 0", "--sizes: found \"0\", wanted" },
    { "--topologies dgx-h1000", "did you mean dgx-h100?" },
    { "--topologies dgx-h100,dgx-h100", "found dgx-h100 twice" },
    { "--topologies dgx-h100,", "--topologies: found an empty name, wanted names as A,B" },
    { "--site exampel", "did you mean example?" },
    { "--token 5", "unknown flag --token; did you mean --tokens?" },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (bad); i++) {
    g_autofree char *words = g_strdup_printf (NANO "%s", bad[i][0]);
    weft_test_refused (words, 2, bad[i][1]);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (the_text_has_table_answer_and_formulas),
  cmocka_unit_test (json_is_one_document_with_all_points),
  cmocka_unit_test (the_answer_is_no_if_no_cluster_meets_the_limits),
  cmocka_unit_test (a_model_that_fits_nowhere_ends_with_status_4),
  cmocka_unit_test (a_job_that_breaks_a_rule_says_which),
  cmocka_unit_test (a_job_with_a_size_is_one_cluster),
  cmocka_unit_test_setup_teardown (the_picture_is_an_svg_with_every_cluster, weft_test_folder_make,
                                   weft_test_folder_remove),
  cmocka_unit_test_setup_teardown (a_site_of_the_user_sets_prices, weft_test_folder_make,
                                   weft_test_folder_remove),
  cmocka_unit_test (absurd_values_are_refused_with_their_flags),
};

WEFT_TESTS (tests)
