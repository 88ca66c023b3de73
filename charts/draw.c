#include "charts/draw.h"
#include "charts/shapes.h"
#include <math.h>
#include <string.h>

/* Lengths in points. */
enum {
  LETTERS = 11,  /* size of text */
  TITLE = 13,    /* size of the title of a panel */
  EDGE = 14,     /* around the figure, and between a panel and the next */
  NUMBERS = 18,  /* height of the numbers below a panel */
  NAME = 18,     /* height of the name of an axis */
  KEY_LINE = 17, /* height of a line of the key */
  KEY_SAMPLE = 24 /* width of a sample with the space after it */
};
#define GRID 0x888888

struct page {
  const weft_figure *figure;
  struct weft_pen *pen;
  gboolean monochrome;
  GArray *frame;    /* struct weft_chart_frame: panels with anything to draw */
  double left;      /* room left of each panel */
  double width, height;
  GPtrArray *key;   /* struct weft_series */
  double key_width; /* of an entry */
  unsigned key_columns;
};

static struct weft_chart_frame *
frame_at (const struct page *page, guint i)
{
  return &g_array_index (page->frame, struct weft_chart_frame, i);
}

/* --------------------------------------------------------------------------- layout */

/* Room that the numbers or words of a y axis need. */
static double
tick_width (const struct weft_chart_frame *f)
{
  g_autoptr (GArray) ticks = weft_scale_ticks (&f->panel->y, f->y);
  double most = 0;

  for (guint i = 0; i < ticks->len; i++) {
    g_autofree char *text = weft_scale_text (&f->panel->y, g_array_index (ticks, double, i));
    most = fmax (most, weft_scale_text_width (text, LETTERS));
  }
  return most + 8;
}

static void
find_frames (struct page *page)
{
  for (guint i = 0; i < page->figure->panel->len; i++) {
    struct weft_chart_frame f = { .panel = page->figure->panel->pdata[i],
                            .pen = page->pen,
                            .monochrome = page->monochrome };
    if (!weft_scale_ends (f.panel, &f.panel->x, &f.x) ||
        !weft_scale_ends (f.panel, &f.panel->y, &f.y))
      continue;
    page->left = fmax (page->left, tick_width (&f) + (f.panel->y.name ? NAME : 0));
    g_array_append_val (page->frame, f);
  }
}

/* Room above and below the area of a panel. */
static double
above (const struct weft_panel *panel)
{
  return panel->title ? TITLE + 9 : 0;
}

static double
below (const struct weft_panel *panel)
{
  return NUMBERS + (panel->x.name ? NAME : 0);
}

static void
place_frames (struct page *page)
{
  double x = EDGE, y = EDGE, tall = 0;

  for (guint i = 0; i < page->frame->len; i++) {
    struct weft_chart_frame *f = frame_at (page, i);
    if (i % page->figure->columns == 0 && i > 0) {
      y += tall + EDGE;
      x = EDGE;
      tall = 0;
    }
    f->left = x + page->left;
    f->top = y + above (f->panel);
    x = f->left + f->panel->width + EDGE;
    tall = fmax (tall, above (f->panel) + f->panel->height + below (f->panel));
    page->width = fmax (page->width, x);
  }
  page->height = y + tall + EDGE;
}

/* Lists the series with names, each name once, and places them below the panels. */
static void
find_key (struct page *page)
{
  g_autoptr (GHashTable) seen = g_hash_table_new (g_str_hash, g_str_equal);

  for (guint i = 0; i < page->frame->len; i++)
    for (guint k = 0; k < frame_at (page, i)->panel->series->len; k++) {
      struct weft_series *series = frame_at (page, i)->panel->series->pdata[k];
      if (!series->name || !series->item->len || !g_hash_table_add (seen, series->name))
        continue;
      g_ptr_array_add (page->key, series);
      page->key_width = fmax (page->key_width, KEY_SAMPLE + EDGE +
                                                   weft_scale_text_width (series->name, LETTERS));
    }
  page->width = fmax (page->width, page->key_width + 2 * EDGE);
  double room = page->width - 2 * EDGE;
  page->key_columns = page->key->len ? MAX (1, (unsigned) (room / page->key_width)) : 1;
  page->height += KEY_LINE * ((page->key->len + page->key_columns - 1) / page->key_columns);
}

/* -------------------------------------------------------------------------- drawing */

static const struct weft_brush grid = { WEFT_COLOUR_NONE, GRID, 0.5, 0.5, NULL };

static void
draw_text (const struct weft_chart_frame *f, double x, double y, enum weft_anchor anchor,
           const char *text)
{
  const struct weft_letters letters = { LETTERS, anchor, FALSE, WEFT_COLOUR_INK };

  if (*text)
    f->pen->text (f->pen, (struct weft_spot){ x, y }, &letters, text);
}

