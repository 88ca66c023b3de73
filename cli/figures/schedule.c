#include "cli/figures/figures.h"

/* Lengths in points. */
enum { WIDEST = 1500, NARROWEST = 420, SLOT = 20, ROW = 26 };

/* Most white in the colour of a box: that of the last chunk. */
#define PALEST 0.55

struct drawing {
  const weft_grid *grid;
  struct weft_panel *panel;
  struct weft_series *phase[WEFT_N_PHASE];
};

static uint32_t
slots_of (const struct weft_cell *cell)
{
  return cell->phase == WEFT_PHASE_BACKWARD ? 2 : 1;
}

/* The series of each phase that the grid has, in the order of phases. */
static void
add_series (struct drawing *d)
{
  gboolean has[WEFT_N_PHASE] = { FALSE };

  for (uint32_t rank = 0; rank < d->grid->n_ranks; rank++)
    for (uint32_t i = 0; i < d->grid->n_cell[rank]; i++)
      has[d->grid->cell[rank][i].phase] = TRUE;
  for (int phase = 0; phase < WEFT_N_PHASE; phase++) {
    if (!has[phase])
      continue;
    d->phase[phase] =
        weft_panel_series (d->panel, WEFT_SHAPE_INTERVALS, weft_phase_looks[phase].legend);
    d->phase[phase]->look = weft_phase_looks[phase].look;
  }
}

static void
add_pair (struct drawing *d, uint32_t row, double begin, double end)
{
  struct weft_series *line = weft_panel_series (d->panel, WEFT_SHAPE_LINE, NULL);

  line->quiet = TRUE;
  weft_series_add (line, (struct weft_item){ .x = begin + 0.1, .y = row + 0.46 });
  weft_series_add (line, (struct weft_item){ .x = end - 0.1, .y = row + 0.46 });
}

static void
add_rank (struct drawing *d, uint32_t rank, const double *start)
{
  const struct weft_cell *cell = d->grid->cell[rank];
  double last = MAX (1, d->grid->n_chunks - 1);

  for (uint32_t i = 0; i < d->grid->n_cell[rank]; i++) {
    double end = start[i] + slots_of (&cell[i]);
    weft_series_add (d->phase[cell[i].phase],
                     (struct weft_item){ .x = start[i],
                                         .x2 = end,
                                         .y = rank,
                                         .pale = PALEST * cell[i].chunk / last,
                                         .text = g_strdup_printf ("%u", cell[i].micro) });
    if (cell[i].paired)
      add_pair (d, rank, start[i], start[i + 1] + slots_of (&cell[i + 1]));
  }
}

weft_figure *
weft_cli_figure_schedule (const weft_grid *grid)
{
  g_autofree double **start = g_new (double *, grid->n_ranks);

  for (uint32_t rank = 0; rank < grid->n_ranks; rank++)
    start[rank] = g_new (double, grid->n_cell[rank]);
  double slots = weft_grid_replay (grid, (struct weft_cell_times){ 1, 1, 1 }, start);
  g_autofree char *title =
      g_strdup_printf ("Pipeline schedule: %u ranks, %u stages, %u microbatches, %.0f slots",
                       grid->n_ranks, grid->n_stages, grid->n_micro, slots);
  weft_figure *figure = weft_figure_new (title);
  struct drawing d = { .grid = grid, .panel = weft_figure_panel (figure, NULL) };
  d.panel->width = CLAMP (slots * SLOT, NARROWEST, WIDEST);
  d.panel->height = ROW * grid->n_ranks;
  d.panel->x.low = 0;
  d.panel->x.high = slots;
  d.panel->x.plain = TRUE;
  weft_chart_axis_name (&d.panel->x,
                        grid->n_chunks > 1 ? "slots; paler: later chunks" : "slots", "");
  add_series (&d);
  for (uint32_t rank = 0; rank < grid->n_ranks; rank++) {
    g_autofree char *word = g_strdup_printf ("rank %u", rank);
    weft_chart_axis_word (&d.panel->y, word, 1);
    add_rank (&d, rank, start[rank]);
    g_free (start[rank]);
  }
  return figure;
}
