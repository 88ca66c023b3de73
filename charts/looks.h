/* looks.h - how series are told apart: colours for eyes of all kinds, and without colour greys,
 * hatches, dashes and markers. */
#pragma once

/* The colour of a look, 0xrrggbb, from the palette of Okabe and Ito ("Color Universal Design",
 * 2008), without its black, which is that of text, and with two greys. Repeats after the
 * palette. */
int weft_look_colour (unsigned look);

/* The same colour as CSS writes it, "#0072b2"; static. Number i of the palette; NULL beyond it. */
const char *weft_look_css (unsigned i);

/* The colour of thin things, lines and markers: those of the palette that are strong enough on
 * white, without yellow and light grey. Repeats after 7. */
int weft_look_stroke (unsigned look);

/* The pattern of dashes of a look in a monochrome figure; NULL: a whole line. */
const char *weft_look_dash (unsigned look);

/* X (constant): forms of markers. With the colours of lines they tell apart 7 x 7 series. */
#define WEFT_MARKER_LIST(X)                                                                        \
  X (WEFT_MARKER_CIRCLE)                                                                           \
  X (WEFT_MARKER_SQUARE)                                                                           \
  X (WEFT_MARKER_TRIANGLE)                                                                         \
  X (WEFT_MARKER_DIAMOND)                                                                          \
  X (WEFT_MARKER_DOWN)                                                                             \
  X (WEFT_MARKER_CROSS)                                                                            \
  X (WEFT_MARKER_PLUS)
#define WEFT_MARKER_ID(id) id,
enum weft_marker { WEFT_MARKER_LIST (WEFT_MARKER_ID) WEFT_N_MARKER };
enum weft_marker weft_look_marker (unsigned look);

/* A box in a monochrome figure: a grey, and lines in up to three directions. */
enum { WEFT_HATCH_RISING = 1, WEFT_HATCH_FALLING = 2, WEFT_HATCH_UPRIGHT = 4 };
struct weft_hatch {
  int grey;           /* 0xrrggbb */
  unsigned direction; /* bits of WEFT_HATCH_*; 0: no lines */
};
struct weft_hatch weft_look_hatch (unsigned look);
