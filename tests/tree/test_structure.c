/* The shape of the source tree: who may include whom, how long things are, and that what the
 * READMEs say about it is true. */
#include "tests/runner/runner.h"
#include <glib.h>
#include <stdint.h>
#include <string.h>

#define MOST_LINES 900
#define MOST_FUNCTION_LINES 90

/* Folders, lowest first: a file includes its own folder and lower ones.  Executors share one
 * level and never include one another. */
static const struct {
  const char *folder;
  int level;
} folders[] = {
  { "core", 0 },     { "kernels", 1 },   { "launch", 1 },  { "exec_sim", 2 }, { "exec_cpu", 2 },
  { "exec_cuda", 2 }, { "planner", 3 },  { "train", 3 },   { "cli", 4 },      { "include", 3 },
  { "api", 4 },      { "tests", 5 },     { "bench", 5 },   { "examples", 5 },
};

/* Folders of core/, lowest first: a file includes only its own or lower ones. */
static const char *const core_folders[] = {
  "core/base/", "core/cluster/", "core/schedule/", "core/job/",  "core/program/",
  "core/passes/", "core/plan/",   "core/exec/", "core/report/",
};

/* ------------------------------------------------------------------------ files */

static gboolean
is_code (const char *path)
{
  return g_str_has_suffix (path, ".c") || g_str_has_suffix (path, ".h") ||
         g_str_has_suffix (path, ".cc") || g_str_has_suffix (path, ".cu");
}

/* Code, pages, build files, and all that lies in a folder of data: what somebody's runs left beside
 * them is no business of ours. */
static gboolean
is_source (const char *path)
{
  static const char *const data[] = { "models/", "stacks/", "tests/", "topologies/",
                                      "validation/" };
  static const char *const names[] = { ".def", ".md",    "CMakeLists.txt", "CMakePresets.json",
                                       "weft", ".ci/run" };

  for (unsigned i = 0; i < G_N_ELEMENTS (data); i++)
    if (g_str_has_prefix (path, data[i]))
      return TRUE;
  for (unsigned i = 0; i < G_N_ELEMENTS (names); i++)
    if (g_str_has_suffix (path, names[i]))
      return TRUE;
  return is_code (path);
}

/* Paths below the source folder; what is built, hidden (but .ci) or fed to fuzz targets is left
 * out. */
static void
collect (GPtrArray *paths, const char *folder)
{
  g_autofree char *full = g_build_filename (WEFT_SOURCE_DIR, folder, NULL);
  g_autoptr (GDir) dir = g_dir_open (full, 0, NULL);
  const char *name;

  assert_non_null (dir);
  while ((name = g_dir_read_name (dir))) {
    g_autofree char *path = *folder ? g_build_filename (folder, name, NULL) : g_strdup (name);
    g_autofree char *here = g_build_filename (WEFT_SOURCE_DIR, path, NULL);
    if ((name[0] == '.' && !g_str_equal (name, ".ci")) || g_str_has_prefix (path, "build") ||
        g_str_equal (path, "tests/fuzz/inputs"))
      continue;
    if (g_file_test (here, G_FILE_TEST_IS_DIR))
      collect (paths, path);
    else if (is_source (path))
      g_ptr_array_add (paths, g_steal_pointer (&path));
  }
}

static int
compare_paths (gconstpointer a, gconstpointer b)
{
  return g_strcmp0 (*(char *const *) a, *(char *const *) b);
}

/* Sorted. */
static GPtrArray *
all_files (void)
{
  GPtrArray *paths = g_ptr_array_new_with_free_func (g_free);

  collect (paths, "");
  g_ptr_array_sort (paths, compare_paths);
  assert_true (paths->len > 100);
  return paths;
}

static char *
read_file (const char *path)
{
  g_autofree char *full = g_build_filename (WEFT_SOURCE_DIR, path, NULL);
  g_autoptr (GError) error = NULL;
  char *text = NULL;

  if (!g_file_get_contents (full, &text, NULL, &error))
    fail_msg ("%s", error->message);
  return text;
}

/* Calls `look` for every line of every file of code; it prints what is wrong and returns how
 * much. */
