/* Tables of measured seconds: parsing and printing, errors of bad lines, and prices of shapes
 * between the measured ones. */
#include "core/plan/cost_table.h"
#include "tests/made/made.h"
#include "tests/runner/runner.h"

static weft_cost_table *
parse (const char *text)
{
  g_autoptr (GError) error = NULL;
  weft_cost_table *table = weft_cost_table_parse (text, -1, "test", &error);

  if (!table)
    fail_msg ("%s", error->message);
  return table;
}

/* The cost formula of these tests, by which the cost table scales measured rows to other shapes:
 * one second per element. */
static double
elements (const void *user, enum weft_op_kind kind, const struct weft_shape *shape, uint32_t ranks)
{
  (void) user, (void) kind, (void) ranks;
  return (double) shape->dim[0];
}

static double
price (const weft_cost_table *table, enum weft_op_kind kind, uint64_t n, uint32_t ranks)
{
  const struct weft_shape shape = { .dim = { n }, .dtype = WEFT_FP32, .out_dtype = WEFT_FP32 };
  return weft_cost_table_seconds (table, kind, &shape, ranks, elements, NULL);
}

/* ------------------------------------------------------------------------ text */

static void
a_table_prints_as_it_was_read (void **state)
{
  static const struct weft_measurement row[] = {
    { WEFT_OP_MATMUL, 1, { { 128, 192, 64 }, WEFT_FP32, WEFT_FP32 }, 2.1e-05 },
    { WEFT_OP_CLIP, 3, { { 0 }, WEFT_FP32, WEFT_FP32 }, 1e-9 },
    { WEFT_OP_MATMUL_WGRAD, 2, { { 7, 8, 9 }, WEFT_BF16, WEFT_FP32 }, 0.25 },
    { WEFT_OP_ATTENTION, 8, { { 1, 2, 3, 4, 5 }, WEFT_BF16, WEFT_BF16 }, 0 },
  };
  static const char wanted[] = "matmul fp32 fp32 1 128x192x64 2.1e-05\n"
                               "clip fp32 fp32 3 0 1e-09\n"
                               "matmul_wgrad bf16 fp32 2 7x8x9 0.25\n"
                               "attention bf16 bf16 8 1x2x3x4x5 0\n";
  g_autoptr (GString) text = g_string_new (NULL);
  (void) state;

  for (unsigned i = 0; i < G_N_ELEMENTS (row); i++)
    weft_cost_table_print (text, &row[i]);
  assert_string_equal (text->str, wanted);
  g_autoptr (weft_cost_table) table = parse (text->str);
  for (unsigned i = 0; i < G_N_ELEMENTS (row); i++)
    assert_true (weft_cost_table_seconds (table, row[i].kind, &row[i].shape, row[i].ranks, elements,
                                          NULL) == row[i].seconds);
}

static void
launches_of_a_host_are_lines_of_two_words (void **state)
{
  static const double seconds[WEFT_N_HOST_COST] = { 2.25e-06, 3e-06, 1e-09 };
  g_autoptr (GString) text = g_string_new (NULL);
  g_autoptr (GError) error = NULL;

  (void) state;
  weft_cost_table_print_launches (text, seconds);
  assert_string_equal (text->str,
                       "launch_seconds 2.25e-06\ngraph_launch 3e-06\ngraph_node 1e-09\n");
  g_autoptr (weft_cost_table) table = parse (text->str), none = parse ("graph_node 2e-9");
  for (int i = 0; i < WEFT_N_HOST_COST; i++) {
    assert_true (weft_cost_table_launch (table, i, 7) == seconds[i]);
    assert_true (weft_cost_table_launch (none, i, 7) == (i == WEFT_HOST_NODE ? 2e-9 : 7));
    assert_true (weft_cost_table_launch (NULL, i, 7) == 7);
  }
  assert_null (weft_cost_table_parse ("launch_second 1e-6", -1, "test", &error));
  assert_non_null (strstr (error->message, "did you mean \"launch_seconds\""));
}

static void
comments_blanks_and_tabs_are_skipped (void **state)
{
  g_autoptr (weft_cost_table) table = parse ("# all\n\n   \t\nadd\tfp32  fp32 1 10 3 # ten\r\n"
                                             "zero fp32 fp32 1 10 4");
  (void) state;

  assert_true (price (table, WEFT_OP_ADD, 10, 1) == 3);
  assert_true (price (table, WEFT_OP_ZERO, 10, 1) == 4);
}

