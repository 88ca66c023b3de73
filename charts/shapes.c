#include "charts/shapes.h"
#include "charts/looks.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Lengths in points. */
#define MARKER 3.2      /* half of the width of a marker */
#define HATCH 5.0       /* distance of the lines of a hatch */
#define BAR_SHARE 0.6   /* width of a bar, of the extent of an item in a list */
#define ROW_SHARE 0.84  /* height of a box, of the extent of its row */
#define LETTERS 10.0
#define QUIET 0x888888
#define HATCH_INK 0x333333

double
weft_frame_x (const struct weft_chart_frame *f, double value)
{
  return f->left + weft_scale_place (&f->panel->x, f->x, value) * f->panel->width;
}

/* Numbers grow upwards; the items of a list go downwards. */
double
weft_frame_y (const struct weft_chart_frame *f, double value)
{
  double share = weft_scale_place (&f->panel->y, f->y, value);

  return f->top + (f->panel->y.scale == WEFT_SCALE_LIST ? share : 1 - share) * f->panel->height;
}

static int
colour_of (const struct weft_series *series, gboolean monochrome)
{
  if (series->quiet)
    return QUIET;
  if (monochrome)
    return WEFT_COLOUR_INK;
  if (series->colour)
    return (int) strtol (series->colour + 1, NULL, 16);
  return series->shape == WEFT_SHAPE_LINE || series->shape == WEFT_SHAPE_POINTS
             ? weft_look_stroke (series->look)
             : weft_look_colour (series->look);
}

/* -------------------------------------------------------------------------- boxes */

/* Mixes a colour with white. */
static int
paler (int colour, double share)
{
  int mixed = 0;

  for (int shift = 16; shift >= 0; shift -= 8) {
    int part = colour >> shift & 0xff;
    mixed |= (part + (int) ((0xff - part) * share)) << shift;
  }
  return mixed;
}

/* Whether dark letters are easier to read on a colour than white ones: by relative luminance. */
static gboolean
is_light (int colour)
{
  return 0.2126 * (colour >> 16 & 0xff) + 0.7152 * (colour >> 8 & 0xff) +
             0.0722 * (colour & 0xff) >
         110;
}

static void
add_line (GArray *place, GArray *moves, struct weft_spot a, struct weft_spot b)
{
  const gboolean first = TRUE, second = FALSE;

  g_array_append_val (place, a);
  g_array_append_val (place, b);
  g_array_append_val (moves, first);
  g_array_append_val (moves, second);
}

/* Draws the lines of a hatch in a box. They lie on a grid of the page, so that boxes beside each
 * other have one pattern. */
static void
draw_hatch (struct weft_pen *pen, const struct weft_spot c[2], unsigned direction)
{
  static const struct weft_brush brush = { WEFT_COLOUR_NONE, HATCH_INK, 0.6, 1, NULL };
  g_autoptr (GArray) place = g_array_new (FALSE, FALSE, sizeof (struct weft_spot));
  g_autoptr (GArray) moves = g_array_new (FALSE, FALSE, sizeof (gboolean));
  double x0 = c[0].x, y0 = c[0].y, x1 = c[1].x, y1 = c[1].y;

  for (double s = ceil ((x0 + y0) / HATCH) * HATCH; s < x1 + y1 && direction & WEFT_HATCH_RISING;
       s += HATCH) {
    double a = fmax (x0, s - y1), b = fmin (x1, s - y0);
    add_line (place, moves, (struct weft_spot){ a, s - a }, (struct weft_spot){ b, s - b });
  }
  for (double s = ceil ((x0 - y1) / HATCH) * HATCH; s < x1 - y0 && direction & WEFT_HATCH_FALLING;
       s += HATCH) {
    double a = fmax (x0, s + y0), b = fmin (x1, s + y1);
    add_line (place, moves, (struct weft_spot){ a, a - s }, (struct weft_spot){ b, b - s });
  }
  for (double x = ceil (x0 / HATCH) * HATCH; x < x1 && direction & WEFT_HATCH_UPRIGHT; x += HATCH)
    add_line (place, moves, (struct weft_spot){ x, y0 }, (struct weft_spot){ x, y1 });
  if (place->len)
    pen->path (pen, (const struct weft_spot *) place->data, (const gboolean *) moves->data,
               place->len, &brush);
}

/* Draws a box of a series, in a monochrome figure with a thin line around it. Returns the colour
 * that it is filled with. */
