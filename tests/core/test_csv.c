/* Comma-separated values: text that conforms to RFC 4180 is parsed, other text is refused with its
 * line. */
#include "core/base/csv.h"
#include "core/base/error.h"
#include "tests/runner/runner.h"
#include <string.h>

static weft_csv *
parse (const char *text)
{
  g_autoptr (GError) error = NULL;
  weft_csv *csv = weft_csv_parse (text, -1, "t.csv", &error);

  if (!csv)
    fail_msg ("%s", error->message);
  return csv;
}

static void
refuse (const char *text, gssize length, const char *message)
{
  g_autoptr (GError) error = NULL;
  weft_csv *csv = weft_csv_parse (text, length, "t.csv", &error);

  assert_null (csv);
  assert_non_null (error);
  assert_int_equal (error->code, WEFT_ERROR_INPUT);
  if (!strstr (error->message, message))
    fail_msg ("found \"%s\", wanted \"%s\"", error->message, message);
}

static void
cells_are_found_by_row_and_column (void **state)
{
  g_autoptr (weft_csv) csv = parse ("a,b,c\n1,,3\n4,5,\n");

  (void) state;
  assert_int_equal (csv->n_column, 3);
  assert_int_equal (csv->n_row, 2);
  assert_int_equal (weft_csv_find (csv, "b"), 1);
  assert_int_equal (weft_csv_find (csv, "B"), -1);
  assert_string_equal (weft_csv_cell (csv, 0, 1), "");
  assert_string_equal (weft_csv_cell (csv, 0, 2), "3");
  assert_string_equal (weft_csv_cell (csv, 1, 0), "4");
  assert_int_equal (csv->line[2], 3);
}

static void
quotes_hold_commas_quotes_and_lines (void **state)
{
  g_autoptr (weft_csv) csv =
      parse ("a,b\n\"x, y\",\"say \"\"hi\"\"\"\n\"two\nlines\",\"\"\nlast,z");

  (void) state;
  assert_int_equal (csv->n_row, 3);
  assert_string_equal (weft_csv_cell (csv, 0, 0), "x, y");
  assert_string_equal (weft_csv_cell (csv, 0, 1), "say \"hi\"");
  assert_string_equal (weft_csv_cell (csv, 1, 0), "two\nlines");
  assert_string_equal (weft_csv_cell (csv, 1, 1), "");
  assert_string_equal (weft_csv_cell (csv, 2, 1), "z");
  assert_int_equal (csv->line[3], 5);
}

static void
either_end_of_line_and_a_byte_order_mark_are_the_same_table (void **state)
{
  g_autoptr (weft_csv) csv = parse ("\xef\xbb\xbf"
                                    "a,b\r\n1,2\r\n");

  (void) state;
  assert_int_equal (weft_csv_find (csv, "a"), 0);
  assert_int_equal (csv->n_row, 1);
  assert_string_equal (weft_csv_cell (csv, 0, 1), "2");
}

static void
what_is_no_table_is_refused_with_its_line (void **state)
{
  (void) state;
  refuse ("", -1, "t.csv: found nothing");
  refuse ("a,b\n1\n", -1, "t.csv:2: found 1 cells, wanted 2");
  refuse ("a,b\n1,2\n1,2,3\n", -1, "t.csv:3: found 3 cells, wanted 2");
  refuse ("a,b\n1,\"2\n\n", -1, "t.csv:2: found a quote without a closing quote");
  refuse ("a,b\n\"1\"2,3\n", -1, "t.csv:2: found \"2\" after a closing quote");
  refuse ("a,b\n1\"2,3\n", -1, "t.csv:2: found a quote inside a cell");
  refuse ("a,b\n1\r2,3\n", -1, "t.csv:2: found a carriage return inside a cell");
  refuse ("a,a\n", -1, "t.csv:1: column \"a\" is given twice");
  refuse ("a,\n", -1, "t.csv:1: column 2 has no name");
  refuse ("a,b\n1,\xff\n", -1, "t.csv:2: found byte 0xff");
  refuse ("a,b\n1,\0\n", 8, "t.csv:2: found byte 0x00");
}

static void
what_is_written_reads_the_same (void **state)
{
  static const char *const cells[] = { "plain", "",         "a, b",         "\"",      "a\nb",
                                       "a\rb",  " blanks ", "\xef\xbb\xbf", "\xc3\xa4" };
  g_autoptr (GString) text = g_string_new ("name\n");

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (cells); i++) {
    weft_csv_append (text, cells[i]);
    g_string_append_c (text, '\n');
  }
  g_autoptr (weft_csv) csv = parse (text->str);
  assert_int_equal (csv->n_row, G_N_ELEMENTS (cells));
  for (unsigned i = 0; i < G_N_ELEMENTS (cells); i++)
    assert_string_equal (weft_csv_cell (csv, i, 0), cells[i]);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (cells_are_found_by_row_and_column),
  cmocka_unit_test (quotes_hold_commas_quotes_and_lines),
  cmocka_unit_test (either_end_of_line_and_a_byte_order_mark_are_the_same_table),
  cmocka_unit_test (what_is_no_table_is_refused_with_its_line),
  cmocka_unit_test (what_is_written_reads_the_same),
};

WEFT_TESTS (tests)
