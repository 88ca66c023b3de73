/* draw.h - lays a figure out and draws it with a pen. */
#pragma once
#include "charts/figure.h"
#include "charts/pen.h"

/* Draws the whole figure, from begin() to end() of the pen. */
void weft_draw (const weft_figure *figure, gboolean monochrome, struct weft_pen *pen);
