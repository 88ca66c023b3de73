/* Includes of the source tree: folders have levels, headers of a third-party library are included
 * in one place only, every type has a name of its own, and every header compiles alone. */
#include "tests/runner/runner.h"
#include "tests/tree/source_files.h"
#include <glib.h>
#include <stdint.h>
#include <string.h>

/* Folders of the source tree, lowest first. A file may include files of its own folder and of lower
 * folders. Executors share one level and never include one another. */
static const struct {
  const char *folder;
  int level;
} folders[] = {
  { "core", 0 },     { "kernels", 1 },  { "launch", 1 },  { "interop", 1 }, { "charts", 1 },
  { "exec_sim", 2 },   { "exec_cpu", 2 }, { "exec_gpu", 2 }, { "planner", 3 }, { "train", 3 },
  { "cli", 4 },      { "api", 4 },       { "tests", 5 },   { "bench", 5 },
};

/* Folders of core/, lowest first. A file may include only files of its own folder or of lower
 * folders. */
static const char *const core_folders[] = {
  "core/base/",    "core/cluster/", "core/schedule/", "core/collective/", "core/job/",
  "core/program/", "core/passes/",  "core/plan/",     "core/exec/",       "core/report/",
};

/* Files of each executor, lowest level first. A file includes only those headers of its folder that
 * have its own level or a lower one, so that there is no include cycle. */
static const struct {
  const char *folder;
  const char *file[20];
} executors[] = {
  { "exec_cpu/",
    { "cpu_options", "machine", "arena", "ready", "launch", "collectives", "lanes", "exec_cpu" } },
  { "exec_gpu/",
    { "shared", "calls", "gpu_options", "launches", "machine", "script", "comm", "watchdog",
      "counted", "arena", "staging", "order", "comms", "collectives", "emit", "issue", "reserved",
      "traced", "step", "exec_gpu" } },
};

/* Returns the file name in an #include line, between the characters `open` and `close`, or NULL if
 * the line is no #include of this form. The caller frees the name. */
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
  if (!strchr (file, '/')) /* a header of the including file's folder, which may be included */
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

/* Returns the level of executors[at].folder/NAME.c or .h, or -1 if the file is not listed. */
static int
executor_level (unsigned at, const char *path)
{
  const char *name = path + strlen (executors[at].folder);
  g_autofree char *base = g_strndup (name, strcspn (name, "."));

  for (int i = 0; executors[at].file[i]; i++)
    if (g_str_equal (base, executors[at].file[i]))
      return i;
  return -1;
}

static int
closes_a_circle (const char *path, unsigned number, const char *line)
{
  g_autofree char *file = included (line, "\"", "\"");
  int wrong = 0;

  for (unsigned at = 0; file && at < G_N_ELEMENTS (executors); at++) {
    const char *folder = executors[at].folder;
    if (!g_str_has_prefix (path, folder) || strchr (path + strlen (folder), '/'))
      continue;
    int mine = executor_level (at, path);
    gboolean inside = g_str_has_prefix (file, folder);
    wrong += mine < 0 || (inside && (executor_level (at, file) < 0 ||
                                     executor_level (at, file) > mine));
  }
  if (wrong)
    print_error ("%s:%u: includes %s, which is no lower level of its executor\n", path, number,
                 file);
  return wrong;
}

static void
files_of_an_executor_have_no_circle (void **state)
{
  (void) state;
  source_lines_each (closes_a_circle);
}

/* Counts names of a vendor (CUDA, HIP) in a line of a file directly in exec_gpu/. Such files are
 * for all vendors. */
static int
names_a_vendor (const char *path, unsigned number, const char *line)
{
  static const char *const words[] = { "cuda_", "CUDA_", "hip_", "kernels/cuda", "exec_gpu/cuda/" };
  gboolean neutral = g_str_has_prefix (path, "exec_gpu/") && !strchr (path + 9, '/');
  g_autofree char *code = g_strndup (line, strcspn (line, "*"));
  int wrong = 0;

  for (unsigned i = 0; neutral && i < G_N_ELEMENTS (words); i++)
    wrong += strstr (code, words[i]) != NULL;
  if (wrong)
    print_error ("%s:%u: names a vendor, whose folder is exec_gpu/VENDOR/\n", path, number);
  return wrong;
}

