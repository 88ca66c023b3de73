/* Schedules as CSV: an accepted schedule is printed as CSV, which must be read as the same
 * schedule. */
#include "core/schedule/grid.h"
#include "tests/fuzz/fuzz.h"

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  g_autofree char *text = g_strndup ((const char *) data, size);
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_grid) grid = weft_grid_read (text, "fuzz", &error);

  if (!grid) {
    g_assert_nonnull (error);
    g_assert_true (g_utf8_validate (error->message, -1, NULL));
    return 0;
  }
  g_assert_no_error (error);
  g_autofree char *first = weft_grid_csv (grid);
  g_autoptr (weft_grid) again = weft_grid_read (first, "again", &error);
  g_assert_no_error (error);
  g_autofree char *second = weft_grid_csv (again);
  g_assert_cmpstr (first, ==, second);
  g_autofree char *picture = weft_grid_ascii (grid, 80);
  g_assert_nonnull (picture);
  return 0;
}
