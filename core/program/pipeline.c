#include "core/program/pipeline.h"
#include "core/base/error.h"
#include "core/program/pipeline_order.h"
#include "core/job/stages.h"

/* Colours hold dark text and stand out from white and from black. */
const struct weft_cell_look weft_cell_looks[WEFT_N_PHASE] = {
  [WEFT_PHASE_FORWARD] = { 1 << WEFT_PAYS_FORWARD, '0', "#6ea8dc", "forward" },
  [WEFT_PHASE_BACKWARD] = { 1 << WEFT_PAYS_INPUT | 1 << WEFT_PAYS_WEIGHT, 'a', "#e59a4f",
                            "backward" },
  [WEFT_PHASE_INPUT_GRAD] = { 1 << WEFT_PAYS_INPUT, 'a', "#d9b93f", "input gradient" },
  [WEFT_PHASE_WEIGHT_GRAD] = { 1 << WEFT_PAYS_WEIGHT, 'A', "#74bf8a", "weight gradient" },
};

/* ------------------------------------------------------------------ where stages are */

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
  uint32_t n_copies = shape == WEFT_GRID_TWO_WAYS ? 2 : 1;
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

static weft_order_fill *const fill[] = {
  [WEFT_SCHEDULE_1F1B] = weft_order_1f1b,           [WEFT_SCHEDULE_GPIPE] = weft_order_gpipe,
  [WEFT_SCHEDULE_ZB_H1] = weft_order_zb_h1,         [WEFT_SCHEDULE_ZB_H2] = weft_order_zb_h2,
  [WEFT_SCHEDULE_ZB_V] = weft_order_zb_v,           [WEFT_SCHEDULE_V_HALF] = weft_order_v_half,
  [WEFT_SCHEDULE_V_MIN] = weft_order_v_min,         [WEFT_SCHEDULE_DUALPIPE] = weft_order_dualpipe,
  [WEFT_SCHEDULE_DUALPIPEV] = weft_order_dualpipev,
};

static void
fill_grid (weft_grid *grid, const struct weft_grid_spec *spec)
{
  g_autofree GArray **row = g_new (GArray *, grid->n_ranks);

  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    row[rank] = g_array_new (FALSE, FALSE, sizeof (struct weft_cell));
  fill[spec->schedule](grid, spec, row);
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++) {
    grid->n_cell[rank] = row[rank]->len;
    grid->cell[rank] = (struct weft_cell *) (void *) g_array_free (row[rank], FALSE);
  }
}

static gboolean
fits (const struct weft_grid_spec *spec, GError **error)
{
#define RULE_TEXT(id, name, doc)                                                                   \
  [id] = "rule " #name ": %s of %u ranks, %u chunks and %u "                                       \
         "microbatches in groups of %u: " doc,
  static const char *const text[] = { WEFT_SPEC_RULE_LIST (RULE_TEXT) };
#undef RULE_TEXT
  enum weft_spec_rule broken = weft_spec_broken (spec);

  return broken == WEFT_SPEC_FITS ||
         weft_bad_input (error, text[broken], weft_schedule_words[spec->schedule], spec->n_ranks,
                         weft_spec_chunks (spec), spec->n_micro, weft_spec_group (spec));
}

weft_grid *
weft_grid_new (const struct weft_grid_spec *spec, GError **error)
{
  const struct weft_schedule_info *info = &weft_schedule_infos[spec->schedule];

  g_assert (spec->n_ranks > 0 && spec->n_micro > 0 && spec->n_micro <= UINT16_MAX);
  if (!fits (spec, error))
    return NULL;
  weft_grid *grid = weft_grid_blank (spec->n_ranks, weft_spec_chunks (spec) * info->n_copies,
                                     spec->n_micro, info->shape);
  fill_grid (grid, spec);
  return grid;
}

/* The job's counts against those of its file. */
static gboolean
agrees (const weft_grid *grid, const struct weft_job *job, const char *path, GError **error)
{
  const union weft_strategy *s = &job->strategy;
  int64_t chunks = s->virtual_pipeline_model_parallel_size, micro = weft_job_microbatches (job);
  uint32_t own = grid->n_stages / grid->n_ranks;

  if (grid->n_ranks != s->pipeline_model_parallel_size)
    return weft_bad_input (error,
                           "%s: found a line for each of %u ranks, wanted %" G_GINT64_FORMAT
                           " (pipeline_model_parallel_size)",
                           path, grid->n_ranks, s->pipeline_model_parallel_size);
  if (grid->n_micro != micro)
    return weft_bad_input (error, "%s: found %u microbatches, wanted %" G_GINT64_FORMAT, path,
                           grid->n_micro, micro);
  return chunks == WEFT_NONE || chunks == own ||
         weft_bad_input (error,
                         "%s: found %u stages on a rank, wanted %" G_GINT64_FORMAT
                         " (virtual_pipeline_model_parallel_size)",
                         path, own, chunks);
}

weft_grid *
weft_job_grid (const struct weft_job *job, GError **error)
{
  const struct weft_grid_spec spec = weft_job_grid_spec (job);
  const char *path = weft_job_schedule_file (job);

  if (!path)
    return weft_grid_new (&spec, error);
  g_autoptr (weft_grid) grid = weft_grid_load (path, error);
  return grid && agrees (grid, job, path, error) ? g_steal_pointer (&grid) : NULL;
}

uint32_t
weft_job_chunks (const struct weft_job *job)
{
  const struct weft_grid_spec spec = {
    .schedule = job->strategy.pipeline_schedule,
    .n_chunks = MAX (job->strategy.virtual_pipeline_model_parallel_size, 0),
  };
  const char *path = weft_job_schedule_file (job);
  g_autoptr (weft_grid) grid = path ? weft_grid_load (path, NULL) : NULL;

  return grid ? grid->n_stages / grid->n_ranks : weft_spec_chunks (&spec);
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
    halves += 2 * weft_cell_pays (cell, WEFT_PAYS_FORWARD);
    most = MAX (most, halves);
    halves -= weft_cell_pays (cell, WEFT_PAYS_INPUT) + weft_cell_pays (cell, WEFT_PAYS_WEIGHT);
  }
  return most / 2.0;
}
