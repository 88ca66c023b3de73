/* Exact sums (docs/glossary.md), whose result does not depend on the order of the terms, and the
 * canonical tree by which other sums are ordered. */
#include "core/base/exact.h"
#include "core/base/fold.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

#define N_TERM 3000
#define N_TRIAL 20

/* A random term of an exact sum: an fp32 number, or the product of two fp32 numbers. */
static double
random_term (GRand *rand, int low, int high)
{
  float a = (float) g_rand_double_range (rand, 0.5, 1),
        b = (float) g_rand_double_range (rand, 0.5, 1);
  double sign = g_rand_boolean (rand) ? 1 : -1;
  return sign * ldexp ((double) a * (double) b, g_rand_int_range (rand, low, high));
}

static void
fill (GRand *rand, double *term, int low, int high)
{
  for (int i = 0; i < N_TERM; i++)
    term[i] = random_term (rand, low, high);
}

static void
shuffle (GRand *rand, double *term)
{
  for (int i = N_TERM - 1; i > 0; i--) {
    int other = g_rand_int_range (rand, 0, i + 1);
    double kept = term[i];
    term[i] = term[other];
    term[other] = kept;
  }
}

/* Adds n terms to the exact sum `sum`, in several calls with random numbers of terms. */
static void
add_in_pieces (GRand *rand, int64_t *sum, const double *term, uint64_t n)
{
  while (n) {
    uint64_t some = (uint64_t) g_rand_int_range (rand, 1, (int) n + 1);
    weft_exact_add (sum, term, some);
    term += some;
    n -= some;
  }
}

static void
every_order_of_the_same_terms_gives_the_same_words (void **state)
{
  static const int ranges[][2] = {
    { -298, 256 }, { -60, 10 }, { 0, 1 }, { -298, -290 }, { 250, 256 }
  };
  GRand *rand = g_rand_new_with_seed (1);
  double term[N_TERM];

  (void) state;
  for (unsigned r = 0; r < G_N_ELEMENTS (ranges); r++) {
    int64_t first[WEFT_EXACT_WORDS] = { 0 };
    fill (rand, term, ranges[r][0], ranges[r][1]);
    weft_exact_add (first, term, N_TERM);
    for (int trial = 0; trial < N_TRIAL; trial++) {
      int64_t sum[WEFT_EXACT_WORDS] = { 0 };
      shuffle (rand, term);
      add_in_pieces (rand, sum, term, N_TERM);
      assert_memory_equal (sum, first, sizeof sum);
    }
  }
  g_rand_free (rand);
}

/* A simple reference for exact sums: one counter per power of two. Counter i counts how often 2^(i
 * - NAIVE_LOW) was added. */
#define NAIVE_LOW 400
#define NAIVE_BITS 800

static void
naive_add (int64_t *count, double term)
{
  int exponent;
  double mantissa = frexp (fabs (term), &exponent);

  for (int bit = exponent - 1; mantissa != 0; bit--) {
    mantissa *= 2;
    if (mantissa >= 1) {
      count[bit + NAIVE_LOW] += term < 0 ? -1 : 1;
      mantissa -= 1;
    }
  }
}

/* Returns the exact sum in the counters as a double, rounded to nearest; a tie is rounded away from
 * 0. */
static double
naive_value (int64_t *count)
{
  double sign = 1, value = 0;

  for (int pass = 0; pass < 2; pass++) {
    for (int i = 0; i + 1 < NAIVE_BITS; i++) {
      int64_t carry = count[i] >> 1;
      count[i] -= 2 * carry;
      count[i + 1] += carry;
    }
    if (count[NAIVE_BITS - 1] >= 0)
      break;
    sign = -1;
    for (int i = 0; i < NAIVE_BITS; i++)
      count[i] = -count[i];
  }
  int top = NAIVE_BITS - 1;
  while (top > 0 && count[top] == 0)
    top--;
  for (int i = top; i >= 0 && i > top - 53; i--)
    value += ldexp ((double) count[i], i - NAIVE_LOW);
  if (top >= 53)
    value += ldexp ((double) count[top - 53], top - 52 - NAIVE_LOW);
  return sign * value;
}

static void
the_value_is_that_of_integers_of_any_length (void **state)
{
  GRand *rand = g_rand_new_with_seed (2);
  double term[N_TERM];

  (void) state;
  for (int trial = 0; trial < N_TRIAL; trial++) {
    int64_t sum[WEFT_EXACT_WORDS] = { 0 }, count[NAIVE_BITS] = { 0 };
    int low = g_rand_int_range (rand, -298, 250), high = g_rand_int_range (rand, low + 1, 257);
    fill (rand, term, low, high);
    for (int i = 0; i < N_TERM; i++)
      naive_add (count, term[i]);
    weft_exact_add (sum, term, N_TERM);
    double wanted = naive_value (count), found = weft_exact_value (sum);
    if (fabs (found - wanted) > ldexp (fabs (wanted), -52))
      fail_msg ("found %a, wanted %a", found, wanted);
  }
  g_rand_free (rand);
}

