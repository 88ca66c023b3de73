/* torus.h - chips on three axes, each with links to its neighbours, as pods of TPU v4 and v5p have.
 *
 * Chip g stands at (g % X, g / X % Y, g / X / Y).  A host holds a box of host_x x host_y x host_z
 * chips; it is the node of this fabric, and decides nothing but the way to host memory: links
 * between chips of one host and of two are the same.  Where the axes wrap, the last chip of every
 * axis has a link to the first; otherwise the axes are lines.
 *
 * A route goes along the first axis, then the second, then the third, each in the shorter direction
 * (dimension-ordered routing: Dally and Seitz 1987, which on rings needs two virtual channels to be
 * free of deadlock; the simulator moves flows and has no buffers to fill).
 *
 * Sizes that nobody gave are as near to a cube as the number of chips allows: axes that wrap are
 * preferred, then the smallest sum, then the shorter axis first.  These are the shapes that Cloud
 * TPU gives slices of 4 to 512 chips (2x2x1, 2x2x2, 2x2x4, 2x4x4, 4x4x4, 4x4x8, 4x8x8, 8x8x8:
 * AI-Hypercomputer/xpk, table of system characteristics). */
#pragma once
#include "core/cluster/fabric.h"

/* The order of weft_torus.kind: up and down of each axis, then the host's. */
enum weft_torus_link {
  WEFT_TORUS_X_UP,
  WEFT_TORUS_X_DOWN,
  WEFT_TORUS_Y_UP,
  WEFT_TORUS_Y_DOWN,
  WEFT_TORUS_Z_UP,
  WEFT_TORUS_Z_DOWN,
  WEFT_TORUS_HOST,
  WEFT_N_TORUS_LINK = WEFT_TORUS_HOST + WEFT_N_HOST_LINK
};
