/* attention_producer.cuh - what forward and backward with a producer warp share
 * (attention_producer.cu, attention_producer_bwd.cu): tensor maps of heads. */
#pragma once
#include "kernels/cuda/attention_order.cuh"
#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/producer.h"

/* ------------------------------------------------------------------------- tiles of heads */

/* Heads side by side in token rows: `row` elements from token to token. */
struct heads_in_rows {
  const void *at;
  uint64_t row, heads, width;
};

/* A map of heads whose boxes are a panel of N tokens of one head. Its dimensions are column, head,
 * token in a run, run, and sequence: so a box ends with its run. */
static inline const char *
map_heads (tensor_map *map, const struct heads_in_rows &h, const struct side &side, uint64_t batch,
           unsigned n)
{
  const struct tensor_view v = {
    h.at,
    { h.width, h.heads, side.run[0].n, side.n, batch },
    { h.width * 2, h.row * 2, side.run[0].n * h.row * 2, side.tokens * h.row * 2 },
    { PANEL, 1, n, 1, 1 },
  };

  return make_map (map, v);
}

/* Where tiles of a head come from: a map, and the head's place in it. */
struct tiles_of_head {
  const tensor_map &map;
  const struct side &side;
  uint64_t batch, head;
};

/* Copies a tile of N tokens of a head, D elements of each. Its bytes count at mbarrier b. */
template <int D, int N, class T>
static __device__ __forceinline__ void
load_tile (T *to, const tiles_of_head &from, const struct tile &rows, uint64_t *b)
{
  int run = from.side.n > 1 && rows.first >= from.side.run[1].first;
  int row = (int) (rows.first - (run ? from.side.run[1].first : 0));

  WEFT_UNROLL
  for (int panel = 0; panel < D / PANEL; panel++)
    load_box (to + panel * N * PANEL, &from.map,
              tensor_place{ { panel * PANEL, (int) from.head, row, run, (int) from.batch } }, b);
}

#define WEFT_PRODUCER_WIDTHS(X) X (64) X (128)