typedef int (*look_at_line) (const char *path, unsigned number, const char *line);

static void
look_at_code (look_at_line look)
{
  g_autoptr (GPtrArray) paths = all_files ();
  int wrong = 0;

  for (unsigned i = 0; i < paths->len; i++) {
    const char *path = g_ptr_array_index (paths, i);
    if (!is_code (path))
      continue;
    g_autofree char *text = read_file (path);
    g_auto (GStrv) lines = g_strsplit (text, "\n", -1);
    for (unsigned l = 0; lines[l]; l++)
      wrong += look (path, l + 1, lines[l]);
  }
  assert_int_equal (wrong, 0);
}

static char *
folder_of (const char *path)
{
  return g_strndup (path, strcspn (path, "/"));
}

/* The file that `#include "..."` names, or NULL. */
static char *
included (const char *line, const char *open, const char *close)
{
  g_autofree char *start = g_strconcat ("#include ", open, NULL);

  if (!g_str_has_prefix (line, start))
    return NULL;
  line += strlen (start);
  return g_strndup (line, strcspn (line, close));
}

/* --------------------------------------------------------------------- includes */

static int
folder_level (const char *folder)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (folders); i++)
    if (g_str_equal (folders[i].folder, folder))
      return folders[i].level;
  print_error ("%s/ holds code and has no level in tests/tree/test_structure.c\n", folder);
  return -1;
}

static int
looks_up (const char *path, unsigned number, const char *line)
{
  g_autofree char *file = included (line, "\"", "\"");

  if (!file)
    return 0;
  if (!strchr (file, '/')) /* beside the file itself */
    return 0;
  g_autofree char *from = folder_of (path), *to = folder_of (file);
  int mine = folder_level (from), other = folder_level (to);
  gboolean down = g_str_equal (from, to) || (other >= 0 && other < mine);
  if (!down)
    print_error ("%s:%u: %s/ must not include %s\n", path, number, from, file);
  return !down;
}

static void
includes_point_down_from_cli_to_core (void **state)
{
  (void) state;
  look_at_code (looks_up);
}

static int
core_level (const char *path)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (core_folders); i++)
    if (g_str_has_prefix (path, core_folders[i]))
      return (int) i;
  return -1;
}

static int
climbs (const char *path, unsigned number, const char *line)
{
  g_autofree char *file = included (line, "\"", "\"");

  if (!file || !g_str_has_prefix (path, "core/") || g_str_has_suffix (file, ".def"))
    return 0;
  int mine = core_level (path);
  gboolean wrong = mine < 0 || core_level (file) < 0 || core_level (file) > mine;
  if (wrong)
    print_error ("%s:%u: a file of core/ includes %s, which does not lie below it\n", path, number,
                 file);
  return wrong;
}

static void
files_of_core_include_their_own_level_or_lower (void **state)
{
  (void) state;
  look_at_code (climbs);
}

static int
leaks_simgrid (const char *path, unsigned number, const char *line)
{
  g_autofree char *file = included (line, "<", ">");
  gboolean wrong = file && !g_str_equal (path, "exec_sim/bridge.cc") &&
                   (g_str_has_prefix (file, "simgrid/") || g_str_has_prefix (file, "xbt/"));

  if (wrong)
    print_error ("%s:%u: SimGrid belongs behind exec_sim/bridge.h\n", path, number);
  return wrong;
}

static void
only_the_bridge_sees_simgrid (void **state)
{
  (void) state;
  look_at_code (leaks_simgrid);
}

static int
leaks_gpu (const char *path, unsigned number, const char *line)
{
  g_autofree char *file = included (line, "<", ">");
  gboolean wrong = file && !g_str_has_prefix (path, "exec_cuda/") &&
                   !g_str_has_prefix (path, "kernels/cuda/") &&
                   !g_str_equal (path, "tests/doubles/playing_cublaslt.c") && /* whose double it is */
                   !g_str_has_prefix (path, "tests/doubles/fake_") && /* which stand in for those libraries */
                   (g_str_has_prefix (file, "nccl") ||
                    (g_str_has_prefix (file, "cuda") && !g_str_has_suffix (path, ".cu")));

  if (wrong)
    print_error ("%s:%u: %s belongs to exec_cuda/\n", path, number, file);
  return wrong;
}