static void
what_cancels_leaves_what_was_there (void **state)
{
  static const double term[] = { 0x1p250, 0x1p-298, -0x1p250, -3 };
  int64_t sum[WEFT_EXACT_WORDS] = { 0 }, zero[WEFT_EXACT_WORDS] = { 0 };

  (void) state;
  weft_exact_add (sum, term, 3);
  assert_true (weft_exact_value (sum) == 0x1p-298);
  weft_exact_add (sum, &term[3], 1);
  assert_true (weft_exact_value (sum) == -3);
  weft_exact_add (sum, (double[]){ 3, -0x1p-298, 0, -0.0 }, 4);
  assert_memory_equal (sum, zero, sizeof sum);
  assert_true (weft_exact_value (sum) == 0);
}

static void
ranks_add_their_words (void **state)
{
  GRand *rand = g_rand_new_with_seed (3);
  double term[N_TERM];

  (void) state;
  for (int trial = 0; trial < N_TRIAL; trial++) {
    int64_t whole[WEFT_EXACT_WORDS] = { 0 }, total[WEFT_EXACT_WORDS] = { 0 };
    int n_rank = g_rand_int_range (rand, 2, 9);
    fill (rand, term, -200, 100);
    weft_exact_add (whole, term, N_TERM);
    for (int rank = 0; rank < n_rank; rank++) {
      int64_t sum[WEFT_EXACT_WORDS] = { 0 };
      int begin = N_TERM * rank / n_rank, end = N_TERM * (rank + 1) / n_rank;
      weft_exact_add (sum, term + begin, (uint64_t) (end - begin));
      for (int i = 0; i < WEFT_EXACT_WORDS; i++)
        total[i] += sum[i];
    }
    assert_true (weft_exact_value (total) == weft_exact_value (whole));
  }
  g_rand_free (rand);
}

static void
one_term_that_is_not_finite_is_never_lost (void **state)
{
  static const double bad[] = { INFINITY, -INFINITY, NAN };

  (void) state;
  for (unsigned b = 0; b < G_N_ELEMENTS (bad); b++) {
    int64_t sum[WEFT_EXACT_WORDS] = { 0 };
    double term[N_TERM] = { [N_TERM / 2] = bad[b] };
    weft_exact_add (sum, term, N_TERM);
    weft_exact_add (sum, (double[]){ 1, -1 }, 2);
    assert_true (isnan (weft_exact_value (sum)));
  }
}

/* ------------------------------------------------------------------------- fold */

/* The canonical tree that adds n leaves from leaf `first` on, as text: "((0+1)+2)". The caller
 * frees it. */
static char *
tree (uint32_t first, uint32_t n)
{
  if (n == 1)
    return g_strdup_printf ("%u", first);
  uint32_t left = weft_fold_split (n);
  g_autofree char *a = tree (first, left), *b = tree (first + left, n - left);
  return g_strdup_printf ("(%s+%s)", a, b);
}

static void
the_tree_splits_after_the_largest_power_of_two (void **state)
{
  g_autofree char *six = tree (0, 6), *seven = tree (0, 7);

  (void) state;
  assert_string_equal (six, "(((0+1)+(2+3))+(4+5))");
  assert_string_equal (seven, "(((0+1)+(2+3))+((4+5)+6))");
}

static void
a_stack_in_leaf_order_computes_the_tree (void **state)
{
  (void) state;
  for (uint32_t n = 1; n <= 70; n++) {
    g_autoptr (GPtrArray) stack = g_ptr_array_new_with_free_func (g_free);
    for (uint32_t i = 0; i < n; i++) {
      g_ptr_array_add (stack, g_strdup_printf ("%u", i));
      assert_true (stack->len <= weft_fold_depth (n));
      for (uint32_t merges = weft_fold_merges (i, n); merges; merges--) {
        g_autofree char *above = g_ptr_array_steal_index (stack, stack->len - 1);
        g_autofree char *below = g_ptr_array_steal_index (stack, stack->len - 1);
        g_ptr_array_add (stack, g_strdup_printf ("(%s+%s)", below, above));
      }
    }
    g_autofree char *wanted = tree (0, n);
    assert_int_equal (stack->len, 1);
    assert_string_equal (g_ptr_array_index (stack, 0), wanted);
  }
}

static void
an_aligned_block_of_leaves_is_one_node (void **state)
{
  (void) state;
  for (uint32_t n = 1; n <= 40; n++) {
    g_autofree char *whole = tree (0, n);
    for (uint32_t size = 1; size <= n; size *= 2)
      for (uint32_t first = 0; first + size <= n; first += size) {
        g_autofree char *block = tree (first, size);
        assert_non_null (strstr (whole, block));
      }
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_order_of_the_same_terms_gives_the_same_words),
  cmocka_unit_test (the_value_is_that_of_integers_of_any_length),
  cmocka_unit_test (what_cancels_leaves_what_was_there),
  cmocka_unit_test (ranks_add_their_words),
  cmocka_unit_test (one_term_that_is_not_finite_is_never_lost),
  cmocka_unit_test (the_tree_splits_after_the_largest_power_of_two),
  cmocka_unit_test (a_stack_in_leaf_order_computes_the_tree),
  cmocka_unit_test (an_aligned_block_of_leaves_is_one_node),
};

WEFT_TESTS (tests)