static int
draw_box (struct weft_pen *pen, const struct weft_series *series, gboolean monochrome,
          const struct weft_spot corner[2], double pale)
{
  struct weft_brush brush = { paler (colour_of (series, FALSE), pale), WEFT_COLOUR_NONE, 1, 1,
                              NULL };
  struct weft_hatch hatch = weft_look_hatch (series->look);

  if (monochrome) {
    brush.fill = paler (hatch.grey, pale);
    brush.stroke = HATCH_INK;
    brush.width = 0.5;
  }
  pen->rect (pen, corner, &brush);
  if (monochrome && hatch.direction)
    draw_hatch (pen, corner, hatch.direction);
  return brush.fill;
}

static void
draw_box_text (const struct weft_chart_frame *f, const struct weft_item *item,
               const struct weft_spot c[2], int fill)
{
  const struct weft_letters letters = { LETTERS, WEFT_ANCHOR_MIDDLE, FALSE,
                                        is_light (fill) ? 0x14181f : 0xffffff };

  if (item->text && c[1].y - c[0].y >= LETTERS &&
      weft_scale_text_width (item->text, LETTERS) < c[1].x - c[0].x)
    f->pen->text (f->pen,
                  (struct weft_spot){ (c[0].x + c[1].x) / 2,
                                       (c[0].y + c[1].y) / 2 + 0.36 * LETTERS },
                  &letters, item->text);
}

static void
draw_intervals (const struct weft_chart_frame *f, const struct weft_series *series)
{
  double right = f->left + f->panel->width;

  for (guint i = 0; i < series->item->len; i++) {
    const struct weft_item *item = &g_array_index (series->item, struct weft_item, i);
    double half = ROW_SHARE / 2;
    struct weft_spot c[2] = {
      { fmax (f->left, weft_frame_x (f, item->x)), weft_frame_y (f, item->y - half) },
      { fmin (right, weft_frame_x (f, item->x2)), weft_frame_y (f, item->y + half) }
    };
    c[1].x = fmax (c[1].x, c[0].x + 0.3); /* a short transfer is still visible */
    draw_box_text (f, item, c, draw_box (f->pen, series, f->monochrome, c, item->pale));
  }
}

static void
draw_bars (const struct weft_chart_frame *f, const struct weft_series *series)
{
  for (guint i = 0; i < series->item->len; i++) {
    const struct weft_item *item = &g_array_index (series->item, struct weft_item, i);
    double half = BAR_SHARE / 2;
    const struct weft_spot c[2] = {
      { weft_frame_x (f, item->x - half), weft_frame_y (f, item->y) },
      { weft_frame_x (f, item->x + half), f->top + f->panel->height }
    };
    draw_box (f->pen, series, f->monochrome, c, item->pale);
  }
}

/* Appends the steps of an edge of an area: its height at each item until the next. */
static void
add_steps (const struct weft_chart_frame *f, const struct weft_series *series, const double *height,
           GArray *place)
{
  const struct weft_item *item = &g_array_index (series->item, struct weft_item, 0);
  guint last = series->item->len - 1;

  for (guint i = 0; i < last; i++) {
    const struct weft_spot at[2] = { { weft_frame_x (f, item[i].x), weft_frame_y (f, height[i]) },
                                     { weft_frame_x (f, item[i + 1].x),
                                       weft_frame_y (f, height[i]) } };
    struct weft_spot *end =
        place->len ? &g_array_index (place, struct weft_spot, place->len - 1) : NULL;
    if (end && i > 0 && end->y == at[0].y)
      end->x = at[1].x;
    else
      g_array_append_vals (place, at, 2);
  }
}

/* Draws the lines of the hatch of an area in a box for each item. */
static void
hatch_area (const struct weft_chart_frame *f, const struct weft_series *series, const double *low,
            const double *high)
{
  const struct weft_item *item = &g_array_index (series->item, struct weft_item, 0);
  unsigned direction = weft_look_hatch (series->look).direction;

  for (guint i = 0; direction && i + 1 < series->item->len; i++) {
    const struct weft_spot c[2] = {
      { weft_frame_x (f, item[i].x), weft_frame_y (f, high[i]) },
      { weft_frame_x (f, item[i + 1].x), weft_frame_y (f, low[i]) }
    };
    if (c[1].y > c[0].y)
      draw_hatch (f->pen, c, direction);
  }
}

