/* Schedules whose order follows from the rank by a formula: GPipe (Huang et al. 2019), 1F1B and its
 * interleaved form (Narayanan et al. 2021) as in Megatron-Core. */
#include "core/schedule/order.h"

void
weft_order_put (GArray *row, enum weft_phase phase, uint32_t chunk, uint32_t micro)
{
  struct weft_cell cell = { .phase = phase, .chunk = chunk, .micro = micro };

  g_array_append_val (row, cell);
}

/* The order in which a rank runs n_micro microbatches on n_chunks chunks. Microbatches are divided
 * into groups of `group`; within a group a rank runs all of them on the first chunk, then all on
 * the next chunk. */
struct table {
  uint32_t n_chunks, n_micro, group;
};

/* Appends the k-th forward (or backward) pass of a rank, counted from 0, in the order that struct
 * table describes. Backward passes visit the chunks from last to first. */
static void
put_kth (GArray *row, const struct table *t, enum weft_phase phase, uint32_t k)
{
  uint32_t first = k / (t->group * t->n_chunks) * t->group;
  uint32_t size = MIN (t->group, t->n_micro - first), within = k - first * t->n_chunks;
  uint32_t chunk = within / size;

  if (phase != WEFT_PHASE_FORWARD)
    chunk = t->n_chunks - 1 - chunk;
  weft_order_put (row, phase, chunk, first + within % size);
}

/* Appends `warm` forwards, then forward and backward in turn (or in pairs), then the remaining
 * backwards. */
static void
alternate (GArray *row, const struct table *t, uint32_t warm, gboolean paired)
{
  uint32_t n = t->n_chunks * t->n_micro;

  for (uint32_t k = 0; k < warm; k++)
    put_kth (row, t, WEFT_PHASE_FORWARD, k);
  for (uint32_t k = 0; k < n; k++) {
    if (warm + k < n) {
      put_kth (row, t, WEFT_PHASE_FORWARD, warm + k);
      g_array_index (row, struct weft_cell, row->len - 1).paired = paired;
    }
    put_kth (row, t, WEFT_PHASE_BACKWARD, k);
  }
}

void
weft_order_gpipe (const weft_grid *grid, const struct weft_grid_spec *spec, GArray **row)
{
  const struct table t = { 1, grid->n_micro, 1 };

  (void) spec;
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    alternate (row[rank], &t, grid->n_micro, FALSE);
}

/* The number of warm-up forwards, which a rank runs before the gradient of its first forward
 * arrives. With one chunk per rank, it is the number of later ranks. With several chunks, it is
 * twice the number of later ranks, plus one group of microbatches on each chunk but the last. */
static uint32_t
warm_up (const weft_grid *grid, const struct weft_grid_spec *spec, uint32_t group, uint32_t rank)
{
  uint64_t after = grid->n_ranks - 1 - rank, all = (uint64_t) grid->n_micro * grid->n_chunks;

  if (grid->n_chunks == 1)
    return MIN (after + spec->extra_warmup, all);
  return MIN (2 * after + (uint64_t) (grid->n_chunks - 1) * group + spec->extra_warmup, all);
}

void
weft_order_1f1b (const weft_grid *grid, const struct weft_grid_spec *spec, GArray **row)
{
  uint32_t group = weft_spec_group (spec);
  const struct table t = { grid->n_chunks, grid->n_micro, MIN (group, grid->n_micro) };

  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    alternate (row[rank], &t, warm_up (grid, spec, group, rank), spec->extra_warmup > 0);
}
