/* pen.h - what a figure is drawn with: a few primitives, with a back end for each form of file.
 *
 * Lengths are points of 1/72 inch; y grows downwards. A back end has no idea of charts, and
 * draw.c none of files. The SVG is written by Weft: cairo's would turn text into outlines, which
 * cannot be searched, depend on the fonts of the machine and cannot follow the colours of a page.
 * The PDF is written by cairo, which embeds the font, as publishers ask. */
#pragma once
#include <glib.h>
#include <stdio.h>

/* Colours are 0xrrggbb, or one of these. */
enum { WEFT_COLOUR_NONE = -1, WEFT_COLOUR_INK = -2 /* of the text of the page */ };

struct weft_spot {
  double x, y;
};

struct weft_brush {
  int fill, stroke;
  double width;       /* of the stroke */
  double opacity;     /* of fill and stroke, 0 to 1 */
  const char *dash;   /* "6 3"; static. NULL: none */
};

enum weft_anchor { WEFT_ANCHOR_START, WEFT_ANCHOR_MIDDLE, WEFT_ANCHOR_END };

struct weft_letters {
  double size;
  enum weft_anchor anchor;
  gboolean upright; /* TRUE: from bottom to top */
  int colour;
};

struct weft_pen {
  void (*begin) (struct weft_pen *pen, double width, double height, const char *title);
  void (*rect) (struct weft_pen *pen, const struct weft_spot corner[2],
                const struct weft_brush *brush);
  /* n places joined by straight lines; moves[i] TRUE: place i begins a new line; NULL: one line */
  void (*path) (struct weft_pen *pen, const struct weft_spot *place, const gboolean *moves,
                unsigned n, const struct weft_brush *brush);
  void (*circle) (struct weft_pen *pen, struct weft_spot middle, double radius,
                  const struct weft_brush *brush);
  /* at the base line of the text */
  void (*text) (struct weft_pen *pen, struct weft_spot at, const struct weft_letters *letters,
                const char *text);
  void (*end) (struct weft_pen *pen);
  void (*free) (struct weft_pen *pen);
};

/* Appends to `text`, which must outlive the pen. `whole`: a file of its own; FALSE: an element for
 * a page, with the colours of that page. */
struct weft_pen *weft_pen_svg (GString *text, gboolean whole);

/* Writes to `file` until the pen is freed. */
struct weft_pen *weft_pen_pdf (FILE *file);

static inline void
weft_pen_free (struct weft_pen *pen)
{
  pen->free (pen);
}
