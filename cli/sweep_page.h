/* sweep_page.h - the combinations of a sweep as one self-contained page: a slider for each list,
 * and the numbers, the parts of the step, the memory and the timeline of the combination that the
 * sliders choose.
 *
 * The processes that predict combinations keep what the page needs of each in a folder of their
 * own, one file for each combination: the figure of its timeline (cli/figures/), as numbers, and
 * its memory. A timeline with more than WEFT_CLI_SWEEP_BOXES boxes is left out, and so are
 * timelines beyond WEFT_CLI_SWEEP_BYTES of the page; the page says so. */
#pragma once
#include "core/report/report.h"
#include "planner/variants.h"

enum {
  WEFT_CLI_SWEEP_MOST = 2000,       /* combinations of a page */
  WEFT_CLI_SWEEP_BOXES = 20000,     /* boxes of a timeline */
  WEFT_CLI_SWEEP_BYTES = 100000000, /* of all timelines, before they are compressed */
};

typedef struct weft_cli_sweep_page weft_cli_sweep_page;

/* Makes the folder. Refuses more combinations than a page has. */
weft_cli_sweep_page *weft_cli_sweep_page_new (const weft_variants *variants, GError **error);

/* Removes the folder. */
void weft_cli_sweep_page_free (weft_cli_sweep_page *page);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_cli_sweep_page, weft_cli_sweep_page_free)

/* Keeps what the page needs of a combination: `see` of struct weft_variants_run. */
void weft_cli_sweep_page_see (void *page, uint32_t cell, const weft_report *report);

/* Writes the page to a file. */
gboolean weft_cli_sweep_page_write (const weft_cli_sweep_page *page, const char *path,
                                    GError **error);
