/* weft sim with slow GPUs, slow links and noise, as a shell runs it. */
#include "tests/runner/command.h"
#include "tests/runner/runner.h"
#include <json-glib/json-glib.h>
#include <string.h>

#define SIM                                                                                        \
  "sim --model llama-nano --topology dgx-h100 --nodes 4 --tp 2 --global-batch-size 16 "            \
  "--micro-batch-size 1 "

/* The member "disturbance" of the answer to --json. *parser owns it. */
static JsonObject *
disturbance (const char *flags, JsonParser **parser)
{
  g_autofree char *words = g_strconcat (SIM, flags, " --json", NULL);
  struct answer a = weft_test_answer (words);

  assert_int_equal (a.status, 0);
  *parser = json_parser_new ();
  assert_true (json_parser_load_from_data (*parser, a.out, -1, NULL));
  weft_test_answer_free (&a);
  JsonObject *root = json_node_get_object (json_parser_get_root (*parser));
  return json_object_has_member (root, "disturbance")
             ? json_object_get_object_member (root, "disturbance")
             : NULL;
}

static void
json_has_cost_and_waits (void **state)
{
  JsonParser *parser;
  JsonObject *d = disturbance ("--straggler rank=5:1.5 --straggler node=3:1.1", &parser);

  (void) state;
  assert_string_equal (json_object_get_string_member (d, "straggler"), "rank=5:1.5,node=3:1.1");
  double before = json_object_get_double_member (d, "undisturbed_time_s"),
         now = json_object_get_double_member (d, "time_s");
  assert_true (now > before);
  assert_true (json_object_get_double_member (d, "cost_s") == now - before);
  assert_true (json_object_get_boolean_member (d, "exact"));
  assert_true (json_object_get_null_member (d, "jitter"));
  JsonArray *waits = json_object_get_array_member (d, "waits");
  assert_true (json_array_get_length (waits) > 0);
  JsonObject *first = json_array_get_object_element (waits, 0);
  assert_int_equal (json_object_get_int_member (first, "for_rank"), 5);
  g_object_unref (parser);
}

static void
jitter_is_reported_over_its_runs (void **state)
{
  JsonParser *parser, *none;
  JsonObject *d = disturbance ("--jitter 0.1 --jitter-runs 6", &parser), *j;

  (void) state;
  j = json_object_get_object_member (d, "jitter");
  assert_int_equal (json_object_get_int_member (j, "runs"), 6);
  assert_true (json_object_get_double_member (j, "least_s") <=
               json_object_get_double_member (j, "p50_s"));
  assert_true (json_object_get_double_member (j, "p50_s") <
               json_object_get_double_member (j, "most_s"));
  g_object_unref (parser);
  assert_null (disturbance ("--jitter 0", &none));
  g_object_unref (none);
}

static void
the_text_says_cost_and_who_waits (void **state)
{
  struct answer a = weft_test_answer (SIM "--straggler rank=5:1.5");

  (void) state;
  assert_int_equal (a.status, 0);
  assert_non_null (strstr (a.out, "\ndisturbance rank=5:1.5\n"));
  assert_non_null (strstr (a.out, "\nundisturbed step"));
  assert_non_null (strstr (a.out, "1 rank waits for rank 5\n"));
  weft_test_answer_free (&a);
}

static void
other_executors_and_wrong_names_are_refused (void **state)
{
  static const struct {
    const char *flags, *part;
  } wrong[] = {
    { "--straggler rank=5:1.2 --executor clock", "--straggler: not available with executor clock" },
    { "--link nic0:0.5 --executor clock", "--link: not available with executor clock" },
    { "--jitter 0.1 --executor clock", "--jitter: not available with executor clock" },
    { "--straggler rank=99:1.2", "--straggler: found rank 99" },
    { "--link nix:0.5", "did you mean nic?" },
    { "--jitter-runs 3", "--jitter-runs needs --jitter" },
    { "--jitter 0.1 --jitter-runs 10001", "wanted at most 10000 runs" },
    { "--stragler rank=5:1.2", "did you mean --straggler?" },
    { "--straggler rank=5:2 --timeline step.json", "only with --unfolded" },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (wrong); i++) {
    g_autofree char *words = g_strconcat (SIM, wrong[i].flags, NULL);
    weft_test_refused (words, 2, wrong[i].part);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (json_has_cost_and_waits),
  cmocka_unit_test (jitter_is_reported_over_its_runs),
  cmocka_unit_test (the_text_says_cost_and_who_waits),
  cmocka_unit_test (other_executors_and_wrong_names_are_refused),
};

WEFT_TESTS (tests)
