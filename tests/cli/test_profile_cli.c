/* `weft compare JOB TRACE`: the page, its JSON, the files that it writes, and what is refused. */
#include "tests/runner/command.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include <glib.h>
#include <json-glib/json-glib.h>
#include <math.h>
#include <string.h>

#define TRACES WEFT_SOURCE_DIR "/tests/traces/ranks"

/* The job of the traces of tests/traces, as a file. The caller frees the path. */
static char *
job_file (const char *folder)
{
  char *path = g_build_filename (folder, "job.ini", NULL);

  assert_true (g_file_set_contents (path,
                                    "[model]\nconfig = gpt2-nano\n[cluster]\n"
                                    "topology = dgx-h100\ngpus = 4\n[train]\n"
                                    "global_batch_size = 8\n[strategy]\n"
                                    "tensor_model_parallel_size = 2\n"
                                    "use_distributed_optimizer = true\n",
                                    -1, NULL));
  return path;
}

static void
the_terms_of_the_json_waterfall_add_up (void **state)
{
  g_autofree char *job = job_file (*state);
  g_autofree char *words = g_strdup_printf ("compare %s " TRACES " --step 11 --json", job);
  g_autoptr (JsonParser) parser = json_parser_new ();
  struct answer a = weft_test_answer (words);
  double sum[2] = { 0 };

  assert_int_equal (a.status, 0);
  assert_true (json_parser_load_from_data (parser, a.out, -1, NULL));
  JsonObject *root = json_node_get_object (json_parser_get_root (parser));
  assert_string_equal (json_object_get_string_member (root, "schema"), "weft.profile/1");
  JsonArray *terms = json_object_get_array_member (root, "waterfall");
  for (guint i = 0; i < json_array_get_length (terms); i++) {
    JsonObject *term = json_array_get_object_element (terms, i);
    sum[0] += json_object_get_double_member (term, "predicted_s");
    sum[1] += json_object_get_double_member (term, "measured_s");
  }
  for (int side = 0; side < 2; side++) {
    JsonObject *o = json_object_get_object_member (root, side ? "measured" : "predicted");
    double step = json_object_get_double_member (o, "time_s");
    assert_true (fabs (sum[side] - step) < 1e-9 * step + 1e-12);
  }
  weft_test_answer_free (&a);
}

static void
the_page_names_unknown_kernels_and_fits_80_columns (void **state)
{
  g_autofree char *job = job_file (*state);
  g_autofree char *words = g_strdup_printf ("compare %s " TRACES, job);

  g_setenv ("COLUMNS", "80", TRUE);
  struct answer a = weft_test_answer (words);
  g_unsetenv ("COLUMNS");
  assert_int_equal (a.status, 0);
  assert_non_null (strstr (a.out, "where MFU is lost"));
  assert_non_null (strstr (a.out, "mystery_kernel"));
  g_auto (GStrv) lines = g_strsplit (a.out, "\n", -1);
  for (char **line = lines; *line; line++)
    if (g_utf8_strlen (*line, -1) > 80 && strchr (g_strstrip (*line), ' '))
      fail_msg ("%s", *line);
  weft_test_answer_free (&a);
}

static void
files_out_of_a_profile_are_read_by_sim (void **state)
{
  g_autofree char *job = job_file (*state);
  g_autofree char *costs = g_build_filename (*state, "a.costs", NULL);
  g_autofree char *stack = g_build_filename (*state, "mine.ini", NULL);
  g_autofree char *words =
      g_strdup_printf ("compare %s " TRACES " --cost-table %s --stack-fit %s", job, costs, stack);
  g_autofree char *sim = g_strdup_printf ("sim %s --cost-table %s --stack %s", job, costs, stack);
  struct answer a = weft_test_answer (words);

  assert_int_equal (a.status, 0);
  assert_non_null (strstr (a.err, "cost table: norm gpu: joined 0 of 4 calls"));
  weft_test_answer_free (&a);
  a = weft_test_answer (sim);
  if (a.status != 0)
    fail_msg ("%s", a.err);
  weft_test_answer_free (&a);
}

static void
flags_and_files_that_do_not_fit_a_profile_are_refused (void **state)
{
  g_autofree char *job = job_file (*state);
  g_autofree char *first = g_strdup_printf ("compare " TRACES " %s", job);
  g_autofree char *top = g_strdup_printf ("compare %s " TRACES " --top 3", job);
  g_autofree char *none = g_strdup_printf ("compare %s %s --stack-fit x.ini", job, job);
  g_autofree char *step = g_strdup_printf ("compare %s " TRACES " --step 99", job);

  weft_test_refused (first, 2, "found a measured trace, wanted a job or a timeline first");
  weft_test_refused (top, 2, "--top");
  weft_test_refused (none, 2, "wanted one with --stack-fit");
  weft_test_refused (step, 2, "wanted one of the steps 10, 11, 12");
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test_setup_teardown (the_terms_of_the_json_waterfall_add_up, weft_test_folder_make,
                                   weft_test_folder_remove),
  cmocka_unit_test_setup_teardown (the_page_names_unknown_kernels_and_fits_80_columns,
                                   weft_test_folder_make, weft_test_folder_remove),
  cmocka_unit_test_setup_teardown (files_out_of_a_profile_are_read_by_sim, weft_test_folder_make,
                                   weft_test_folder_remove),
  cmocka_unit_test_setup_teardown (flags_and_files_that_do_not_fit_a_profile_are_refused,
                                   weft_test_folder_make, weft_test_folder_remove),
};

WEFT_TESTS (tests)
