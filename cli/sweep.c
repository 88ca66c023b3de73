/* weft sweep: one job with several values of its settings, and what its step is sensitive to. */
#include "cli/cli.h"
#include "cli/executors.h"
#include "cli/figure_flags.h"
#include "cli/figures/figures.h"
#include "cli/interrupt.h"
#include "cli/outputs.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/units.h"
#include "core/report/report.h"
#include "planner/sensitivity.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char examples[] =
    "  weft sweep job.ini tp=1,2,4,8 pp=1,2,4 --csv sweep.csv --figure sweep.svg\n"
    "  weft sweep --model llama3-70b --topology dgx-h100 nodes=4,8,16 mbs=1,2\n"
    "  weft sweep job.ini node_nic_bandwidth=25GB/s,50GB/s,100GB/s\n"
    "  weft sweep job.ini --sensitivity\n";

struct sweep_ask {
  const char *executor, *csv;
  struct weft_cli_figure_ask figure;
  gboolean sensitivity;
};

static void
print_reason (const char *reason)
{
  printf ("  %s\n", reason);
}

/* ------------------------------------------------------------------- lists */

static void
print_number (double value, const char *unit)
{
  g_autofree char *text = g_strstrip (weft_units_human (value, unit));

  printf ("  %10s", text);
}

static int
width_of (const struct weft_variants_list *list)
{
  gsize width = strlen (list->name);

  for (unsigned i = 0; i < list->n; i++)
    width = MAX (width, strlen (list->value[i]));
  return (int) width;
}

static void
print_row (const weft_variants *x, uint32_t i)
{
  const struct weft_summary *cell = &x->cell[i];

  for (unsigned list = 0; list < x->list->len; list++)
    printf ("%*s  ", width_of (x->list->pdata[list]), weft_variants_value (x, i, list));
  if (cell->fate == WEFT_SUMMARY_REFUSED) {
    print_reason (cell->reason);
    return;
  }
  if (cell->fate == WEFT_SUMMARY_OPEN) {
    printf ("  not predicted\n");
    return;
  }
  print_number (cell->step_s, "s");
  print_number (cell->tokens_per_s_per_gpu, "");
  printf ("  %5.1f", 100 * cell->mfu);
  print_number (cell->peak_bytes, "B");
  printf ("%s\n", cell->fate == WEFT_SUMMARY_OK ? "" : "  does not fit");
}

static void
print_table (const weft_variants *x)
{
  for (unsigned list = 0; list < x->list->len; list++)
    printf ("%*s  ", width_of (x->list->pdata[list]),
            ((const struct weft_variants_list *) x->list->pdata[list])->name);
  printf ("  %10s  %10s  %5s  %10s\n", "step", "tok/s/GPU", "MFU %", "memory");
  for (uint32_t i = 0; i < x->n; i++)
    print_row (x, i);
}

static void
add_cell (JsonBuilder *b, const struct weft_summary *cell)
{
  weft_json_text (b, "fate", weft_summary_fate_words[cell->fate]);
  for (unsigned k = 0; k < WEFT_N_SUMMARY_NUMBER; k++)
    weft_json_real_or_null (b, weft_summary_number_words[k],
                            weft_summary_has_numbers (cell) ? cell->number[k] : NAN);
  weft_json_text (b, "reason", cell->reason);
}

static void
print_json (const weft_variants *x)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();

  json_builder_begin_object (b);
  weft_json_text (b, "schema", "weft.sweep/1");
  weft_json_int (b, "resumed", x->known);
  weft_json_array (b, "rows");
  for (uint32_t i = 0; i < x->n; i++) {
    json_builder_begin_object (b);
    weft_json_object (b, "values");
    for (unsigned list = 0; list < x->list->len; list++)
      weft_json_text (b, ((const struct weft_variants_list *) x->list->pdata[list])->name,
                      weft_variants_value (x, i, list));
    json_builder_end_object (b);
    add_cell (b, &x->cell[i]);
    json_builder_end_object (b);
  }
  json_builder_end_array (b);
  json_builder_end_object (b);
  weft_cli_print_json (b);
}

