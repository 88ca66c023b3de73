/* gemm.h - matrix products in fp32 from fp32, 16-bit or scaled fp8 factors, always summed in the
 * same order.
 *
 * An element of a product is one chain of fused multiply-adds, from 0 on, over its terms in
 * increasing order, or a sum of several such chains (leaves.h). The chain does not depend on
 * blocking, threads or vector width. */
#pragma once
#include "core/base/words.h"
#include "kernels/leaves.h"
#include <glib.h>

/* ----------------------------------------------------------------------- whole products */

/* A factor of a matrix product. Element (i, t) is data[i * along + t * sum], where i is a row (or
 * column) of the product and t a term of its sums. One of the two strides is 1. */
struct weft_factor {
  const void *data;
  uint64_t along, sum;
  /* type of the elements: WEFT_FP32, WEFT_BF16, WEFT_FP16, WEFT_FP8 or WEFT_E5M2 */
  enum weft_dtype dtype;

  /* Scale of an fp8 factor. block 0: one float, the largest magnitude of the tensor. Otherwise one
   * scale for `block` terms of a row (fp8.h): E8M0 bytes for blocks of 32, floats for other blocks,
   * which may be squares of `block` rows and terms. The value of an element is code times scale, as
   * a float. The scale of element (i, t) is at i * scale_along + (t + skip) / block * scale_sum;
   * with squares, i / block takes the place of i. */
  const void *scale;
  uint32_t block;
  gboolean square;
  uint64_t scale_along, scale_sum;
  /* number of terms of the first scale block that lie before the first term of the product */
  uint64_t skip;
};

/* The output of a matrix product: how sums are rounded and stored, and the array that receives
 * them. */
struct weft_gemm_result {
  void *data;
  uint64_t row; /* stride from row to row, in elements */
  enum weft_dtype dtype;
  gboolean accumulate; /* TRUE: add the sums to the old contents of `data`; FALSE: overwrite them */

  /* Whether every partial sum of leaves (leaves.h) is rounded to dtype, as canonical order
   * requires; otherwise partial sums are fp32. */
  gboolean rounds;

  const void *bias; /* bias: one element per column; NULL: no bias */
  enum weft_dtype bias_dtype;
};

/* A matrix product: c(i, j) = sum over t of a(i, t) b(j, t), for rows [first, last) and all
 * columns. */
struct weft_gemm {
  struct weft_factor a, b;
  struct weft_gemm_result c;
  uint64_t first, last, columns;
  struct weft_leaves terms;
  const struct weft_tile *tile; /* NULL: the fastest tile that this machine supports */
};

void weft_gemm (const struct weft_gemm *g);

/* Column sums (a bias gradient): c(0, j) = sum over t of x(j, t) for every j in `columns`. The
 * order of summation is that of a matrix product with the same terms. */
void weft_gemm_sums (const struct weft_factor *x, const struct weft_gemm_result *c,
                     struct weft_range columns, const struct weft_leaves *terms);

/* ------------------------------------------------------------------------------- blocks */

/* A product of packed factors. A factor is a list of panels. A panel contains, for each term of the
 * sums, tile->rows adjacent elements of a (tile->columns adjacent elements of b). */
struct weft_block {
  /* number of rows and of columns of the block, which are multiples of the tile's rows and
   * columns */
  uint64_t rows, columns, terms;
  uint64_t a_step, b_step;       /* strides in floats from one term of the sums to the next */
  uint64_t a_next, b_next;       /* strides in floats from one panel to the next */
  uint64_t c_row;                /* stride in floats from one row of c to the next */
  gboolean fresh;                /* TRUE: c = a b; FALSE: c += a b, which continues the sums */
};

/* A version of the innermost loops for one vector unit. multiply() computes a block of any size
 * from tiles of rows x columns elements. */
struct weft_tile {
  const char *name;
  uint32_t rows, columns;
  gboolean (*supported) (void);
  void (*multiply) (const struct weft_block *block, const float *a, const float *b, float *c);
};

/* All compiled tiles (versions of the innermost loops of a matrix product), fastest first. The last
 * tile runs on every machine. */
extern const struct weft_tile weft_tiles[];
extern const uint32_t weft_n_tiles;
const struct weft_tile *weft_tile_best (void);

/* A block whose number of rows is a multiple of WEFT_TILE_ROWS, and whose number of columns is a
 * multiple of WEFT_TILE_COLUMNS, consists of whole tiles, for every compiled tile. */
#define WEFT_TILE_ROWS 8
#define WEFT_TILE_COLUMNS 32

void weft_block_multiply (const struct weft_tile *tile, const struct weft_block *block,
                          const float *a, const float *b, float *c);

/* Packs rows [first, first + n) and terms [term, term + terms) of a factor into panels of `width`
 * rows; the last panel is padded with 0. */
struct weft_pack_range {
  uint64_t first, n, term, terms;
};
void weft_pack (const struct weft_factor *from, const struct weft_pack_range *range, uint32_t width,
                float *to);

/* Scratch of a thread, used by one kernel at a time; aligned to a cache line. */
#define WEFT_SCRATCH_FLOATS (256 * 1024)
float *weft_scratch (void);
