/* fp8_scales.h - where cuBLASLt looks for the scale of a block of codes (cuBLAS 13, "Scaling factors
 * layouts"; what ops have is row by row, kernels/fp8.h).
 *
 *   one for a tensor    a float that the codes are multiplied by
 *   128 of a row        floats, row by row of the product first: the rows, as a multiple of 4, are next to
 *                       each other
 *   128 x 128           floats, blocks of terms next to each other, as a multiple of 4
 *   32 of a row         bytes, in tiles of 128 rows and 4 blocks of terms: 32 rows next to each other have
 *                       16 bytes each, four for every one of rows r, r + 32, r + 64 and r + 96 */
#pragma once
#include "kernels/fp8.h"
#include <stddef.h>

/* NULL, or why no tensor cores of a GPU, of compute capability arch / 10, multiply codes with one scale for
 * so many elements; 0: for a tensor (cuBLAS 13, "Scaling Mode Support Overview"). */
WEFT_INLINE const char *
weft_fp8_refused (int arch, uint64_t block)
{
  if (arch < 89)
    return "precision fp8 wants a GPU with tensor cores for fp8: Ada, Hopper or newer";
  if (block == WEFT_MX_BLOCK && arch < 100)
    return "fp8_recipe mxfp8 wants a GPU whose tensor cores take scales of 32 elements, Blackwell "
           "or "
           "newer; found an older one: take delayed or tensorwise, or blockwise on Hopper";
  if (block == 128 && arch / 10 != 9)
    return "fp8_recipe blockwise has products on Hopper alone; found another GPU: take delayed or "
           "tensorwise, or mxfp8 on Blackwell";
  return NULL;
}

struct weft_fp8_layout {
  uint64_t rows, blocks; /* of scales */
  uint64_t block;
  int square;
};

WEFT_INLINE uint64_t
weft_fp8_up (uint64_t n, uint64_t to)
{
  return (n + to - 1) / to * to;
}

/* Of a factor of so many rows and terms. */
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

/* Scales that the library reads, those of padding too; bytes of 32, floats of others. */
WEFT_INLINE uint64_t
weft_fp8_layout_count (const struct weft_fp8_layout *l)
{
  if (l->block == 0)
    return 1;
  if (l->block == WEFT_MX_BLOCK)
    return weft_fp8_up (l->rows, 128) * weft_fp8_up (l->blocks, 4);
  return l->square ? l->rows * weft_fp8_up (l->blocks, 4) : l->blocks * weft_fp8_up (l->rows, 4);
}

/* The place of a scale among them. */
WEFT_INLINE uint64_t
weft_fp8_layout_place (const struct weft_fp8_layout *l, uint64_t row, uint64_t block)
{
  if (l->block == WEFT_MX_BLOCK)
    return (row / 128 * (weft_fp8_up (l->blocks, 4) / 4) + block / 4) * 512 + row % 32 * 16 +
           row % 128 / 32 * 4 + block % 4;
  return l->square ? row * weft_fp8_up (l->blocks, 4) + block
                   : block * weft_fp8_up (l->rows, 4) + row;
}
