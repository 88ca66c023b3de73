/* fp8_scales.h - layout of fp8 scales that cuBLASLt expects (cuBLAS 13, "Scaling factors layouts");
 * ops store scales row by row (kernels/fp8.h). On the left, the elements that share a scale:
 *
 *   whole tensor        a float that multiplies the codes
 *   128 of a row        floats; for each block of terms the scales of all rows are contiguous,
 *                       padded to a multiple of 4
 *   128 x 128           floats; for each row of squares the scales of all blocks of terms are
 *                       contiguous, their number padded to a multiple of 4
 *   32 of a row         bytes, in tiles of 128 rows and 4 blocks of terms: 16 bytes for each of 32
 *                       rows, four for each of rows r, r + 32, r + 64 and r + 96 */
#pragma once
#include "kernels/fp8.h"
#include <stddef.h>

/* NULL, or why the tensor cores of a GPU of compute capability arch / 10 cannot multiply codes with
 * one scale per `block` elements; block 0: one scale per tensor (cuBLAS 13, "Scaling Mode Support
 * Overview"). */
WEFT_INLINE const char *
weft_fp8_refused (int arch, uint64_t block)
{
  if (arch < 89)
    return "precision fp8 needs a GPU with tensor cores for fp8: Ada, Hopper or newer";
  if (block == WEFT_MX_BLOCK && arch < 100)
    return "fp8_recipe mxfp8 needs a GPU whose tensor cores support one scale per 32 elements, "
           "Blackwell or newer; found an older GPU: use delayed or tensorwise, or blockwise on "
           "Hopper";
  if (block == 128 && arch / 10 != 9)
    return "fp8_recipe blockwise is supported on Hopper only; found another GPU: use delayed or "
           "tensorwise, or mxfp8 on Blackwell";
  return NULL;
}

struct weft_fp8_layout {
  uint64_t rows, blocks; /* number of scales along the rows; number of scales along the terms */
  uint64_t block;
  int square;
};

WEFT_INLINE uint64_t
weft_fp8_up (uint64_t n, uint64_t to)
{
  return (n + to - 1) / to * to;
}

/* Layout of the scales of a factor with `rows` rows and `terms` terms per row. */
WEFT_INLINE struct weft_fp8_layout
weft_fp8_layout_of (uint64_t rows, uint64_t terms, uint64_t block, int square)
{
  struct weft_fp8_layout l;

  l.square = square;
  l.block = block;
  l.rows = block == 0 ? 1 : square ? weft_fp8_blocks (rows, block) : rows;
  l.blocks = block == 0 ? 1 : weft_fp8_blocks (terms, block);
  return l;
}

/* Number of scales that the library reads, padding included. Scales of blocks of 32 elements are
 * bytes, other scales are floats. */
WEFT_INLINE uint64_t
weft_fp8_layout_count (const struct weft_fp8_layout *l)
{
  if (l->block == 0)
    return 1;
  if (l->block == WEFT_MX_BLOCK)
    return weft_fp8_up (l->rows, 128) * weft_fp8_up (l->blocks, 4);
  return l->square ? l->rows * weft_fp8_up (l->blocks, 4) : l->blocks * weft_fp8_up (l->rows, 4);
}

/* Index of the scale of (row, block of terms) in cuBLASLt's layout. */
WEFT_INLINE uint64_t
weft_fp8_layout_place (const struct weft_fp8_layout *l, uint64_t row, uint64_t block)
{
  if (l->block == WEFT_MX_BLOCK)
    return (row / 128 * (weft_fp8_up (l->blocks, 4) / 4) + block / 4) * 512 + row % 32 * 16 +
           row % 128 / 32 * 4 + block % 4;
  return l->square ? row * weft_fp8_up (l->blocks, 4) + block
                   : block * weft_fp8_up (l->rows, 4) + row;
}
