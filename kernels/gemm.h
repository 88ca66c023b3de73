/* gemm.h - matrix products in fp32 from fp32, bf16 or scaled fp8, always in one order.
 *
 * An element of a product is one chain of fused multiply-adds, from 0 on, over its terms in
 * increasing order, or a sum of several such chains (leaves.h).  Where it lies, what is computed
 * beside it and how wide the vectors are does not matter: blocks only decide when a link of the chain
 * is made. */
#pragma once
#include "core/base/words.h"
#include "kernels/leaves.h"
#include <glib.h>

/* ----------------------------------------------------------------------- whole products */

/* One factor: element (i, t) is data[i * along + t * sum], i a row or column of the product, t a
 * term of its sums.  One of the two strides is 1. */
struct weft_factor {
  const void *data;
  uint64_t along, sum;
  enum weft_dtype dtype; /* WEFT_FP32, WEFT_BF16, WEFT_FP16, WEFT_FP8 or WEFT_E5M2 */

  /* Of fp8: with block 0 the largest magnitude of the tensor as a float, else a power of two for so many
   * terms of a row (fp8.h), as bytes for 32, as floats for others, which may be squares of so many rows and
   * terms.  An element is its code times the scale, as a float.  That of element (i, t) is at
   * i * scale_along + (t + skip) / block * scale_sum, i counted in squares where there are such. */
  const void *scale;
  uint32_t block;
  gboolean square;
  uint64_t scale_along, scale_sum;
  uint64_t skip; /* terms of the first block that are none of the product's */
};

/* What is done with sums and where they go: rows of an array, or one row. */
struct weft_gemm_result {
  void *data;
  uint64_t row; /* elements from one row to the next */
  enum weft_dtype dtype;
  gboolean accumulate; /* add to what is there */

  /* Every node of the sum over leaves is rounded to dtype; otherwise they are fp32. */
  gboolean rounds;

  const void *bias; /* one for each column; NULL: none */
  enum weft_dtype bias_dtype;
};

/* c(i, j) = sum over t of a(i, t) b(j, t), for rows [first, last) and all columns. */
struct weft_gemm {
  struct weft_factor a, b;
  struct weft_gemm_result c;
  uint64_t first, last, columns;
  struct weft_leaves terms;
  const struct weft_tile *tile; /* NULL: the quickest of this machine */
};

void weft_gemm (const struct weft_gemm *g);

/* c(0, j) = sum over t of x(j, t): no products, otherwise the same, for some columns. */
void weft_gemm_sums (const struct weft_factor *x, const struct weft_gemm_result *c,
                     struct weft_range columns, const struct weft_leaves *terms);

/* ------------------------------------------------------------------------- small pieces */

/* A product of packed factors.  a and b are panels, one after the other: tile->rows rows of a (or
 * tile->columns columns of b) lie side by side for each term. */
struct weft_block {
  uint64_t rows, columns, terms; /* rows and columns are multiples of the tile's */
  uint64_t a_step, b_step;       /* floats from one term to the next */
  uint64_t a_next, b_next;       /* from one panel to the next */
  uint64_t c_row;                /* from one row of c to the next */
  gboolean fresh;                /* c = a b; otherwise its chains go on: c += a b */
};

/* What one vector unit does best; multiply computes rows x columns, whatever the block's. */
struct weft_tile {
  const char *name;
  uint32_t rows, columns;
  gboolean (*supported) (void);
  void (*multiply) (const struct weft_block *block, const float *a, const float *b, float *c);
};

/* All that were compiled, the quickest first; the last runs everywhere. */
extern const struct weft_tile weft_tiles[];
extern const uint32_t weft_n_tiles;
const struct weft_tile *weft_tile_best (void);

/* What the rows and columns of every tile divide. */
#define WEFT_TILE_ROWS 8
#define WEFT_TILE_COLUMNS 32

void weft_block_multiply (const struct weft_tile *tile, const struct weft_block *block,
                          const float *a, const float *b, float *c);

/* Elements [first, first + n) times terms [term, term + terms) of a factor, as panels of `width`;
 * what is missing in the last panel is 0. */
struct weft_pack_range {
  uint64_t first, n, term, terms;
};
void weft_pack (const struct weft_factor *from, const struct weft_pack_range *range, uint32_t width,
                float *to);

/* The room of a thread, for one kernel at a time; aligned to a cache line. */
#define WEFT_SCRATCH_FLOATS (256 * 1024)
float *weft_scratch (void);
