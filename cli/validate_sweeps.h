/* validate_sweeps.h - the part of `weft validate` that prints how well the order of strategies is
 * predicted (planner/sweeps.h). */
#pragma once
#include "planner/sweeps.h"
#include <json-glib/json-glib.h>

/* Prints one line for each sweep; nothing if there is none. */
void weft_cli_print_sweeps (const weft_errors *errors);

/* Adds the JSON members "sweeps" and "ratio_error" to the open object. */
void weft_cli_add_sweeps (JsonBuilder *b, const weft_errors *errors);
