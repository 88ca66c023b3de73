/* warpgroup_trial.h - runs a matmul by wgmma on the emulator, whose result a test compares with
 * plain loops. With a fault, the kernel breaks a rule of wgmma, and the emulator must report it. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TRIAL_ROWS = 128, TRIAL_TERMS = 128, TRIAL_MOST_COLUMNS = 128 };

enum warpgroup_fault {
  WARPGROUP_NO_FAULT,
  /* no wgmma.fence between writing the registers and the product that reads them */
  WARPGROUP_NO_FENCE,
  /* no fence to the async proxy between cp.async into a tile and the product that reads the tile */
  WARPGROUP_COPY_UNSEEN,
  WARPGROUP_READ_EARLY,  /* accumulators are read before the wait for their product */
  WARPGROUP_SUM_WRITTEN, /* accumulators are written before the wait for their product */
  WARPGROUP_FRAGMENT_WRITTEN,
  /* a tile is overwritten before the wait for the product that reads the tile */
  WARPGROUP_TILE_COPIED,
  WARPGROUP_NEVER_WAITED,
  WARPGROUP_WARPS_DIFFER, /* the warps of a warpgroup pass descriptors of different rows */
};

struct warpgroup_trial {
  bool fp16, a_in_registers, a_turned, b_turned;
  unsigned columns; /* number of columns of b and c: 64 or 128 */
  enum warpgroup_fault fault;
};

/* Computes c = a b, with a (TRIAL_ROWS, TRIAL_TERMS), b (TRIAL_TERMS, columns) and c (TRIAL_ROWS,
 * columns), row-major. The factors are rounded to 16 bits. */
void warpgroup_try (const struct warpgroup_trial *trial, const float *a, const float *b, float *c);

/* The part of a tile that one wgmma reads: sixteen terms from `term` on, and rows from `outer` on
 * (columns, if the tile is transposed). The tile is at byte `tile` of shared memory and has 64, 128
 * or 256 rows. */
struct warpgroup_view {
  unsigned tile, rows;
  unsigned outer, term;
  bool turned;
};

/* Returns the wgmma descriptor with which kernels describe this part of a tile. */
uint64_t warpgroup_describe (const struct warpgroup_view *view);

/* Byte offset at which kernels store element (row, column) of a tile. */
unsigned warpgroup_place (unsigned rows, unsigned row, unsigned column);

/* Byte offset at which the emulator reads an element of the matrix with this descriptor. */
unsigned warpgroup_read (uint64_t bits, bool turned, unsigned outer, unsigned term);

/* Copies a box of 64 rows and 64 columns, which begins at this row and column of a matrix, by a
 * tensor map, and writes its tile to `tile` as it is in shared memory. */
enum { WARPGROUP_BOX = 64 };
struct warpgroup_matrix {
  const uint16_t *at; /* a multiple of 16; rows follow each other at once */
  unsigned rows, columns;
};
void warpgroup_copy (const struct warpgroup_matrix *matrix, int row, int column,
                     uint16_t tile[WARPGROUP_BOX * WARPGROUP_BOX]);

#ifdef __cplusplus
}
#endif
