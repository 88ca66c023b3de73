/* Breadth-first pipeline parallelism (Lamy-Poirier 2023, arXiv 2211.05953; ScheduleLoopedBFS of
 * PyTorch): a rank runs all microbatches through one chunk before the next chunk. With one chunk
 * per rank the order is GPipe. With v chunks the bubble is v times shorter. The activations of all
 * microbatches are in flight. */
#include "core/schedule/order.h"

static void
put_all (GArray *row, enum weft_phase phase, uint32_t chunk, uint32_t n_micro)
{
  for (uint32_t micro = 0; micro < n_micro; micro++)
    weft_order_put (row, phase, chunk, micro);
}

void
weft_order_breadth_first (const weft_grid *grid, const struct weft_grid_spec *spec, GArray **row)
{
  (void) spec;
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++) {
    for (uint32_t chunk = 0; chunk < grid->n_chunks; chunk++)
      put_all (row[rank], WEFT_PHASE_FORWARD, chunk, grid->n_micro);
    for (uint32_t chunk = grid->n_chunks; chunk-- > 0;)
      put_all (row[rank], WEFT_PHASE_BACKWARD, chunk, grid->n_micro);
  }
}
