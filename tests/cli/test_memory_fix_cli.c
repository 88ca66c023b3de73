/* weft memory --fix as a shell runs it: with the flags of a proposal the job has the memory and the
 * step time that the proposal names. */
#include "tests/runner/command.h"
#include "tests/runner/runner.h"
#include <json-glib/json-glib.h>
#include <math.h>
#include <string.h>

#define JOB "--model llama2-13b --topology dgx-h100 "
#define FITS "--model gpt2-nano --topology dgx-h100 "

static JsonNode *
json_of (const char *words, int status)
{
  struct answer answer = weft_test_answer (words);
  JsonNode *root = json_from_string (answer.out, NULL);

  if (!root || answer.status != status)
    fail_msg ("weft %s: status %d, %s", words, answer.status, answer.err);
  weft_test_answer_free (&answer);
  return root;
}

static JsonArray *
fixes_of (JsonNode *root)
{
  return json_object_get_array_member (json_node_get_object (root), "fixes");
}

/* A command of the job with the flags of a proposal. The caller frees the text. */
static char *
with_flags (const char *command, JsonObject *fix)
{
  JsonArray *flags = json_object_get_array_member (fix, "flags");
  GString *words = g_string_new (command);

  g_string_append (words, " " JOB "--json");
  for (unsigned i = 0; i < json_array_get_length (flags); i++)
    g_string_append_printf (words, " %s", json_array_get_string_element (flags, i));
  return g_string_free (words, FALSE);
}

static void
check_memory (JsonObject *fix)
{
  g_autofree char *words = with_flags ("memory", fix);
  g_autoptr (JsonNode) root = json_of (words, 0);
  JsonObject *memory = json_object_get_object_member (json_node_get_object (root), "memory");

  assert_int_equal (json_object_get_int_member (memory, "peak_bytes"),
                    json_object_get_int_member (fix, "peak_bytes"));
}

static void
check_time (JsonObject *fix, double given)
{
  g_autofree char *words = with_flags ("sim", fix);
  g_autoptr (JsonNode) root = json_of (words, 0);
  JsonObject *iteration = json_object_get_object_member (json_node_get_object (root), "iteration");
  double seconds = json_object_get_double_member (fix, "time_s");

  assert_true (fabs (json_object_get_double_member (iteration, "time_s") / seconds - 1) < 1e-6);
  assert_true (fabs (json_object_get_double_member (fix, "loss") - (seconds / given - 1)) < 1e-9);
}

static void
flags_of_proposals_give_the_memory_and_the_time_that_they_name (void **state)
{
  g_autoptr (JsonNode) root = json_of ("memory --fix --json " JOB, 3);
  JsonObject *object = json_node_get_object (root);
  JsonArray *fixes = fixes_of (root);
  double given =
      json_object_get_double_member (json_object_get_object_member (object, "given"), "time_s");

  (void) state;
  assert_string_equal (json_object_get_string_member (object, "schema"), "weft.memory_fix/1");
  assert_true (json_array_get_length (fixes) > 5);
  for (unsigned i = 0; i < json_array_get_length (fixes); i += 3) {
    JsonObject *fix = json_array_get_object_element (fixes, i);
    check_memory (fix);
    check_time (fix, given);
    assert_true (json_object_has_member (json_object_get_object_member (fix, "accuracy"), "time"));
  }
}

static void
kept_settings_are_in_no_flag (void **state)
{
  g_autoptr (JsonNode) root =
      json_of ("memory --fix --json --keep tensor-model-parallel-size,use_megatron_fsdp " JOB, 3);
  JsonArray *fixes = fixes_of (root);

  (void) state;
  assert_true (json_array_get_length (fixes) > 0);
  for (unsigned i = 0; i < json_array_get_length (fixes); i++) {
    g_autofree char *words = with_flags ("", json_array_get_object_element (fixes, i));
    assert_null (strstr (words, "--tensor-model-parallel-size"));
    assert_null (strstr (words, "--use-megatron-fsdp"));
  }
}

static void
a_limit_below_the_memory_of_the_gpu_is_met (void **state)
{
  g_autoptr (JsonNode) root = json_of ("memory --fix --json --memory-limit 50GB " JOB, 3);
  JsonArray *fixes = fixes_of (root);

  (void) state;
  assert_true (json_array_get_length (fixes) > 0);
  for (unsigned i = 0; i < json_array_get_length (fixes); i++)
    assert_true (json_object_get_int_member (json_array_get_object_element (fixes, i),
                                             "peak_bytes") <= 50000000000);
}

/* Without other changes, only gradients of two bytes make this job fit, which changes numerics. */
static void
the_page_names_flags_and_numerics (void **state)
{
  struct answer answer = weft_test_answer (
      "memory --fix --model llama3-8b --topology dgx-h100 --use-distributed-optimizer "
      "--grad-reduce-in-fp32 --stack megatron-core --keep use_megatron_fsdp,"
      "tensor_model_parallel_size,context_parallel_size,recompute_granularity");

  (void) state;
  assert_int_equal (answer.status, 3);
  assert_non_null (strstr (answer.out, "the job as given needs "));
  assert_non_null (strstr (answer.out, "change, and flags to add"));
  assert_non_null (strstr (answer.out, "\n      --no-grad-reduce-in-fp32 "));
  assert_non_null (strstr (answer.out, "changes numerics: "));
  assert_non_null (strstr (answer.out, "band in which 80 % of published runs lie"));
  weft_test_answer_free (&answer);
}

static void
a_job_that_fits_needs_no_fix (void **state)
{
  g_autoptr (JsonNode) root = json_of ("memory --fix --json " FITS, 0);

  (void) state;
  assert_int_equal (json_array_get_length (fixes_of (root)), 0);
}

static void
bad_wishes_are_refused (void **state)
{
  (void) state;
  weft_test_refused ("memory --fix --keep tensor_model_paralel_size " FITS, 2,
                     "--keep: unknown knob \"tensor_model_paralel_size\"; did you mean "
                     "tensor_model_parallel_size");
  weft_test_refused ("memory --fix --memory-limit 200GB " FITS, 2,
                     "--memory-limit: found 200GB, wanted more than 0 and at most");
  weft_test_refused ("memory --fix --memory-limit much " FITS, 2, "--memory-limit: ");
  weft_test_refused ("memory --keep micro_batch_size " FITS, 2, "--keep needs --fix");
  weft_test_refused ("memory --memory-limit 1GB " FITS, 2, "--memory-limit needs --fix");
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (flags_of_proposals_give_the_memory_and_the_time_that_they_name),
  cmocka_unit_test (kept_settings_are_in_no_flag),
  cmocka_unit_test (a_limit_below_the_memory_of_the_gpu_is_met),
  cmocka_unit_test (the_page_names_flags_and_numerics),
  cmocka_unit_test (a_job_that_fits_needs_no_fix),
  cmocka_unit_test (bad_wishes_are_refused),
};

WEFT_TESTS (tests, .seconds = 6)
