#include "cli/size_picture.h"
#include "cli/colours.h"
#include "core/base/units.h"
#include <math.h>

/* Lengths in SVG units, which are pixels at the picture's natural size. */
enum {
  SIDE = 400, /* width and height of a panel */
  LEFT = 70,
  TOP = 30,
  GAP = 92,   /* space between the two panels */
  BELOW = 52, /* space below a panel for the numbers and the name of its axis */
  LINE = 18,  /* height of one line of the key */
  WIDTH = LEFT + 2 * SIDE + GAP + 24
};

/* One axis of a panel; its scale is logarithmic. */
struct axis {
  const char *name;
  double low, high; /* logarithms to base 10 of the ends of the axis */
};

struct panel {
  const struct weft_cli_size_page *page;
  double left;
  struct axis x, y;
  double (*x_of) (const weft_size *size, const struct weft_size_point *p);
  double (*y_of) (const weft_size *size, const struct weft_size_point *p);
  GString *text;
};

static double
days_of (const weft_size *size, const struct weft_size_point *p)
{
  (void) size;
  return p->days;
}

static double
gpus_of (const weft_size *size, const struct weft_size_point *p)
{
  (void) size;
  return p->gpus;
}

/* Tokens a second of the run. The time that failures take is included. */
static double
rate_of (const weft_size *size, const struct weft_size_point *p)
{
  (void) size;
  return p->found.tokens_per_s * p->goodput.goodput;
}

static gboolean
is_drawn (const struct weft_size_point *p)
{
  return p->found.fate == WEFT_SIZE_FOUND;
}

/* ------------------------------------------------------------------------ axes */

static void
widen (struct axis *axis, double value)
{
  if (isnan (value) || value <= 0)
    return;
  axis->low = fmin (axis->low, log10 (value));
  axis->high = fmax (axis->high, log10 (value));
}

static void
find_ends (struct panel *p)
{
  const weft_size *size = p->page->size;

  p->x.low = p->y.low = INFINITY;
  p->x.high = p->y.high = -INFINITY;
  for (unsigned i = 0; i < size->point->len; i++) {
    const struct weft_size_point *point = weft_size_at (size->point, i);
    if (is_drawn (point)) {
      widen (&p->x, p->x_of (size, point));
      widen (&p->y, p->y_of (size, point));
    }
  }
  for (struct axis *a = &p->x; a; a = a == &p->x ? &p->y : NULL) {
    double room = fmax (0.08, 0.06 * (a->high - a->low));
    a->low -= room;
    a->high += room;
  }
}

static double
at_x (const struct panel *p, double value)
{
  return p->left + (log10 (value) - p->x.low) / (p->x.high - p->x.low) * SIDE;
}

static double
at_y (const struct panel *p, double value)
{
  return TOP + SIDE - (log10 (value) - p->y.low) / (p->y.high - p->y.low) * SIDE;
}

/* A number at an axis as text, for example "1.5 M". The caller frees the text. */
static char *
tick_text (double value)
{
  g_autofree char *text = weft_units_human (value, "");
  return g_strdup (g_strstrip (text));
}

static void
draw_x_tick (const struct panel *p, double value)
{
  g_autofree char *text = tick_text (value);

  g_string_append_printf (p->text,
                          "<path d=\"M%.1f %dV%d\" stroke=\"#888\" stroke-opacity=\"0.25\"/>\n"
                          "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
                          at_x (p, value), TOP, TOP + SIDE, at_x (p, value), TOP + SIDE + 15, text);
}

static void
draw_y_tick (const struct panel *p, double value)
{
  g_autofree char *text = tick_text (value);

  g_string_append_printf (p->text,
                          "<path d=\"M%.1f %.1fH%.1f\" stroke=\"#888\" stroke-opacity=\"0.25\"/>\n"
                          "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                          p->left, at_y (p, value), p->left + SIDE, p->left - 5,
                          at_y (p, value) + 4, text);
}

/* Draws the numbers of an axis: fewer numbers per decade if the axis has more decades. */
static void
draw_ticks (const struct panel *p, const struct axis *axis,
            void (*draw) (const struct panel *p, double value))
{
  static const double steps[] = { 1, 2, 5, 1.5, 3, 4, 7 };
  double decades = axis->high - axis->low;
  unsigned n = decades < 1 ? G_N_ELEMENTS (steps) : decades < 3 ? 3 : 1;

  for (int decade = (int) floor (axis->low); decade <= axis->high; decade++)
    for (unsigned i = 0; i < n; i++) {
      double value = steps[i] * pow (10, decade);
      if (log10 (value) >= axis->low && log10 (value) <= axis->high)
        draw (p, value);
    }
}

static void
draw_frame (const struct panel *p, const char *title)
{
  double middle = p->left + SIDE / 2.0;

  g_string_append_printf (p->text,
                          "<rect x=\"%.0f\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"none\" "
                          "stroke=\"#888\"/>\n"
                          "<text x=\"%.0f\" y=\"%d\" text-anchor=\"middle\" font-size=\"14\">%s"
                          "</text>\n"
                          "<text x=\"%.0f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n"
                          "<text transform=\"translate(%.0f %d) rotate(-90)\" "
                          "text-anchor=\"middle\">%s</text>\n",
                          p->left, TOP, SIDE, SIDE, middle, TOP - 10, title, middle,
                          TOP + SIDE + 34, p->x.name, p->left - 54, TOP + SIDE / 2, p->y.name);
  draw_ticks (p, &p->x, draw_x_tick);
  draw_ticks (p, &p->y, draw_y_tick);
}

