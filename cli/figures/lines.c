#include "cli/figures/lines.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include <math.h>

/* The numbers of a table, column by column. The caller frees them. NULL with an error that names
 * the cell. */
static double *
read_numbers (const weft_csv *csv, GError **error)
{
  g_autofree double *number = g_new (double, (gsize) csv->n_row * csv->n_column);

  for (unsigned row = 0; row < csv->n_row; row++)
    for (unsigned column = 0; column < csv->n_column; column++)
      if (!weft_units_parse (weft_csv_cell (csv, row, column), "",
                             &number[(gsize) column * csv->n_row + row], error)) {
        g_prefix_error (error, "%s: ", csv->column[column]);
        weft_csv_blame (csv, row, error);
        return NULL;
      }
  return g_steal_pointer (&number);
}

/* Adds a line for each column but the first. `less`: numbers that are subtracted; NULL: none. */
static void
add_lines (struct weft_panel *panel, const weft_csv *csv, const double *number, unsigned mean,
           const double *less)
{
  unsigned n = csv->n_row;

  for (unsigned column = 1; column < csv->n_column; column++) {
    struct weft_series *series = weft_panel_series (panel, WEFT_SHAPE_LINE, csv->column[column]);
    const double *at = &number[(gsize) column * n];
    double sum = 0;
    for (unsigned row = 0; row < n; row++) {
      sum += at[row] - (less ? less[row] : 0);
      if (row >= mean)
        sum -= at[row - mean] - (less ? less[row - mean] : 0);
      if (row + 1 >= mean)
        weft_series_add (series, (struct weft_item){ .x = number[row], .y = sum / mean });
    }
  }
}

static struct weft_panel *
add_panel (weft_figure *figure, const weft_csv *csv, const char *name)
{
  struct weft_panel *panel = weft_figure_panel (figure, NULL);

  panel->width = 380;
  panel->height = 280;
  weft_chart_axis_name (&panel->x, csv->column[0], "");
  weft_chart_axis_name (&panel->y, name, "");
  return panel;
}

weft_figure *
weft_cli_figure_lines (const weft_csv *csv, const struct weft_cli_lines *lines, GError **error)
{
  int against = lines->against ? weft_csv_find (csv, lines->against) : 0;
  const char *y = lines->y ? lines->y : "";

  if (csv->n_column < 2 || csv->n_row < 2) {
    weft_bad_input (error, "%s: found %u columns and %u rows, wanted at least two of each",
                    csv->name, csv->n_column, csv->n_row);
    return NULL;
  }
  if (lines->against && against < 1) {
    weft_bad_input (error, "--against: found \"%s\", wanted a column of %s after the first",
                    lines->against, csv->name);
    return NULL;
  }
  g_autofree double *number = read_numbers (csv, error);
  if (!number)
    return NULL;
  g_autofree char *title = g_path_get_basename (csv->name);
  weft_figure *figure = weft_figure_new (title);
  add_lines (add_panel (figure, csv, y), csv, number, 1, NULL);
  if (lines->against) {
    g_autofree char *name =
        lines->mean > 1 ? g_strdup_printf ("%s less that of %s, mean of %u rows", y, lines->against,
                                           lines->mean)
                        : g_strdup_printf ("%s less that of %s", y, lines->against);
    figure->columns = 2;
    add_lines (add_panel (figure, csv, name), csv, number, lines->mean,
               &number[(gsize) against * csv->n_row]);
  }
  return figure;
}
