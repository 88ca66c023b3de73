/* CSV tables: a table that is read, written and read again must be unchanged. */
#include "core/base/csv.h"
#include "tests/fuzz/fuzz.h"

static char *
print (const weft_csv *csv)
{
  g_autoptr (GString) text = g_string_new (NULL);

  for (unsigned i = 0; i < (csv->n_row + 1) * csv->n_column; i++) {
    weft_csv_append (text, csv->column[i]);
    g_string_append_c (text, (i + 1) % csv->n_column ? ',' : '\n');
  }
  return g_string_free (g_steal_pointer (&text), FALSE);
}

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_csv) csv = weft_csv_parse ((const char *) data, size, "fuzz", &error);

  if (!csv) {
    g_assert_nonnull (error);
    g_assert_true (g_utf8_validate (error->message, -1, NULL));
    return 0;
  }
  g_assert_no_error (error);
  g_autofree char *first = print (csv);
  g_autoptr (weft_csv) again = weft_csv_parse (first, -1, "again", &error);
  g_assert_no_error (error);
  g_assert_cmpuint (again->n_row, ==, csv->n_row);
  g_autofree char *second = print (again);
  g_assert_cmpstr (first, ==, second);
  return 0;
}
