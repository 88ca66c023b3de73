/* size_picture.h - a picture of weft size: days against cost, with the Pareto front, and tokens a
 * second against GPUs. */
#pragma once
#include "cli/size_page.h"

/* The text of an SVG file. The caller frees it. */
char *weft_cli_size_picture (const struct weft_cli_size_page *page);
