#include "planner/cell.h"
#include "core/report/report.h"
#include <string.h>

const char *const weft_cell_fate_words[] = { WEFT_CELL_FATE_LIST (WEFT_WORD_TEXT) NULL };

#define NUMBER_WORD(member, doc) #member,
const char *const weft_cell_number_words[] = { WEFT_CELL_NUMBER_LIST (NUMBER_WORD) NULL };

void
weft_cell_refuse (struct weft_cell *cell, const GError *error)
{
  cell->fate = WEFT_CELL_REFUSED;
  g_strlcpy (cell->reason, error->message, sizeof cell->reason);
}

void
weft_cell_predict (const struct weft_job *job, const struct weft_exec_ops *executor,
                   struct weft_cell *cell)
{
  const struct weft_exec_options options = { 0 };
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_plan) plan = weft_plan_new (job, &error);
  g_autoptr (weft_timeline) timeline =
      plan ? weft_exec_run (executor, plan, &options, &error) : NULL;

  if (!timeline) {
    weft_cell_refuse (cell, error);
    return;
  }
  g_autoptr (weft_report) report = weft_report_new (plan, timeline);
  cell->fate = report->fits ? WEFT_CELL_OK : WEFT_CELL_TOO_LARGE;
  cell->step_s = report->iteration.time_s;
  cell->tokens_per_s = report->iteration.tokens_per_s;
  cell->tokens_per_s_per_gpu = report->iteration.tokens_per_s_per_gpu;
  cell->mfu = report->iteration.mfu;
  cell->peak_bytes = (double) report->peak_bytes;
}
