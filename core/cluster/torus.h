/* torus.h - chips on three axes, each with links to its neighbours, as in pods of TPU v4 and v5p.
 *
 * Chip g has the coordinates (g % X, g / X % Y, g / X / Y). A host has a box of host_x x host_y x
 * host_z chips and is the node of this fabric. Hosts affect only routes to host memory: links
 * within a host and links between hosts are equal. If the axes wrap, the last chip of every axis
 * has a link to the first; otherwise the axes are lines.
 *
 * A route goes along the first axis, then the second, then the third, each in the shorter direction
 * (dimension-ordered routing: Dally and Seitz 1987). On rings, hardware needs two virtual channels
 * for such routes to be free of deadlock. The simulator needs no channels, because it models flows
 * without buffers.
 *
 * Sides that are not given make the box as near to a cube as the number of chips allows: axes that
 * wrap are preferred, then the smallest sum of sides, then the shorter side first.  Cloud TPU uses
 * the same shapes for slices of 4 to 512 chips (2x2x1, 2x2x2, 2x2x4, 2x4x4, 4x4x4, 4x4x8, 4x8x8,
 * 8x8x8: AI-Hypercomputer/xpk, table of system characteristics). */
#pragma once
#include "core/cluster/fabric.h"

/* Kinds of links of a torus, in the order of weft_torus.kind: up and down of each axis, then
 * WEFT_HOST_LINKS. */
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
