#include "cli/figures/figures.h"
#include <math.h>

#define APART_COLOUR "#bbbbbb"

/* Sets *measured and *predicted. FALSE: the row has no error of this quantity. */
static gboolean
point_of (const struct weft_error_row *row, enum weft_quantity quantity, double *measured,
          double *predicted)
{
  double error = weft_error_of (row, quantity);

  *predicted = quantity == WEFT_TIME ? row->time_s : row->memory_gib;
  *measured = *predicted / (1 + error);
  return row->tier != 'C' && !row->refused && !isnan (error);
}

/* Makes both axes of a panel equally long, around all points. FALSE: there is no point. */
static gboolean
fix_ends (struct weft_panel *panel, const weft_errors *errors, enum weft_quantity quantity)
{
  double measured, predicted, low = INFINITY, high = 0;

  for (uint32_t i = 0; i < errors->n_row; i++)
    if (point_of (&errors->row[i], quantity, &measured, &predicted)) {
      low = fmin (low, fmin (measured, predicted));
      high = fmax (high, fmax (measured, predicted));
    }
  panel->x.low = panel->y.low = low / 1.1;
  panel->x.high = panel->y.high = high * 1.1;
  return high > 0;
}

/* Adds the line of all points at which predicted = factor * measured. */
static void
add_factor (struct weft_panel *panel, double factor)
{
  struct weft_series *line = weft_panel_series (
      panel, WEFT_SHAPE_LINE, factor == 1 ? "equal" : "10 % above and below");

  line->quiet = TRUE;
  line->dashed = factor != 1;
  weft_series_add (line, (struct weft_item){ .x = panel->x.low, .y = factor * panel->x.low });
  weft_series_add (line, (struct weft_item){ .x = panel->x.high, .y = factor * panel->x.high });
}

/* Lists the sources of the points. Sources that count in no total come first, so that the points of
 * the others are drawn over theirs. */
static GPtrArray *
sources_of (const weft_errors *errors)
{
  GPtrArray *sources = g_ptr_array_new ();

  for (int apart = 1; apart >= 0; apart--)
    for (uint32_t i = 0; i < errors->n_row; i++) {
      const struct weft_error_row *row = &errors->row[i];
      if (row->tier != 'C' && !row->refused && row->apart == apart &&
          !g_ptr_array_find_with_equal_func (sources, row->source, g_str_equal, NULL))
        g_ptr_array_add (sources, (char *) row->source);
    }
  return sources;
}

static void
add_source (struct weft_panel *panel, const weft_errors *errors, enum weft_quantity quantity,
            const char *source, unsigned look)
{
  struct weft_series *series = weft_panel_series (panel, WEFT_SHAPE_POINTS, source);
  double measured, predicted;

  series->look = look;
  for (uint32_t i = 0; i < errors->n_row; i++) {
    const struct weft_error_row *row = &errors->row[i];
    if (!g_str_equal (row->source, source) || !point_of (row, quantity, &measured, &predicted))
      continue;
    if (row->apart && !series->colour) {
      g_autofree char *plain = series->name;
      series->name = g_strconcat (plain, " (apart)", NULL);
      series->colour = APART_COLOUR;
    }
    weft_series_add (series,
                     (struct weft_item){ .x = measured, .y = predicted, .small = TRUE });
  }
}

weft_figure *
weft_cli_figure_accuracy (const weft_errors *errors)
{
  static const struct {
    const char *title, *x, *y;
  } panels[WEFT_N_QUANTITY] = {
    [WEFT_TIME] = { "step time", "measured, s", "predicted, s" },
    [WEFT_MEMORY] = { "memory of the fullest GPU", "measured, GiB", "predicted, GiB" },
  };
  weft_figure *figure = weft_figure_new ("Predicted against measured");
  g_autoptr (GPtrArray) sources = sources_of (errors);

  figure->columns = WEFT_N_QUANTITY;
  for (int quantity = 0; quantity < WEFT_N_QUANTITY; quantity++) {
    struct weft_panel *panel = weft_figure_panel (figure, panels[quantity].title);
    panel->x.scale = panel->y.scale = WEFT_SCALE_LOG;
    panel->x.plain = panel->y.plain = TRUE;
    weft_chart_axis_name (&panel->x, panels[quantity].x, "");
    weft_chart_axis_name (&panel->y, panels[quantity].y, "");
    if (!fix_ends (panel, errors, (enum weft_quantity) quantity))
      continue;
    for (guint i = 0; i < sources->len; i++)
      add_source (panel, errors, (enum weft_quantity) quantity, sources->pdata[i], i);
    add_factor (panel, 1);
    add_factor (panel, 1.1);
    add_factor (panel, 1 / 1.1);
  }
  return figure;
}
