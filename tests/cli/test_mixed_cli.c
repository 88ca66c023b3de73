/* Clusters with several kinds of nodes, as a shell uses them: what docs/my_cluster.md shows, and
 * the commands that refuse them. */
#include "tests/runner/command.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"
#include <glib.h>
#include <string.h>

#define FILE_OF_PAGE "docs/my_cluster/mixed.ini"

static char *
text_of (const char *path)
{
  char *text;

  assert_true (g_file_get_contents (path, &text, NULL, NULL));
  return text;
}

/* The lines of a block of the page, which is indented by four blanks, from `at` on. */
static char **
block_at (const char *at)
{
  GPtrArray *lines = g_ptr_array_new ();

  for (; g_str_has_prefix (at, "    "); at = strchr (at, '\n') + 1)
    g_ptr_array_add (lines, g_strndup (at + 4, (gsize) (strchr (at, '\n') - at - 4)));
  g_ptr_array_add (lines, NULL);
  return (char **) g_ptr_array_free (lines, FALSE);
}

/* Runs the command whose block contains `part`. Each line of the next block that is indented must
 * be in its output. */
static void
assert_shown (const char *page, const char *part)
{
  const char *at = strstr (page, part);

  assert_non_null (at);
  while (at > page && !g_str_has_prefix (at, "\n    ./weft "))
    at--;
  g_auto (GStrv) command = block_at (at + 1);
  g_autofree char *joined = g_strjoinv ("\n", command);
  g_auto (GStrv) pieces = g_strsplit (joined + strlen ("./weft "), " \\\n    ", -1);
  g_autofree char *words = g_strjoinv (" ", pieces);
  const char *next = strstr (strstr (at, part), "\n\n");
  while (!g_str_has_prefix (next, "\n\n    "))
    next = strstr (next + 1, "\n\n");
  g_auto (GStrv) shown = block_at (next + 2);
  struct answer a = weft_test_answer (words);
  assert_int_equal (a.status, 0);
  for (char **line = shown; *line; line++)
    if (!strstr (a.out, *line))
      fail_msg ("weft %s does not print:\n%s\nbut\n%s", words, *line, a.out);
  weft_test_answer_free (&a);
}

static void
the_page_shows_file_and_outputs (void **state)
{
  g_autofree char *page = text_of ("docs/my_cluster.md"), *file = text_of (FILE_OF_PAGE);

  (void) state;
  assert_non_null (strstr (page, file));
  assert_shown (page, "topologies " FILE_OF_PAGE);
  assert_shown (page, FILE_OF_PAGE " --pp 2 \\\n        --global");
  assert_shown (page, FILE_OF_PAGE " --pp 2 --decoder-first");
}

static void
searches_refuse_several_kinds_by_name (void **state)
{
  static const struct {
    const char *words, *what;
  } refused[] = {
    { "plan --model llama-nano --topology " FILE_OF_PAGE, "weft plan" },
    { "size --model llama-nano --tokens 1B --topologies " FILE_OF_PAGE, "weft size" },
    { "sweep --model llama-nano --sensitivity --topology " FILE_OF_PAGE,
      "weft sweep --sensitivity" },
    { "memory --model llama-nano --fix --topology " FILE_OF_PAGE, "the search for changes" },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (refused); i++) {
    g_autofree char *message = g_strdup_printf (
        "rule one_kind: %s takes a cluster whose nodes are all alike, found 2 kinds of nodes in",
        refused[i].what);
    weft_test_refused (refused[i].words, 2, message);
  }
}

static void
the_job_sets_neither_size_nor_fields (void **state)
{
  (void) state;
  weft_test_refused ("sim --model llama-nano --nodes 2 --topology " FILE_OF_PAGE, 2,
                     "nodes: found 2, wanted all 4 nodes of the groups in " FILE_OF_PAGE);
  weft_test_refused ("sim --model llama-nano --gpu-memory 1GB --topology " FILE_OF_PAGE, 2,
                     "several kinds of nodes, wanted it in " FILE_OF_PAGE);
}

static void
energy_counts_each_gpu_by_its_kind (void **state)
{
  struct answer a =
      weft_test_answer ("sim --model llama-nano --energy --json --topology " FILE_OF_PAGE);

  (void) state;
  assert_int_equal (a.status, 0);
  assert_non_null (strstr (a.out, "\"watts_per_gpu\""));
  assert_non_null (strstr (a.out, "\"accuracy\" : null"));
  weft_test_answer_free (&a);
}

#define TEST(name) cmocka_unit_test_setup (name, weft_test_enter_tree)

static const struct CMUnitTest tests[] = {
  TEST (the_page_shows_file_and_outputs),
  TEST (searches_refuse_several_kinds_by_name),
  TEST (the_job_sets_neither_size_nor_fields),
  TEST (energy_counts_each_gpu_by_its_kind),
};

WEFT_TESTS (tests)