static void
only_the_cuda_executor_sees_cuda_and_nccl (void **state)
{
  (void) state;
  look_at_code (leaks_gpu);
}

/* With the compiler of this build and the flags of its libraries; CMake says both. */
static void
every_header_compiles_alone (void **state)
{
  g_autoptr (GPtrArray) paths = all_files ();
  g_autoptr (GString) command =
      g_string_new (WEFT_C_COMPILER " -std=gnu11 -fsyntax-only -Wall "
                                    "-I" WEFT_SOURCE_DIR " " WEFT_HEADER_FLAGS " -x c");
  g_autofree char *complaints = NULL;
  g_autoptr (GError) error = NULL;
  int status = 0;

  (void) state;
  for (unsigned i = 0; i < paths->len; i++)
    if (g_str_has_suffix (g_ptr_array_index (paths, i), ".h"))
      g_string_append_printf (command, " " WEFT_SOURCE_DIR "/%s",
                              (char *) g_ptr_array_index (paths, i));
  assert_true (g_spawn_command_line_sync (command->str, NULL, &complaints, &status, &error));
  /* gcc has something to say about #pragma once in what it takes for a main file. */
  g_auto (GStrv) lines = g_strsplit (complaints, "\n", -1);
  for (unsigned l = 0; lines[l]; l++)
    if (strstr (lines[l], "error:"))
      print_error ("%s\n", lines[l]);
  assert_int_equal (status, 0);
}

/* ------------------------------------------------------------------------ sizes */

static void
no_file_is_long (void **state)
{
  g_autoptr (GPtrArray) paths = all_files ();
  int wrong = 0;

  (void) state;
  for (unsigned i = 0; i < paths->len; i++) {
    const char *path = g_ptr_array_index (paths, i);
    unsigned lines = 0;
    if (!is_code (path))
      continue;
    g_autofree char *text = read_file (path);
    for (const char *c = text; *c; c++)
      lines += *c == '\n';
    if (lines > MOST_LINES) {
      print_error ("%s: %u lines, wanted at most %d\n", path, lines, MOST_LINES);
      wrong++;
    }
  }
  assert_int_equal (wrong, 0);
}

/* Braces of functions stand in the first column. */
static int
count_long_functions (const char *path, char *const *lines)
{
  unsigned start = 0;
  int wrong = 0;

  for (unsigned l = 0; lines[l]; l++) {
    if (lines[l][0] == '{')
      start = l;
    if (lines[l][0] != '}' || start == 0)
      continue;
    if (l - start - 1 > MOST_FUNCTION_LINES) {
      print_error ("%s:%u: a function of %u lines, wanted at most %d\n", path, start + 1,
                   l - start - 1, MOST_FUNCTION_LINES);
      wrong++;
    }
    start = 0;
  }
  return wrong;
}

static void
no_function_is_long (void **state)
{
  g_autoptr (GPtrArray) paths = all_files ();
  int wrong = 0;

  (void) state;
  for (unsigned i = 0; i < paths->len; i++) {
    const char *path = g_ptr_array_index (paths, i);
    if (!is_code (path))
      continue;
    g_autofree char *text = read_file (path);
    g_auto (GStrv) lines = g_strsplit (text, "\n", -1);
    wrong += count_long_functions (path, lines);
  }
  assert_int_equal (wrong, 0);
}

/* ------------------------------------------------------------------------ words */

static void
no_file_is_named_after_nothing (void **state)
{
  static const char *const empty[] = { "util", "common", "helper", "misc" };
  g_autoptr (GPtrArray) paths = all_files ();

  (void) state;
  for (unsigned i = 0; i < paths->len; i++)
    for (unsigned w = 0; w < G_N_ELEMENTS (empty); w++)
      if (strstr (g_ptr_array_index (paths, i), empty[w]))
        fail_msg ("%s: a file is named after what it holds", (char *) g_ptr_array_index (paths, i));
}

