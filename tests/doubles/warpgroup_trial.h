/* warpgroup_trial.h - wgmma products on the emulator, from matrices to a matrix, for a test that
 * compares them with loops; and protocol errors that the emulator must report. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TRIAL_ROWS = 128, TRIAL_TERMS = 128, TRIAL_MOST_COLUMNS = 128 };

enum warpgroup_fault {
  WARPGROUP_NO_FAULT,
  WARPGROUP_NO_FENCE,        /* no fence before a product reads registers */
  WARPGROUP_COPY_UNSEEN,     /* tiles are copied without the fence to the async proxy */
  WARPGROUP_READ_EARLY,      /* sums are read before the wait for their product */
  WARPGROUP_SUM_WRITTEN,     /* sums are written before the wait */
  WARPGROUP_FRAGMENT_WRITTEN,
  WARPGROUP_TILE_COPIED,     /* a tile is overwritten before the wait */
  WARPGROUP_NEVER_WAITED,
  WARPGROUP_WARPS_DIFFER,    /* a warp passes other rows than its warpgroup */
};

struct warpgroup_trial {
  bool fp16, a_in_registers, a_turned, b_turned;
  unsigned columns; /* 64 or 128 */
  enum warpgroup_fault fault;
};

/* c (TRIAL_ROWS, columns) = a (TRIAL_ROWS, TRIAL_TERMS) b (TRIAL_TERMS, columns), row-major, with
 * factors rounded to 16 bits. */
void warpgroup_try (const struct warpgroup_trial *trial, const float *a, const float *b, float *c);

/* The operand of one wgmma: sixteen terms, from `term` on, of a tile at byte `tile` of shared
 * memory, from row `outer` on, or from column `outer` on if transposed. Tiles have 64, 128 or 256
 * rows. */
struct warpgroup_view {
  unsigned tile, rows;
  unsigned outer, term;
  bool turned;
};

/* The descriptor that kernels make for a view. */
uint64_t warpgroup_describe (const struct warpgroup_view *view);

/* Byte offset at which kernels store an element of a tile. */
unsigned warpgroup_place (unsigned rows, unsigned row, unsigned column);

/* Byte offset at which the emulator reads an element of the matrix with descriptor `bits`. */
unsigned warpgroup_read (uint64_t bits, bool turned, unsigned outer, unsigned term);

#ifdef __cplusplus
}
#endif
