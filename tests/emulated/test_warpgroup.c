/* wgmma on the emulator against loops over matrices; and violations of the wgmma protocol, which a
 * device would not report and the emulator must. */
#include "kernels/float.h"
#include "core/base/sanitize.h"
#include "tests/doubles/emulated_cuda.h"
#include "tests/doubles/warpgroup_trial.h"
#include "tests/runner/runner.h"
#include <glib.h>
#include <math.h>

struct matrices {
  float a[TRIAL_ROWS * TRIAL_TERMS], b[TRIAL_TERMS * TRIAL_MOST_COLUMNS];
  float c[TRIAL_ROWS * TRIAL_MOST_COLUMNS];
};

/* Fills x with small integers: every type represents them, and their sums are exact. */
static void
fill (GRand *rand, float *x, unsigned n)
{
  for (unsigned i = 0; i < n; i++)
    x[i] = (float) g_rand_int_range (rand, -8, 9);
}

static struct matrices *
run (const struct warpgroup_trial *trial)
{
  struct matrices *m = g_new0 (struct matrices, 1);
  GRand *rand = g_rand_new_with_seed (trial->columns);

  fill (rand, m->a, G_N_ELEMENTS (m->a));
  fill (rand, m->b, G_N_ELEMENTS (m->b));
  warpgroup_try (trial, m->a, m->b, m->c);
  g_rand_free (rand);
  return m;
}

static float
wanted (const struct matrices *m, unsigned row, unsigned column, unsigned columns)
{
  float sum = 0;

  for (unsigned k = 0; k < TRIAL_TERMS; k++)
    sum += m->a[row * TRIAL_TERMS + k] * m->b[k * columns + column];
  return sum;
}

static void
check (const struct warpgroup_trial *trial)
{
  g_autofree struct matrices *m = run (trial);

  for (unsigned row = 0; row < TRIAL_ROWS; row++)
    for (unsigned column = 0; column < trial->columns; column++)
      if (m->c[row * trial->columns + column] != wanted (m, row, column, trial->columns))
        fail_msg ("element %u, %u of %u columns, left %s, right %s: found %g, wanted %g", row,
                  column, trial->columns,
                  trial->a_in_registers ? "in registers"
                  : trial->a_turned     ? "turned"
                                        : "as it is",
                  trial->b_turned ? "turned" : "as it is",
                  (double) m->c[row * trial->columns + column],
                  (double) wanted (m, row, column, trial->columns));
}

/* Each bit of `i` is one option of a trial. */
static void
products_are_those_of_loops_over_matrices (void **state)
{
  (void) state;
  for (unsigned i = 0; i < 32; i++) {
    const struct warpgroup_trial trial = { .fp16 = i & 1,
                                           .a_in_registers = i >> 1 & 1,
                                           .a_turned = i >> 2 & 1,
                                           .b_turned = i >> 3 & 1,
                                           .columns = i >> 4 & 1 ? 128 : 64 };
    emulated_order_of_threads (i & 1);
    if (!trial.a_in_registers || !trial.a_turned)
      check (&trial);
  }
}

static void
expect (enum warpgroup_fault fault, const char *complaint)
{
  const struct warpgroup_trial trial = { .a_in_registers = true, .columns = 64, .fault = fault };

  emulated_expect_complaints (TRUE);
  g_autofree struct matrices *m = run (&trial);
  assert_non_null (emulated_complaint ());
  assert_string_equal (emulated_complaint (), complaint);
  emulated_expect_complaints (FALSE);
}

static void
products_want_a_fence_before_them (void **state)
{
  (void) state;
  expect (WARPGROUP_NO_FENCE, "a product was issued after a wait without a fence");
}

static void
copies_have_to_be_seen_by_products (void **state)
{
  (void) state;
  expect (WARPGROUP_COPY_UNSEEN, "a wgmma reads copied data without a fence to the async proxy");
}

static void
registers_of_a_product_stay_as_they_are (void **state)
{
  (void) state;
  expect (WARPGROUP_SUM_WRITTEN, "sums were written before the wait for their product");
  expect (WARPGROUP_FRAGMENT_WRITTEN, "fragments were written before the wait for their product");
}

static void
nobody_ends_with_products_under_way (void **state)
{
  (void) state;
  expect (WARPGROUP_NEVER_WAITED, "a thread has ended without waiting for its products");
}

static void
warps_of_a_warpgroup_name_the_same_matrices (void **state)
{
  const struct warpgroup_trial trial = { .columns = 64, .fault = WARPGROUP_WARPS_DIFFER };

  (void) state;
  emulated_expect_complaints (TRUE);
  g_autofree struct matrices *m = run (&trial);
  assert_string_equal (emulated_complaint (), "warps of a warpgroup multiply different matrices");
  emulated_expect_complaints (FALSE);
}

static gboolean
has_nan (const float *x, unsigned n)
{
  for (unsigned i = 0; i < n; i++)
    if (isnan (x[i]))
      return TRUE;
  return FALSE;
}

/* The emulator does not report a too early read of accumulators or a tile that is replaced too
 * early, but the results must then contain NaN. */
static void
sums_that_are_read_early_and_tiles_that_are_replaced_give_no_numbers (void **state)
{
  static const enum warpgroup_fault faults[] = { WARPGROUP_READ_EARLY, WARPGROUP_TILE_COPIED };
  /* The thread sanitizer would report the last fault, a replaced tile, as a race. */
  const unsigned n = WEFT_THREAD_SANITIZER ? 1 : G_N_ELEMENTS (faults);

  (void) state;
  for (unsigned f = 0; f < n; f++) {
    const struct warpgroup_trial trial = { .columns = 128, .fault = faults[f] };
    g_autofree struct matrices *m = run (&trial);
    for (unsigned row = 0; row < TRIAL_ROWS; row++)
      assert_true (has_nan (m->c + row * trial.columns, trial.columns));
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (products_are_those_of_loops_over_matrices),
  cmocka_unit_test (products_want_a_fence_before_them),
  cmocka_unit_test (copies_have_to_be_seen_by_products),
  cmocka_unit_test (registers_of_a_product_stay_as_they_are),
  cmocka_unit_test (nobody_ends_with_products_under_way),
  cmocka_unit_test (warps_of_a_warpgroup_name_the_same_matrices),
  cmocka_unit_test (sums_that_are_read_early_and_tiles_that_are_replaced_give_no_numbers),
};

WEFT_TESTS (tests)
