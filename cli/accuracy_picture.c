#include "cli/accuracy_picture.h"
#include "cli/colours.h"
#include <math.h>
#include <string.h>

/* Lengths in SVG units, which are pixels at the picture's natural size. */
enum {
  SIDE = 400,   /* side of a panel */
  LEFT = 58,
  TOP = 30,
  GAP = 78,     /* space between the two panels */
  BELOW = 46,   /* space below a panel for the numbers and the name of its axis */
  LINE = 18,    /* height of one line of the key */
  KEY = 118,    /* width of one entry of the key */
  WIDTH = LEFT + 2 * SIDE + GAP + 12
};

#define APART_COLOUR "#bbbbbb"

struct panel {
  const weft_errors *errors;
  enum weft_quantity quantity;
  const char *name, *unit;
  double x;         /* horizontal position of the left side */
  double low, high; /* logarithms to base 10 of the ends of both axes */
  GString *text;
};

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

static void
find_ends (struct panel *p)
{
  double measured, predicted;

  p->low = INFINITY;
  p->high = -INFINITY;
  for (uint32_t i = 0; i < p->errors->n_row; i++)
    if (point_of (&p->errors->row[i], p->quantity, &measured, &predicted)) {
      p->low = fmin (p->low, log10 (fmin (measured, predicted)));
      p->high = fmax (p->high, log10 (fmax (measured, predicted)));
    }
  p->low -= 0.03 * (p->high - p->low);
  p->high += 0.03 * (p->high - p->low);
}

static double
x_of (const struct panel *p, double value)
{
  return p->x + (log10 (value) - p->low) / (p->high - p->low) * SIDE;
}

static double
y_of (const struct panel *p, double value)
{
  return TOP + SIDE - (log10 (value) - p->low) / (p->high - p->low) * SIDE;
}

/* ----------------------------------------------------------------------------- axes */

/* Draws one number on both axes of a panel, with a horizontal and a vertical line. */
static void
draw_tick (const struct panel *p, double value)
{
  double x = x_of (p, value), y = y_of (p, value);

  g_string_append_printf (p->text,
                          "<path d=\"M%.1f %dV%dM%.1f %.1fH%.1f\" stroke=\"#888\" "
                          "stroke-opacity=\"0.25\"/>\n"
                          "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g</text>\n"
                          "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
                          x, TOP, TOP + SIDE, p->x, y, p->x + SIDE, x, TOP + SIDE + 15, value,
                          p->x - 5, y + 4, value);
}

static void
draw_ticks (const struct panel *p)
{
  int steps = p->high - p->low < 1 ? 9 : 1; /* how many numbers are marked in one decade */

  for (int decade = (int) floor (p->low); decade <= p->high; decade++)
    for (int step = 1; step <= steps; step++) {
      double value = step * pow (10, decade);
      if (log10 (value) >= p->low && log10 (value) <= p->high)
        draw_tick (p, value);
    }
}

/* Draws the line of all points at which predicted = factor * measured. */
static void
draw_factor (const struct panel *p, double factor, const char *style)
{
  double shift = log10 (factor), from = p->low - fmin (0, shift), to = p->high - fmax (0, shift);

  g_string_append_printf (p->text, "<path d=\"M%.1f %.1fL%.1f %.1f\" stroke=\"#888\"%s/>\n",
                          x_of (p, pow (10, from)), y_of (p, factor * pow (10, from)),
                          x_of (p, pow (10, to)), y_of (p, factor * pow (10, to)), style);
}

static void
draw_frame (const struct panel *p)
{
  double middle = p->x + SIDE / 2.0;

  g_string_append_printf (p->text,
                          "<rect x=\"%.0f\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"none\" "
                          "stroke=\"#888\"/>\n"
                          "<text x=\"%.0f\" y=\"%d\" text-anchor=\"middle\" font-size=\"14\">%s"
                          "</text>\n"
                          "<text x=\"%.0f\" y=\"%d\" text-anchor=\"middle\">measured, %s</text>\n"
                          "<text transform=\"translate(%.0f %d) rotate(-90)\" "
                          "text-anchor=\"middle\">predicted, %s</text>\n",
                          p->x, TOP, SIDE, SIDE, middle, TOP - 10, p->name, middle,
                          TOP + SIDE + 34, p->unit, p->x - 42, TOP + SIDE / 2, p->unit);
  draw_ticks (p);
  draw_factor (p, 1, "");
  draw_factor (p, 1.1, " stroke-dasharray=\"4 3\"");
  draw_factor (p, 1 / 1.1, " stroke-dasharray=\"4 3\"");
}

