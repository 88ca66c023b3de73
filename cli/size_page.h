/* size_page.h - the answer of weft size as text and as JSON. */
#pragma once
#include "cli/sure.h"
#include "planner/size.h"

/* What is printed, and what was asked. */
struct weft_cli_size_page {
  const weft_size *size;
  const struct weft_size_options *options;
  weft_cli_sure *sure;
  const char *site;      /* as the user named it */
  gboolean chinchilla;   /* the number of tokens follows from the model */
};

void weft_cli_size_text (const struct weft_cli_size_page *page);
void weft_cli_size_json (const struct weft_cli_size_page *page);

/* The days of a point if predictions are off by as much as those of published runs; NaN: no similar
 * run was measured. */
struct weft_cli_size_band {
  double low, high;
};
struct weft_cli_size_band weft_cli_size_days (const struct weft_cli_size_page *page,
                                              const struct weft_size_point *point);

/* The currency of a topology's prices. */
const char *weft_cli_size_currency (const weft_size *size, unsigned topology);
