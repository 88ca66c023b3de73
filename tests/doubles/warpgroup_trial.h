/* warpgroup_trial.h - products of two warpgroups on the emulator, from matrices and back to one,
 * for a test that compares them with loops; and what a kernel may do wrong about them. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TRIAL_ROWS = 128, TRIAL_TERMS = 128, TRIAL_MOST_COLUMNS = 128 };

enum warpgroup_fault {
  WARPGROUP_NO_FAULT,
  WARPGROUP_NO_FENCE,        /* products that nothing said registers were ready for */
  WARPGROUP_COPY_UNSEEN,     /* tiles are copied, and products are not told */
  WARPGROUP_READ_EARLY,      /* sums are read before their product was waited for */
  WARPGROUP_SUM_WRITTEN,     /* sums are written meanwhile */
  WARPGROUP_FRAGMENT_WRITTEN,
  WARPGROUP_TILE_COPIED,     /* a tile is replaced meanwhile */
  WARPGROUP_NEVER_WAITED,
  WARPGROUP_WARPS_DIFFER,    /* a warp names other rows than its warpgroup */
};

struct warpgroup_trial {
  bool fp16, a_in_registers, a_turned, b_turned;
  unsigned columns; /* 64 or 128 */
  enum warpgroup_fault fault;
};

/* c (TRIAL_ROWS, columns) = a (TRIAL_ROWS, TRIAL_TERMS) b (TRIAL_TERMS, columns), row by row,
 * rounded to 16 bits as they are laid out. */
void warpgroup_try (const struct warpgroup_trial *trial, const float *a, const float *b, float *c);

/* Sixteen terms of a tile that begins at byte `tile` of shared memory, from a row or, turned, a
 * column on.  Tiles have 64, 128 or 256 rows. */
struct warpgroup_view {
  unsigned tile, rows;
  unsigned outer, term;
  bool turned;
};

/* The descriptor that kernels make of it; where kernels put an element of a tile, and where the
 * emulator reads one of a described matrix, in bytes. */
uint64_t warpgroup_describe (const struct warpgroup_view *view);
unsigned warpgroup_place (unsigned rows, unsigned row, unsigned column);
unsigned warpgroup_read (uint64_t bits, bool turned, unsigned outer, unsigned term);

#ifdef __cplusplus
}
#endif
