/* html.h - pages of HTML; the report as one self-contained page: numbers, memory bars and the
 * timeline, in which one can zoom and ask what an op is and waits for (timeline_page.h). The page
 * loads no other file; the browser chooses light or dark mode. Without scripts the timeline is a
 * picture, in which ops whose gap is less than a two-thousandth of the step are one box. */
#pragma once
#include "core/report/critical.h"
#include "core/report/report.h"

/* Writes the page to a file. The report must have a timeline. `critical`: the critical path of the
 * timeline; NULL: the page has none. */
gboolean weft_cli_html (const weft_report *report, const weft_critical *critical, const char *path,
                        GError **error);

/* ------------------------------------------------------------------ parts of pages */

/* Appends text so that a browser shows it. */
void weft_cli_html_text (GString *page, const char *text);

/* begin: everything to the heading, and a line below it; end: the end of the page. */
void weft_cli_html_begin (GString *page, const char *heading, const char *line);
void weft_cli_html_end (GString *page);

/* The two lines that name a job; the caller frees them. */
char **weft_cli_html_job (const struct weft_job *job);

/* passes: the key of colours of the timeline; parts: that of memory. */
void weft_cli_html_passes (GString *page);
void weft_cli_html_parts (GString *page);

/* A bar of memory for each stage. `capacity`: bytes at the right end, at least. */
void weft_cli_html_memory (GString *page, const weft_report *report, double capacity);