static void
a_bad_line_is_named_with_what_was_wanted (void **state)
{
  static const struct {
    const char *line, *message;
  } bad[] = {
    { "ad fp32 fp32 1 10 3", "found \"ad\", wanted an op; did you mean \"add\"?" },
    { "add fp31 fp32 1 10 3", "found \"fp31\", wanted a type" },
    { "add fp32 fp33 1 10 3", "found \"fp33\", wanted a type" },
    { "add fp32 fp32 0 10 3", "found \"0\", wanted a number of ranks" },
    { "add fp32 fp32 two 10 3", "found \"two\", wanted a number of ranks" },
    { "add fp32 fp32 1 10x 3", "found dimensions \"10x\", wanted numbers like 128x64" },
    { "add fp32 fp32 1 -1 3", "found dimensions \"-1\", wanted numbers like 128x64" },
    { "add fp32 fp32 1 1x2x3x4x5x6x7x8x9 3", "found 9 dimensions, wanted at most 8" },
    { "add fp32 fp32 1 10 3s", "found \"3s\", wanted seconds" },
    { "add fp32 fp32 1 10 -3", "found \"-3\", wanted seconds" },
    { "add fp32 fp32 1 10 nan", "found \"nan\", wanted seconds" },
    { "add fp32 fp32 1 10 inf", "found \"inf\", wanted seconds" },
    { "add fp32 fp32 1 10 1e10", "found \"1e10\", wanted seconds" },
    { "a\xff fp32 fp32 1 10 1", "found \"a\xef\xbf\xbd\", wanted an op" },
    { "add fp32 fp32 1 10", "found 5 words, wanted OP TYPE RESULT RANKS DIMENSIONS SECONDS" },
  };
  (void) state;

  for (unsigned i = 0; i < G_N_ELEMENTS (bad); i++) {
    g_autofree char *text = g_strdup_printf ("# first\nzero fp32 fp32 1 1 1\n%s\n", bad[i].line);
    g_autoptr (GError) error = NULL;
    g_autoptr (weft_cost_table) table = weft_cost_table_parse (text, -1, "my.costs", &error);
    assert_null (table);
    if (!g_str_has_prefix (error->message, "my.costs:3: ") ||
        !strstr (error->message, bad[i].message))
      fail_msg ("%s: %s", bad[i].line, error->message);
  }
}

static void
a_file_that_is_not_there_is_named (void **state)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_cost_table) table = weft_cost_table_load ("no/such.costs", &error);
  (void) state;

  assert_null (table);
  assert_non_null (strstr (error->message, "no/such.costs"));
}

/* ---------------------------------------------------------------------- lookup */

/* The cost table has rows for 10 and 100 elements. An op between two rows is scaled from the row
 * that is nearer by ratio: 40 elements from the row of 100, 30 elements from the row of 10. */
static void
a_shape_between_two_follows_the_nearer_one (void **state)
{
  g_autoptr (weft_cost_table) table = parse ("add fp32 fp32 1 10 20\nadd fp32 fp32 1 100 50\n");
  (void) state;

  assert_near (price (table, WEFT_OP_ADD, 10, 1), 20.0);
  assert_near (price (table, WEFT_OP_ADD, 100, 1), 50.0);
  assert_near (price (table, WEFT_OP_ADD, 30, 1), 20.0 * 30 / 10);
  assert_near (price (table, WEFT_OP_ADD, 40, 1), 50.0 * 40 / 100);
  assert_near (price (table, WEFT_OP_ADD, 1, 1), 20.0 / 10);
  assert_near (price (table, WEFT_OP_ADD, 1000, 1), 50.0 * 10);
}

static void
an_op_or_a_type_that_was_not_measured_has_no_price (void **state)
{
  g_autoptr (weft_cost_table) table = parse ("add fp32 fp32 1 10 20\n");
  const struct weft_shape bf16 = { .dim = { 10 }, .dtype = WEFT_BF16, .out_dtype = WEFT_FP32 };
  (void) state;

  assert_true (price (table, WEFT_OP_ZERO, 10, 1) < 0);
  assert_true (weft_cost_table_seconds (table, WEFT_OP_ADD, &bf16, 1, elements, NULL) < 0);
}

/* The cost table has rows for 1 and 4 ranks. Collectives of 3 and of 16 ranks use the row for 4
 * ranks, which is nearer by ratio. */
static void
the_nearest_number_of_ranks_speaks (void **state)
{
  g_autoptr (weft_cost_table) table = parse ("add fp32 fp32 1 10 1\nadd fp32 fp32 4 10 7\n");
  (void) state;

  assert_near (price (table, WEFT_OP_ADD, 10, 1), 1.0);
  assert_near (price (table, WEFT_OP_ADD, 10, 3), 7.0);
  assert_near (price (table, WEFT_OP_ADD, 10, 16), 7.0);
  assert_near (price (table, WEFT_OP_ADD, 20, 4), 14.0);
}

/* A collective of 4 ranks is priced by the row for 4 ranks, although the row for 2 ranks has the
 * nearer shape: the number of ranks is matched before the shape. */
static void
ranks_come_before_shape (void **state)
{
  g_autoptr (weft_cost_table) table = parse ("add fp32 fp32 2 10 1\nadd fp32 fp32 4 1000 7\n");
  (void) state;

  assert_near (price (table, WEFT_OP_ADD, 10, 4), 7.0 / 100);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_table_prints_as_it_was_read),
  cmocka_unit_test (launches_of_a_host_are_lines_of_two_words),
  cmocka_unit_test (comments_blanks_and_tabs_are_skipped),
  cmocka_unit_test (a_bad_line_is_named_with_what_was_wanted),
  cmocka_unit_test (a_file_that_is_not_there_is_named),
  cmocka_unit_test (a_shape_between_two_follows_the_nearer_one),
  cmocka_unit_test (an_op_or_a_type_that_was_not_measured_has_no_price),
  cmocka_unit_test (the_nearest_number_of_ranks_speaks),
  cmocka_unit_test (ranks_come_before_shape),
};

WEFT_TESTS (tests)