/* Draws an area as one shape, and adds its heights to those below the next area. */
static void
draw_area (const struct weft_chart_frame *f, const struct weft_series *series, double *below)
{
  guint n = series->item->len;
  g_autofree double *high = g_new (double, n);
  g_autoptr (GArray) upper = g_array_new (FALSE, FALSE, sizeof (struct weft_spot));
  g_autoptr (GArray) lower = g_array_new (FALSE, FALSE, sizeof (struct weft_spot));
  const struct weft_brush brush = { f->monochrome ? weft_look_hatch (series->look).grey
                                                  : colour_of (series, FALSE),
                                    f->monochrome ? HATCH_INK : WEFT_COLOUR_NONE, 0.5, 1, NULL };
  double most = 0;

  for (guint i = 0; i < n; i++) {
    high[i] = below[i] + g_array_index (series->item, struct weft_item, i).y;
    most = fmax (most, high[i] - below[i]);
  }
  if (n < 2 || most <= 0)
    return;
  add_steps (f, series, high, upper);
  add_steps (f, series, below, lower);
  for (guint i = lower->len; i > 0; i--)
    g_array_append_val (upper, g_array_index (lower, struct weft_spot, i - 1));
  f->pen->path (f->pen, (const struct weft_spot *) upper->data, NULL, upper->len, &brush);
  if (f->monochrome)
    hatch_area (f, series, below, high);
  memcpy (below, high, n * sizeof *below);
}

/* ----------------------------------------------------------------- lines and points */

/* Cuts the line from a to b at the ends of one direction. FALSE: nothing is left. */
static gboolean
cut (double *from, double *to, double begin, double change, double low, double high)
{
  if (change == 0)
    return begin >= low && begin <= high;
  double at = (low - begin) / change, beyond = (high - begin) / change;
  *from = fmax (*from, fmin (at, beyond));
  *to = fmin (*to, fmax (at, beyond));
  return *from <= *to;
}

static void
draw_line (const struct weft_chart_frame *f, const struct weft_series *series)
{
  g_autoptr (GArray) place = g_array_new (FALSE, FALSE, sizeof (struct weft_spot));
  g_autoptr (GArray) moves = g_array_new (FALSE, FALSE, sizeof (gboolean));
  const struct weft_brush brush = { WEFT_COLOUR_NONE, colour_of (series, f->monochrome),
                                    series->quiet ? 1 : 1.6, 1,
                                    series->quiet    ? series->dashed ? "4 3" : NULL
                                    : f->monochrome ? weft_look_dash (series->look)
                                                    : NULL };

  for (guint i = 0; i + 1 < series->item->len; i++) {
    const struct weft_item *item = &g_array_index (series->item, struct weft_item, i);
    struct weft_spot a = { weft_frame_x (f, item[0].x), weft_frame_y (f, item[0].y) };
    struct weft_spot b = { weft_frame_x (f, item[1].x), weft_frame_y (f, item[1].y) };
    double from = 0, to = 1, dx = b.x - a.x, dy = b.y - a.y;
    if (isnan (a.x + a.y + b.x + b.y) ||
        !cut (&from, &to, a.x, dx, f->left, f->left + f->panel->width) ||
        !cut (&from, &to, a.y, dy, f->top, f->top + f->panel->height))
      continue;
    struct weft_spot p = { a.x + from * dx, a.y + from * dy }, q = { a.x + to * dx, a.y + to * dy };
    const struct weft_spot *last =
        place->len ? &g_array_index (place, struct weft_spot, place->len - 1) : NULL;
    const gboolean on = FALSE;
    if (last && last->x == p.x && last->y == p.y) {
      g_array_append_val (place, q);
      g_array_append_val (moves, on);
    } else {
      add_line (place, moves, p, q);
    }
  }
  if (place->len)
    f->pen->path (f->pen, (const struct weft_spot *) place->data,
                  (const gboolean *) moves->data, place->len, &brush);
}

/* Corners of the markers in units of half their width; a pair of lines for a cross. */
static const struct {
  unsigned n;
  gboolean lines;
  struct weft_spot corner[4];
} markers[WEFT_N_MARKER] = {
  [WEFT_MARKER_SQUARE] = { 4, FALSE,
                           { { -0.9, -0.9 }, { 0.9, -0.9 }, { 0.9, 0.9 }, { -0.9, 0.9 } } },
  [WEFT_MARKER_TRIANGLE] = { 3, FALSE, { { 0, -1.2 }, { 1.1, 0.8 }, { -1.1, 0.8 } } },
  [WEFT_MARKER_DIAMOND] = { 4, FALSE, { { 0, -1.3 }, { 1.1, 0 }, { 0, 1.3 }, { -1.1, 0 } } },
  [WEFT_MARKER_DOWN] = { 3, FALSE, { { 0, 1.2 }, { 1.1, -0.8 }, { -1.1, -0.8 } } },
  [WEFT_MARKER_CROSS] = { 4, TRUE, { { -1, -1 }, { 1, 1 }, { -1, 1 }, { 1, -1 } } },
  [WEFT_MARKER_PLUS] = { 4, TRUE, { { -1.2, 0 }, { 1.2, 0 }, { 0, -1.2 }, { 0, 1.2 } } },
};

