/* figures.h - the figures that commands draw, as data for the chart layer (charts/figure.h). The
 * caller frees each figure. */
#pragma once
#include "charts/figure.h"
#include "cli/size_page.h"
#include "core/report/report.h"
#include "core/schedule/grid.h"
#include "planner/errors.h"
#include "planner/variants.h"

/* The look (charts/looks.h) of transfers in figures and on pages. Passes and parts of memory have
 * theirs in the rows of their tables. */
enum { WEFT_CLI_TRANSFER_LOOK = 0 };

/* Figures of a predicted step. X (word, doc) */
#define WEFT_CLI_STEP_FIGURE_LIST(X)                                                               \
  X (timeline, "kernels and transfers of each stage over time, to scale")                          \
  X (memory, "bytes in use on each stage over time, by kind")                                      \
  X (roofline, "FLOP/s of kernels against their FLOPs per byte")

#define WEFT_CLI_STEP_FIGURE(word, doc) weft_figure *weft_cli_figure_##word (const weft_report *r);
WEFT_CLI_STEP_FIGURE_LIST (WEFT_CLI_STEP_FIGURE)
#undef WEFT_CLI_STEP_FIGURE

/* A pipeline schedule in slots: a forward of a chunk takes one, a full backward two. Boxes have the
 * number of the microbatch where there is room; later chunks are paler; the two cells of a pair,
 * which are drawn one after the other, have one line under them. */
weft_figure *weft_cli_figure_schedule (const weft_grid *grid);

/* Tokens per second against the values of the first list, with a line for each combination of the
 * others. */
weft_figure *weft_cli_figure_sweep (const weft_variants *variants);

/* Days against cost, with the Pareto front, and tokens per second against GPUs. */
weft_figure *weft_cli_figure_size (const struct weft_cli_size_page *page);

/* Predicted against measured step time and memory of published runs, by source. */
weft_figure *weft_cli_figure_accuracy (const weft_errors *errors);
