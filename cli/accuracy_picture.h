/* accuracy_picture.h - the picture of docs/accuracy.md: predicted against measured. */
#pragma once
#include "planner/errors.h"

/* Draws the recorded rows as points on logarithmic axes, step time and memory side by side, with
 * one colour for each source. Lines mark equality of prediction and measurement, and 10 % above and
 * below it. Returns the SVG text, which the caller frees. */
char *weft_cli_accuracy_picture (const weft_errors *errors);
