#include "charts/looks.h"
#include <glib.h>
#include <stdlib.h>

static const char *const palette[] = {
  "#0072b2", /* blue */
  "#e69f00", /* orange */
  "#009e73", /* bluish green */
  "#cc79a7", /* reddish purple */
  "#56b4e9", /* sky blue */
  "#d55e00", /* vermillion */
  "#f0e442", /* yellow */
  "#999999", /* grey */
  "#cccccc", /* light grey */
};

/* Number of colours for lines and markers. */
enum { N_STRONG = 7 };

static const char *const dashes[] = { NULL, "6 3", "2 2", "8 3 2 3", "4 2", "10 4", "1 3" };

static const struct weft_hatch hatches[] = {
  { 0xffffff, WEFT_HATCH_FALLING },
  { 0xaaaaaa, 0 },
  { 0xffffff, WEFT_HATCH_RISING },
  { 0x666666, 0 },
  { 0xffffff, 0 },
  { 0xdddddd, WEFT_HATCH_RISING | WEFT_HATCH_FALLING },
  { 0xffffff, WEFT_HATCH_UPRIGHT },
  { 0xdddddd, 0 },
  { 0xbbbbbb, WEFT_HATCH_RISING },
  { 0xbbbbbb, WEFT_HATCH_UPRIGHT },
};

const char *
weft_look_css (unsigned i)
{
  return i < G_N_ELEMENTS (palette) ? palette[i] : NULL;
}

int
weft_look_colour (unsigned look)
{
  return (int) strtol (palette[look % G_N_ELEMENTS (palette)] + 1, NULL, 16);
}

int
weft_look_stroke (unsigned look)
{
  static const unsigned char strong[N_STRONG] = { 0, 1, 2, 3, 4, 5, 7 };

  return weft_look_colour (strong[look % N_STRONG]);
}

const char *
weft_look_dash (unsigned look)
{
  return dashes[look % G_N_ELEMENTS (dashes)];
}

enum weft_marker
weft_look_marker (unsigned look)
{
  return (look + look / N_STRONG) % WEFT_N_MARKER;
}

struct weft_hatch
weft_look_hatch (unsigned look)
{
  return hatches[look % G_N_ELEMENTS (hatches)];
}
