/* scale.h - from values to places along an axis. */
#pragma once
#include "charts/figure.h"

/* Ends of an axis: values, or their logarithms to base 10 on a logarithmic scale. */
struct weft_scale_range {
  double low, high;
};

/* The ends of an axis of a panel: those that the axis states, or those of the items with some room.
 * FALSE: no item has a place. */
gboolean weft_scale_ends (const struct weft_panel *panel, const struct weft_chart_axis *axis,
                          struct weft_scale_range *ends);

/* The place of a value as a share of the axis, 0 to 1 between its ends; NaN: it has none. In a
 * list, i - 0.5 to i + 0.5 is the extent of item i, and 0 is the begin of the first item. */
double weft_scale_place (const struct weft_chart_axis *axis, struct weft_scale_range ends,
                         double value);

/* The values that are marked at the axis. The caller frees the array of double. */
GArray *weft_scale_ticks (const struct weft_chart_axis *axis, struct weft_scale_range ends);

/* The text at a tick. The caller frees it. */
char *weft_scale_text (const struct weft_chart_axis *axis, double value);

/* Room that a text takes, in points; about that of Helvetica and Arial. */
double weft_scale_text_width (const char *text, double size);
