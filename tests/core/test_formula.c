/* The expressions of core/costs.def are compiled and printed: both must say the same. */
#include "tests/runner/runner.h"
#include "core/program/formula.h"
#include <math.h>
#include <string.h>

static void
a_product_is_printed_with_its_dimensions (void **state)
{
  const struct weft_shape shape = { .dim = { 3, 4, 5 }, .dtype = WEFT_BF16 };
  g_autofree char *flops = weft_op_formula_flops (WEFT_OP_MATMUL, &shape);
  g_autofree char *bytes = weft_op_formula_bytes (WEFT_OP_MATMUL, &shape);
  g_autofree char *none = weft_op_formula_flops (WEFT_OP_NORM, &shape);

  (void) state;
  assert_string_equal (flops, "2 x m x n x k = 2 x 3 x 4 x 5");
  assert_string_equal (bytes, "(m x k + n x k + m x n) x size = (3 x 5 + 4 x 5 + 3 x 4) x 2");
  assert_string_equal (none, "0");
}

/* An expression whose only operators are sums, products, quotients and brackets, as a reader of the
 * page would compute it: no C, no functions. */
static double sum_of (const char **at);

static double
factor_of (const char **at)
{
  while (**at == ' ')
    ++*at;
  if (**at != '(')
    return g_ascii_strtod (*at, (char **) at);
  ++*at;
  double value = sum_of (at);
  assert_int_equal (**at, ')');
  ++*at;
  return value;
}

static double
product_of (const char **at)
{
  double value = factor_of (at);

  for (;;) {
    while (**at == ' ')
      ++*at;
    if (**at != 'x' && **at != '/')
      return value;
    gboolean times = *(*at)++ == 'x';
    double next = factor_of (at);
    value = times ? value * next : value / next;
  }
}

static double
sum_of (const char **at)
{
  double value = product_of (at);

  while (**at == '+' || **at == '-') {
    double sign = *(*at)++ == '+' ? 1 : -1;
    value += sign * product_of (at);
  }
  return value;
}

/* The value of the printed numbers; NaN if a function is left in them. */
static double
printed (const char *text)
{
  const char *at = strrchr (text, '=');

  at = at ? at + 1 : text;
  for (const char *c = at; *c; c++)
    if (g_ascii_isalpha (*c) && *c != 'x')
      return NAN;
  double value = sum_of (&at);
  assert_int_equal (*at, '\0');
  return value;
}

static void
printed_numbers_are_the_computed_ones (void **state)
{
  const struct weft_shape shape = { .dim = { 6, 10, 14, 2, 4, 3, 8, 32 },
                                    .dtype = WEFT_BF16, .out_dtype = WEFT_FP32 };
  unsigned n = 0;

  (void) state;
  for (int op = 0; op < WEFT_N_OP; op++) {
    g_autofree char *flops = weft_op_formula_flops (op, &shape);
    g_autofree char *bytes = weft_op_formula_bytes (op, &shape);
    const double pairs[2][2] = { { printed (flops), weft_op_info[op].flops (&shape) },
                                 { printed (bytes), weft_op_info[op].bytes (&shape) } };
    for (int i = 0; i < 2; i++) {
      if (isnan (pairs[i][0]))
        continue;
      n++;
      if (fabs (pairs[i][0] - pairs[i][1]) > 1e-9 * fabs (pairs[i][1]))
        fail_msg ("%s: %s, computed %g", weft_op_info[op].word, i ? bytes : flops, pairs[i][1]);
    }
  }
  assert_true (n > WEFT_N_OP); /* the others have functions, which costs.def describes */
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_product_is_printed_with_its_dimensions),
  cmocka_unit_test (printed_numbers_are_the_computed_ones),
};

WEFT_TESTS (tests, .seconds = 1)
