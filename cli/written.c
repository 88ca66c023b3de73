#include "cli/written.h"
#include "cli/cli.h"
#include "cli/software.h"
#include "core/base/units.h"
#include "exec_sim/exec_sim.h"
#include "planner/summary.h"
#include <math.h>
#include <stdio.h>

void
weft_cli_written_clear (weft_cli_written *written)
{
  g_clear_pointer (&written->result, weft_interop_result_free);
}

gboolean
weft_cli_written_choose (weft_cli_written *written, const struct weft_cli_wanted *wanted,
                         const struct weft_job *job, const weft_search *search, GError **error)
{
  const struct weft_target *target = weft_target_find (wanted->software, error);

  for (uint32_t i = 0; target && i < search->by_fate[WEFT_FATE_SIMULATED]; i++) {
    struct weft_job chosen = weft_space_job (job, &search->candidate[i].choice);
    weft_interop_result *result = weft_export (target, &chosen, error);
    if (!result)
      return FALSE;
    if (i && result->n_not) {
      weft_interop_result_free (result);
      continue;
    }
    weft_cli_written_clear (written);
    *written = (weft_cli_written){ i, FALSE, chosen, result };
    if (!result->n_not || wanted->partial)
      break;
  }
  return target != NULL;
}

/* Whether a changed job has an export, keeps the rules, and fits in memory; *seconds receives the
 * time of its step. */
static gboolean
is_possible (const weft_cli_written *changed, double *seconds)
{
  struct weft_summary step;

  if (changed->result->n_not)
    return FALSE;
  weft_summary_predict (&changed->job, &weft_exec_sim, &step);
  *seconds = step.step_s;
  return step.fate == WEFT_SUMMARY_OK;
}

gboolean
weft_cli_written_change (weft_cli_written *written, const struct weft_job *asked,
                         const struct weft_job *job, const weft_search *search, GError **error)
{
  const struct weft_target *target = written->result->target;
  g_autofree char *best_changes = NULL;
  double best = INFINITY, seconds;

  for (uint32_t i = 0; i < search->by_fate[WEFT_FATE_SIMULATED]; i++) {
    g_autofree char *changes = NULL;
    g_auto (weft_cli_written) changed = {
      i, TRUE, weft_space_job (job, &search->candidate[i].choice), NULL
    };
    changed.result =
        weft_cli_software_change (target, asked->knob_set, &changed.job, &changes, error);
    if (!changed.result)
      return FALSE;
    if (!is_possible (&changed, &seconds) || seconds >= best)
      continue;
    best = seconds;
    weft_cli_written_clear (written);
    *written = changed;
    changed.result = NULL;
    g_free (best_changes);
    best_changes = g_steal_pointer (&changes);
  }
  if (best_changes) {
    g_autofree char *step = weft_units_human (best, "s");
    fprintf (stderr, "weft: note: for %s strategy %u is written with %s; its step takes %s\n",
             target->release, written->rank + 1, best_changes, step);
  }
  return TRUE;
}

gboolean
weft_cli_written_save (const weft_cli_written *written, const struct weft_cli_wanted *wanted,
                       GError **error)
{
  const weft_interop_result *result = written->result;

  if (!result) {
    g_autofree char *text = weft_job_print (&written->job);
    return weft_cli_write (wanted->output, text, error);
  }
  if (!weft_cli_software_is_whole (result, wanted->partial, error) ||
      !weft_cli_write (wanted->output, result->text, error))
    return FALSE;
  if (written->rank && !written->changed)
    fprintf (stderr, "weft: note: strategy %u is the fastest of these that %s can express\n",
             written->rank + 1, result->target->release);
  weft_cli_software_note_written (result);
  return TRUE;
}
