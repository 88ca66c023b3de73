/* compare_page.h - two jobs side by side as one self-contained page: their timelines on one axis of
 * time, and tables of what differs. */
#pragma once
#include "core/report/compare.h"

/* Writes the page to a file. */
gboolean weft_cli_compare_html (const weft_compare *compare, const char *path, GError **error);
