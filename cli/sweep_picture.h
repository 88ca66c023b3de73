/* sweep_picture.h - the picture of weft sweep: tokens per second against the values of the first
 * list, with a line for each combination of the others. */
#pragma once
#include "planner/variants.h"

/* The text of an SVG file. The caller frees it. */
char *weft_cli_sweep_picture (const weft_variants *variants);
