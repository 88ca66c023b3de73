#include "charts/scale.h"
#include "core/base/units.h"
#include <math.h>

/* The most ticks of a linear axis, and the most texts of a list beside each other. */
enum { MOST_TICKS = 7 };

static double
onto (const struct weft_chart_axis *axis, double value)
{
  if (axis->scale != WEFT_SCALE_LOG)
    return value;
  return value > 0 ? log10 (value) : NAN;
}

static void
widen (struct weft_scale_range *ends, const struct weft_chart_axis *axis, double value)
{
  ends->low = fmin (ends->low, onto (axis, value));
  ends->high = fmax (ends->high, onto (axis, value));
}

/* Extends the ends by the items of a series. `below`: sums of the areas before it, by item. */
static void
widen_by (struct weft_scale_range *ends, const struct weft_panel *panel,
          const struct weft_chart_axis *axis, const struct weft_series *series, GArray *below)
{
  gboolean is_x = axis == &panel->x;

  for (guint i = 0; i < series->item->len; i++) {
    const struct weft_item *item = &g_array_index (series->item, struct weft_item, i);
    double y = item->y;
    if (series->shape == WEFT_SHAPE_AREA) {
      if (below->len <= i)
        g_array_set_size (below, i + 1);
      y = g_array_index (below, double, i) += item->y;
    }
    widen (ends, axis, is_x ? item->x : y);
    if (is_x && series->shape == WEFT_SHAPE_INTERVALS)
      widen (ends, axis, item->x2);
  }
}

gboolean
weft_scale_ends (const struct weft_panel *panel, const struct weft_chart_axis *axis,
                 struct weft_scale_range *ends)
{
  g_autoptr (GArray) below = g_array_new (FALSE, TRUE, sizeof (double));
  gboolean open = isnan (axis->low) || isnan (axis->high);

  *ends = (struct weft_scale_range){ INFINITY, -INFINITY };
  if (axis->scale == WEFT_SCALE_LIST) {
    *ends = (struct weft_scale_range){ 0, 1 };
    return axis->word->len > 0;
  }
  for (guint i = 0; open && i < panel->series->len; i++)
    widen_by (ends, panel, axis, panel->series->pdata[i], below);
  double room = axis->scale == WEFT_SCALE_LOG ? fmax (0.08, 0.05 * (ends->high - ends->low))
                                              : 0.05 * (ends->high - ends->low);
  ends->low = isnan (axis->low) ? ends->low - room : onto (axis, axis->low);
  ends->high = isnan (axis->high) ? ends->high + room : onto (axis, axis->high);
  if (ends->low == ends->high)
    ends->high = ends->low + 1;
  return ends->low < ends->high && isfinite (ends->low) && isfinite (ends->high);
}

static double
place_in_list (const struct weft_chart_axis *axis, double value)
{
  double whole = 0, before = 0;
  int last = (int) axis->size->len - 1, item = CLAMP ((int) floor (value + 0.5), 0, last);

  for (int i = 0; i <= last; i++) {
    double size = g_array_index (axis->size, double, i);
    whole += size;
    before += i < item ? size : i == item ? size * (value + 0.5 - item) : 0;
  }
  return before / whole;
}

double
weft_scale_place (const struct weft_chart_axis *axis, struct weft_scale_range ends, double value)
{
  if (axis->scale == WEFT_SCALE_LIST)
    return place_in_list (axis, value);
  return (onto (axis, value) - ends.low) / (ends.high - ends.low);
}

/* --------------------------------------------------------------------------- ticks */

static void
add (GArray *ticks, double value)
{
  g_array_append_val (ticks, value);
}

static void
add_linear (GArray *ticks, struct weft_scale_range ends)
{
  static const double steps[] = { 1, 2, 5, 10 };
  double span = ends.high - ends.low, decade = pow (10, floor (log10 (span / MOST_TICKS)));
  double step = 10 * decade;

  for (int i = G_N_ELEMENTS (steps) - 1; i >= 0; i--)
    if (span / (steps[i] * decade) <= MOST_TICKS)
      step = steps[i] * decade;
  for (double i = ceil (ends.low / step - 1e-9); i * step <= ends.high + 1e-9 * span; i++)
    add (ticks, i == 0 ? 0 : i * step); /* not -0 */
}

/* Fewer numbers in each decade, and not every decade, if the axis has more decades. */
static void
add_log (GArray *ticks, struct weft_scale_range ends)
{
  static const double steps[] = { 1, 2, 5, 1.5, 3, 4, 7 };
  double decades = ends.high - ends.low;
  unsigned n = decades < 1 ? G_N_ELEMENTS (steps) : decades < 2.5 ? 3 : 1;
  int every = 1 + (int) (decades / (2 * MOST_TICKS));

  for (int decade = (int) floor (ends.low); decade <= ends.high; decade++)
    for (unsigned i = 0; i < n && decade % every == 0; i++) {
      double value = steps[i] * pow (10, decade);
      if (log10 (value) >= ends.low && log10 (value) <= ends.high)
        add (ticks, value);
    }
}

static int
by_value (const void *a, const void *b)
{
  const double *x = a, *y = b;

  return (*x > *y) - (*x < *y);
}

GArray *
weft_scale_ticks (const struct weft_chart_axis *axis, struct weft_scale_range ends)
{
  GArray *ticks = g_array_new (FALSE, FALSE, sizeof (double));

  if (axis->scale == WEFT_SCALE_LOG)
    add_log (ticks, ends);
  else if (axis->scale == WEFT_SCALE_LINEAR)
    add_linear (ticks, ends);
  for (guint i = 0; axis->scale == WEFT_SCALE_LIST && i < axis->word->len; i++)
    add (ticks, i);
  g_array_sort (ticks, by_value);
  return ticks;
}

char *
weft_scale_text (const struct weft_chart_axis *axis, double value)
{
  if (axis->scale == WEFT_SCALE_LIST)
    return g_strdup (axis->word->pdata[(guint) value]);
  if (axis->plain)
    return g_strdup_printf ("%.6g", value);
  return g_strchomp (weft_units_human (value, axis->unit));
}

double
weft_scale_text_width (const char *text, double size)
{
  return 0.55 * size * (double) g_utf8_strlen (text, -1);
}
