/* runner.h - how test files are found and run.
 *
 * Every tests/ROOM/test_NAME.c ends with its table of CMocka tests and one line:
 *
 *   WEFT_TESTS (tests)
 *   WEFT_TESTS (tests, .set_up = make_folder, .tear_down = remove_folder)
 *   WEFT_TESTS (tests, .seconds = 40)
 *
 * All files of a room form one executable, whose main() is runner.c: `test_ROOM NAME` runs one
 * file, `test_ROOM NAME FUNCTION` one test. */
#pragma once
/* CMocka requires these four headers before its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

/* The tests of one file. */
struct weft_tests {
  const char *source; /* __FILE__ */
  const struct CMUnitTest *table;
  size_t n;
  CMFixtureFunction set_up, tear_down; /* run once per file; may be NULL */
  /* Called before the tests, with the arguments after `--`; argv[0] is the name of the file. Files
   * need it if they start themselves as another process or accept a seed. Returns WEFT_TESTS_RUN to
   * continue with the table, or an exit status. May be NULL. */
  int (*begin) (int argc, char **argv);
  /* Approximate processor time of a long file. tests/CMakeLists.txt reads this number, and ctest
   * starts the longest files first, so that no core is idle at the end. */
  unsigned seconds;
  struct weft_tests *next;
};

#define WEFT_TESTS_RUN (-1)

/* Adds a file to the test files of the executable. Constructors call it before main(). */
void weft_tests_register (struct weft_tests *file);

#define WEFT_TESTS(rows, ...)                                                                      \
  static struct weft_tests weft_tests_here = { .source = __FILE__,                                 \
                                               .table = (rows),                                    \
                                               .n = sizeof (rows) / sizeof ((rows)[0]),            \
                                               __VA_ARGS__ };                                      \
  __attribute__ ((constructor)) static void weft_tests_register_here (void)                        \
  {                                                                                                \
    weft_tests_register (&weft_tests_here);                                                        \
  }

/* For a file without a constant table: `begin` makes the table at run time, runs the tests in it,
 * and returns the exit status. */
#define WEFT_TESTS_MADE_BY(function)                                                               \
  static struct weft_tests weft_tests_here = { .source = __FILE__, .begin = (function) };          \
  __attribute__ ((constructor)) static void weft_tests_register_here (void)                        \
  {                                                                                                \
    weft_tests_register (&weft_tests_here);                                                        \
  }

/* The arguments SEED [JOBS] of files that draw random jobs. */
struct weft_tests_draw {
  uint32_t seed, jobs;
};

/* Parses SEED [JOBS] from argv[1] on. A field of `draw` without an argument keeps its value. */
void weft_tests_read_draw (int argc, char **argv, struct weft_tests_draw *draw);

/* Returns the NAME of the running test file. */
const char *weft_tests_running (void);
