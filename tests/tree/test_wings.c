/* The wings (subfolders) of core/passes. The table in core/README.md assigns a floor to each wing,
 * and its public and private headers. A wing includes and calls only its own and lower floors;
 * private headers are included only in their own wing. Files of the other folders of core form no
 * circle of calls. */
#include "tests/runner/runner.h"
#include "tests/tree/source_files.h"
#include <glib.h>
#include <string.h>

#define PASSES "core/passes/"

/* A row of the table of wings in core/README.md, lowest floor first. Files directly in core/passes
 * belong to the last row, which the table calls the roof. */
struct wing {
  char *folder;        /* folder of the wing: "emit/"; "" for the roof */
  char *open, *closed; /* the wing's public and private headers, as in the table: "`a.h`, `b.h`" */
};

static void
free_wing (gpointer wing)
{
  struct wing *w = wing;

  g_free (w->folder);
  g_free (w->open);
  g_free (w->closed);
  g_free (w);
}

static GPtrArray *
read_wings (void)
{
  GPtrArray *wings = g_ptr_array_new_with_free_func (free_wing);
  g_autofree char *page = source_text ("core/README.md");
  g_auto (GStrv) lines = g_strsplit (page, "\n", -1);

  for (unsigned l = 0; lines[l]; l++) {
    g_autofree char *start = g_strdup_printf ("| %u |", wings->len);
    if (!g_str_has_prefix (lines[l], start))
      continue;
    g_auto (GStrv) cells = g_strsplit (lines[l], "|", -1);
    g_auto (GStrv) names = g_strsplit (cells[2], "`", -1);
    struct wing *w = g_new (struct wing, 1);
    w->folder = g_strdup (g_str_has_suffix (names[1], "/") ? names[1] : "");
    w->open = g_strdup (cells[3]);
    w->closed = g_strdup (cells[4]);
    g_ptr_array_add (wings, w);
  }
  assert_true (wings->len > 5);
  return wings;
}

/* Returns the floor of a file of core/passes, or -1 if the file is in no wing. */
static int
floor_of (const GPtrArray *wings, const char *path)
{
  const char *rest = path + strlen (PASSES);

  for (unsigned i = 0; i < wings->len; i++) {
    const struct wing *w = g_ptr_array_index (wings, i);
    if (*w->folder ? g_str_has_prefix (rest, w->folder) : !strchr (rest, '/'))
      return (int) i;
  }
  return -1;
}

static gboolean
lists (const char *headers, const char *path)
{
  g_autofree char *base = g_path_get_basename (path), *name = g_strdup_printf ("`%s`", base);
  return strstr (headers, name) != NULL;
}

/* Returns the paths of the .c and .h files in `folder` and its subfolders. */
static GPtrArray *
files_of (const char *folder)
{
  g_autoptr (GPtrArray) all = source_files ();
  GPtrArray *paths = g_ptr_array_new_with_free_func (g_free);

  for (unsigned i = 0; i < all->len; i++) {
    const char *path = g_ptr_array_index (all, i);
    if (g_str_has_prefix (path, folder) &&
        (g_str_has_suffix (path, ".c") || g_str_has_suffix (path, ".h")))
      g_ptr_array_add (paths, g_strdup (path));
  }
  assert_true (paths->len > 5);
  return paths;
}

static void
every_file_is_in_a_wing_and_every_header_in_the_table (void **state)
{
  g_autoptr (GPtrArray) wings = read_wings (), paths = files_of (PASSES);

  (void) state;
  for (unsigned i = 0; i < paths->len; i++) {
    const char *path = g_ptr_array_index (paths, i);
    int at = floor_of (wings, path);
    if (at < 0)
      fail_msg ("core/README.md: the table of wings has no folder for %s", path);
    const struct wing *w = g_ptr_array_index (wings, at);
    if (g_str_has_suffix (path, ".h") && lists (w->open, path) == lists (w->closed, path))
      fail_msg ("core/README.md: %s is either a public or a private header of its wing", path);
  }
}

/* ------------------------------------------------------------------------ includes */

