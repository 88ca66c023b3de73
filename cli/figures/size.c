#include "cli/figures/figures.h"
#include <math.h>

static gboolean
is_drawn (const struct weft_size_point *p)
{
  return p->found.fate == WEFT_SIZE_FOUND;
}

/* Adds a panel with logarithmic axes and a series for each topology. */
static struct weft_panel *
add_panel (weft_figure *figure, const weft_size *size, const char *title)
{
  struct weft_panel *panel = weft_figure_panel (figure, title);

  panel->x.scale = panel->y.scale = WEFT_SCALE_LOG;
  for (unsigned i = 0; i < size->n_topology; i++)
    weft_panel_series (panel, WEFT_SHAPE_POINTS, size->topology[i].name)->line = TRUE;
  return panel;
}

static void
add_point (struct weft_panel *panel, const struct weft_size_point *p, double x, double y)
{
  if (x > 0 && y > 0)
    weft_series_add (panel->series->pdata[p->topology],
                     (struct weft_item){ .x = x,
                                         .y = y,
                                         .small = !p->front,
                                         .text = g_strdup_printf ("%u", p->gpus) });
}

/* Adds the deadline and the budget, where they are in the panel. */
static void
add_limit (struct weft_panel *panel, struct weft_item from, struct weft_item to)
{
  struct weft_series *line = weft_panel_series (panel, WEFT_SHAPE_LINE, NULL);

  line->quiet = line->dashed = TRUE;
  weft_series_add (line, from);
  weft_series_add (line, to);
}

/* The ends of what the points of a panel cover, with room, so that limits do not widen it. */
static void
fix_ends (struct weft_panel *panel)
{
  double low[2] = { INFINITY, INFINITY }, high[2] = { 0, 0 };

  for (guint i = 0; i < panel->series->len; i++) {
    const struct weft_series *series = panel->series->pdata[i];
    for (guint k = 0; k < series->item->len; k++) {
      const struct weft_item *item = &g_array_index (series->item, struct weft_item, k);
      low[0] = fmin (low[0], item->x), high[0] = fmax (high[0], item->x);
      low[1] = fmin (low[1], item->y), high[1] = fmax (high[1], item->y);
    }
  }
  if (high[0] <= 0)
    return;
  panel->x.low = low[0] / 1.2, panel->x.high = high[0] * 1.3;
  panel->y.low = low[1] / 1.2, panel->y.high = high[1] * 1.3;
}

static void
add_limits (struct weft_panel *panel, const struct weft_cli_size_page *page)
{
  const struct weft_size_options *o = page->options;

  fix_ends (panel);
  if (o->days > panel->x.low && o->days < panel->x.high)
    add_limit (panel, (struct weft_item){ .x = o->days, .y = panel->y.low },
               (struct weft_item){ .x = o->days, .y = panel->y.high });
  if (page->size->priced && o->budget > panel->y.low && o->budget < panel->y.high)
    add_limit (panel, (struct weft_item){ .x = panel->x.low, .y = o->budget },
               (struct weft_item){ .x = panel->x.high, .y = o->budget });
}

weft_figure *
weft_cli_figure_size (const struct weft_cli_size_page *page)
{
  const weft_size *size = page->size;
  weft_figure *figure = weft_figure_new ("Clusters for a training run");
  g_autofree char *cost =
      size->priced ? g_strdup_printf ("cost, %s", weft_cli_size_currency (size, 0))
                   : g_strdup ("GPU-hours");
  struct weft_panel *front = add_panel (figure, size, "days against cost");
  struct weft_panel *scaling = add_panel (figure, size, "scaling");

  figure->columns = 2;
  weft_chart_axis_name (&front->x, "days", "");
  weft_chart_axis_name (&front->y, cost, "");
  weft_chart_axis_name (&scaling->x, "GPUs", "");
  weft_chart_axis_name (&scaling->y, "tokens/s, with the time that failures take", "");
  for (unsigned i = 0; i < size->point->len; i++) {
    const struct weft_size_point *p = weft_size_at (size->point, i);
    if (!is_drawn (p))
      continue;
    add_point (front, p, p->days, weft_size_price (size, p));
    add_point (scaling, p, p->gpus, p->found.tokens_per_s * p->goodput.goodput);
  }
  add_limits (front, page);
  fix_ends (scaling);
  return figure;
}
