/* wgmma descriptors of matrices in shared memory, against the layouts that NVIDIA CUTLASS publishes
 * (include/cute/atom/mma_traits_sm90_gmma.hpp: Layout_K_SW128_Atom, Layout_MN_SW128_Atom,
 * make_gmma_desc; include/cute/arch/mma_sm90_desc.hpp: the fields).  This file shares no code with
 * the kernels or the emulator: a layout is a list of modes (size, stride), as in CuTe.
 *
 * Three addresses of an element must agree: where kernels store it, where their descriptors place
 * it, and where the emulator reads it. */
#include "tests/doubles/warpgroup_trial.h"
#include "tests/runner/runner.h"
#include <glib.h>

enum { MOST_MODES = 3, UNIT = 16 /* bytes */, ELEMENT = 2, TERMS = 16, EACH = UNIT / ELEMENT };

/* One dimension of a matrix as in CuTe: modes of (size, stride), the fastest first; strides in
 * elements. */
struct side {
  struct {
    unsigned size, stride;
  } mode[MOST_MODES];
};

struct layout {
  struct side outer, term;
};

static unsigned
offset_in (const struct side *s, unsigned i)
{
  unsigned offset = 0;

  for (unsigned m = 0; m < MOST_MODES && s->mode[m].size; m++) {
    offset += i % s->mode[m].size * s->mode[m].stride;
    i /= s->mode[m].size;
  }
  return offset;
}

/* Swizzle<3,4,3>: bits 4 to 6 of the byte address are XORed with bits 7 to 9. */
static unsigned
swizzled (unsigned byte)
{
  return byte ^ (byte >> 3 & 7u << 4);
}

static unsigned
place (const struct layout *l, unsigned begin, unsigned outer, unsigned term)
{
  return swizzled (begin + (offset_in (&l->outer, outer) + offset_in (&l->term, term)) * ELEMENT);
}

/* tile_to_shape() of atoms of 8 rows of 64 elements, rows first. K-major: `outer` runs over rows,
 * `term` over columns. MN-major (`turned`): the reverse. */
static struct layout
layout_of_tile (unsigned rows, unsigned columns, bool turned)
{
  const struct side by_row = { { { 8, 64 }, { rows / 8, 512 } } },
                    by_column = { { { 64, 1 }, { columns / 64, rows * 64 } } };
  const struct layout l = { turned ? by_column : by_row, turned ? by_row : by_column };

  return l;
}

/* The layout that a wgmma descriptor describes. CUTLASS's canonical layouts are ((8,m),(T,2)) :
 * ((8T,SBO),(1,T)) for K-major and ((T,8,m),(8,k)) : ((1,T,LBO),(8T,SBO)) for MN-major. */
static struct layout
canonical (uint64_t bits, bool turned)
{
  unsigned lbo = (bits >> 16 & 0x3fff) * EACH, sbo = (bits >> 32 & 0x3fff) * EACH;
  const struct layout k_major = { { { { 8, 8 * EACH }, { 32, sbo } } },
                                  { { { EACH, 1 }, { 2, EACH } } } },
                      mn_major = { { { { EACH, 1 }, { 8, EACH }, { 4, lbo } } },
                                   { { { 8, 8 * EACH }, { 2, sbo } } } };

  return turned ? mn_major : k_major;
}

/* Tiles that the kernels use: rows, columns, how many rows one wgmma reads (columns, if
 * transposed), and whether the tile is transposed. */
static const struct tile {
  unsigned rows, columns, product;
  bool turned;
} tiles[] = {
  /* tiles of queries, keys or output gradients with heads of width 64; of token rows of experts */
  { 128, 64, 64, false },
  { 128, 128, 64, false }, /* tiles of queries, keys or output gradients with heads of width 128 */
  { 128, 64, 128, false }, /* tiles of keys as the right factor of a product */
  { 128, 128, 128, false },
  { 64, 64, 64, false }, /* tiles that the attention backward kernel loads in its loop */
  { 64, 128, 64, false },
  { 256, 64, 256, false }, /* tiles of expert weights */
  { 128, 64, 64, true },   /* tiles of values as the right factor, transposed */
  { 128, 128, 128, true },
  { 64, 64, 64, true },
  /* tiles of token rows of experts as the left factor, transposed; also of weights or gradients */
  { 64, 128, 128, true },
  { 64, 128, 64, true },
  { 64, 256, 256, true },
};

