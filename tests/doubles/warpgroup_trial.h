/* warpgroup_trial.h - a matmul by wgmma on the emulator, which a test compares with loops; and
 * violations of the wgmma protocol, which the emulator must report. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TRIAL_ROWS = 128, TRIAL_TERMS = 128, TRIAL_MOST_COLUMNS = 128 };

enum warpgroup_fault {
  WARPGROUP_NO_FAULT,
  WARPGROUP_NO_FENCE,    /* no fence before a product reads registers */
  WARPGROUP_COPY_UNSEEN, /* tiles are copied without the fence to the async proxy */
  WARPGROUP_READ_EARLY,  /* accumulators are read before the wait for their product */
  WARPGROUP_SUM_WRITTEN, /* accumulators are written before the wait */
  WARPGROUP_FRAGMENT_WRITTEN,
  WARPGROUP_TILE_COPIED, /* a tile is overwritten before the wait for its product */
  WARPGROUP_NEVER_WAITED,
  WARPGROUP_WARPS_DIFFER, /* warps of a warpgroup pass different rows */
};

struct warpgroup_trial {
  bool fp16, a_in_registers, a_turned, b_turned;
  unsigned columns; /* columns of b and c: 64 or 128 */
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

/* The wgmma descriptor that kernels make for this part of a tile. */
uint64_t warpgroup_describe (const struct warpgroup_view *view);

/* Byte offset at which kernels store element (row, column) of a tile. */
unsigned warpgroup_place (unsigned rows, unsigned row, unsigned column);

/* Byte offset at which the emulator reads an element of the matrix with this descriptor. */
unsigned warpgroup_read (uint64_t bits, bool turned, unsigned outer, unsigned term);

#ifdef __cplusplus
}
#endif
