/* attention_order.cuh - the order in which blocks of attention kernels start. */
#pragma once
#include "kernels/cuda/device.cuh"

/* Blocks start in this order: sections of heads whose keys and values (or queries) stay in the L2
 * cache; in a section, the longest tiles of all heads first, so that short ones fill the end. */
struct order {
  uint32_t heads, together, tiles; /* heads of all sequences; of a section; tiles of a head */
};

/* Bytes of a section: about a third of the 50 MB of L2 of an H100 (NVIDIA H100 architecture white
 * paper), estimate. A section has LEAST_TOGETHER heads or more. */
const uint64_t SECTION = 16 << 20, LEAST_TOGETHER = 16;

static inline struct order
order_of (uint64_t heads, uint64_t bytes_of_head, unsigned tiles)
{
  uint64_t fit = SECTION / bytes_of_head, most = fit > LEAST_TOGETHER ? fit : LEAST_TOGETHER;
  struct order o = { (uint32_t) heads, (uint32_t) (most < heads ? most : heads), tiles };

  return o;
}

/* A head (of all sequences) and the number of its tile, 0 for the first that starts. */
struct turn_of_block {
  uint32_t head, tile;
};

static __device__ __forceinline__ struct turn_of_block
turn_of (const struct order &o, uint32_t block)
{
  uint32_t section = block / (o.together * o.tiles) * o.together, in = block - section * o.tiles;
  uint32_t some = o.heads - section < o.together ? o.heads - section : o.together;
  struct turn_of_block t = { section + in % some, in / some };

  return t;
}