static void
report_progress (void *user, uint32_t done, uint32_t of)
{
  (void) user;
  fprintf (stderr, "\rweft: %u of %u combinations", done, of);
  if (done == of)
    fprintf (stderr, "\r\033[K");
}

/* FALSE if every combination was refused: no answer of the sweep has numbers. */
static gboolean
has_numbers (const weft_variants *x)
{
  for (uint32_t i = 0; i < x->n; i++)
    if (weft_summary_has_numbers (&x->cell[i]))
      return TRUE;
  return FALSE;
}

static gboolean
run_lists (weft_variants *x, const struct sweep_ask *ask, GError **error)
{
  const struct weft_cli_output outputs[] = { { "csv", ask->csv }, { "figure", ask->figure.path } };
  const struct weft_variants_run run = { .csv = ask->csv,
                                         .stop = weft_cli_is_interrupted,
                                         .progress =
                                             isatty (STDERR_FILENO) ? report_progress : NULL };

  if (!weft_cli_check_outputs (outputs, G_N_ELEMENTS (outputs), NULL, error) ||
      (ask->csv && !weft_variants_load (x, ask->csv, error)))
    return FALSE;
  if (x->known)
    fprintf (stderr, "weft: %u of %u combinations are in %s\n", x->known, x->n, ask->csv);
  weft_cli_catch_interrupt ();
  if (!weft_variants_run (x, &run, error))
    return FALSE;
  g_autoptr (weft_figure) figure =
      ask->figure.path && has_numbers (x) ? weft_cli_figure_sweep (x) : NULL;
  return !figure || weft_cli_figure_write (&ask->figure, figure, error);
}

static int
sweep (const weft_cli_input *input, const struct sweep_ask *ask,
       const struct weft_exec_ops *executor)
{
  g_autoptr (GError) error = NULL;

  g_ptr_array_add (input->lists, NULL);
  g_autoptr (weft_variants) x =
      weft_variants_new (input->settings, (const char *const *) input->lists->pdata, executor,
                         weft_cli_version (), &error);
  if (!x || !run_lists (x, ask, &error))
    return weft_cli_fail (error);
  if (input->json)
    print_json (x);
  else
    print_table (x);
  if (weft_cli_is_interrupted (NULL))
    return WEFT_CLI_EXIT_BY_SIGINT;
  if (has_numbers (x))
    return 0;
  g_set_error (&error, WEFT_ERROR, WEFT_ERROR_INFEASIBLE, "every combination is refused%s",
               ask->figure.path ? ": no picture is written" : "");
  return weft_cli_fail (error);
}

/* ------------------------------------------------------------- sensitivity */

static void
print_change (double factor, const struct weft_summary *cell)
{
  print_number (cell->step_s, "s");
  printf (" at %+.0f %%", 100 * (factor - 1));
}

static void
print_sensitivity (const struct weft_job *job, const struct weft_summary *as_is,
                   const struct weft_sensitivity *rows)
{
  g_autoptr (GString) head = g_string_new (NULL);
  g_autofree char *step = g_strstrip (weft_units_human (as_is->step_s, "s"));

  weft_report_print_job (job, head);
  printf ("%s\nstep time %s\n\n%-18s  %22s   %s\n%-18s  %10s  %10s   %s\n", head->str, step, "",
          "per 1 % more, in %", "step with less and with more", "", "step time", "tokens/s",
          "of the quantity");
  for (unsigned i = 0; i < WEFT_N_SENSITIVITY; i++) {
    const struct weft_sensitivity *r = &rows[i];
    printf ("%-18s", r->word);
    if (isnan (r->step)) {
      print_reason (*r->less.reason ? r->less.reason : r->more.reason);
      continue;
    }
    printf ("  %+10.3f  %+10.3f", r->step, r->rate);
    print_change (r->down, &r->less);
    print_change (r->up, &r->more);
    printf ("\n");
  }
}

static void
add_change (JsonBuilder *b, const char *member, double factor, const struct weft_summary *cell)
{
  weft_json_object (b, member);
  weft_json_real (b, "factor", factor);
  add_cell (b, cell);
  json_builder_end_object (b);
}

