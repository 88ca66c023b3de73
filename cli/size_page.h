/* size_page.h - the answer of weft size as text and as JSON. */
#pragma once
#include "cli/sure.h"
#include "planner/size.h"

/* The contents of the page: the result of weft size and the options of the command. */
struct weft_cli_size_page {
  const weft_size *size;
  const struct weft_size_options *options;
  weft_cli_sure *sure;
  const char *site;      /* name or path of the site, as the user gave it */
  /* TRUE: the number of tokens was not given and is computed from the parameters of the model */
  gboolean chinchilla;
};

void weft_cli_size_text (const struct weft_cli_size_page *page);
void weft_cli_size_json (const struct weft_cli_size_page *page);

/* The range of the days of a point that follows from the errors of predictions of similar published
 * runs; NaN: no similar run was measured. */
struct weft_cli_size_band {
  double low, high;
};
struct weft_cli_size_band weft_cli_size_days (const struct weft_cli_size_page *page,
                                              const struct weft_size_point *point);

/* The currency of a topology's prices. */
const char *weft_cli_size_currency (const weft_size *size, unsigned topology);
