/* figure.h - charts as data, drawn as SVG (for files and inside HTML) and as PDF.
 *
 * A figure has panels side by side or one below the other, and one key below them. A panel has two
 * axes and series; a series has items of one shape. Whoever makes a figure says what is shown and
 * never where on the page: margins, ticks, colours, dashes and markers follow from the data.
 *
 *   WEFT_SHAPE_LINE       a line through (x, y), in the order of the items
 *   WEFT_SHAPE_POINTS     a marker at each (x, y); with `line`, also the line through them
 *   WEFT_SHAPE_BARS       a bar from the low end of the y axis to (x, y)
 *   WEFT_SHAPE_AREA       y from x to the x of the next item, stacked on the areas before it; all
 *                         areas of a panel have items at the same x
 *   WEFT_SHAPE_INTERVALS  a box from x to x2 in row y of a list
 *
 * Colours are those of Okabe and Ito (looks.h), which people with any colour vision can tell apart.
 * Monochrome figures have greys, hatches and dashes instead. Text and axes of an SVG have the
 * colour of the page around it, and are light if the reader prefers dark pages. The same data give
 * the same bytes; a PDF embeds its font, so its bytes also depend on the fonts of the machine. */
#pragma once
#include <glib.h>
#include <stdint.h>

enum weft_scale {
  WEFT_SCALE_LINEAR,
  WEFT_SCALE_LOG, /* values that are not above 0 are not drawn */
  WEFT_SCALE_LIST /* item i of `word` is at i; on a y axis the first item is on top */
};

struct weft_chart_axis {
  char *name;       /* below or beside the axis; NULL: none. Owned */
  const char *unit; /* of the numbers at the axis, "s"; static */
  enum weft_scale scale;
  double low, high; /* ends; NaN: from the items */
  gboolean plain;   /* TRUE: numbers without prefixes, 1500 instead of 1.5 k */
  GPtrArray *word;  /* WEFT_SCALE_LIST: texts at the axis, owned; "" leaves one out */
  GArray *size;     /* double: relative size of each item of the list */
};

enum weft_chart_shape {
  WEFT_SHAPE_LINE,
  WEFT_SHAPE_POINTS,
  WEFT_SHAPE_BARS,
  WEFT_SHAPE_AREA,
  WEFT_SHAPE_INTERVALS
};

struct weft_item {
  double x, y, x2;
  char *text;      /* beside a point, or in a box with room for it; NULL: none. Owned */
  gboolean hollow; /* a marker that is not filled */
  gboolean small;  /* a smaller marker */
  double pale;     /* share of white that is mixed into the colour, 0 to 1 */
};

struct weft_series {
  enum weft_chart_shape shape;
  char *name;     /* in the key; series of one name are one entry. NULL: not in the key */
  unsigned look;  /* number of colour, dash, hatch and marker (looks.h) */
  const char *colour; /* "#rrggbb" instead of that of the look; static. NULL: that of the look */
  gboolean quiet;  /* a grey line, for limits and references */
  gboolean dashed; /* a quiet line that is dashed */
  gboolean line;   /* a line through the points */
  GArray *item;    /* struct weft_item */
};

struct weft_panel {
  char *title; /* above the panel; NULL: none */
  struct weft_chart_axis x, y;
  double width, height; /* of the area between the axes, in points of 1/72 inch */
  GPtrArray *series;    /* struct weft_series */
};

typedef struct weft_figure {
  char *title;      /* not drawn: title of the SVG, and of the PDF */
  unsigned columns; /* panels side by side; 1 at first */
  GPtrArray *panel; /* struct weft_panel */
} weft_figure;

weft_figure *weft_figure_new (const char *title);
void weft_figure_free (weft_figure *figure);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_figure, weft_figure_free)

/* Adds a panel of 400 x 400 points with linear axes. */
struct weft_panel *weft_figure_panel (weft_figure *figure, const char *title);

/* Adds a series, whose look is its number in the panel. */
struct weft_series *weft_panel_series (struct weft_panel *panel, enum weft_chart_shape shape,
                                       const char *name);

/* Adds an item; the series then owns its text. */
void weft_series_add (struct weft_series *series, struct weft_item item);

void weft_chart_axis_name (struct weft_chart_axis *axis, const char *name, const char *unit);

/* Adds a word to the list of an axis, which becomes a list, and returns its number. */
unsigned weft_chart_axis_word (struct weft_chart_axis *axis, const char *word, double size);

/* Whether a figure has anything to draw. */
gboolean weft_figure_has_items (const weft_figure *figure);

/* -------------------------------------------------------------------------- drawing */

/* The ends of file names, and what is written. X (end, doc) */
#define WEFT_FIGURE_FORM_LIST(X)                                                                   \
  X (svg, "Scalable Vector Graphics, for pages and browsers")                                      \
  X (pdf, "Portable Document Format, for papers")

/* ".svg or .pdf", for help and messages. */
const char *weft_figure_ends (void);

/* Refuses a file name with another end. */
gboolean weft_figure_check (const char *path, GError **error);

/* The figure as an SVG element for a page: it loads nothing and has the colours of the page. The
 * caller frees the text. */
char *weft_figure_inline (const weft_figure *figure, gboolean monochrome);

/* The figure as a file of SVG. The caller frees the text. */
char *weft_figure_svg (const weft_figure *figure, gboolean monochrome);

/* Writes the figure to a file, in the form that the end of its name says. */
gboolean weft_figure_write (const weft_figure *figure, const char *path, gboolean monochrome,
                            GError **error);