static void
the_neutral_half_of_the_gpu_executor_names_no_vendor (void **state)
{
  (void) state;
  source_lines_each (names_a_vendor);
}

/* Returns the word behind `prefix` in a line if it is the name of a vendor's folder in exec_gpu/;
 * otherwise NULL. */
static char *
vendor_after (const char *line, const char *prefix)
{
  const char *at = strstr (line, prefix), *name = at ? at + strlen (prefix) : "";
  g_autofree char *word = g_strndup (name, strspn (name, "abcdefghijklmnopqrstuvwxyz"));
  g_autofree char *folder = g_build_filename (WEFT_SOURCE_DIR, "exec_gpu", word, NULL);

  return *word && g_file_test (folder, G_FILE_TEST_IS_DIR) ? g_steal_pointer (&word) : NULL;
}

/* Whether a file may name the executor of a vendor. Allowed are tests, benchmarks, the table of
 * executors, and files of the vendor's folder. */
static gboolean
may_name_vendor (const char *path, const char *vendor)
{
  g_autofree char *folder = g_strdup_printf ("exec_gpu/%s/", vendor);

  return g_str_has_prefix (path, "tests/") || g_str_has_prefix (path, "bench/") ||
         g_str_equal (path, "cli/executors.c") || g_str_has_prefix (path, folder);
}

static int
names_an_executor_of_gpus (const char *path, unsigned number, const char *line)
{
  g_autofree char *included_of = vendor_after (line, "#include \"exec_gpu/");
  g_autofree char *named = vendor_after (line, "weft_exec_");
  const char *vendor = included_of ? included_of : named;

  if (!vendor || may_name_vendor (path, vendor))
    return 0;
  print_error ("%s:%u: names the executor of %s, which cli/executors.c alone does\n", path, number,
               vendor);
  return 1;
}

static void
only_the_list_of_executors_names_that_of_a_vendor (void **state)
{
  (void) state;
  source_lines_each (names_an_executor_of_gpus);
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

/* Whether `file` is a header of CUDA, NCCL, HIP or RCCL. */
static gboolean
is_of_a_vendor (const char *path, const char *file)
{
  return g_str_has_prefix (file, "nccl") || g_str_has_prefix (file, "rccl") ||
         g_str_has_prefix (file, "hip/") ||
         (g_str_has_prefix (file, "cuda") && !g_str_has_suffix (path, ".cu"));
}

static int
leaks_gpu (const char *path, unsigned number, const char *line)
{
  static const char *const vendors = "^(exec_gpu/[a-z]+/module|kernels/[a-z]+)/";
  g_autofree char *file = included (line, "<", ">");
  gboolean wrong =
      file && is_of_a_vendor (path, file) && !g_regex_match_simple (vendors, path, 0, 0) &&
      /* the double of cuBLASLt may include its header */
      !g_str_equal (path, "tests/doubles/playing_cublaslt.c") &&
      /* the doubles of CUDA and NCCL may include the headers of CUDA and NCCL */
      !g_str_has_prefix (path, "tests/doubles/fake_");

  if (wrong)
    print_error ("%s:%u: %s belongs to exec_gpu/VENDOR/module/\n", path, number, file);
  return wrong;
}

static void
only_a_vendors_module_sees_its_headers (void **state)
{
  (void) state;
  source_lines_each (leaks_gpu);
}

/* ---------------------------------------------------------------------- headers */

/* Records the struct, enum or union with prefix weft_ that a line of a header defines. Counts it if
 * another header defines one of this name. `defined`: name -> header. */
static int
defines_twice (GHashTable *defined, const char *path, const char *line)
{
  g_autoptr (GMatchInfo) match = NULL;
  g_autoptr (GRegex) regex =
      g_regex_new ("^(?:typedef )?(?:struct|enum|union) (weft_\\w+) \\{", 0, 0, NULL);

  if (!g_regex_match (regex, line, 0, &match))
    return 0;
  g_autofree char *name = g_match_info_fetch (match, 1);
  const char *other = g_hash_table_lookup (defined, name);
  if (other && !g_str_equal (other, path)) {
    print_error ("%s and %s both define %s\n", other, path, name);
    return 1;
  }
  g_hash_table_replace (defined, g_steal_pointer (&name), g_strdup (path));
  return 0;
}

static void
every_type_has_a_name_of_its_own (void **state)
{
  g_autoptr (GHashTable) defined = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, g_free);
  g_autoptr (GPtrArray) paths = source_files ();
  int wrong = 0;

  (void) state;
  for (unsigned i = 0; i < paths->len; i++) {
    const char *path = g_ptr_array_index (paths, i);
    if (!g_str_has_suffix (path, ".h"))
      continue;
    g_autofree char *text = source_text (path);
    g_auto (GStrv) lines = g_strsplit (text, "\n", -1);
    for (unsigned l = 0; lines[l]; l++)
      wrong += defines_twice (defined, path, lines[l]);
  }
  assert_int_equal (wrong, 0);
}