/* Returns the rule of wings that forbids `path` to include `file` of core/passes; NULL: no rule
 * does. */
static const char *
objection (const GPtrArray *wings, const char *path, const char *file)
{
  int to = floor_of (wings, file);
  gboolean inside = g_str_has_prefix (path, PASSES);
  int from = inside ? floor_of (wings, path) : (int) wings->len;

  if (to < 0 || from < 0)
    return "is in no wing";
  if (to > from)
    return "lies above it";
  if (to != from && lists (((struct wing *) g_ptr_array_index (wings, to))->closed, file))
    return "is private to another wing";
  return NULL;
}

static int
count_wrong_includes (const GPtrArray *wings, const char *path)
{
  g_autofree char *text = source_text (path);
  g_auto (GStrv) lines = g_strsplit (text, "\n", -1);
  const char *start = "#include \"";
  int wrong = 0;

  for (unsigned l = 0; lines[l]; l++) {
    if (!g_str_has_prefix (lines[l], start))
      continue;
    const char *name = lines[l] + strlen (start);
    g_autofree char *file = g_strndup (name, strcspn (name, "\""));
    if (!g_str_has_prefix (file, PASSES))
      continue;
    const char *why = objection (wings, path, file);
    if (why)
      print_error ("%s:%u: includes %s, which %s\n", path, l + 1, file, why);
    wrong += why != NULL;
  }
  return wrong;
}

static void
includes_of_wings_point_down_and_private_headers_stay_inside (void **state)
{
  g_autoptr (GPtrArray) wings = read_wings (), paths = files_of ("");
  int wrong = 0;

  (void) state;
  for (unsigned i = 0; i < paths->len; i++)
    wrong += count_wrong_includes (wings, g_ptr_array_index (paths, i));
  assert_int_equal (wrong, 0);
}

/* --------------------------------------------------------------------------- calls */

/* Returns the code of a file without comments and strings. */
static char *
code_of (const char *path)
{
  g_autofree char *text = source_text (path);
  g_autoptr (GRegex) regex =
      g_regex_new ("/\\*.*?\\*/|\"(\\\\.|[^\"\\\\\\n])*\"", G_REGEX_DOTALL, 0, NULL);
  return g_regex_replace_literal (regex, text, -1, 0, " ", 0, NULL);
}

/* Called for every match of a pattern; `name` is the text of its first group. Returns the number of
 * errors. */
typedef int (*look_at_name) (const char *path, const char *name, gpointer data);

static int
look_at_names (const char *path, const char *pattern, look_at_name look, gpointer data)
{
  g_autofree char *code = code_of (path);
  g_autoptr (GRegex) regex = g_regex_new (pattern, G_REGEX_MULTILINE, 0, NULL);
  g_autoptr (GMatchInfo) match = NULL;
  int sum = 0;

  for (g_regex_match (regex, code, 0, &match); g_match_info_matches (match);
       g_match_info_next (match, NULL)) {
    g_autofree char *name = g_match_info_fetch (match, 1);
    sum += look (path, name, data);
  }
  return sum;
}

/* What the searches for calls need: the wings, a map from the name of a function to the file that
 * defines it, and a map from a file to the set of other files that it calls. */
struct calls {
  const GPtrArray *wings;
  GHashTable *defined, *called;
};

static int
note_definition (const char *path, const char *name, gpointer data)
{
  struct calls *calls = data;

  g_hash_table_replace (calls->defined, g_strdup (name), g_strdup (path));
  return 1;
}

static int
is_upward (const char *path, const char *name, gpointer data)
{
  struct calls *calls = data;
  const char *other = g_hash_table_lookup (calls->defined, name);
  gboolean up = other && floor_of (calls->wings, other) > floor_of (calls->wings, path);

  if (up)
    print_error ("%s calls %s() of %s, which lies above it\n", path, name, other);
  return up;
}

/* A definition is a line that begins with the function's name. Any use of the name counts as a
 * call. */