/* Written in pieces, so that this file does not hold them. */
static void
nothing_is_left_to_do_and_no_path_is_of_one_machine (void **state)
{
  static const char *const words[] = { "TO"
                                       "DO",
                                       "FIX"
                                       "ME",
                                       "/ho"
                                       "me/",
                                       "/wo"
                                       "rk/",
                                       "/ro"
                                       "ot/" };
  g_autoptr (GPtrArray) paths = all_files ();
  int wrong = 0;

  (void) state;
  for (unsigned i = 0; i < paths->len; i++) {
    g_autofree char *text = read_file (g_ptr_array_index (paths, i));
    for (unsigned w = 0; w < G_N_ELEMENTS (words); w++)
      if (strstr (text, words[w])) {
        print_error ("%s: holds \"%s\"\n", (char *) g_ptr_array_index (paths, i), words[w]);
        wrong++;
      }
  }
  assert_int_equal (wrong, 0);
}

/* ---------------------------------------------------------------------- READMEs */

/* Rows of all tables whose first head is `head`: cells without blanks and backquotes around them;
 * the array owns a GStrv for each row. */
static GPtrArray *
table_rows (const char *path, const char *head)
{
  GPtrArray *rows = g_ptr_array_new_with_free_func ((GDestroyNotify) g_strfreev);
  g_autofree char *text = read_file (path), *start = g_strdup_printf ("| %s |", head);
  g_auto (GStrv) lines = g_strsplit (text, "\n", -1);
  unsigned below = 0; /* lines of such a table so far */

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

/* Whether a file of code defines the function, or another file has the word. */
static gboolean
defines (const char *path, const char *name)
{
  g_autofree char *text = read_file (path), *word = g_regex_escape_string (name, -1);
  g_autofree char *pattern = g_str_has_suffix (path, ".c") || g_str_has_suffix (path, ".cc")
                                 ? g_strdup_printf ("^%s \\(", word)
                                 : g_strdup_printf ("\\b%s\\b", word);
  return g_regex_match_simple (pattern, text, G_REGEX_MULTILINE, 0);
}

/* Two walks, whose hops count from 0. */
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
  g_autoptr (GPtrArray) rows = table_rows ("README.md", "folder"), paths = all_files ();
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
    g_autofree char *top = folder_of (path);
    if (strchr (path, '/') && !g_hash_table_contains (known, top))
      fail_msg ("README.md: folder %s/ is not on the map", top);
  }
}

/* [text](target) of every page leads to a file of the tree. */
static void
links_between_pages_lead_somewhere (void **state)
{
  g_autoptr (GPtrArray) paths = all_files ();
  g_autoptr (GRegex) link = g_regex_new ("\\]\\(([^)#:]+)(#[^)]*)?\\)", 0, 0, NULL);

  (void) state;
  for (unsigned i = 0; i < paths->len; i++) {
    const char *path = g_ptr_array_index (paths, i);
    g_autoptr (GMatchInfo) match = NULL;
    if (!g_str_has_suffix (path, ".md"))
      continue;
    g_autofree char *text = read_file (path), *folder = g_path_get_dirname (path);
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
  g_autoptr (GPtrArray) paths = all_files ();
  g_autofree char *page = read_file ("core/README.md");

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

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (includes_point_down_from_cli_to_core),
  cmocka_unit_test (files_of_core_include_their_own_level_or_lower),
  cmocka_unit_test (only_the_bridge_sees_simgrid),
  cmocka_unit_test (only_the_cuda_executor_sees_cuda_and_nccl),
  cmocka_unit_test (every_header_compiles_alone),
  cmocka_unit_test (no_file_is_long),
  cmocka_unit_test (no_function_is_long),
  cmocka_unit_test (no_file_is_named_after_nothing),
  cmocka_unit_test (nothing_is_left_to_do_and_no_path_is_of_one_machine),
  cmocka_unit_test (every_hop_of_the_walks_is_where_the_readme_says),
  cmocka_unit_test (every_folder_of_the_map_exists_and_every_folder_is_on_it),
  cmocka_unit_test (links_between_pages_lead_somewhere),
  cmocka_unit_test (the_page_of_core_names_every_header),
};

WEFT_TESTS (tests)
