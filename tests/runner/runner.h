/* runner.h - how a file of tests is found and run.
 *
 * Every tests/ROOM/test_NAME.c ends with its table of CMocka tests and one line:
 *
 *   WEFT_TESTS (tests)
 *   WEFT_TESTS (tests, .set_up = make_folder, .tear_down = remove_folder)
 *
 * All files of a room are one executable, whose main() is runner.c: `test_ROOM NAME` runs one file,
 * `test_ROOM NAME FUNCTION` one of its tests. */
#pragma once
/* CMocka needs these four before its own header. */
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
  CMFixtureFunction set_up, tear_down; /* once for the whole file; may be NULL */
  /* Called first, with the words after `--`; argv[0] is the name of the file.  A file that starts
   * itself again as another process, or that takes a seed, reads them here.  It returns
   * WEFT_TESTS_RUN to go on with the table, or an exit status.  May be NULL. */
  int (*begin) (int argc, char **argv);
  struct weft_tests *next;
};

#define WEFT_TESTS_RUN (-1)

/* Before main(): adds a file to those of the executable. */
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

/* A file that makes its table when it runs: `begin` runs it and returns the exit status. */
#define WEFT_TESTS_MADE_BY(function)                                                               \
  static struct weft_tests weft_tests_here = { .source = __FILE__, .begin = (function) };          \
  __attribute__ ((constructor)) static void weft_tests_register_here (void)                        \
  {                                                                                                \
    weft_tests_register (&weft_tests_here);                                                        \
  }

/* Words SEED [JOBS] of files that draw jobs at random; what is not given stays. */
struct weft_tests_draw {
  uint32_t seed, jobs;
};

void weft_tests_read_draw (int argc, char **argv, struct weft_tests_draw *draw);

/* The name of the file that runs, as its executable takes it. */
const char *weft_tests_running (void);