/* ------------------------------------------------------------------------ points */

static const char *
colour_of (unsigned topology)
{
  return weft_cli_colour (topology);
}

/* Draws a point with its number of GPUs as a label. Points of the Pareto front are larger. */
static void
draw_point (const struct panel *p, const struct weft_size_point *point)
{
  double x = at_x (p, p->x_of (p->page->size, point)), y = at_y (p, p->y_of (p->page->size, point));

  g_string_append_printf (p->text,
                          "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%d\" fill=\"%s\"/>\n"
                          "<text x=\"%.1f\" y=\"%.1f\" fill=\"%s\">%u</text>\n",
                          x, y, point->front ? 5 : 3, colour_of (point->topology), x + 7, y - 5,
                          colour_of (point->topology), point->gpus);
}

/* Draws a line through the points of a topology, from the fewest GPUs to the most GPUs. */
static void
draw_line (const struct panel *p, unsigned topology)
{
  const weft_size *size = p->page->size;
  g_autoptr (GString) path = g_string_new (NULL);

  for (unsigned i = 0; i < size->point->len; i++) {
    const struct weft_size_point *point = weft_size_at (size->point, i);
    if (is_drawn (point) && point->topology == topology)
      g_string_append_printf (path, "%s%.1f %.1f", path->len ? "L" : "M",
                              at_x (p, p->x_of (size, point)), at_y (p, p->y_of (size, point)));
  }
  if (path->len)
    g_string_append_printf (p->text, "<path d=\"%s\" fill=\"none\" stroke=\"%s\"/>\n", path->str,
                            colour_of (topology));
}

/* Draws the limits (deadline and budget) that lie inside the panel of days against cost. */
static void
draw_limits (const struct panel *p)
{
  const struct weft_size_options *o = p->page->options;
  double days = log10 (o->days), budget = log10 (o->budget);

  if (days > p->x.low && days < p->x.high)
    g_string_append_printf (p->text,
                            "<path d=\"M%.1f %dV%d\" stroke=\"#888\" stroke-dasharray=\"4 3\"/>\n",
                            at_x (p, o->days), TOP, TOP + SIDE);
  if (p->page->size->priced && budget > p->y.low && budget < p->y.high)
    g_string_append_printf (p->text,
                            "<path d=\"M%.1f %.1fH%.1f\" stroke=\"#888\" "
                            "stroke-dasharray=\"4 3\"/>\n",
                            p->left, at_y (p, o->budget), p->left + SIDE);
}

static void
draw_panel (struct panel *p, const char *title)
{
  const weft_size *size = p->page->size;

  find_ends (p);
  if (p->x.low > p->x.high)
    return;
  draw_frame (p, title);
  for (unsigned i = 0; i < size->n_topology; i++)
    draw_line (p, i);
  for (unsigned i = 0; i < size->point->len; i++)
    if (is_drawn (weft_size_at (size->point, i)))
      draw_point (p, weft_size_at (size->point, i));
}

static void
draw_key (const weft_size *size, GString *text)
{
  for (unsigned i = 0; i < size->n_topology; i++) {
    g_autofree char *name = g_markup_escape_text (size->topology[i].name, -1);
    int y = TOP + SIDE + BELOW + 14 + (int) i * LINE;
    g_string_append_printf (text,
                            "<circle cx=\"%d\" cy=\"%d\" r=\"5\" fill=\"%s\"/>\n"
                            "<text x=\"%d\" y=\"%d\">%s</text>\n",
                            LEFT, y - 4, colour_of (i), LEFT + 12, y, name);
  }
}

char *
weft_cli_size_picture (const struct weft_cli_size_page *page)
{
  const weft_size *size = page->size;
  GString *text = g_string_new (NULL);
  int height = TOP + SIDE + BELOW + (int) size->n_topology * LINE + 8;
  g_autofree char *currency = g_markup_escape_text (weft_cli_size_currency (size, 0), -1);
  g_autofree char *cost =
      size->priced ? g_strdup_printf ("cost, %s", currency) : g_strdup ("GPU-hours");
  struct panel front = { .page = page,
                         .left = LEFT,
                         .x_of = days_of,
                         .y_of = weft_size_price,
                         .x.name = "days",
                         .y.name = cost,
                         .text = text };
  struct panel scaling = { .page = page,
                           .left = LEFT + SIDE + GAP,
                           .x_of = gpus_of,
                           .y_of = rate_of,
                           .x.name = "GPUs",
                           .y.name = "tokens/s",
                           .text = text };

  g_string_append_printf (text,
                          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                          "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"11\" "
                          "fill=\"#777\">\n<title>Clusters for a training run</title>\n",
                          WIDTH, height, WIDTH, height);
  draw_panel (&front, "days against cost");
  draw_limits (&front);
  draw_panel (&scaling, "scaling");
  draw_key (size, text);
  g_string_append (text, "</svg>\n");
  return g_string_free (text, FALSE);
}
