#include "core/schedule/grid.h"
#include "core/base/error.h"
#include "core/base/invariant.h"
#include "core/schedule/order.h"

const struct weft_cell_kind weft_cell_kinds[WEFT_N_PHASE] = {
  [WEFT_PHASE_FORWARD] = { 1 << WEFT_CELL_WORK_FORWARD, '0' },
  [WEFT_PHASE_BACKWARD] = { 1 << WEFT_CELL_WORK_INPUT | 1 << WEFT_CELL_WORK_WEIGHT, 'a' },
  [WEFT_PHASE_INPUT_GRAD] = { 1 << WEFT_CELL_WORK_INPUT, 'a' },
  [WEFT_PHASE_WEIGHT_GRAD] = { 1 << WEFT_CELL_WORK_WEIGHT, 'A' },
};

/* --------------------------------------------------------------- placement of stages */

static uint32_t
stage_at (enum weft_grid_shape shape, uint32_t n_ranks, uint32_t rank, uint32_t chunk)
{
  switch (shape) {
  case WEFT_GRID_V:
    return chunk % 2 ? (chunk + 1) * n_ranks - 1 - rank : chunk * n_ranks + rank;
  case WEFT_GRID_TWO_WAYS:
    return chunk ? n_ranks - 1 - rank : rank;
  default:
    return chunk * n_ranks + rank;
  }
}

weft_grid *
weft_grid_alloc (uint32_t n_ranks, uint32_t n_chunks, uint32_t n_micro, uint32_t n_copies)
{
  weft_grid *grid = g_new0 (weft_grid, 1);
  uint32_t n_places = n_ranks * n_chunks;

  grid->n_ranks = n_ranks;
  grid->n_chunks = n_chunks;
  grid->n_micro = n_micro;
  grid->n_copies = n_copies;
  grid->n_stages = n_places / n_copies;
  grid->stage = g_new0 (uint32_t, n_places);
  grid->copy = g_new0 (uint32_t, n_places);
  grid->place = g_new0 (uint32_t, n_places);
  grid->copy_of = g_new0 (uint32_t, n_micro);
  grid->n_cell = g_new0 (uint32_t, n_ranks);
  grid->cell = g_new0 (struct weft_cell *, n_ranks);
  return grid;
}

void
weft_grid_settle (weft_grid *grid, uint32_t place, uint32_t copy, uint32_t stage)
{
  grid->copy[place] = copy;
  grid->stage[place] = stage;
  grid->place[copy * grid->n_stages + stage] = place;
}

weft_grid *
weft_grid_blank (uint32_t n_ranks, uint32_t n_chunks, uint32_t n_micro, enum weft_grid_shape shape)
{
  uint32_t n_copies = weft_shape_copies (shape);
  weft_grid *grid = weft_grid_alloc (n_ranks, n_chunks, n_micro, n_copies);

  for (uint32_t place = 0; place < n_ranks * n_chunks; place++) {
    uint32_t chunk = place % n_chunks;
    weft_grid_settle (grid, place, n_copies > 1 ? chunk : 0,
                      stage_at (shape, n_ranks, place / n_chunks, chunk));
  }
  for (uint32_t micro = 0; micro < n_micro; micro++)
    grid->copy_of[micro] = (uint64_t) micro * n_copies / n_micro;
  return grid;
}

void
weft_grid_free (weft_grid *grid)
{
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    g_free (grid->cell[rank]);
  g_free (grid->cell);
  g_free (grid->n_cell);
  g_free (grid->stage);
  g_free (grid->copy);
  g_free (grid->place);
  g_free (grid->copy_of);
  g_free (grid);
}

uint32_t
weft_grid_stage (const weft_grid *grid, uint32_t rank, uint32_t chunk)
{
  return grid->stage[weft_grid_place (grid, rank, chunk)];
}

uint32_t
weft_grid_copy (const weft_grid *grid, uint32_t rank, uint32_t chunk)
{
  return grid->copy[weft_grid_place (grid, rank, chunk)];
}

