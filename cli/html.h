/* html.h - the report as one self-contained page: numbers, memory bars and the timeline as a
 * picture.  It loads nothing and runs no script; light and dark mode follow the browser.
 * Transfers closer together than a two-thousandth of the step are drawn as one. */
#pragma once
#include "core/report/report.h"

/* Writes the page; the report must have a timeline. */
gboolean weft_cli_html (const weft_report *report, const char *path, GError **error);
