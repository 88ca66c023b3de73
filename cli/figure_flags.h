/* figure_flags.h - the flags of commands that draw a figure. */
#pragma once
#include "charts/figure.h"
#include "cli/cli.h"

struct weft_cli_figure_ask {
  const char *path; /* NULL: no figure is wanted */
  gboolean monochrome;
};

/* The rows of a command's list of flags. `what` says what is drawn. Older scripts say --svg. */
#define WEFT_CLI_FIGURE_FLAGS(ask, what)                                                           \
  { .name = "figure",                                                                              \
    .old = "svg",                                                                                  \
    .value = "FILE",                                                                               \
    .text = &(ask)->path,                                                                          \
    .doc = "draw " what " (FILE.svg or FILE.pdf)" },                                               \
      WEFT_CLI_MONOCHROME_FLAG (&(ask)->monochrome)
#define WEFT_CLI_MONOCHROME_FLAG(set)                                                              \
  { .name = "monochrome",                                                                          \
    .on = (set),                                                                                   \
    .doc = "figures with greys, hatches and dashes instead of colours" }

/* Refuses a file name with an unknown end, and --monochrome without a figure. */
gboolean weft_cli_figure_check (const struct weft_cli_figure_ask *ask, GError **error);

/* Writes the figure, if one is wanted. */
gboolean weft_cli_figure_write (const struct weft_cli_figure_ask *ask, const weft_figure *figure,
                                GError **error);

/* Figures of a predicted step, as one text: "timeline=step.svg,memory=memory.pdf". */
struct weft_cli_step_figure {
  unsigned kind; /* row of WEFT_CLI_STEP_FIGURE_LIST (cli/figures/figures.h) */
  char *path;
};

/* Parses the value of sim's --figure. Returns an array of struct weft_cli_step_figure, which the
 * caller frees; empty if `text` is NULL. */
GArray *weft_cli_step_figures_read (const char *text, GError **error);

/* What --help prints for that value, "KIND=FILE,...", and a text about it; static. */
const char *weft_cli_step_figures_doc (void);
