/* html.h - the report as one self-contained page: numbers, memory bars and the timeline, in which
 * one can zoom and ask what an op is and waits for (timeline_page.h). The page loads no other file;
 * the browser chooses light or dark mode. Without scripts the timeline is a picture, in which
 * ops whose gap is less than a two-thousandth of the step are one box. */
#pragma once
#include "core/report/critical.h"
#include "core/report/report.h"

/* Writes the page to a file. The report must have a timeline. `critical`: the critical path of the
 * timeline; NULL: the page has none. */
gboolean weft_cli_html (const weft_report *report, const weft_critical *critical, const char *path,
                        GError **error);
