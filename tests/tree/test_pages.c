/* Checks what pages state about the source tree: folders, headers, links, and the call chains
 * (tables with a column "hop") of README.md. */
#include "tests/runner/runner.h"
#include "tests/tree/source_files.h"
#include <string.h>

/* Returns the rows of all tables of a page whose first column is named `head`. Each row is a GStrv
 * of cells without surrounding blanks and backquotes; the array owns the rows. */
static GPtrArray *
table_rows (const char *path, const char *head)
{
  GPtrArray *rows = g_ptr_array_new_with_free_func ((GDestroyNotify) g_strfreev);
  g_autofree char *text = source_text (path), *start = g_strdup_printf ("| %s |", head);
  g_auto (GStrv) lines = g_strsplit (text, "\n", -1);
  unsigned below = 0; /* number of lines of the current table so far; 0: the line is in no table */

  for (unsigned l = 0; lines[l]; l++) {
    if (g_str_has_prefix (lines[l], start))
      below = 1;
    else
      below = below && lines[l][0] == '|' ? below + 1 : 0;
    if (below < 3)
      continue;
    char **cells = g_strsplit (lines[l] + 1, "|", -1);
    for (unsigned c = 0; cells[c]; c++) {
      g_autofree char *cell = g_strdelimit (cells[c], "`", ' ');
      cells[c] = g_strdup (g_strstrip (cell));
    }
    g_ptr_array_add (rows, cells);
  }
  return rows;
}

/* Whether `path` contains the function `name`: in a .c or .cc file as a definition, in any other
 * file as a word. */
static gboolean
defines (const char *path, const char *name)
{
  g_autofree char *text = source_text (path), *word = g_regex_escape_string (name, -1);
  g_autofree char *pattern = g_str_has_suffix (path, ".c") || g_str_has_suffix (path, ".cc")
                                 ? g_strdup_printf ("^%s \\(", word)
                                 : g_strdup_printf ("\\b%s\\b", word);
  return g_regex_match_simple (pattern, text, G_REGEX_MULTILINE, 0);
}

/* README.md has two call chains, as tables; the hops of each are numbered from 0. */
static void
every_hop_of_the_walks_is_where_the_readme_says (void **state)
{
  g_autoptr (GPtrArray) rows = table_rows ("README.md", "hop");
  unsigned walks = 0;

  (void) state;
  assert_in_range (rows->len, 12, 24);
  for (unsigned i = 0; i < rows->len; i++) {
    char **cell = g_ptr_array_index (rows, i);
    walks += g_str_equal (cell[0], "0");
    if (!defines (cell[1], cell[2]))
      fail_msg ("README.md, hop %s: %s has no %s", cell[0], cell[1], cell[2]);
  }
  assert_int_equal (walks, 2);
}

static gboolean
is_folder (const char *name)
{
  g_autofree char *full = g_build_filename (WEFT_SOURCE_DIR, name, NULL);
  return g_file_test (full, G_FILE_TEST_IS_DIR);
}

static void
every_folder_of_the_map_exists_and_every_folder_is_on_it (void **state)
{
  g_autoptr (GPtrArray) rows = table_rows ("README.md", "folder"), paths = source_files ();
  g_autoptr (GHashTable) known = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL);

  (void) state;
  for (unsigned i = 0; i < rows->len; i++) {
    const char *name = ((char **) g_ptr_array_index (rows, i))[0];
    if (!g_str_has_suffix (name, "/") || !is_folder (name))
      fail_msg ("README.md: there is no folder %s", name);
    g_hash_table_add (known, g_strndup (name, strlen (name) - 1));
  }
  for (unsigned i = 0; i < paths->len; i++) {
    const char *path = g_ptr_array_index (paths, i);
    g_autofree char *top = source_folder (path);
    if (strchr (path, '/') && !g_hash_table_contains (known, top))
      fail_msg ("README.md: folder %s/ is not on the map", top);
  }
}

/* Every link [text](target) to a file must name an existing file. */
static void
links_between_pages_lead_somewhere (void **state)
{
  g_autoptr (GPtrArray) paths = source_files ();
  g_autoptr (GRegex) link = g_regex_new ("\\]\\(([^)#:]+)(#[^)]*)?\\)", 0, 0, NULL);

  (void) state;
  for (unsigned i = 0; i < paths->len; i++) {
    const char *path = g_ptr_array_index (paths, i);
    g_autoptr (GMatchInfo) match = NULL;
    if (!g_str_has_suffix (path, ".md"))
      continue;
    g_autofree char *text = source_text (path), *folder = g_path_get_dirname (path);
    for (g_regex_match (link, text, 0, &match); g_match_info_matches (match);
         g_match_info_next (match, NULL)) {
      g_autofree char *target = g_match_info_fetch (match, 1);
      g_autofree char *full = g_build_filename (WEFT_SOURCE_DIR, folder, target, NULL);
      if (!g_file_test (full, G_FILE_TEST_EXISTS))
        fail_msg ("%s: (%s) leads nowhere", path, target);
    }
  }
}

static void
the_page_of_core_names_every_header (void **state)
{
  g_autoptr (GPtrArray) paths = source_files ();
  g_autofree char *page = source_text ("core/README.md");

  (void) state;
  for (unsigned i = 0; i < paths->len; i++) {
    const char *path = g_ptr_array_index (paths, i);
    if (!g_str_has_prefix (path, "core/") || !g_str_has_suffix (path, ".h"))
      continue;
    g_autofree char *base = g_path_get_basename (path), *name = g_strdup_printf ("`%s`", base);
    if (!strstr (page, name))
      fail_msg ("core/README.md does not name %s", name);
  }
}

/* tests/doubles/README.md must have a row for each double. */
static void
the_page_of_doubles_names_every_file (void **state)
{
  g_autofree char *page = source_text ("tests/doubles/README.md");
  g_autoptr (GDir) dir = g_dir_open (WEFT_SOURCE_DIR "/tests/doubles", 0, NULL);
  const char *name;

  (void) state;
  assert_non_null (dir);
  while ((name = g_dir_read_name (dir))) {
    g_autofree char *quoted = g_strdup_printf ("`%.*s`", (int) strcspn (name, "."), name);
    if (!g_str_equal (name, "README.md") && !strstr (page, quoted))
      fail_msg ("tests/doubles/%s: its page has no row for %s", name, quoted);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_hop_of_the_walks_is_where_the_readme_says),
  cmocka_unit_test (every_folder_of_the_map_exists_and_every_folder_is_on_it),
  cmocka_unit_test (links_between_pages_lead_somewhere),
  cmocka_unit_test (the_page_of_core_names_every_header),
  cmocka_unit_test (the_page_of_doubles_names_every_file),
};

WEFT_TESTS (tests)
