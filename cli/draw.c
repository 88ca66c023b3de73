/* weft draw: the columns of a table as lines. */
#include "cli/cli.h"
#include "cli/figure_flags.h"
#include "cli/figures/lines.h"
#include "cli/outputs.h"
#include "core/base/error.h"
#include <stdio.h>

struct draw_ask {
  const char *y, *against, *mean;
  struct weft_cli_figure_ask figure;
};

static gboolean
read_ask (const weft_cli_input *input, const struct draw_ask *ask, struct weft_cli_lines *lines,
          GError **error)
{
  const struct weft_cli_output output = { "figure", ask->figure.path };
  const char *const inputs[] = { input->operand, NULL };
  int64_t mean = 1;

  if (!input->operand || !ask->figure.path)
    return weft_bad_input (error, "found no %s, wanted weft draw TABLE.csv --figure FILE",
                           input->operand ? "--figure" : "table");
  if (ask->mean && !ask->against)
    return weft_bad_input (error, "--mean needs --against");
  if ((ask->mean && !weft_cli_number ("mean", "a number of rows", ask->mean, 1, &mean, error)) ||
      !weft_cli_figure_check (&ask->figure, error) ||
      !weft_cli_check_outputs (&output, 1, inputs, error))
    return FALSE;
  *lines = (struct weft_cli_lines){ ask->y, ask->against, (unsigned) MIN (mean, G_MAXINT) };
  return TRUE;
}

static int
run (const weft_cli_input *input, const struct draw_ask *ask)
{
  g_autoptr (GError) error = NULL;
  struct weft_cli_lines lines;

  if (!read_ask (input, ask, &lines, &error))
    return weft_cli_fail (error);
  g_autoptr (weft_csv) csv = weft_csv_load (input->operand, &error);
  g_autoptr (weft_figure) figure = csv ? weft_cli_figure_lines (csv, &lines, &error) : NULL;
  if (!figure || !weft_cli_figure_write (&ask->figure, figure, &error))
    return weft_cli_fail (error);
  printf ("%s: %u columns of %u rows\n", ask->figure.path, csv->n_column, csv->n_row);
  return 0;
}

int
weft_cli_draw (int argc, char **argv)
{
  struct draw_ask ask = { 0 };
  g_auto (weft_cli_input) input = { 0 };
  const struct weft_cli_flag flags[] = {
    { .name = "y", .value = "NAME", .text = &ask.y, .doc = "name of the y axis" },
    { .name = "against",
      .value = "COLUMN",
      .text = &ask.against,
      .doc = "draw also all columns less this one, in a second panel" },
    { .name = "mean",
      .value = "N",
      .text = &ask.mean,
      .doc = "rows over which the second panel averages [1]" },
    WEFT_CLI_FIGURE_FLAGS (&ask.figure, "the lines"),
  };
  const struct weft_cli_page page = {
    .usage = "weft draw TABLE.csv --figure FILE [flags]",
    .doc = "Draws the columns of a table of numbers as lines against its first column. The first "
           "row of the table has the names.",
    .examples = "  weft draw losses.csv --y loss --figure losses.svg\n"
                "  weft draw losses.csv --y loss --against fp32 --mean 10 --figure losses.pdf\n",
    .flags = flags,
    .n_flags = G_N_ELEMENTS (flags),
  };
  int status = weft_cli_begin (&page, argc, argv, &input);

  return status == WEFT_CLI_GO_ON ? run (&input, &ask) : status;
}