/* ----------------------------------------------------------------------------- points */

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

static gboolean
is_apart (const weft_errors *errors, const char *source)
{
  for (uint32_t i = 0; i < errors->n_row; i++)
    if (g_str_equal (errors->row[i].source, source))
      return errors->row[i].apart;
  return FALSE;
}

static const char *
colour_of (const weft_errors *errors, const GPtrArray *sources, guint source)
{
  return is_apart (errors, g_ptr_array_index (sources, source))
             ? APART_COLOUR
             : weft_cli_colour (source);
}

/* Draws the points of a source. A point is a line of length 0 with round ends. */
static void
draw_points (const struct panel *p, const char *source, const char *colour)
{
  double measured, predicted;
  g_autoptr (GString) path = g_string_new (NULL);

  for (uint32_t i = 0; i < p->errors->n_row; i++)
    if (g_str_equal (p->errors->row[i].source, source) &&
        point_of (&p->errors->row[i], p->quantity, &measured, &predicted))
      g_string_append_printf (path, "M%.1f %.1fh0", x_of (p, measured), y_of (p, predicted));
  if (path->len)
    g_string_append_printf (p->text, "<path d=\"%s\" stroke=\"%s\" stroke-width=\"4\" "
                                     "stroke-linecap=\"round\" stroke-opacity=\"0.8\"/>\n",
                            path->str, colour);
}

static void
draw_panel (struct panel *p, const GPtrArray *sources)
{
  find_ends (p);
  if (p->low > p->high)
    return;
  draw_frame (p);
  for (guint i = 0; i < sources->len; i++)
    draw_points (p, g_ptr_array_index (sources, i), colour_of (p->errors, sources, i));
}

/* ------------------------------------------------------------------------------- key */

enum { PER_LINE = (WIDTH - LEFT) / KEY };

static void
draw_key (const weft_errors *errors, const GPtrArray *sources, GString *text)
{
  for (guint i = 0; i < sources->len; i++) {
    const char *source = g_ptr_array_index (sources, i);
    double x = LEFT + i % PER_LINE * KEY, y = TOP + SIDE + BELOW + 14 + (i / PER_LINE) * LINE;
    g_string_append_printf (text,
                            "<path d=\"M%.0f %.0fh0\" stroke=\"%s\" stroke-width=\"9\" "
                            "stroke-linecap=\"round\"/>\n<text x=\"%.0f\" y=\"%.0f\">%s%s</text>\n",
                            x, y - 4, colour_of (errors, sources, i), x + 10, y, source,
                            is_apart (errors, source) ? " (apart)" : "");
  }
}

char *
weft_cli_accuracy_picture (const weft_errors *errors)
{
  GString *text = g_string_new (NULL);
  g_autoptr (GPtrArray) sources = sources_of (errors);
  guint lines = (sources->len + PER_LINE - 1) / PER_LINE;
  int height = TOP + SIDE + BELOW + (int) lines * LINE + 8;
  struct panel panels[] = {
    { .errors = errors, .quantity = WEFT_TIME, .name = "step time", .unit = "s", .x = LEFT },
    { .errors = errors,
      .quantity = WEFT_MEMORY,
      .name = "memory of the fullest GPU",
      .unit = "GiB",
      .x = LEFT + SIDE + GAP },
  };

  g_string_append_printf (text,
                          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                          "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"11\" "
                          "fill=\"#777\">\n<title>Predicted against measured</title>\n",
                          WIDTH, height, WIDTH, height);
  for (unsigned i = 0; i < G_N_ELEMENTS (panels); i++) {
    panels[i].text = text;
    draw_panel (&panels[i], sources);
  }
  draw_key (errors, sources, text);
  g_string_append (text, "</svg>\n");
  return g_string_free (text, FALSE);
}
