/* html.h - the report as one self-contained page: numbers, memory bars and the timeline as a
 * picture. The page loads no other file and runs no script; the browser chooses light or dark mode.
 * Transfers whose gap is less than a two-thousandth of the step are drawn as one box. */
#pragma once
#include "core/report/report.h"

/* Writes the page to a file. The report must have a timeline. */
gboolean weft_cli_html (const weft_report *report, const char *path, GError **error);
