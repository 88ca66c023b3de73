#include "tests/tree/source_files.h"
#include "tests/runner/runner.h"
#include <string.h>

gboolean
source_is_code (const char *path)
{
  return g_str_has_suffix (path, ".c") || g_str_has_suffix (path, ".h") ||
         g_str_has_suffix (path, ".cc") || g_str_has_suffix (path, ".cu");
}

/* Whether a path is code, a page, a build file, or in a folder with data. The tests ignore all
 * other files, such as outputs of runs. */
static gboolean
is_source (const char *path)
{
  static const char *const data[] = { "models/", "sites/", "stacks/", "tests/", "topologies/",
                                      "validation/" };
  static const char *const names[] = {
    ".cuh", ".def", ".md", "CMakeLists.txt", "CMakePresets.json", "weft", ".ci/run"
  };

  for (unsigned i = 0; i < G_N_ELEMENTS (data); i++)
    if (g_str_has_prefix (path, data[i]))
      return TRUE;
  for (unsigned i = 0; i < G_N_ELEMENTS (names); i++)
    if (g_str_has_suffix (path, names[i]))
      return TRUE;
  return source_is_code (path);
}

/* Adds the source files in `folder` and its subfolders. Leaves out built files, hidden files
 * (except .ci/), inputs of fuzz targets and the source of others. */
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
        g_str_equal (path, "tests/fuzz/inputs") || g_str_equal (path, "interop/tomlc17"))
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

GPtrArray *
source_files (void)
{
  GPtrArray *paths = g_ptr_array_new_with_free_func (g_free);

  collect (paths, "");
  g_ptr_array_sort (paths, compare_paths);
  assert_true (paths->len > 100);
  return paths;
}

char *
source_text (const char *path)
{
  g_autofree char *full = g_build_filename (WEFT_SOURCE_DIR, path, NULL);
  g_autoptr (GError) error = NULL;
  char *text = NULL;

  if (!g_file_get_contents (full, &text, NULL, &error))
    fail_msg ("%s", error->message);
  return text;
}

void
source_lines_each (source_line_check look)
{
  g_autoptr (GPtrArray) paths = source_files ();
  int wrong = 0;

  for (unsigned i = 0; i < paths->len; i++) {
    const char *path = g_ptr_array_index (paths, i);
    if (!source_is_code (path))
      continue;
    g_autofree char *text = source_text (path);
    g_auto (GStrv) lines = g_strsplit (text, "\n", -1);
    for (unsigned l = 0; lines[l]; l++)
      wrong += look (path, l + 1, lines[l]);
  }
  assert_int_equal (wrong, 0);
}

char *
source_folder (const char *path)
{
  return g_strndup (path, strcspn (path, "/"));
}
