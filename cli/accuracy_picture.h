/* accuracy_picture.h - the picture of docs/accuracy.md: predicted against measured. */
#pragma once
#include "planner/errors.h"

/* The recorded rows as points on logarithmic axes, step time and memory side by side, one colour
 * for each source; lines at 10 % above and below equality. Returns SVG, which the caller frees. */
char *weft_cli_accuracy_picture (const weft_errors *errors);
