#include "cli/sweep_picture.h"
#include "cli/colours.h"
#include "core/base/units.h"
#include <math.h>

/* Lengths in SVG units, which are pixels at the picture's natural size. */
enum { WIDTH = 640, SIDE = 360, LEFT = 80, TOP = 24, RIGHT = 24, LINE = 18, TICKS = 5 };

struct picture {
  const weft_variants *x;
  uint32_t n_value, n_series; /* values of the first list; combinations of the others */
  double most;
  GString *text;
};

static const struct weft_variants_list *
list_at (const weft_variants *x, unsigned i)
{
  return x->list->pdata[i];
}

static double
at_x (const struct picture *p, uint32_t value)
{
  return LEFT + (WIDTH - LEFT - RIGHT) * (value + 0.5) / p->n_value;
}

static double
at_y (const struct picture *p, double rate)
{
  return TOP + SIDE * (1 - rate / p->most);
}

static const struct weft_summary *
cell_at (const struct picture *p, uint32_t value, uint32_t series)
{
  return &p->x->cell[value * p->n_series + series];
}

static void
draw_text (const struct picture *p, double x, double y, const char *anchor, const char *colour,
           const char *text)
{
  g_autofree char *safe = g_markup_escape_text (text, -1);

  g_string_append_printf (p->text,
                          "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" fill=\"%s\">%s</text>\n",
                          x, y, anchor, colour, safe);
}

static void
draw_axes (const struct picture *p)
{
  const struct weft_variants_list *first = list_at (p->x, 0);

  for (unsigned i = 0; i <= TICKS; i++) {
    double rate = p->most * i / TICKS;
    g_autofree char *text = g_strstrip (weft_units_human (rate, ""));
    g_string_append_printf (p->text,
                            "<path d=\"M%d %.1fH%d\" stroke=\"#888\" stroke-opacity=\"0.4\"/>\n",
                            LEFT, at_y (p, rate), WIDTH - RIGHT);
    draw_text (p, LEFT - 6, at_y (p, rate) + 4, "end", "#888", text);
  }
  for (uint32_t i = 0; i < p->n_value; i++)
    draw_text (p, at_x (p, i), TOP + SIDE + 16, "middle", "#888", first->value[i]);
  draw_text (p, LEFT, TOP - 8, "start", "#888",
             "tokens per second; an empty circle does not fit in memory");
  draw_text (p, (LEFT + WIDTH) / 2.0, TOP + SIDE + 34, "middle", "#888", first->name);
}

/* The values of one line: "pp 2, mbs 4". The caller frees the text. */
static char *
series_name (const struct picture *p, uint32_t series)
{
  GString *name = g_string_new (NULL);

  for (unsigned i = 1; i < p->x->list->len; i++)
    g_string_append_printf (name, "%s%s %s", i > 1 ? ", " : "", list_at (p->x, i)->name,
                            weft_variants_value (p->x, series, i));
  return g_string_free (name, FALSE);
}

static void
draw_series (const struct picture *p, uint32_t series)
{
  const char *colour = weft_cli_colour (series);
  g_autofree char *name = series_name (p, series);
  g_autoptr (GString) path = g_string_new (NULL);

  for (uint32_t i = 0; i < p->n_value; i++) {
    const struct weft_summary *cell = cell_at (p, i, series);
    if (!weft_summary_has_numbers (cell))
      continue;
    double x = at_x (p, i), y = at_y (p, cell->tokens_per_s);
    g_string_append_printf (path, "%s%.1f %.1f", path->len ? "L" : "M", x, y);
    g_string_append_printf (p->text,
                            "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" stroke=\"%s\" fill=\"%s\"/>\n",
                            x, y, colour, cell->fate == WEFT_SUMMARY_OK ? colour : "none");
  }
  if (path->len)
    g_string_append_printf (p->text, "<path d=\"%s\" fill=\"none\" stroke=\"%s\"/>\n", path->str,
                            colour);
  draw_text (p, LEFT, TOP + SIDE + 54 + LINE * series, "start", colour, name);
}

char *
weft_cli_sweep_picture (const weft_variants *x)
{
  struct picture p = { .x = x, .n_value = list_at (x, 0)->n, .text = g_string_new (NULL) };
  int height;

  p.n_series = x->n / p.n_value;
  height = TOP + SIDE + 60 + LINE * (int) p.n_series;
  for (uint32_t i = 0; i < x->n; i++)
    if (weft_summary_has_numbers (&x->cell[i]))
      p.most = fmax (p.most, x->cell[i].tokens_per_s);
  p.most = p.most > 0 ? 1.05 * p.most : 1;
  g_string_append_printf (p.text,
                          "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
                          "font-family=\"sans-serif\" font-size=\"12\">\n",
                          WIDTH, height);
  draw_axes (&p);
  for (uint32_t series = 0; series < p.n_series; series++)
    draw_series (&p, series);
  g_string_append (p.text, "</svg>\n");
  return g_string_free (p.text, FALSE);
}
