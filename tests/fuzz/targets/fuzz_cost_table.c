/* Cost tables: every op and shape must get a price from an accepted table, and no price may be
 * NaN. */
#include "core/plan/cost_table.h"
#include "tests/fuzz/fuzz.h"
#include <math.h>

static double
bytes (const void *user, enum weft_op_kind kind, const struct weft_shape *shape, uint32_t ranks)
{
  (void) user, (void) ranks;
  return weft_op_info[kind].bytes (shape);
}

static void
ask (const weft_cost_table *table, enum weft_op_kind kind, const struct weft_shape *shape)
{
  for (uint32_t ranks = 1; ranks <= 8; ranks *= 2) {
    double seconds = weft_cost_table_seconds (table, kind, shape, ranks, bytes, NULL);
    g_assert_false (isnan (seconds));
  }
}

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_cost_table) table =
      weft_cost_table_parse ((const char *) data, (gssize) size, "fuzz", &error);

  if (!table) {
    g_assert_nonnull (error);
    g_assert_true (g_utf8_validate (error->message, -1, NULL));
    return 0;
  }
  g_assert_no_error (error);
  for (int kind = 0; kind < WEFT_N_OP; kind++)
    for (int dtype = 0; dtype < WEFT_N_DTYPE; dtype++) {
      ask (table, kind, &(struct weft_shape){ { 0 }, dtype, dtype });
      ask (table, kind, &(struct weft_shape){ { 3, 2, 8, 1, 4 }, dtype, WEFT_FP32 });
    }
  return 0;
}
