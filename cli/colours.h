/* colours.h - colours of the series of a picture. */
#pragma once

/* The colour of series number `series`, as SVG writes it. Colours can be told apart on white and on
 * black, and repeat after 24 series. */
const char *weft_cli_colour (unsigned series);
