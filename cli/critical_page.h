/* critical_page.h - weft explain --critical-path: text and JSON. */
#pragma once
#include "core/report/critical.h"

void weft_cli_critical_print (const weft_critical *critical, const weft_plan *plan,
                              const weft_timeline *timeline);
void weft_cli_critical_print_json (const weft_critical *critical, const weft_plan *plan,
                                   const weft_timeline *timeline);

/* Appends the kinds of ops and what they would save, as a table of a page. */
void weft_cli_critical_html (GString *out, const weft_critical *critical);