/* Returns the header that a file includes before everything else except comments, or NULL. The
 * caller frees the name. */
static char *
included_first (const char *path)
{
  g_autofree char *text = source_text (path);
  const char *at = text;

  while (g_str_has_prefix (at, "/*") || g_ascii_isspace (*at)) {
    const char *end = *at == '/' ? strstr (at, "*/") : NULL;
    at = end ? end + 2 : at + 1;
  }
  return included (at, "\"", "\"");
}

/* Returns the set of headers that the build compiles alone: those that a compiled C file includes
 * first. */
static GHashTable *
compiled_by_the_build (GPtrArray *paths)
{
  GHashTable *headers = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL);
  g_autofree char *commands = NULL;

  assert_true (
      g_file_get_contents (WEFT_BUILD_DIR "/compile_commands.json", &commands, NULL, NULL));
  for (unsigned i = 0; i < paths->len; i++) {
    const char *path = g_ptr_array_index (paths, i);
    g_autofree char *file = g_strconcat ("\"file\": \"" WEFT_SOURCE_DIR "/", path, "\"", NULL);
    char *header =
        g_str_has_suffix (path, ".c") && strstr (commands, file) ? included_first (path) : NULL;
    if (header)
      g_hash_table_add (headers, header);
  }
  return headers;
}

/* Runs the compiler of this build, with the include flags of its libraries, which CMake defines.
 * Returns the wait status. */
static int
compile (const char *words)
{
  g_autofree char *command =
      g_strconcat (WEFT_C_COMPILER " -std=gnu11 -Wall -I" WEFT_SOURCE_DIR " " WEFT_HEADER_FLAGS " ",
                   words, NULL);
  g_autofree char *complaints = NULL;
  g_autoptr (GError) error = NULL;
  int status = -1;

  assert_true (g_spawn_command_line_sync (command, NULL, &complaints, &status, &error));
  /* Warnings are dropped: gcc warns about #pragma once if a header is compiled by itself. */
  g_auto (GStrv) lines = g_strsplit (complaints, "\n", -1);
  for (unsigned l = 0; lines[l]; l++)
    if (strstr (lines[l], "error:"))
      print_error ("%s\n", lines[l]);
  return status;
}

static void
every_header_compiles_alone (void **state)
{
  g_autoptr (GPtrArray) paths = source_files ();
  g_autoptr (GHashTable) compiled = compiled_by_the_build (paths);
  g_autoptr (GString) words = g_string_new ("-fsyntax-only -x c");
  unsigned n = 0;

  (void) state;
  for (unsigned i = 0; i < paths->len; i++) {
    const char *path = g_ptr_array_index (paths, i);
    if (!g_str_has_suffix (path, ".h"))
      continue;
    n++;
    if (!g_hash_table_contains (compiled, path))
      g_string_append_printf (words, " " WEFT_SOURCE_DIR "/%s", path);
  }
  assert_in_range (g_hash_table_size (compiled), 1, n - 1);
  assert_int_equal (compile (words->str), 0);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (includes_point_down_from_cli_to_core),
  cmocka_unit_test (files_of_core_include_their_own_level_or_lower),
  cmocka_unit_test (files_of_an_executor_have_no_circle),
  cmocka_unit_test (the_neutral_half_of_the_gpu_executor_names_no_vendor),
  cmocka_unit_test (only_the_list_of_executors_names_that_of_a_vendor),
  cmocka_unit_test (only_the_bridge_sees_simgrid),
  cmocka_unit_test (only_a_vendors_module_sees_its_headers),
  cmocka_unit_test (every_type_has_a_name_of_its_own),
  cmocka_unit_test (every_header_compiles_alone),
};

WEFT_TESTS (tests, .seconds = 7)
