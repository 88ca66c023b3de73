/* The main() of every room (folder of tests, tests/README.md):
 *
 *   test_ROOM NAME                     runs all tests of tests/ROOM/test_NAME.c
 *   test_ROOM NAME FUNCTION            runs the test FUNCTION of this file; `*` matches any letters
 *   test_ROOM NAME [FUNCTION] -- WORDS passes WORDS to `begin` of the file (runner.h)
 *   test_ROOM                          prints the names of files and their tests
 *
 * The environment variable WEFT_TEST_FUNCTION sets FUNCTION too, because ctest passes no arguments.
 * With WEFT_TEST_LONG, long tests run all of their cases (runner.h).
 *
 * Exit status: 0 all passed; 2 no such file or function; otherwise the number of failures. */
#include "tests/runner/runner.h"
#include "core/base/suggest.h"
#include <glib.h>
#include <string.h>
#include <sys/resource.h>

static struct weft_tests *files;
static const char *running;

const char *
weft_tests_running (void)
{
  return running;
}

bool
weft_tests_long (void)
{
  return g_getenv ("WEFT_TEST_LONG") != NULL;
}

uint32_t
weft_tests_cases (uint32_t usual, uint32_t all)
{
  return weft_tests_long () ? all : usual;
}

void
weft_tests_read_draw (int argc, char **argv, struct weft_tests_draw *draw)
{
  if (argc > 1)
    draw->seed = (uint32_t) g_ascii_strtoull (argv[1], NULL, 10);
  if (argc > 2)
    draw->jobs = (uint32_t) g_ascii_strtoull (argv[2], NULL, 10);
}

/* Returns the NAME of a test file: "layout" for "tests/core/test_layout.c". The caller frees it. */
static char *
name_of (const struct weft_tests *file)
{
  const char *base = strrchr (file->source, '/');

  base = (base ? base + 1 : file->source) + strlen ("test_");
  return g_strndup (base, strcspn (base, "."));
}

/* Inserts a test file into the list of files, which is sorted by path. Constructors run in no
 * defined order, so the order of calls cannot be used. */
void
weft_tests_register (struct weft_tests *file)
{
  struct weft_tests **at = &files;

  while (*at && strcmp ((*at)->source, file->source) < 0)
    at = &(*at)->next;
  file->next = *at;
  *at = file;
}

/* Prints that `typed` is not a name in `known`, and suggests the nearest name. */
static void
complain (const char *typed, const char *wanted, GPtrArray *known)
{
  g_ptr_array_add (known, NULL);
  const char *near = weft_suggest_strv (typed, (const char *const *) known->pdata);
  g_printerr ("found \"%s\", wanted %s", typed, wanted);
  if (near)
    g_printerr ("; did you mean %s?", near);
  g_printerr ("\n");
}

static const struct weft_tests *
find_file (const char *name)
{
  g_autoptr (GPtrArray) known = g_ptr_array_new_with_free_func (g_free);

  for (const struct weft_tests *f = files; f; f = f->next) {
    g_ptr_array_add (known, name_of (f));
    if (g_str_equal (g_ptr_array_index (known, known->len - 1), name))
      return f;
  }
  complain (name, "a file of tests", known);
  return NULL;
}

/* Whether the name of a test of this file matches `pattern`. Also TRUE for a file whose table of
 * tests is made at run time. */
static gboolean
has_function (const struct weft_tests *file, const char *pattern)
{
  g_autoptr (GPtrArray) known = g_ptr_array_new ();

  for (size_t i = 0; i < file->n; i++) {
    g_ptr_array_add (known, (char *) file->table[i].name);
    if (g_pattern_match_simple (pattern, file->table[i].name))
      return TRUE;
  }
  if (file->n)
    complain (pattern, "a test of this file", known);
  return file->n == 0;
}

static int
list_tests (void)
{
  for (const struct weft_tests *f = files; f; f = f->next) {
    g_autofree char *name = name_of (f);
    g_print ("%s\n", name);
    for (size_t i = 0; i < f->n; i++)
      g_print ("  %s\n", f->table[i].name);
  }
  return 0;
}

static double
seconds_of (int who)
{
  struct rusage use;

  getrusage (who, &use);
  return (double) (use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
         1e-6 * (double) (use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

static int
run (const struct weft_tests *file, int argc, char **argv)
{
  int status = file->begin ? file->begin (argc, argv) : WEFT_TESTS_RUN;

  if (status == WEFT_TESTS_RUN)
    status = _cmocka_run_group_tests (running, file->table, file->n, file->set_up, file->tear_down);
  return status;
}

/* Parses `test_ROOM NAME [FUNCTION] [-- WORDS]`. Returns the index in argv of the first of WORDS,
 * or 0 if the arguments are invalid. Sets *function if FUNCTION is given. */
static int
words_at (int argc, char **argv, const char **function)
{
  int at = 2;

  if (argc > at && !g_str_equal (argv[at], "--"))
    *function = argv[at++];
  if (argc > at && !g_str_equal (argv[at], "--")) {
    g_printerr ("found \"%s\", wanted -- before words for the file\n", argv[at]);
    return 0;
  }
  return argc > at ? at + 1 : at;
}

int
main (int argc, char **argv)
{
  const char *function = g_getenv ("WEFT_TEST_FUNCTION");

  if (argc < 2)
    return list_tests ();
  const struct weft_tests *file = find_file (argv[1]);
  int words = words_at (argc, argv, &function);
  if (!file || words == 0 || (function && !has_function (file, function)))
    return 2;
  cmocka_set_test_filter (function);
  running = argv[1];
  argv[words - 1] = argv[1];
  int status = run (file, argc - words + 1, argv + words - 1);
  g_printerr ("%s: %.2f s of processor time\n", running,
              seconds_of (RUSAGE_SELF) + seconds_of (RUSAGE_CHILDREN));
  return status;
}
