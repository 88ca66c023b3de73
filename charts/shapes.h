/* shapes.h - the series of a panel, and their entries in the key. */
#pragma once
#include "charts/figure.h"
#include "charts/pen.h"
#include "charts/scale.h"

/* A panel with the place that it has on the page. */
struct weft_chart_frame {
  const struct weft_panel *panel;
  struct weft_pen *pen;
  gboolean monochrome;
  double left, top; /* of the area between the axes */
  struct weft_scale_range x, y;
};

double weft_frame_x (const struct weft_chart_frame *frame, double value);
double weft_frame_y (const struct weft_chart_frame *frame, double value);

/* Draws all series: first the areas, bars and boxes, then lines, then points. */
void weft_shapes_draw (const struct weft_chart_frame *frame);

/* Draws a sample of a series, 18 points wide, with its middle at `at`. */
void weft_shapes_sample (const struct weft_series *series, gboolean monochrome,
                         struct weft_spot at, struct weft_pen *pen);
