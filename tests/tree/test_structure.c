/* Includes of the source tree: folders have levels, libraries of others are seen in one place, and
 * every header compiles alone. */
#include "tests/runner/runner.h"
#include "tests/tree/source_files.h"
#include <glib.h>
#include <stdint.h>
#include <string.h>

/* Folders, lowest first: a file includes its own folder and lower ones.  Executors share one
 * level and never include one another. */
static const struct {
  const char *folder;
  int level;
} folders[] = {
  { "core", 0 },     { "kernels", 1 },   { "launch", 1 },  { "exec_sim", 2 },
  { "exec_cpu", 2 }, { "exec_cuda", 2 }, { "planner", 3 }, { "train", 3 },
  { "cli", 4 },      { "api", 4 },       { "tests", 5 },   { "bench", 5 },
};

/* Folders of core/, lowest first: a file includes only its own or lower ones. */
static const char *const core_folders[] = {
  "core/base/",   "core/cluster/", "core/schedule/", "core/job/",    "core/program/",
  "core/passes/", "core/plan/",    "core/exec/",     "core/report/",
};

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
  g_autofree char *from = source_folder (path), *to = source_folder (file);
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
  source_lines_each (looks_up);
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
  source_lines_each (climbs);
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
  source_lines_each (leaks_simgrid);
}

static int
leaks_gpu (const char *path, unsigned number, const char *line)
{
  g_autofree char *file = included (line, "<", ">");
  gboolean wrong =
      file && !g_str_has_prefix (path, "exec_cuda/") && !g_str_has_prefix (path, "kernels/cuda/") &&
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
  source_lines_each (leaks_gpu);
}

/* With the compiler of this build and the flags of its libraries; CMake says both. */
static void
every_header_compiles_alone (void **state)
{
  g_autoptr (GPtrArray) paths = source_files ();
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

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (includes_point_down_from_cli_to_core),
  cmocka_unit_test (files_of_core_include_their_own_level_or_lower),
  cmocka_unit_test (only_the_bridge_sees_simgrid),
  cmocka_unit_test (only_the_cuda_executor_sees_cuda_and_nccl),
  cmocka_unit_test (every_header_compiles_alone),
};

WEFT_TESTS (tests)
