/* lines.h - the columns of a table as lines: against the first column, which must be numbers. */
#pragma once
#include "charts/figure.h"
#include "core/base/csv.h"

struct weft_cli_lines {
  const char *y;       /* name of the y axis; NULL: none */
  const char *against; /* a column; a second panel has the lines less this one. NULL: no panel */
  unsigned mean;       /* rows over which the second panel averages; 1: no average */
};

/* Makes the figure, which the caller frees. NULL with an error for a table without numbers or an
 * unknown column. */
weft_figure *weft_cli_figure_lines (const weft_csv *csv, const struct weft_cli_lines *lines,
                                    GError **error);
