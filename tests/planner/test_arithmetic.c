/* Expressions in validation/assumptions.ini: their values, the names they may use, and malformed
 * text. */
#include "planner/arithmetic.h"
#include "tests/runner/runner.h"
#include <math.h>

static gboolean
find (const char *name, double *value, const void *user)
{
  *value = g_str_equal (name, "blank") ? NAN : *(const double *) user;
  return g_str_equal (name, "blank") || g_str_equal (name, "layers");
}

static void
expressions_have_the_usual_precedence (void **state)
{
  static const struct {
    const char *text;
    double value;
  } cases[] = {
    { "6 * 4 / 8", 3 },       { "1 + 2 * 3", 7 },        { "(1 + 2) * 3", 9 },
    { "7 - 2 - 1", 4 },       { "78 % 12", 6 },          { "(layers + 2) % (4 * 2)", 0 },
    { "ceil (layers / 4)", 8 }, { "2 + 10 % 4 * 3", 8 }, { " layers ", 30 },
  };
  const double layers = 30;

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    double value = NAN;
    if (!weft_arithmetic (cases[i].text, find, &layers, &value) || value != cases[i].value)
      fail_msg ("%s: found %g, wanted %g", cases[i].text, value, cases[i].value);
  }
}

static void
what_depends_on_a_blank_cell_is_no_number (void **state)
{
  double layers = 30, value = 0;

  (void) state;
  assert_true (weft_arithmetic ("blank + layers", find, &layers, &value));
  assert_true (isnan (value));
  assert_true (weft_arithmetic ("layers % 0", find, &layers, &value));
  assert_true (isnan (value));
}

static void
other_texts_are_refused (void **state)
{
  static const char *const texts[] = { "", "1 +", "(1", "1)", "ceil 2", "odd + 1", "1 2",
                                       "Et|(tt|)*30,L", "- 1", "1600Gb/s",
                                       "((((((((((((((((((1))))))))))))))))))" };
  double layers = 30, value;

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (texts); i++)
    if (weft_arithmetic (texts[i], find, &layers, &value))
      fail_msg ("%s: found %g, wanted a refusal", texts[i], value);
  assert_false (weft_arithmetic ("layers", NULL, NULL, &value));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (expressions_have_the_usual_precedence),
  cmocka_unit_test (what_depends_on_a_blank_cell_is_no_number),
  cmocka_unit_test (other_texts_are_refused),
};

WEFT_TESTS (tests)