uint32_t
weft_grid_micro_copy (const weft_grid *grid, uint32_t micro)
{
  return grid->copy_of[micro];
}

uint32_t
weft_grid_beside (const weft_grid *grid, uint32_t place, int by)
{
  uint32_t stage = grid->stage[place];

  if (by < 0 ? stage == 0 : stage + 1 == grid->n_stages)
    return WEFT_NO_PLACE;
  return grid->place[grid->copy[place] * grid->n_stages + stage + by];
}

static gboolean
move_by (const weft_grid *grid, uint32_t *rank, uint32_t *chunk, int by)
{
  uint32_t place = weft_grid_beside (grid, weft_grid_place (grid, *rank, *chunk), by);

  if (place == WEFT_NO_PLACE)
    return FALSE;
  *rank = place / grid->n_chunks;
  *chunk = place % grid->n_chunks;
  return TRUE;
}

gboolean
weft_grid_next (const weft_grid *grid, uint32_t *rank, uint32_t *chunk)
{
  return move_by (grid, rank, chunk, 1);
}

gboolean
weft_grid_prev (const weft_grid *grid, uint32_t *rank, uint32_t *chunk)
{
  return move_by (grid, rank, chunk, -1);
}

/* ------------------------------------------------------------------ schedules */

static void
fill_grid (weft_grid *grid, const struct weft_grid_spec *spec)
{
  g_autofree GArray **row = g_new (GArray *, grid->n_ranks);

  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    row[rank] = g_array_new (FALSE, FALSE, sizeof (struct weft_cell));
  weft_schedules[spec->schedule].fill (grid, spec, row);
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++) {
    grid->n_cell[rank] = row[rank]->len;
    grid->cell[rank] = (struct weft_cell *) (void *) g_array_free (row[rank], FALSE);
  }
}

static gboolean
fits (const struct weft_grid_spec *spec, GError **error)
{
  static const char *const text[] = {
#define SCHEDULE_RULE(id, name, check, doc)                                                        \
  [id] = "rule " #name ": %s of %u ranks, %u chunks and %u "                                       \
         "microbatches in groups of %u: " doc,
#include "core/schedules.def"
  };
  enum weft_spec_rule broken = weft_spec_broken (spec);

  return broken == WEFT_SPEC_FITS ||
         weft_bad_input (error, text[broken], weft_schedule_words[spec->schedule], spec->n_ranks,
                         weft_spec_chunks (spec), spec->n_micro, weft_spec_group (spec));
}

weft_grid *
weft_grid_new (const struct weft_grid_spec *spec, GError **error)
{
  const struct weft_schedule_row *row = &weft_schedules[spec->schedule];

  WEFT_INVARIANT (spec->n_ranks > 0 && spec->n_micro > 0 && spec->n_micro <= UINT16_MAX);
  if (!fits (spec, error))
    return NULL;
  weft_grid *grid =
      weft_grid_blank (spec->n_ranks, weft_spec_chunks (spec) * weft_shape_copies (row->shape),
                       spec->n_micro, row->shape);
  fill_grid (grid, spec);
  return grid;
}

/* ------------------------------------------------------------------ questions */

char *
weft_cell_print (const weft_grid *grid, uint32_t rank, const struct weft_cell *cell)
{
  return g_strdup_printf ("%u%s%u", weft_cell_stage (grid, rank, cell),
                          weft_phase_words[cell->phase], cell->micro);
}

double
weft_grid_in_flight (const weft_grid *grid, uint32_t rank)
{
  int64_t halves = 0, most = 0;

  for (uint32_t i = 0; i < grid->n_cell[rank]; i++) {
    const struct weft_cell *cell = &grid->cell[rank][i];
    halves += 2 * weft_cell_does (cell, WEFT_CELL_WORK_FORWARD);
    most = MAX (most, halves);
    halves -=
        weft_cell_does (cell, WEFT_CELL_WORK_INPUT) + weft_cell_does (cell, WEFT_CELL_WORK_WEIGHT);
  }
  return most / 2.0;
}
