#include "cli/colours.h"
#include <glib.h>

/* Neighbours in this order differ most. */
static const char *const colours[] = {
  "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee7733", "#009988",
  "#882255", "#999933", "#332288", "#cc6677", "#44aa99", "#ddaa33", "#7777dd", "#117733",
  "#bb5566", "#0077bb", "#a0522d", "#e377c2", "#6b8e23", "#5f9ea0", "#b8860b", "#9370db",
};

const char *
weft_cli_colour (unsigned series)
{
  return colours[series % G_N_ELEMENTS (colours)];
}
