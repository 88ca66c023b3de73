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
/* CMocka requires these headers before its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

/* The tests of one test file, and how to run them. */
struct weft_tests {
  const char *source; /* __FILE__ */
  const struct CMUnitTest *table;
  size_t n;
  /* run once per test file, before its first test and after its last; may be NULL */
  CMFixtureFunction set_up, tear_down;
  /* Called before the tests with the arguments that follow `--` on the command line; argv[0] is the
   * name of the test file. A test file needs `begin` if it starts itself as another process or
   * accepts a seed. `begin` returns WEFT_TESTS_RUN, and then the tests of the table run, or an exit
   * status. May be NULL. */
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

/* Registers a test file whose table of tests is made at run time: `begin` makes the table, runs its
 * tests and returns the exit status. */
#define WEFT_TESTS_MADE_BY(function)                                                               \
  static struct weft_tests weft_tests_here = { .source = __FILE__, .begin = (function) };          \
  __attribute__ ((constructor)) static void weft_tests_register_here (void)                        \
  {                                                                                                \
    weft_tests_register (&weft_tests_here);                                                        \
  }

/* The numbers that a test file takes from its arguments SEED [JOBS]. */
struct weft_tests_draw {
  uint32_t seed, jobs;
};

/* Parses the arguments SEED [JOBS], which begin at argv[1]. If an argument is missing, its field of
 * `draw` keeps its value. */
void weft_tests_read_draw (int argc, char **argv, struct weft_tests_draw *draw);

/* Whether all cases of long tests run: the environment variable WEFT_TEST_LONG is set, as
 * `./weft test --long` does. */
bool weft_tests_long (void);

/* Returns the number of cases of a test: `usual`, or `all` with weft_tests_long(). */
uint32_t weft_tests_cases (uint32_t usual, uint32_t all);

/* Returns the NAME of the running test file. */
const char *weft_tests_running (void);
