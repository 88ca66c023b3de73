#include "tests/runner/figures.h"
#include "tests/runner/runner.h"
#include <glib.h>
#include <stdlib.h>
#include <string.h>

/* Runs a command without its figure, which goes to `mine`, and compares it with `theirs`. */
static void
check_figure (const char *command, const char *theirs, const char *folder)
{
  g_autofree char *name = g_path_get_basename (theirs), *bin = g_path_get_dirname (WEFT_BINARY);
  g_autofree char *mine = g_build_filename (folder, name, NULL);
  g_autofree char *whole = g_build_filename (WEFT_SOURCE_DIR, theirs, NULL), *a = NULL, *b = NULL;
  g_autofree char *line = g_strdup_printf ("cd %s && %s/%s --svg %s >%s/log 2>&1", WEFT_SOURCE_DIR,
                                           bin, command, mine, folder);

  if (system (line) != 0)
    fail_msg ("%s", line);
  assert_true (g_file_get_contents (mine, &a, NULL, NULL));
  if (!g_file_get_contents (whole, &b, NULL, NULL) || strcmp (a, b))
    fail_msg ("%s is not what this command draws: %s", whole, line);
}

unsigned
test_figures_check (const char *page, const char *folder)
{
  g_autofree char *path = g_build_filename (WEFT_SOURCE_DIR, page, NULL), *text = NULL;
  g_autoptr (GRegex) joined = g_regex_new ("\\\\\n *", 0, 0, NULL);
  unsigned drawn = 0;

  assert_true (g_file_get_contents (path, &text, NULL, NULL));
  g_autofree char *flat = g_regex_replace_literal (joined, text, -1, 0, "", 0, NULL);
  g_auto (GStrv) lines = g_strsplit (flat, "\n", -1);
  for (char **line = lines; *line; line++) {
    char *at = strstr (*line, " --svg docs/");
    if (!g_str_has_prefix (*line, "    ./weft ") || !at)
      continue;
    *at = '\0';
    check_figure (*line + strlen ("    ./"), at + strlen (" --svg "), folder);
    drawn++;
  }
  return drawn;
}
