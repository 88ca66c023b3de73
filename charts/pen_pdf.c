#include "charts/pen.h"
#include <cairo-pdf.h>
#include <math.h>
#include <stdlib.h>

struct pdf {
  struct weft_pen pen;
  FILE *file;
  cairo_t *cairo;
};

static cairo_status_t
write_bytes (void *closure, const unsigned char *data, unsigned length)
{
  return fwrite (data, 1, length, closure) == length ? CAIRO_STATUS_SUCCESS
                                                     : CAIRO_STATUS_WRITE_ERROR;
}

static void
pdf_begin (struct weft_pen *pen, double width, double height, const char *title)
{
  struct pdf *pdf = (struct pdf *) pen;
  cairo_surface_t *page =
      cairo_pdf_surface_create_for_stream (write_bytes, pdf->file, width, height);

  cairo_pdf_surface_set_metadata (page, CAIRO_PDF_METADATA_TITLE, title);
  /* without the time of day: the same data give the same bytes */
  cairo_pdf_surface_set_metadata (page, CAIRO_PDF_METADATA_CREATE_DATE, "2000-01-01T00:00:00Z");
  pdf->cairo = cairo_create (page);
  cairo_surface_destroy (page);
  cairo_set_line_join (pdf->cairo, CAIRO_LINE_JOIN_ROUND);
  cairo_select_font_face (pdf->cairo, "sans-serif", CAIRO_FONT_SLANT_NORMAL,
                          CAIRO_FONT_WEIGHT_NORMAL);
}

static void
set_colour (cairo_t *cairo, int colour, double opacity)
{
  int shown = colour == WEFT_COLOUR_INK ? 0 : colour;

  cairo_set_source_rgba (cairo, (shown >> 16 & 0xff) / 255.0, (shown >> 8 & 0xff) / 255.0,
                         (shown & 0xff) / 255.0, opacity);
}

static void
set_dash (cairo_t *cairo, const char *dash)
{
  double length[8];
  int n = 0;
  char *next;

  for (const char *at = dash; at && *at && n < 8; at = next)
    length[n++] = strtod (at, &next);
  cairo_set_dash (cairo, length, n, 0);
}

/* Fills and strokes the current path. */
static void
paint (cairo_t *cairo, const struct weft_brush *b)
{
  if (b->fill != WEFT_COLOUR_NONE) {
    set_colour (cairo, b->fill, b->opacity);
    cairo_fill_preserve (cairo);
  }
  if (b->stroke != WEFT_COLOUR_NONE) {
    set_colour (cairo, b->stroke, b->opacity);
    cairo_set_line_width (cairo, b->width);
    set_dash (cairo, b->dash);
    cairo_stroke_preserve (cairo);
  }
  cairo_new_path (cairo);
}

static void
pdf_rect (struct weft_pen *pen, const struct weft_spot corner[2], const struct weft_brush *brush)
{
  cairo_t *cairo = ((struct pdf *) pen)->cairo;

  cairo_rectangle (cairo, corner[0].x, corner[0].y, corner[1].x - corner[0].x,
                   corner[1].y - corner[0].y);
  paint (cairo, brush);
}

static void
pdf_path (struct weft_pen *pen, const struct weft_spot *place, const gboolean *moves, unsigned n,
          const struct weft_brush *brush)
{
  cairo_t *cairo = ((struct pdf *) pen)->cairo;

  for (unsigned i = 0; i < n; i++)
    (i == 0 || (moves && moves[i]) ? cairo_move_to : cairo_line_to) (cairo, place[i].x, place[i].y);
  if (brush->fill != WEFT_COLOUR_NONE)
    cairo_close_path (cairo);
  paint (cairo, brush);
}

static void
pdf_circle (struct weft_pen *pen, struct weft_spot middle, double radius,
            const struct weft_brush *brush)
{
  cairo_t *cairo = ((struct pdf *) pen)->cairo;

  cairo_arc (cairo, middle.x, middle.y, radius, 0, 2 * G_PI);
  paint (cairo, brush);
}

static void
pdf_text (struct weft_pen *pen, struct weft_spot at, const struct weft_letters *letters,
          const char *text)
{
  static const double share[] = { 0, 0.5, 1 };
  cairo_t *cairo = ((struct pdf *) pen)->cairo;
  cairo_text_extents_t extents;

  cairo_save (cairo);
  cairo_set_font_size (cairo, letters->size * 0.92); /* DejaVu is wider than Helvetica */
  cairo_text_extents (cairo, text, &extents);
  cairo_translate (cairo, at.x, at.y);
  if (letters->upright)
    cairo_rotate (cairo, -G_PI / 2);
  set_colour (cairo, letters->colour, 1);
  cairo_move_to (cairo, -share[letters->anchor] * extents.x_advance, 0);
  cairo_show_text (cairo, text);
  cairo_restore (cairo);
}

static void
pdf_end (struct weft_pen *pen)
{
  cairo_show_page (((struct pdf *) pen)->cairo);
}

/* A write that failed is seen by whoever closes the file (weft_output_close()). */
static void
pdf_free (struct weft_pen *pen)
{
  struct pdf *pdf = (struct pdf *) pen;

  if (pdf->cairo) {
    cairo_surface_finish (cairo_get_target (pdf->cairo));
    cairo_destroy (pdf->cairo);
  }
  g_free (pdf);
}

struct weft_pen *
weft_pen_pdf (FILE *file)
{
  struct pdf *pdf = g_new0 (struct pdf, 1);

  pdf->pen = (struct weft_pen){ pdf_begin, pdf_rect, pdf_path, pdf_circle,
                                pdf_text,  pdf_end,  pdf_free };
  pdf->file = file;
  return &pdf->pen;
}