/* Draws the lines and numbers of the x axis. Words that would overlap are left out. */
static void
draw_x_ticks (const struct weft_chart_frame *f)
{
  const struct weft_panel *panel = f->panel;
  g_autoptr (GArray) ticks = weft_scale_ticks (&panel->x, f->x);
  double bottom = f->top + panel->height, free_from = -INFINITY;

  for (guint i = 0; i < ticks->len; i++) {
    g_autofree char *text = weft_scale_text (&panel->x, g_array_index (ticks, double, i));
    double x = weft_frame_x (f, g_array_index (ticks, double, i));
    double half = weft_scale_text_width (text, LETTERS) / 2;
    const struct weft_spot line[2] = { { x, f->top }, { x, bottom } };
    if (panel->x.scale != WEFT_SCALE_LIST)
      f->pen->path (f->pen, line, NULL, 2, &grid);
    if (x - half < free_from)
      continue;
    draw_text (f, x, bottom + NUMBERS - 4, WEFT_ANCHOR_MIDDLE, text);
    free_from = x + half + 4;
  }
}

static void
draw_y_ticks (const struct weft_chart_frame *f)
{
  const struct weft_panel *panel = f->panel;
  g_autoptr (GArray) ticks = weft_scale_ticks (&panel->y, f->y);

  for (guint i = 0; i < ticks->len; i++) {
    g_autofree char *text = weft_scale_text (&panel->y, g_array_index (ticks, double, i));
    double y = weft_frame_y (f, g_array_index (ticks, double, i));
    const struct weft_spot line[2] = { { f->left, y }, { f->left + panel->width, y } };
    if (panel->y.scale != WEFT_SCALE_LIST)
      f->pen->path (f->pen, line, NULL, 2, &grid);
    draw_text (f, f->left - 5, y + 0.36 * LETTERS, WEFT_ANCHOR_END, text);
  }
}

static void
draw_names (const struct page *page, const struct weft_chart_frame *f)
{
  const struct weft_panel *panel = f->panel;
  double middle = f->left + panel->width / 2;
  const struct weft_letters upright = { LETTERS, WEFT_ANCHOR_MIDDLE, TRUE, WEFT_COLOUR_INK };
  const struct weft_letters large = { TITLE, WEFT_ANCHOR_MIDDLE, FALSE, WEFT_COLOUR_INK };

  if (panel->title)
    f->pen->text (f->pen, (struct weft_spot){ middle, f->top - 9 }, &large, panel->title);
  if (panel->x.name)
    draw_text (f, middle, f->top + panel->height + NUMBERS + NAME - 5, WEFT_ANCHOR_MIDDLE,
               panel->x.name);
  if (panel->y.name)
    f->pen->text (f->pen,
                  (struct weft_spot){ f->left - page->left + LETTERS,
                                       f->top + panel->height / 2 },
                  &upright, panel->y.name);
}

static void
draw_frame (const struct page *page, const struct weft_chart_frame *f)
{
  const struct weft_spot corner[2] = {
    { f->left, f->top }, { f->left + f->panel->width, f->top + f->panel->height }
  };
  const struct weft_brush frame = { WEFT_COLOUR_NONE, GRID, 1, 1, NULL };

  draw_x_ticks (f);
  draw_y_ticks (f);
  weft_shapes_draw (f);
  f->pen->rect (f->pen, corner, &frame);
  draw_names (page, f);
}

static void
draw_key (const struct page *page)
{
  const struct weft_letters letters = { LETTERS, WEFT_ANCHOR_START, FALSE, WEFT_COLOUR_INK };
  unsigned lines = (page->key->len + page->key_columns - 1) / page->key_columns;

  for (guint i = 0; i < page->key->len; i++) {
    const struct weft_series *series = page->key->pdata[i];
    double x = EDGE + i % page->key_columns * page->key_width;
    double y = page->height - KEY_LINE * (lines - i / page->key_columns) - 2;
    weft_shapes_sample (series, page->monochrome, (struct weft_spot){ x + 9, y }, page->pen);
    page->pen->text (page->pen, (struct weft_spot){ x + KEY_SAMPLE, y + 0.36 * LETTERS },
                     &letters, series->name);
  }
}

void
weft_draw (const weft_figure *figure, gboolean monochrome, struct weft_pen *pen)
{
  g_autoptr (GArray) frame = g_array_new (FALSE, FALSE, sizeof (struct weft_chart_frame));
  g_autoptr (GPtrArray) key = g_ptr_array_new ();
  struct page page = {
    .figure = figure, .pen = pen, .monochrome = monochrome, .frame = frame, .key = key
  };

  find_frames (&page);
  place_frames (&page);
  find_key (&page);
  pen->begin (pen, ceil (page.width), ceil (page.height), figure->title);
  for (guint i = 0; i < frame->len; i++)
    draw_frame (&page, frame_at (&page, i));
  draw_key (&page);
  pen->end (pen);
}
