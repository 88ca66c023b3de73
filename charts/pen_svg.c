#include "charts/pen.h"
#include <math.h>
#include <string.h>

struct svg {
  struct weft_pen pen;
  GString *text;
  gboolean whole;
  char *style; /* attributes of the open group; NULL: no group is open */
};

/* Rounds to a tenth of a point, without ".0" at the end. */
static void
put (GString *text, const char *before, double value)
{
  char number[G_ASCII_DTOSTR_BUF_SIZE];
  double rounded = round (10 * value) / 10;

  g_ascii_formatd (number, sizeof number, "%.1f", rounded == 0 ? 0 : rounded);
  char *end = number + strlen (number) - 2;
  if (g_str_equal (end, ".0"))
    *end = '\0';
  g_string_append_printf (text, "%s%s", before, number);
}

static void
put_colour (GString *text, const char *name, int colour)
{
  if (colour == WEFT_COLOUR_NONE)
    g_string_append_printf (text, " %s=\"none\"", name);
  else if (colour == WEFT_COLOUR_INK)
    g_string_append_printf (text, " %s=\"currentColor\"", name);
  else
    g_string_append_printf (text, " %s=\"#%06x\"", name, (unsigned) colour);
}

/* Opens a group with these attributes, unless it is open already. Owns `style`. */
static void
use (struct svg *svg, char *style)
{
  if (svg->style && g_str_equal (svg->style, style)) {
    g_free (style);
    return;
  }
  if (svg->style)
    g_string_append (svg->text, "</g>\n");
  g_string_append_printf (svg->text, "<g%s>\n", style);
  g_free (svg->style);
  svg->style = style;
}

static void
use_brush (struct svg *svg, const struct weft_brush *b)
{
  GString *style = g_string_new (NULL);

  put_colour (style, "fill", b->fill);
  if (b->stroke != WEFT_COLOUR_NONE) {
    put_colour (style, "stroke", b->stroke);
    if (b->width != 1)
      put (style, " stroke-width=\"", b->width), g_string_append_c (style, '"');
    if (b->dash)
      g_string_append_printf (style, " stroke-dasharray=\"%s\"", b->dash);
  }
  if (b->opacity < 1)
    put (style, " opacity=\"", b->opacity), g_string_append_c (style, '"');
  use (svg, g_string_free (style, FALSE));
}

static void
svg_begin (struct weft_pen *pen, double width, double height, const char *title)
{
  struct svg *svg = (struct svg *) pen;
  g_autofree char *safe = g_markup_escape_text (title, -1);

  g_string_append_printf (svg->text,
                          "<svg%s role=\"img\" width=\"%.0f\" "
                          "height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" font-family=\"Helvetica, "
                          "Arial, sans-serif\"%s>\n<title>%s</title>\n",
                          svg->whole ? " xmlns=\"http://www.w3.org/2000/svg\"" : "", width, height,
                          width, height, svg->whole ? " color=\"#222222\"" : "",
                          safe);
  if (svg->whole)
    g_string_append (svg->text, "<style>@media (prefers-color-scheme:dark){svg{color:#dddddd}}"
                                "</style>\n");
}

static void
svg_rect (struct weft_pen *pen, const struct weft_spot corner[2], const struct weft_brush *brush)
{
  struct svg *svg = (struct svg *) pen;

  use_brush (svg, brush);
  put (svg->text, "<rect x=\"", corner[0].x);
  put (svg->text, "\" y=\"", corner[0].y);
  put (svg->text, "\" width=\"", corner[1].x - corner[0].x);
  put (svg->text, "\" height=\"", corner[1].y - corner[0].y);
  g_string_append (svg->text, "\"/>\n");
}

static void
svg_path (struct weft_pen *pen, const struct weft_spot *place, const gboolean *moves, unsigned n,
          const struct weft_brush *brush)
{
  struct svg *svg = (struct svg *) pen;

  use_brush (svg, brush);
  g_string_append (svg->text, "<path d=\"");
  for (unsigned i = 0; i < n; i++) {
    put (svg->text, i == 0 || (moves && moves[i]) ? "M" : "L", place[i].x);
    put (svg->text, " ", place[i].y);
  }
  g_string_append (svg->text, brush->fill != WEFT_COLOUR_NONE ? "Z\"/>\n" : "\"/>\n");
}

static void
svg_circle (struct weft_pen *pen, struct weft_spot middle, double radius,
            const struct weft_brush *brush)
{
  struct svg *svg = (struct svg *) pen;

  use_brush (svg, brush);
  put (svg->text, "<circle cx=\"", middle.x);
  put (svg->text, "\" cy=\"", middle.y);
  put (svg->text, "\" r=\"", radius);
  g_string_append (svg->text, "\"/>\n");
}

static void
svg_text (struct weft_pen *pen, struct weft_spot at, const struct weft_letters *letters,
          const char *text)
{
  static const char *const anchors[] = { "start", "middle", "end" };
  struct svg *svg = (struct svg *) pen;
  GString *style = g_string_new (NULL);
  g_autofree char *safe = g_markup_escape_text (text, -1);

  put_colour (style, "fill", letters->colour);
  g_string_append_printf (style, " font-size=\"%.0f\" text-anchor=\"%s\"", letters->size,
                          anchors[letters->anchor]);
  use (svg, g_string_free (style, FALSE));
  put (svg->text, letters->upright ? "<text transform=\"translate(" : "<text x=\"", at.x);
  put (svg->text, letters->upright ? " " : "\" y=\"", at.y);
  g_string_append_printf (svg->text, "%s\">%s</text>\n", letters->upright ? ") rotate(-90)" : "",
                          safe);
}

static void
svg_end (struct weft_pen *pen)
{
  struct svg *svg = (struct svg *) pen;

  g_string_append_printf (svg->text, "%s</svg>\n", svg->style ? "</g>\n" : "");
}

static void
svg_free (struct weft_pen *pen)
{
  g_free (((struct svg *) pen)->style);
  g_free (pen);
}

struct weft_pen *
weft_pen_svg (GString *text, gboolean whole)
{
  struct svg *svg = g_new0 (struct svg, 1);

  svg->pen = (struct weft_pen){ svg_begin, svg_rect, svg_path, svg_circle,
                                svg_text,  svg_end,  svg_free };
  svg->text = text;
  svg->whole = whole;
  return &svg->pen;
}
