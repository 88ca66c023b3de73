/* `weft explain --op`: the formulas of one op with their numbers, the rates with their sources. */
#include "tests/runner/command.h"
#include "tests/runner/runner.h"
#include <json-glib/json-glib.h>
#include <string.h>

#define JOB                                                                                        \
  "explain --model llama3-8b --topology dgx-h100 --gpus 16 --global-batch-size 16 "                \
  "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather "

static char *
output_of (const char *words)
{
  struct answer a = weft_test_answer (words);
  char *out = g_strdup (a.out);

  if (a.status)
    fail_msg ("%s: %s", words, a.err);
  weft_test_answer_free (&a);
  return out;
}

static void
a_kernel_has_its_formula_its_rate_and_their_sources (void **state)
{
  g_autofree char *out = output_of (JOB "--op fc1");

  (void) state;
  assert_non_null (strstr (out, "2 x m x n x k = 2 x 8192 x 28672 x 4096 = 1.92 TFLOP"));
  assert_non_null (strstr (out, "gpu_bf16 = 794 TFLOP/s (dgx-h100.ini: measured: "));
  assert_non_null (strstr (out, "w: fc1.weight read, 235 MB of weights"));
}

static void
a_collective_has_the_share_of_a_ring_and_its_links (void **state)
{
  g_autofree char *out = output_of (JOB "--op gather");

  (void) state;
  assert_non_null (strstr (out, "(n - 1) / n of the full tensor, n = 16: 0.9375"));
  assert_non_null (strstr (out, "node_nic_bandwidth = 46 GB/s (dgx-h100.ini: "));
}

/* A number that the job sets is not that of the file. */
static void
a_number_of_the_job_is_said_to_be_one (void **state)
{
  g_autofree char *out = output_of (JOB "--gpu-bf16 400TFLOP/s --op fc1");

  (void) state;
  assert_non_null (strstr (out, "gpu_bf16 = 400 TFLOP/s (set by the job)"));
}

static void
json_has_the_numbers_of_the_op (void **state)
{
  g_autofree char *out = output_of (JOB "--op fc1 --json");
  g_autoptr (JsonParser) parser = json_parser_new ();

  (void) state;
  assert_true (json_parser_load_from_data (parser, out, -1, NULL));
  JsonObject *root = json_node_get_object (json_parser_get_root (parser));
  assert_string_equal (json_object_get_string_member (root, "schema"), "weft.explain_op/1");
  assert_true (json_object_get_double_member (root, "flops") == 2.0 * 8192 * 28672 * 4096);
}

static void
an_unknown_op_is_refused (void **state)
{
  struct answer a = weft_test_answer (JOB "--op zzz");

  (void) state;
  assert_int_equal (a.status, 2);
  assert_non_null (strstr (a.err, "--op: found \"zzz\", wanted the number of an op of stage 0"));
  weft_test_answer_free (&a);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_kernel_has_its_formula_its_rate_and_their_sources),
  cmocka_unit_test (a_collective_has_the_share_of_a_ring_and_its_links),
  cmocka_unit_test (a_number_of_the_job_is_said_to_be_one),
  cmocka_unit_test (json_has_the_numbers_of_the_op),
  cmocka_unit_test (an_unknown_op_is_refused),
};

WEFT_TESTS (tests, .seconds = 2)
