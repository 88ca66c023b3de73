/* Lengths of files, functions and lines, names of files, and words that no file may contain. */
#include "tests/runner/runner.h"
#include "tests/tree/source_files.h"
#include <string.h>

#define MOST_LINES 900
#define MOST_FUNCTION_LINES 90
#define MOST_COLUMNS 100

/* Whether the lengths of this file and of its lines are limited. Pages and data files are
 * exempt. */
static gboolean
is_limited (const char *path)
{
  return source_is_code (path) || g_str_has_suffix (path, ".cuh") ||
         g_str_has_suffix (path, ".hh") || g_str_has_suffix (path, ".def");
}

static void
no_file_is_long (void **state)
{
  g_autoptr (GPtrArray) paths = source_files ();
  int wrong = 0;

  (void) state;
  for (unsigned i = 0; i < paths->len; i++) {
    const char *path = g_ptr_array_index (paths, i);
    unsigned lines = 0;
    if (!is_limited (path))
      continue;
    g_autofree char *text = source_text (path);
    for (const char *c = text; *c; c++)
      lines += *c == '\n';
    if (lines > MOST_LINES) {
      print_error ("%s: %u lines, wanted at most %d\n", path, lines, MOST_LINES);
      wrong++;
    }
  }
  assert_int_equal (wrong, 0);
}

/* Finds functions by their braces, which are in the first column. */
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
  g_autoptr (GPtrArray) paths = source_files ();
  int wrong = 0;

  (void) state;
  for (unsigned i = 0; i < paths->len; i++) {
    const char *path = g_ptr_array_index (paths, i);
    if (!source_is_code (path))
      continue;
    g_autofree char *text = source_text (path);
    g_auto (GStrv) lines = g_strsplit (text, "\n", -1);
    wrong += count_long_functions (path, lines);
  }
  assert_int_equal (wrong, 0);
}

/* ------------------------------------------------------------------------ lines */

static unsigned
count_long_lines (const char *path)
{
  g_autofree char *text = source_text (path);
  g_auto (GStrv) lines = g_strsplit (text, "\n", -1);
  unsigned n = 0;

  for (unsigned l = 0; lines[l]; l++) {
    glong columns = g_utf8_strlen (lines[l], -1);
    if (columns <= MOST_COLUMNS)
      continue;
    n++;
    print_error ("%s:%u: %ld columns, wanted at most %d\n", path, l + 1, columns, MOST_COLUMNS);
  }
  return n;
}

static void
no_line_is_long (void **state)
{
  g_autoptr (GPtrArray) paths = source_files ();
  unsigned wrong = 0;

  (void) state;
  for (unsigned i = 0; i < paths->len; i++) {
    const char *path = g_ptr_array_index (paths, i);
    if (is_limited (path))
      wrong += count_long_lines (path);
  }
  assert_int_equal (wrong, 0);
}

/* ------------------------------------------------------------------------ words */

static void
no_file_is_named_after_nothing (void **state)
{
  static const char *const empty[] = { "util", "common", "helper", "misc" };
  g_autoptr (GPtrArray) paths = source_files ();

  (void) state;
  for (unsigned i = 0; i < paths->len; i++)
    for (unsigned w = 0; w < G_N_ELEMENTS (empty); w++)
      if (strstr (g_ptr_array_index (paths, i), empty[w]))
        fail_msg ("%s: a file is named after what it holds", (char *) g_ptr_array_index (paths, i));
}

/* No source file contains a mark of unfinished work or a path of one machine. The words are written
 * here in two parts, so that this file does not contain them itself. */
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
  g_autoptr (GPtrArray) paths = source_files ();
  int wrong = 0;

  (void) state;
  for (unsigned i = 0; i < paths->len; i++) {
    g_autofree char *text = source_text (g_ptr_array_index (paths, i));
    for (unsigned w = 0; w < G_N_ELEMENTS (words); w++)
      if (strstr (text, words[w])) {
        print_error ("%s: holds \"%s\"\n", (char *) g_ptr_array_index (paths, i), words[w]);
        wrong++;
      }
  }
  assert_int_equal (wrong, 0);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (no_file_is_long),
  cmocka_unit_test (no_function_is_long),
  cmocka_unit_test (no_line_is_long),
  cmocka_unit_test (no_file_is_named_after_nothing),
  cmocka_unit_test (nothing_is_left_to_do_and_no_path_is_of_one_machine),
};

WEFT_TESTS (tests)
