#include "cli/figures/figures.h"
#include "cli/timeline_page.h"
#include <math.h>
#include <string.h>

/* Lengths in points. */
enum { WIDTH = 700, HEIGHT = 130 };

/* A step is cut into slices of equal length; the figure shows the fullest moment of each. */
enum { SLICES = 500 };

struct event {
  double time, bytes; /* bytes that come into use, or negative */
  int kind;
};

static int
by_time (const void *a, const void *b)
{
  const struct event *x = a, *y = b;

  if (x->time != y->time)
    return x->time < y->time ? -1 : 1;
  return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* bytes are freed before others are used */
}

/* The events of one actor, in order of time. The caller frees the array. */
static GArray *
events_of (const weft_report *r, uint32_t actor)
{
  const weft_timeline *t = r->timeline;
  const weft_program *p = r->plan->role[t->role[actor]];
  GArray *events = g_array_new (FALSE, FALSE, sizeof (struct event));

  for (uint32_t i = 0; i < p->n_buf; i++) {
    const struct weft_buf *buf = &p->buf[i];
    if (!weft_cli_takes_memory (buf))
      continue;
    double begin = buf->permanent ? 0 : t->begin[actor][buf->first];
    double end = buf->permanent ? INFINITY : t->end[actor][buf->last];
    const struct event first = { begin, (double) buf->bytes, buf->kind };
    const struct event last = { end, -(double) buf->bytes, buf->kind };
    g_array_append_val (events, first);
    g_array_append_val (events, last);
  }
  g_array_sort (events, by_time);
  return events;
}

/* Adds an item for a slice to the series of each kind. */
static void
add_slice (struct weft_panel *panel, double time, const double *bytes)
{
  for (int kind = 0; kind < WEFT_N_BUF_KIND; kind++)
    weft_series_add (panel->series->pdata[kind], (struct weft_item){ .x = time, .y = bytes[kind] });
}

static void
fill (struct weft_panel *panel, const GArray *events, double seconds)
{
  double now[WEFT_N_BUF_KIND] = { 0 }, most[WEFT_N_BUF_KIND], total = 0, highest;
  guint next = 0;

  for (int slice = 0; slice <= SLICES; slice++) {
    double until = seconds * (slice + 1) / SLICES;
    memcpy (most, now, sizeof now);
    highest = total;
    for (; next < events->len && g_array_index (events, struct event, next).time < until; next++) {
      const struct event *e = &g_array_index (events, struct event, next);
      now[e->kind] += e->bytes;
      total += e->bytes;
      if (total > highest) {
        highest = total;
        memcpy (most, now, sizeof now);
      }
    }
    add_slice (panel, seconds * slice / SLICES, most);
  }
}

static void
add_series (struct weft_panel *panel, int part)
{
  struct weft_series *series =
      weft_panel_series (panel, WEFT_SHAPE_AREA, weft_report_parts[part].word);

  series->look = weft_report_parts[part].look;
}

static void
add_capacity (struct weft_panel *panel, const weft_report *r)
{
  struct weft_series *line = weft_panel_series (panel, WEFT_SHAPE_LINE, "capacity of the GPU");
  double bytes = (double) r->capacity_bytes;

  line->quiet = line->dashed = TRUE;
  weft_series_add (line, (struct weft_item){ .x = 0, .y = bytes });
  weft_series_add (line, (struct weft_item){ .x = r->timeline->seconds, .y = bytes });
}

static void
add_stage (weft_figure *figure, const weft_report *r, uint32_t actor)
{
  uint32_t role = r->timeline->role[actor];
  g_autofree char *title = g_strdup_printf ("stage %u", role);
  struct weft_panel *panel = weft_figure_panel (figure, r->plan->n_roles > 1 ? title : NULL);
  g_autoptr (GArray) events = events_of (r, actor);
  double reserved = (double) r->role[role].reserved_bytes;

  panel->width = WIDTH;
  panel->height = HEIGHT;
  panel->x.low = panel->y.low = 0;
  panel->x.high = r->timeline->seconds;
  gboolean last = role + 1 == r->plan->n_roles;
  weft_chart_axis_name (&panel->x, last ? "time since the step began" : NULL, "s");
  weft_chart_axis_name (&panel->y, "memory", "B");
  for (int kind = 0; kind < WEFT_N_BUF_KIND; kind++)
    add_series (panel, kind);
  fill (panel, events, r->timeline->seconds);
  add_series (panel, WEFT_REPORT_RESERVED);
  for (int slice = 0; reserved > 0 && slice <= SLICES; slice++)
    weft_series_add (panel->series->pdata[WEFT_N_BUF_KIND],
                     (struct weft_item){ .x = r->timeline->seconds * slice / SLICES,
                                         .y = reserved });
  add_capacity (panel, r);
}

weft_figure *
weft_cli_figure_memory (const weft_report *r)
{
  weft_figure *figure = weft_figure_new ("Memory of a step over time: one rank of each stage");
  g_autofree gboolean *drawn = g_new0 (gboolean, r->plan->n_roles);

  for (uint32_t actor = 0; actor < r->timeline->n; actor++) {
    uint32_t role = r->timeline->role[actor];
    if (!drawn[role])
      add_stage (figure, r, actor);
    drawn[role] = TRUE;
  }
  return figure;
}