static void
draw_marker (struct weft_pen *pen, const struct weft_series *series, int colour,
             struct weft_spot at, const struct weft_item *item)
{
  static const gboolean moves[] = { TRUE, FALSE, TRUE, FALSE };
  enum weft_marker marker = weft_look_marker (series->look);
  double size = item->small ? 0.6 * MARKER : MARKER;
  gboolean hollow = item->hollow || markers[marker].lines;
  const struct weft_brush brush = { hollow ? WEFT_COLOUR_NONE : colour, colour, 1.3, 0.9, NULL };
  struct weft_spot corner[5];
  unsigned n = markers[marker].n;

  if (marker == WEFT_MARKER_CIRCLE || (item->hollow && markers[marker].lines)) {
    pen->circle (pen, at, size, &brush);
    return;
  }
  for (unsigned i = 0; i < n; i++)
    corner[i] = (struct weft_spot){ at.x + size * markers[marker].corner[i].x,
                                     at.y + size * markers[marker].corner[i].y };
  corner[n] = corner[0];
  pen->path (pen, corner, markers[marker].lines ? moves : NULL, n + !markers[marker].lines,
             &brush);
}

static gboolean
is_inside (const struct weft_chart_frame *f, struct weft_spot at)
{
  return at.x >= f->left && at.x <= f->left + f->panel->width && at.y >= f->top &&
         at.y <= f->top + f->panel->height;
}

static void
draw_points (const struct weft_chart_frame *f, const struct weft_series *series)
{
  const struct weft_letters letters = { LETTERS, WEFT_ANCHOR_START, FALSE, WEFT_COLOUR_INK };

  for (guint i = 0; i < series->item->len; i++) {
    const struct weft_item *item = &g_array_index (series->item, struct weft_item, i);
    struct weft_spot at = { weft_frame_x (f, item->x), weft_frame_y (f, item->y) };
    if (!is_inside (f, at)) /* also a value without a place */
      continue;
    draw_marker (f->pen, series, colour_of (series, f->monochrome), at, item);
    if (item->text)
      f->pen->text (f->pen, (struct weft_spot){ at.x + 6, at.y - 5 }, &letters, item->text);
  }
}

/* ------------------------------------------------------------------------------ all */

static void
draw_boxes (const struct weft_chart_frame *f)
{
  g_autofree double *below = NULL;

  for (guint i = 0; i < f->panel->series->len; i++) {
    const struct weft_series *series = f->panel->series->pdata[i];
    if (series->shape == WEFT_SHAPE_INTERVALS)
      draw_intervals (f, series);
    else if (series->shape == WEFT_SHAPE_BARS)
      draw_bars (f, series);
    else if (series->shape == WEFT_SHAPE_AREA && series->item->len) {
      below = below ? below : g_new0 (double, series->item->len);
      draw_area (f, series, below);
    }
  }
}

void
weft_shapes_draw (const struct weft_chart_frame *f)
{
  draw_boxes (f);
  for (guint i = 0; i < f->panel->series->len; i++) {
    const struct weft_series *series = f->panel->series->pdata[i];
    if (series->shape == WEFT_SHAPE_LINE || series->line)
      draw_line (f, series);
  }
  for (guint i = 0; i < f->panel->series->len; i++) {
    const struct weft_series *series = f->panel->series->pdata[i];
    if (series->shape == WEFT_SHAPE_POINTS)
      draw_points (f, series);
  }
}

void
weft_shapes_sample (const struct weft_series *series, gboolean monochrome, struct weft_spot at,
                    struct weft_pen *pen)
{
  const struct weft_item item = { 0 };
  const struct weft_spot corner[2] = { { at.x - 6, at.y - 5 }, { at.x + 6, at.y + 5 } };
  const struct weft_spot ends[2] = { { at.x - 9, at.y }, { at.x + 9, at.y } };
  int colour = colour_of (series, monochrome);
  const struct weft_brush brush = { WEFT_COLOUR_NONE, colour, series->quiet ? 1 : 1.6, 1,
                                    series->quiet ? series->dashed ? "4 3" : NULL
                                    : monochrome  ? weft_look_dash (series->look)
                                                  : NULL };

  if (series->shape != WEFT_SHAPE_LINE && series->shape != WEFT_SHAPE_POINTS) {
    draw_box (pen, series, monochrome, corner, 0);
    return;
  }
  if (series->shape == WEFT_SHAPE_LINE || series->line)
    pen->path (pen, ends, NULL, 2, &brush);
  if (series->shape == WEFT_SHAPE_POINTS)
    draw_marker (pen, series, colour, at, &item);
}
