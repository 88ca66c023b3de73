/* weft sim --energy, as a shell runs it, and docs/energy.md. */
#include "tests/runner/command.h"
#include "tests/runner/runner.h"
#include <json-glib/json-glib.h>
#include <math.h>
#include <string.h>

static void
assert_near (double found, double wanted)
{
  if (!(fabs (found - wanted) <= 1e-9 * fabs (wanted)))
    fail_msg ("found %.15g, wanted %.15g", found, wanted);
}

#define SIM "sim --model llama-nano --global-batch-size 16 --topology "

static void
json_has_the_parts_and_the_run (void **state)
{
  struct answer a = weft_test_answer (SIM "dgx-h100 --energy --tokens 2T --json");
  g_autoptr (JsonParser) parser = json_parser_new ();

  (void) state;
  assert_int_equal (a.status, 0);
  assert_true (json_parser_load_from_data (parser, a.out, -1, NULL));
  JsonObject *root = json_node_get_object (json_parser_get_root (parser)),
             *e = json_object_get_object_member (root, "energy"),
             *gpus = json_object_get_object_member (e, "gpus");
  double step = json_object_get_double_member (e, "step_j"),
         token = json_object_get_double_member (e, "token_j"), sum = 0;
  static const char *const parts[] = { "idle_j", "communication_j", "kernels_j", "matmuls_j" };
  for (unsigned i = 0; i < G_N_ELEMENTS (parts); i++)
    sum += json_object_get_double_member (gpus, parts[i]);
  assert_near (sum, json_object_get_double_member (gpus, "total_j"));
  assert_near (step, sum + json_object_get_double_member (e, "links_j") +
                         json_object_get_double_member (e, "nodes_j"));
  assert_near (json_object_get_double_member (e, "run_kwh"), 2e12 * token / 3.6e6);
  weft_test_answer_free (&a);
}

static void
what_is_missing_is_named (void **state)
{
  (void) state;
  weft_test_refused (SIM "cpu --energy", 2,
                     "topology cpu: found no [gpu] idle_power, [gpu] communication_power, [gpu] "
                     "memory_power, [gpu] matmul_power, [node] power, [node] nic_power, wanted "
                     "watts");
  weft_test_refused (SIM "dgx-h100 --tokens 2T", 2, "--tokens needs --energy");
  weft_test_refused (SIM "dgx-h100 --energy --tokens none2", 2, "--tokens: found \"none2\"");
  weft_test_refused (SIM "dgx-h100 --energy --gpu-idle-power 0", 2, "found no [gpu] idle_power,");
}

/* The output that docs/energy.md shows is that of its command. */
static void
the_page_shows_what_the_command_prints (void **state)
{
  g_autofree char *page = NULL;
  const char *begin = "    ./weft sim ", *output = "\n    energy of the step";

  (void) state;
  assert_true (g_file_get_contents (WEFT_SOURCE_DIR "/docs/energy.md", &page, NULL, NULL));
  char *at = strstr (page, begin), *shown = strstr (page, output);
  assert_true (at && shown);
  g_autofree char *command =
      g_strndup (at + strlen ("    ./weft "), (gsize) (strstr (at, "\n\n") - at - 11));
  g_auto (GStrv) lines = g_strsplit (command, " \\\n        ", -1);
  g_autofree char *words = g_strjoinv (" ", lines);
  struct answer a = weft_test_answer (words);
  assert_int_equal (a.status, 0);
  for (char *line = shown + 1; g_str_has_prefix (line, "    "); line = strchr (line, '\n') + 1) {
    g_autofree char *text = g_strndup (line + 4, (gsize) (strchr (line, '\n') - line - 4));
    if (!strstr (a.out, text))
      fail_msg ("the command does not print:\n%s\nbut\n%s", text, a.out);
  }
  weft_test_answer_free (&a);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (json_has_the_parts_and_the_run),
  cmocka_unit_test (what_is_missing_is_named),
  cmocka_unit_test (the_page_shows_what_the_command_prints),
};

WEFT_TESTS (tests)
