/* The segments and blocks of core/plan/caching.c: each test asks for tensors whose sizes show one
 * rule of PyTorch's caching allocator. */
#include "core/plan/caching.h"
#include "tests/runner/runner.h"
#include <math.h>

#define MIB 1048576.0

static void
segments_have_sizes_of_their_own (void **state)
{
  g_autoptr (weft_caching) c = weft_caching_new (INFINITY);

  (void) state;
  assert_int_equal (weft_caching_take (c, 0), 0);
  assert_true (weft_caching_reserved (c) == 0);
  weft_caching_take (c, 1);
  assert_true (weft_caching_reserved (c) == 2 * MIB);
  weft_caching_take (c, MIB);
  assert_true (weft_caching_reserved (c) == 2 * MIB);
  weft_caching_take (c, MIB); /* 512 bytes are missing in the segment */
  assert_true (weft_caching_reserved (c) == 4 * MIB);
  weft_caching_take (c, MIB + 1);
  assert_true (weft_caching_reserved (c) == 24 * MIB);
  weft_caching_take (c, 9 * MIB); /* from the rest of the same segment */
  assert_true (weft_caching_reserved (c) == 24 * MIB);
  weft_caching_take (c, 11 * MIB);
  assert_true (weft_caching_reserved (c) == 36 * MIB);
}

static void
the_smallest_block_that_fits_serves (void **state)
{
  g_autoptr (weft_caching) c = weft_caching_new (INFINITY);
  uint32_t large = weft_caching_take (c, 400 * MIB), small = weft_caching_take (c, 100 * MIB);

  (void) state;
  weft_caching_give (c, large);
  weft_caching_give (c, small);
  assert_int_equal (weft_caching_take (c, 60 * MIB), small);
  assert_int_equal (weft_caching_take (c, 400 * MIB), large);
  assert_true (weft_caching_reserved (c) == 500 * MIB);
  weft_caching_take (c, 41 * MIB); /* 40 MiB are left of the small block */
  assert_true (weft_caching_reserved (c) == 542 * MIB);
}

/* A rest of at most one MiB of a large block is not cut off. */
static void
a_small_rest_stays_with_its_block (void **state)
{
  g_autoptr (weft_caching) c = weft_caching_new (INFINITY);

  (void) state;
  uint32_t first = weft_caching_take (c, 100 * MIB);
  weft_caching_give (c, first);
  weft_caching_take (c, 99 * MIB);
  weft_caching_take (c, 1.5 * MIB);
  assert_true (weft_caching_reserved (c) == 120 * MIB);
}

static void
free_neighbours_join_within_a_segment (void **state)
{
  g_autoptr (weft_caching) c = weft_caching_new (INFINITY);
  uint32_t whole = weft_caching_take (c, 300 * MIB), part[3];

  (void) state;
  weft_caching_give (c, whole);
  for (int i = 0; i < 3; i++)
    part[i] = weft_caching_take (c, 100 * MIB);
  weft_caching_give (c, part[0]);
  weft_caching_give (c, part[2]);
  assert_true (weft_caching_reserved (c) == 300 * MIB);
  weft_caching_give (c, part[1]);
  weft_caching_take (c, 300 * MIB);
  assert_true (weft_caching_reserved (c) == 300 * MIB);
}

/* Two free segments cannot serve one tensor. */
static void
a_tensor_has_one_segment (void **state)
{
  g_autoptr (weft_caching) c = weft_caching_new (INFINITY);
  uint32_t a = weft_caching_take (c, 100 * MIB), b = weft_caching_take (c, 100 * MIB);

  (void) state;
  weft_caching_give (c, a);
  weft_caching_give (c, b);
  weft_caching_take (c, 150 * MIB);
  assert_true (weft_caching_reserved (c) == 350 * MIB);
}

/* A full GPU gets the segments back that have no block in use, but no other ones. */
static void
a_full_gpu_gets_free_segments_back (void **state)
{
  g_autoptr (weft_caching) c = weft_caching_new (450 * MIB);
  uint32_t a = weft_caching_take (c, 100 * MIB), b = weft_caching_take (c, 200 * MIB);

  (void) state;
  weft_caching_give (c, a);
  weft_caching_give (c, b);
  weft_caching_take (c, 150 * MIB); /* in the segment of b, which stays */
  weft_caching_take (c, 220 * MIB);
  assert_true (weft_caching_reserved (c) == 420 * MIB);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (segments_have_sizes_of_their_own),
  cmocka_unit_test (the_smallest_block_that_fits_serves),
  cmocka_unit_test (a_small_rest_stays_with_its_block),
  cmocka_unit_test (free_neighbours_join_within_a_segment),
  cmocka_unit_test (a_tensor_has_one_segment),
  cmocka_unit_test (a_full_gpu_gets_free_segments_back),
};
WEFT_TESTS (tests)
