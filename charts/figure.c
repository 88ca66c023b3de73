#include "charts/figure.h"
#include "charts/draw.h"
#include "charts/pen.h"
#include "core/base/error.h"
#include "core/base/output.h"
#include <errno.h>
#include <math.h>
#include <string.h>

/* ----------------------------------------------------------------------------- data */

static void
item_clear (void *item)
{
  g_free (((struct weft_item *) item)->text);
}

static void
series_free (void *data)
{
  struct weft_series *series = data;

  g_free (series->name);
  g_array_unref (series->item);
  g_free (series);
}

static void
axis_clear (struct weft_chart_axis *axis)
{
  g_free (axis->name);
  g_ptr_array_unref (axis->word);
  g_array_unref (axis->size);
}

static void
axis_init (struct weft_chart_axis *axis)
{
  *axis = (struct weft_chart_axis){ .unit = "", .low = NAN, .high = NAN };
  axis->word = g_ptr_array_new_with_free_func (g_free);
  axis->size = g_array_new (FALSE, FALSE, sizeof (double));
}

static void
panel_free (void *data)
{
  struct weft_panel *panel = data;

  g_free (panel->title);
  axis_clear (&panel->x);
  axis_clear (&panel->y);
  g_ptr_array_unref (panel->series);
  g_free (panel);
}

weft_figure *
weft_figure_new (const char *title)
{
  weft_figure *figure = g_new0 (weft_figure, 1);

  figure->title = g_strdup (title);
  figure->columns = 1;
  figure->panel = g_ptr_array_new_with_free_func (panel_free);
  return figure;
}

void
weft_figure_free (weft_figure *figure)
{
  if (!figure)
    return;
  g_free (figure->title);
  g_ptr_array_unref (figure->panel);
  g_free (figure);
}

struct weft_panel *
weft_figure_panel (weft_figure *figure, const char *title)
{
  struct weft_panel *panel = g_new0 (struct weft_panel, 1);

  panel->title = g_strdup (title);
  panel->width = panel->height = 400;
  axis_init (&panel->x);
  axis_init (&panel->y);
  panel->series = g_ptr_array_new_with_free_func (series_free);
  g_ptr_array_add (figure->panel, panel);
  return panel;
}

struct weft_series *
weft_panel_series (struct weft_panel *panel, enum weft_chart_shape shape, const char *name)
{
  struct weft_series *series = g_new0 (struct weft_series, 1);

  series->shape = shape;
  series->name = g_strdup (name);
  series->look = panel->series->len;
  series->item = g_array_new (FALSE, FALSE, sizeof (struct weft_item));
  g_array_set_clear_func (series->item, item_clear);
  g_ptr_array_add (panel->series, series);
  return series;
}

void
weft_series_add (struct weft_series *series, struct weft_item item)
{
  g_array_append_val (series->item, item);
}

void
weft_chart_axis_name (struct weft_chart_axis *axis, const char *name, const char *unit)
{
  g_free (axis->name);
  axis->name = g_strdup (name);
  axis->unit = unit;
}

unsigned
weft_chart_axis_word (struct weft_chart_axis *axis, const char *word, double size)
{
  axis->scale = WEFT_SCALE_LIST;
  g_ptr_array_add (axis->word, g_strdup (word));
  g_array_append_val (axis->size, size);
  return axis->word->len - 1;
}

gboolean
weft_figure_has_items (const weft_figure *figure)
{
  for (guint i = 0; i < figure->panel->len; i++) {
    const struct weft_panel *panel = figure->panel->pdata[i];
    for (guint k = 0; k < panel->series->len; k++) {
      const struct weft_series *series = panel->series->pdata[k];
      if (series->item->len && !series->quiet)
        return TRUE;
    }
  }
  return FALSE;
}

/* ---------------------------------------------------------------------------- files */

enum form {
#define FORM_ID(end, doc) FORM_##end,
  WEFT_FIGURE_FORM_LIST (FORM_ID) N_FORM
};
#define FORM_END(end, doc) "." #end,
static const char *const ends[] = { WEFT_FIGURE_FORM_LIST (FORM_END) NULL };

const char *
weft_figure_ends (void)
{
  static gsize once;
  static char *text;

  if (g_once_init_enter (&once)) {
    text = g_strjoinv (" or ", (char **) ends);
    g_once_init_leave (&once, 1);
  }
  return text;
}

/* N_FORM: the path has no known end. */
static enum form
form_of (const char *path)
{
  for (int form = 0; form < N_FORM; form++)
    if (g_str_has_suffix (path, ends[form]))
      return form;
  return N_FORM;
}

gboolean
weft_figure_check (const char *path, GError **error)
{
  return form_of (path) != N_FORM ||
         weft_bad_input (error, "%s: found a file name with another end, wanted %s", path,
                         weft_figure_ends ());
}

static char *
as_svg (const weft_figure *figure, gboolean monochrome, gboolean whole)
{
  GString *text = g_string_new (NULL);
  struct weft_pen *pen = weft_pen_svg (text, whole);

  weft_draw (figure, monochrome, pen);
  weft_pen_free (pen);
  return g_string_free (text, FALSE);
}

char *
weft_figure_inline (const weft_figure *figure, gboolean monochrome)
{
  return as_svg (figure, monochrome, FALSE);
}

char *
weft_figure_svg (const weft_figure *figure, gboolean monochrome)
{
  return as_svg (figure, monochrome, TRUE);
}

static void
write_svg (const weft_figure *figure, gboolean monochrome, FILE *file)
{
  g_autofree char *text = weft_figure_svg (figure, monochrome);

  fputs (text, file);
}

static void
write_pdf (const weft_figure *figure, gboolean monochrome, FILE *file)
{
  struct weft_pen *pen = weft_pen_pdf (file);

  weft_draw (figure, monochrome, pen);
  weft_pen_free (pen);
}

gboolean
weft_figure_write (const weft_figure *figure, const char *path, gboolean monochrome,
                   GError **error)
{
#define FORM_WRITE(end, doc) write_##end,
  static void (*const write[]) (const weft_figure *figure, gboolean monochrome, FILE *file) = {
    WEFT_FIGURE_FORM_LIST (FORM_WRITE)
  };
  enum form form = form_of (path);

  if (!weft_figure_check (path, error))
    return FALSE;
  weft_output *output = weft_output_open (path, error);
  if (!output)
    return FALSE;
  write[form] (figure, monochrome, weft_output_stream (output));
  return weft_output_close (output, error);
}
