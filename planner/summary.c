#include "planner/summary.h"
#include "core/report/report.h"
#include <string.h>

const char *const weft_summary_fate_words[] = { WEFT_SUMMARY_FATE_LIST (WEFT_WORD_TEXT) NULL };

#define NUMBER_WORD(member, doc) #member,
const char *const weft_summary_number_words[] = { WEFT_SUMMARY_NUMBER_LIST (NUMBER_WORD) NULL };

void
weft_summary_refuse (struct weft_summary *cell, const GError *error)
{
  cell->fate = WEFT_SUMMARY_REFUSED;
  g_strlcpy (cell->reason, error->message, sizeof cell->reason);
}

void
weft_summary_predict (const struct weft_job *job, const struct weft_exec_ops *executor,
                      struct weft_summary *cell)
{
  weft_summary_predict_seen (job, executor, cell, NULL);
}

void
weft_summary_predict_seen (const struct weft_job *job, const struct weft_exec_ops *executor,
                           struct weft_summary *cell, const struct weft_summary_seer *seer)
{
  const struct weft_exec_options options = { 0 };
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_plan) plan = weft_plan_new (job, &error);
  g_autoptr (weft_timeline) timeline =
      plan ? weft_exec_run (executor, plan, &options, &error) : NULL;

  if (!timeline) {
    weft_summary_refuse (cell, error);
    return;
  }
  g_autoptr (weft_report) report = weft_report_new (plan, timeline);
  cell->fate = report->fits ? WEFT_SUMMARY_OK : WEFT_SUMMARY_TOO_LARGE;
  cell->step_s = report->iteration.time_s;
  cell->tokens_per_s = report->iteration.tokens_per_s;
  cell->tokens_per_s_per_gpu = report->iteration.tokens_per_s_per_gpu;
  cell->mfu = report->iteration.mfu;
  cell->peak_bytes = (double) report->peak_bytes;
  if (seer)
    seer->see (seer->user, seer->cell, report);
}