static void
kernels_put_elements_where_the_layout_has_them (void **state)
{
  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (tiles); i++) {
    const struct tile *t = &tiles[i];
    const struct layout l = layout_of_tile (t->rows, t->columns, t->turned);
    for (unsigned row = 0; row < t->rows; row++)
      for (unsigned column = 0; column < t->columns; column++)
        assert_int_equal (warpgroup_place (t->rows, row, column),
                          place (&l, 0, t->turned ? column : row, t->turned ? row : column));
  }
}

static void
check_fields (const struct tile *t, const struct warpgroup_view *v, uint64_t bits)
{
  const struct layout l = layout_of_tile (t->rows, t->columns, t->turned);
  const struct side *outer = &l.outer, *term = &l.term;
  unsigned begin = v->tile + (offset_in (outer, v->outer) + offset_in (term, v->term)) * ELEMENT;
  unsigned lbo = t->turned ? outer->mode[1].stride / EACH : 1;
  unsigned sbo = (t->turned ? term : outer)->mode[1].stride / EACH;

  assert_int_equal (bits & 0x3fff, begin / UNIT);
  assert_int_equal (bits >> 32 & 0x3fff, sbo);
  /* A tile of a single panel does not use the stride between panels. */
  if (!t->turned || t->product > 64)
    assert_int_equal (bits >> 16 & 0x3fff, lbo);
  assert_int_equal (bits >> 62, 1); /* SWIZZLE_128B */
  assert_int_equal (bits & ~(0x3fffull | 0x3fffull << 16 | 0x3fffull << 32 | 3ull << 62), 0);
  /* begin is a multiple of 1024 bytes; any other address would need a base offset in the
   * descriptor */
  assert_int_equal (begin >> 7 & 7, 0);
}

/* Compares three addresses of every element that a wgmma reads: from the layout of the tile, from
 * the descriptor, and as the emulator reads the element. */
static void
check_elements (const struct tile *t, const struct warpgroup_view *v, uint64_t bits)
{
  const struct layout whole = layout_of_tile (t->rows, t->columns, t->turned),
                      part = canonical (bits, t->turned);

  for (unsigned outer = 0; outer < t->product; outer++)
    for (unsigned term = 0; term < TERMS; term++) {
      unsigned wanted = place (&whole, v->tile, v->outer + outer, v->term + term);
      assert_int_equal (place (&part, (bits & 0x3fff) * UNIT, outer, term), wanted);
      assert_int_equal (warpgroup_read (bits, t->turned, outer, term), wanted);
    }
}

static void
descriptors_mean_the_tiles_that_they_are_of (void **state)
{
  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (tiles); i++) {
    const struct tile *t = &tiles[i];
    unsigned along = t->turned ? t->columns : t->rows, terms = t->turned ? t->rows : t->columns;
    for (unsigned outer = 0; outer < along; outer += t->product)
      for (unsigned term = 0; term < terms; term += TERMS) {
        const struct warpgroup_view v = { 5 * 1024, t->rows, outer, term, t->turned };
        uint64_t bits = warpgroup_describe (&v);
        check_fields (t, &v, bits);
        check_elements (t, &v, bits);
      }
  }
}

/* A box that ends beyond its matrix: the tile has zeros there, and all other elements where kernels
 * and wgmma expect them. */
static void
boxes_of_tensor_maps_are_tiles (void **state)
{
  enum { ROWS = 50, COLUMNS = 80, ROW = 10, COLUMN = 40 };
  uint16_t *at = g_aligned_alloc (ROWS * COLUMNS, sizeof *at, 16);
  const struct warpgroup_matrix matrix = { at, ROWS, COLUMNS };
  uint16_t tile[WARPGROUP_BOX * WARPGROUP_BOX];

  (void) state;
  for (unsigned i = 0; i < ROWS * COLUMNS; i++)
    at[i] = (uint16_t) (i + 1);
  warpgroup_copy (&matrix, ROW, COLUMN, tile);
  for (unsigned row = 0; row < WARPGROUP_BOX; row++)
    for (unsigned column = 0; column < WARPGROUP_BOX; column++) {
      gboolean there = ROW + row < ROWS && COLUMN + column < COLUMNS;
      unsigned found = tile[warpgroup_place (WARPGROUP_BOX, row, column) / ELEMENT];
      assert_int_equal (found, there ? at[(ROW + row) * COLUMNS + COLUMN + column] : 0);
    }
  g_aligned_free (at);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (kernels_put_elements_where_the_layout_has_them),
  cmocka_unit_test (boxes_of_tensor_maps_are_tiles),
  cmocka_unit_test (descriptors_mean_the_tiles_that_they_are_of),
};

WEFT_TESTS (tests)
