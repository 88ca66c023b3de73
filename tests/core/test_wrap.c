/* Lines that are wrapped to the width of a terminal. */
#include "core/base/wrap.h"
#include "tests/runner/runner.h"

static void
assert_lines (const char *text, int columns, const char *wanted)
{
  g_autofree char *found = weft_wrap_lines (text, columns);
  assert_string_equal (found, wanted);
}

static void
a_line_that_fits_stays (void **state)
{
  (void) state;
  assert_lines ("", 20, "");
  assert_lines ("one two\n\nthree   four\n", 12, "one two\n\nthree   four\n");
}

static void
the_rest_hangs_below_its_column (void **state)
{
  (void) state;
  assert_lines ("one two three four", 10, "one two\n  three\n  four");
  assert_lines ("name   12 s   of a long text here", 30, "name   12 s   of a long text\n"
                                                         "              here");
}

static void
a_long_word_is_not_broken (void **state)
{
  (void) state;
  assert_lines ("a_word_of_17_cols b", 8, "a_word_of_17_cols\n  b");
}

/* A character outside ASCII has two bytes and takes one column. An escape sequence takes none. */
static void
characters_are_counted (void **state)
{
  (void) state;
  assert_int_equal (weft_wrap_width ("\033[31m\303\251\303\251\033[0m"), 2);
  assert_lines ("\303\251\303\251\303\251 \303\251\303\251\303\251", 7,
                "\303\251\303\251\303\251 \303\251\303\251\303\251");
  assert_lines ("\033[31mabc\033[0m", 3, "\033[31mabc\033[0m");
}

static void
rows_go_on_after_a_backslash (void **state)
{
  g_autofree char *rows = weft_wrap_rows ("buf 1 \"two words\" x\n# of one comment\n", 14);

  (void) state;
  assert_string_equal (rows, "buf 1 \\\n    \"two words\" \\\n    x\n# of one\n#   comment\n");
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_line_that_fits_stays),
  cmocka_unit_test (the_rest_hangs_below_its_column),
  cmocka_unit_test (a_long_word_is_not_broken),
  cmocka_unit_test (characters_are_counted),
  cmocka_unit_test (rows_go_on_after_a_backslash),
};

WEFT_TESTS (tests)