static void
print_sensitivity_json (const struct weft_summary *as_is, const struct weft_sensitivity *rows)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();

  json_builder_begin_object (b);
  weft_json_text (b, "schema", "weft.sensitivity/1");
  weft_json_object (b, "as_is");
  add_cell (b, as_is);
  json_builder_end_object (b);
  weft_json_array (b, "rows");
  for (unsigned i = 0; i < WEFT_N_SENSITIVITY; i++) {
    json_builder_begin_object (b);
    weft_json_text (b, "quantity", rows[i].word);
    weft_json_real_or_null (b, "step_elasticity", rows[i].step);
    weft_json_real_or_null (b, "tokens_per_s_elasticity", rows[i].rate);
    add_change (b, "less", rows[i].down, &rows[i].less);
    add_change (b, "more", rows[i].up, &rows[i].more);
    json_builder_end_object (b);
  }
  json_builder_end_array (b);
  json_builder_end_object (b);
  weft_cli_print_json (b);
}

static int
sensitivity (const weft_cli_input *input, const struct weft_exec_ops *executor)
{
  struct weft_sensitivity rows[WEFT_N_SENSITIVITY];
  g_autoptr (GError) error = NULL;
  struct weft_summary as_is;
  struct weft_job job;

  if (!weft_cli_job (input, &job, &error) ||
      !weft_sensitivity_run (&job, executor, &as_is, rows, &error))
    return weft_cli_fail (error);
  if (!weft_summary_has_numbers (&as_is)) {
    weft_bad_input (&error, "%s", as_is.reason);
    return weft_cli_fail (error);
  }
  if (input->json)
    print_sensitivity_json (&as_is, rows);
  else
    print_sensitivity (&job, &as_is, rows);
  return 0;
}

/* ----------------------------------------------------------------- command */

static int
run (const weft_cli_input *input, const struct sweep_ask *ask)
{
  g_autoptr (GError) error = NULL;
  const struct weft_exec_ops *executor = weft_cli_executor (ask->executor, &error);

  if (!executor)
    return weft_cli_fail (error);
  if (!weft_cli_figure_check (&ask->figure, &error))
    return weft_cli_fail (error);
  if (ask->sensitivity && (input->lists || ask->csv || ask->figure.path))
    weft_bad_input (&error, "--sensitivity takes no lists of values, --csv or --figure");
  else if (!ask->sensitivity && !input->lists)
    weft_bad_input (&error, "found no list of values, wanted KNOB=a,b,c or --sensitivity");
  if (error)
    return weft_cli_fail (error);
  return ask->sensitivity ? sensitivity (input, executor) : sweep (input, ask, executor);
}

int
weft_cli_sweep (int argc, char **argv)
{
  struct sweep_ask ask = { 0 };
  g_auto (weft_cli_input) input = { 0 };
  const struct weft_cli_flag flags[] = {
    { .name = "executor",
      .value = weft_cli_executor_names (),
      .text = &ask.executor,
      .doc = "SimGrid with contention, or closed formulas without [sim]" },
    { .name = "csv",
      .value = "FILE",
      .text = &ask.csv,
      .doc = "write one row for each combination; rows that the file has are not predicted again" },
    WEFT_CLI_FIGURE_FLAGS (&ask.figure, "tokens per second against the first list"),
    { .name = "sensitivity",
      .on = &ask.sensitivity,
      .doc = "instead: what 10 % more or less of each resource and of the batch changes" },
  };
  const struct weft_cli_page page = {
    .usage = "weft sweep [JOB] KNOB=a,b,c [KNOB2=d,e] [--csv FILE] [--figure FILE] [flags]",
    .doc = "Predicts a job with every combination of the values of its settings: knobs, fields of "
           "model, cluster, training and stack. Each processor predicts one combination at a time. "
           "A combination that a rule refuses has the rule in its row; if all are refused, the "
           "status is 4. With --csv a run that was ended, also by ctrl-C, resumes; a file of "
           "another job is refused.",
    .examples = examples,
    .flags = flags,
    .n_flags = G_N_ELEMENTS (flags),
    .job = TRUE,
    .lists = TRUE,
  };
  int status = weft_cli_begin (&page, argc, argv, &input);

  return status == WEFT_CLI_GO_ON ? run (&input, &ask) : status;
}
