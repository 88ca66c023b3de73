/* docs/ideas.md: the files that it shows are those of docs/ideas/. tests/cli/test_figures.c draws
 * its figures. */
#include "tests/runner/runner.h"
#include <glib.h>
#include <string.h>

/* Whether the page has all lines of a file, one after the other, indented by four blanks. */
static void
check_listing (const char *page, const char *file)
{
  g_autofree char *path = g_build_filename (WEFT_SOURCE_DIR, "docs/ideas", file, NULL);
  g_autofree char *text = NULL;
  GString *shown = g_string_new (NULL);

  assert_true (g_file_get_contents (path, &text, NULL, NULL));
  g_auto (GStrv) lines = g_strsplit (text, "\n", -1);
  assert_true (g_strv_length (lines) < 30);
  for (char **line = lines; *line; line++)
    if (**line != '#' && (**line || line[1]))
      g_string_append_printf (shown, "%s%s\n", **line ? "    " : "", *line);
  if (!strstr (page, shown->str))
    fail_msg ("docs/ideas.md does not show docs/ideas/%s as it is:\n%s", file, shown->str);
  g_string_free (shown, TRUE);
}

static void
the_page_shows_its_files_which_have_under_30_lines (void **state)
{
  g_autofree char *page = NULL;

  (void) state;
  assert_true (g_file_get_contents (WEFT_SOURCE_DIR "/docs/ideas.md", &page, NULL, NULL));
  check_listing (page, "eager.csv");
  check_listing (page, "halving_doubling.txt");
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (the_page_shows_its_files_which_have_under_30_lines),
};

WEFT_TESTS (tests)
