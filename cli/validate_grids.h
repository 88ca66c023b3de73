/* validate_grids.h - the part of `weft validate` about the order of strategies
 * (planner/grids.h). */
#pragma once
#include "planner/grids.h"
#include <json-glib/json-glib.h>

/* Prints one line for each grid; nothing if there is none. */
void weft_cli_print_grids (const weft_errors *errors);

/* Adds members "grids" and "ratio_error" to the open object. */
void weft_cli_add_grids (JsonBuilder *b, const weft_errors *errors);