static void
calls_between_wings_point_down (void **state)
{
  g_autoptr (GPtrArray) wings = read_wings (), paths = files_of (PASSES);
  g_autoptr (GHashTable) defined = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, g_free);
  struct calls calls = { wings, defined, NULL };
  int wrong = 0, n = 0;

  (void) state;
  for (unsigned i = 0; i < paths->len; i++)
    n += look_at_names (g_ptr_array_index (paths, i), "^(weft_\\w+) \\(", note_definition, &calls);
  assert_true (n > 200);
  for (unsigned i = 0; i < paths->len; i++)
    wrong += look_at_names (g_ptr_array_index (paths, i), "\\b(weft_\\w+)", is_upward, &calls);
  assert_int_equal (wrong, 0);
}

/* ------------------------------------------------------------------------ circles */

static int
note_call (const char *path, const char *name, gpointer data)
{
  struct calls *calls = data;
  const char *other = g_hash_table_lookup (calls->defined, name);

  if (!other || g_str_equal (other, path))
    return 0;
  GHashTable *called = g_hash_table_lookup (calls->called, path);
  g_hash_table_add (called, (gpointer) other);
  return 1;
}

/* Whether a file calls no file of `calls->called` any more. */
static gboolean
calls_nothing (const struct calls *calls, GHashTable *called)
{
  GHashTableIter at;
  gpointer other;

  g_hash_table_iter_init (&at, called);
  while (g_hash_table_iter_next (&at, &other, NULL))
    if (g_hash_table_contains (calls->called, other))
      return FALSE;
  return TRUE;
}

/* Removes files that call no remaining file, until no more can be removed. The files that remain
 * are in circles, or call files in circles. */
static void
remove_files_without_circle (const struct calls *calls)
{
  GHashTableIter at;
  gpointer called;
  gboolean removed = TRUE;

  while (removed) {
    removed = FALSE;
    g_hash_table_iter_init (&at, calls->called);
    while (g_hash_table_iter_next (&at, NULL, &called))
      if (calls_nothing (calls, called)) {
        g_hash_table_iter_remove (&at);
        removed = TRUE;
      }
  }
}

static int
count_files_in_circles (const GPtrArray *paths)
{
  g_autoptr (GHashTable) defined = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, g_free);
  g_autoptr (GHashTable) called =
      g_hash_table_new_full (g_str_hash, g_str_equal, NULL, (GDestroyNotify) g_hash_table_unref);
  struct calls calls = { NULL, defined, called };
  GHashTableIter at;
  gpointer path;

  for (unsigned i = 0; i < paths->len; i++) {
    g_hash_table_insert (called, paths->pdata[i], g_hash_table_new (g_str_hash, g_str_equal));
    look_at_names (paths->pdata[i], "^(weft_\\w+) \\(", note_definition, &calls);
  }
  for (unsigned i = 0; i < paths->len; i++)
    if (g_str_has_suffix (paths->pdata[i], ".c"))
      look_at_names (paths->pdata[i], "\\b(weft_\\w+)", note_call, &calls);
  remove_files_without_circle (&calls);
  g_hash_table_iter_init (&at, called);
  while (g_hash_table_iter_next (&at, &path, NULL))
    print_error ("%s is in a circle of calls, or calls a file that is\n", (char *) path);
  return (int) g_hash_table_size (called);
}

/* Two files of core/plan, plan.c and software.c, call each other; files of a wing may. */
static void
calls_of_other_folders_of_core_form_no_circle (void **state)
{
  static const char *const folders[] = { "core/base/",       "core/cluster/", "core/schedule/",
                                         "core/collective/", "core/job/",     "core/program/",
                                         "core/exec/",       "core/report/" };
  int wrong = 0;

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (folders); i++) {
    g_autoptr (GPtrArray) paths = files_of (folders[i]);
    wrong += count_files_in_circles (paths);
  }
  assert_int_equal (wrong, 0);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_file_is_in_a_wing_and_every_header_in_the_table),
  cmocka_unit_test (includes_of_wings_point_down_and_private_headers_stay_inside),
  cmocka_unit_test (calls_between_wings_point_down),
  cmocka_unit_test (calls_of_other_folders_of_core_form_no_circle),
};

WEFT_TESTS (tests)
