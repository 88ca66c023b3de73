#include "core/pipeline.h"
#include "core/error.h"
#include "core/pipeline_order.h"

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
weft_grid_blank (uint32_t n_ranks, uint32_t n_chunks, uint32_t n_micro, enum weft_grid_shape shape)
{
  weft_grid *grid = g_new0 (weft_grid, 1);
  uint32_t n_places = n_ranks * n_chunks;

  grid->n_ranks = n_ranks;
  grid->n_chunks = n_chunks;
  grid->n_micro = n_micro;
  grid->n_copies = shape == WEFT_GRID_TWO_WAYS ? 2 : 1;
  grid->n_stages = n_places / grid->n_copies;
  grid->stage = g_new (uint32_t, n_places);
  grid->copy = g_new0 (uint32_t, n_places);
  grid->place = g_new (uint32_t, n_places);
  grid->copy_of = g_new (uint32_t, n_micro);
  grid->n_cell = g_new0 (uint32_t, n_ranks);
  grid->cell = g_new0 (struct weft_cell *, n_ranks);
  for (uint32_t place = 0; place < n_places; place++) {
    uint32_t chunk = place % n_chunks;
    grid->stage[place] = stage_at (shape, n_ranks, place / n_chunks, chunk);
    grid->copy[place] = shape == WEFT_GRID_TWO_WAYS ? chunk : 0;
    grid->place[grid->copy[place] * grid->n_stages + grid->stage[place]] = place;
  }
  for (uint32_t micro = 0; micro < n_micro; micro++)
    grid->copy_of[micro] = (uint64_t) micro * grid->n_copies / n_micro;
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

static gboolean
fits_1f1b (const struct weft_grid_spec *spec, GError **error)
{
  uint32_t group = spec->group ? spec->group : spec->n_ranks;

  if (spec->n_chunks < 2)
    return TRUE;
  if (group < spec->n_ranks || group > spec->n_micro)
    return weft_bad_input (
        error,
        "microbatch_group_size_per_vp_stage = %u: wanted at least the %u ranks of "
        "the pipeline and at most its %u microbatches",
        group, spec->n_ranks, spec->n_micro);
  uint32_t rest = spec->n_micro % group;
  return rest == 0 || rest >= spec->n_ranks ||
         weft_bad_input (
             error,
             "microbatch_group_size_per_vp_stage = %u: the last group of %u microbatches "
             "has %u, wanted none or at least the %u ranks of the pipeline",
             group, spec->n_micro, rest, spec->n_ranks);
}

/* A schedule: how chunks become stages, how many chunks it has (0: as asked), how its rows are
 * filled, and what the counts must be beside that. */
static const struct {
  enum weft_grid_shape shape;
  uint32_t n_chunks;
  weft_order_fill *fill;
  gboolean (*fits) (const struct weft_grid_spec *spec, GError **error); /* or NULL */
} schedules[] = {
  [WEFT_SCHEDULE_1F1B] = { WEFT_GRID_LOOP, 0, weft_order_1f1b, fits_1f1b },
  [WEFT_SCHEDULE_GPIPE] = { WEFT_GRID_LOOP, 1, weft_order_gpipe, NULL },
};

static void
fill_grid (weft_grid *grid, const struct weft_grid_spec *spec)
{
  g_autofree GArray **row = g_new (GArray *, grid->n_ranks);

  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    row[rank] = g_array_new (FALSE, FALSE, sizeof (struct weft_cell));
  schedules[spec->schedule].fill (grid, spec, row);
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++) {
    grid->n_cell[rank] = row[rank]->len;
    grid->cell[rank] = (struct weft_cell *) (void *) g_array_free (row[rank], FALSE);
  }
}

weft_grid *
weft_grid_new (const struct weft_grid_spec *spec, GError **error)
{
  uint32_t wanted = schedules[spec->schedule].n_chunks;
  struct weft_grid_spec s = *spec;

  g_assert (s.n_ranks > 0 && s.n_micro > 0 && s.n_micro <= UINT16_MAX);
  if (s.n_chunks == 0)
    s.n_chunks = wanted ? wanted : 1;
  if (s.n_chunks > UINT8_MAX || (wanted && s.n_chunks != wanted)) {
    weft_bad_input (error,
                    "virtual_pipeline_model_parallel_size = %u: wanted %s%u, which "
                    "pipeline_schedule = %s is made for",
                    s.n_chunks, wanted ? "" : "at most ", wanted ? wanted : UINT8_MAX,
                    weft_schedule_words[s.schedule]);
    return NULL;
  }
  if (schedules[s.schedule].fits && !schedules[s.schedule].fits (&s, error))
    return NULL;
  weft_grid *grid = weft_grid_blank (s.n_ranks, s.n_chunks, s.n_micro, schedules[s.schedule].shape);
  fill_grid (grid, &s);
  return grid;
}

struct weft_grid_spec
weft_job_grid_spec (const struct weft_job *job)
{
  const union weft_strategy *s = &job->strategy;

  return (struct weft_grid_spec){
    .schedule = s->pipeline_schedule,
    .n_ranks = s->pipeline_model_parallel_size,
    .n_chunks = MAX (s->virtual_pipeline_model_parallel_size, 0),
    .n_micro = weft_job_microbatches (job),
    .group = MAX (s->microbatch_group_size_per_vp_stage, 0),
    .extra_warmup = s->overlap_moe_expert_parallel_comm,
  };
}

weft_grid *
weft_job_grid (const struct weft_job *job, GError **error)
{
  struct weft_grid_spec spec = weft_job_grid_spec (job);

  return weft_grid_new (&spec, error);
}

/* ------------------------------------------------------------------ questions */

char *
weft_cell_print (const weft_grid *grid, uint32_t rank, const struct weft_cell *cell)
{
  return g_strdup_printf ("%u%s%u", weft_cell_stage (grid, rank, cell),
                          weft_phase_words[cell->phase], cell->micro);
}

char *
weft_grid_csv (const weft_grid *grid)
{
  GString *text = g_string_new (NULL);

  for (uint32_t rank = 0; rank < grid->n_ranks; rank++) {
    for (uint32_t i = 0; i < grid->n_cell[rank]; i++) {
      g_autofree char *cell = weft_cell_print (grid, rank, &grid->cell[rank][i]);
      g_string_append_printf (text, "%s%s", i ? "," : "", cell);
    }
    g_string_append_c (text, '\n');
  }
  return g_string_free (text, FALSE);
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
