/* Placing pieces of memory by size (core/plan/fit.h). */
#include "core/plan/fit.h"
#include "tests/runner/runner.h"

/* 300 pieces of memory of random size and lifetime get addresses: no two pieces may share bytes
 * while both are in use. */
static void
pieces_never_share_bytes_while_in_use (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (20261123);
  struct weft_fit_piece piece[300];
  uint64_t top = 0;

  (void) state;
  for (int i = 0; i < 300; i++) {
    uint32_t first = (uint32_t) g_rand_int_range (rand, 0, 1000);
    piece[i] = (struct weft_fit_piece){ .bytes = (uint64_t) g_rand_int_range (rand, 1, 9),
                                        .first = first,
                                        .end = first + (uint32_t) g_rand_int_range (rand, 1, 300) };
  }
  uint64_t size = weft_fit (piece, 300, 1000, 0, G_MAXUINT64);
  for (int i = 0; i < 300; i++) {
    top = MAX (top, piece[i].offset + piece[i].bytes);
    for (int j = 0; j < i; j++)
      assert_true (piece[j].end <= piece[i].first || piece[i].end <= piece[j].first ||
                   piece[j].offset + piece[j].bytes <= piece[i].offset ||
                   piece[i].offset + piece[i].bytes <= piece[j].offset);
  }
  assert_int_equal (size, top);
}

/* Whether a piece at offset `at` overlaps no other placed piece that is in use at the same time. */
static gboolean
is_free (const struct weft_fit_piece *piece, int n, int asks, uint64_t at)
{
  const struct weft_fit_piece *p = &piece[asks];

  for (int i = 0; i < n; i++) {
    const struct weft_fit_piece *q = &piece[i];
    gboolean earlier = q->bytes > p->bytes || (q->bytes == p->bytes && q->first < p->first) ||
                       (q->bytes == p->bytes && q->first == p->first && i < asks);
    if (earlier && q->first < p->end && p->first < q->end && q->offset < at + p->bytes &&
        at < q->offset + q->bytes)
      return FALSE;
  }
  return TRUE;
}

/* 400 pieces of random size and lifetime, from one op to most of 700 ops: each piece has the lowest
 * offset that the pieces placed before it leave free. The slack allows only the first order. */
static void
every_piece_has_the_lowest_free_offset (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (7);
  struct weft_fit_piece piece[400];

  (void) state;
  for (int i = 0; i < 400; i++) {
    uint32_t first = (uint32_t) g_rand_int_range (rand, 0, 700), most = i % 4 ? 20 : 700;
    uint32_t life = (uint32_t) g_rand_int_range (rand, 1, most);
    piece[i] = (struct weft_fit_piece){ .bytes = (uint64_t) g_rand_int_range (rand, 1, 7),
                                        .first = first,
                                        .end = MIN (700, first + life) };
  }
  weft_fit (piece, 400, 700, G_MAXUINT32, G_MAXUINT64);
  for (int i = 0; i < 400; i++)
    for (uint64_t at = 0; at <= piece[i].offset; at++)
      assert_int_equal (is_free (piece, 400, i, at), at == piece[i].offset);
}

static void
pieces_of_one_size_leave_no_gap (void **state)
{
  struct weft_fit_piece piece[100];

  (void) state;
  for (uint32_t i = 0; i < 100; i++)
    piece[i] = (struct weft_fit_piece){ .bytes = 7, .first = 10 * i, .end = 10 * i + 45 };
  assert_int_equal (weft_fit (piece, 100, 1000, 0, G_MAXUINT64), 5 * 7);
  assert_true (weft_fit (piece, 100, 1000, 0, 10) == G_MAXUINT64);
}

/* Places random pieces and returns the memory above their load in percent. Pieces of a size have
 * similar lifetimes, as the buffers of equal layers have. */
static double
lost (guint32 seed, uint64_t slack)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (seed);
  struct weft_fit_piece piece[200];

  for (int i = 0; i < 200; i++) {
    uint32_t first = (uint32_t) g_rand_int_range (rand, 0, 1000);
    uint32_t size = (uint32_t) g_rand_int_range (rand, 5, 15);
    piece[i] = (struct weft_fit_piece){ .bytes = size, .first = first, .end = first + 20 * size };
  }
  uint64_t load = weft_fit_load (piece, 200, 1000);
  return 100.0 * (double) weft_fit (piece, 200, 1000, slack, G_MAXUINT64) / (double) load - 100;
}

/* A placement with gaps is improved by other orders, and none becomes worse. */
static void
other_orders_fill_gaps (void **state)
{
  double first = 0, best = 0;

  (void) state;
  for (guint32 seed = 0; seed < 20; seed++) {
    double one = lost (seed, G_MAXUINT32), all = lost (seed, 0);
    assert_true (all <= one && all >= 0);
    first += one;
    best += all;
  }
  assert_true (best < 0.9 * first);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (pieces_never_share_bytes_while_in_use),
  cmocka_unit_test (every_piece_has_the_lowest_free_offset),
  cmocka_unit_test (pieces_of_one_size_leave_no_gap),
  cmocka_unit_test (other_orders_fill_gaps),
};

WEFT_TESTS (tests)
