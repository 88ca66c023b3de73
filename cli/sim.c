#include "cli/ask.h"
#include "cli/cli.h"
#include "cli/disturbed.h"
#include "cli/executors.h"
#include "cli/figure_flags.h"
#include "cli/figures/figures.h"
#include "cli/html.h"
#include "cli/executor_options.h"
#include "cli/outputs.h"
#include "cli/sure.h"
#include "core/base/error.h"
#include "core/exec/exec.h"
#include "core/report/report.h"
#include "core/passes/step.h"
#include "core/exec/timeline_file.h"
#include "core/report/trace.h"
#include <stdio.h>
#include <string.h>

static const char examples[] =
    "  weft sim --model gpt2 --topology dgx-h100\n"
    "  weft sim --model llama3-8b --topology dgx-h100 --nodes 4 --global-batch-size 64 \\\n"
    "      --pipeline-model-parallel-size 4 --trace step.json.gz --html step.html\n"
    "  weft sim job.ini --figure timeline=step.svg,memory=memory.pdf --monochrome\n"
    "  weft sim job.ini --executor clock --json\n"
    "  weft sim job.ini --straggler rank=5:1.2,node=3:1.1 --link nic3:0.5\n"
    "  weft sim job.ini --jitter 0.05 --jitter-runs 50\n";

/* Flags of the command that are not settings of the job. */
struct sim_ask {
  const weft_cli_options *own; /* options that only one executor has */
  const char *executor, *trace, *trace_ranks, *timeline, *html, *jitter_runs, *figure;
  gboolean monochrome;
  GArray *figures; /* struct weft_cli_step_figure: what `figure` says */
  struct weft_exec_options options;
};

/* Parses the value of --trace-ranks, before the simulation takes time. *ranks becomes 0 if all
 * ranks are traced. */
static gboolean
read_trace_ranks (const struct sim_ask *ask, int64_t *ranks, GError **error)
{
  *ranks = 0;
  if (!ask->trace_ranks)
    return TRUE;
  if (!ask->trace)
    return weft_bad_input (error, "--trace-ranks needs --trace");
  return weft_cli_number ("trace-ranks", "a number of ranks", ask->trace_ranks, 1, ranks, error);
}

/* Parses the value of --jitter-runs. */
static gboolean
read_runs (const struct sim_ask *ask, const struct weft_exec_ops *executor, int64_t *runs,
           GError **error)
{
  *runs = WEFT_CLI_JITTER_RUNS;
  if (!ask->jitter_runs)
    return TRUE;
  if (!weft_cli_has_jitter (executor, &ask->options))
    return weft_bad_input (error, "--jitter-runs needs --jitter");
  if (!weft_cli_number ("jitter-runs", "a number of runs", ask->jitter_runs, 1, runs, error))
    return FALSE;
  return *runs <= WEFT_CLI_MOST_RUNS ||
         weft_bad_input (error, "--jitter-runs: found %s, wanted at most %d runs", ask->jitter_runs,
                         WEFT_CLI_MOST_RUNS);
}

static void
print_text (const weft_report *report, const weft_disturbance *disturbance, weft_cli_sure *sure,
            const struct weft_cli_answer *answer)
{
  struct weft_report_style style = { weft_cli_columns (), weft_cli_has_colour () };
  g_autoptr (GString) out = g_string_new (NULL);

  weft_report_print (report, style, out);
  if (disturbance)
    weft_disturbance_print (disturbance, out);
  weft_cli_print_fitting (out->str);
  weft_cli_print_sure (sure, answer);
}

static void
print_json (const weft_report *report, const weft_disturbance *disturbance, weft_cli_sure *sure,
            const struct weft_cli_answer *answer)
{
  g_autoptr (JsonBuilder) builder = json_builder_new ();

  json_builder_begin_object (builder);
  weft_report_to_json (report, builder);
  if (disturbance)
    weft_disturbance_to_json (disturbance, builder);
  weft_cli_add_sure (sure, builder, answer);
  json_builder_end_object (builder);
  weft_cli_print_json (builder);
}

static gboolean
check_outputs (const struct sim_ask *ask, GError **error)
{
  const struct weft_cli_output others[] = {
    { "trace", ask->trace }, { "timeline", ask->timeline }, { "html", ask->html }
  };
  g_autoptr (GArray) outputs = g_array_new (FALSE, FALSE, sizeof *others);

  g_array_append_vals (outputs, others, G_N_ELEMENTS (others));
  for (guint i = 0; i < ask->figures->len; i++) {
    const struct weft_cli_output output = {
      "figure", g_array_index (ask->figures, struct weft_cli_step_figure, i).path
    };
    g_array_append_val (outputs, output);
  }
  return weft_cli_check_outputs ((const struct weft_cli_output *) outputs->data, outputs->len, NULL,
                                 error);
}

/* Simulates the step, and if it is disturbed also the undisturbed one; *disturbance is then their
 * comparison. */
static weft_timeline *
simulate (const weft_plan *plan, const struct weft_exec_ops *executor, const struct sim_ask *ask,
          int64_t runs, weft_disturbance **disturbance, GError **error)
{
  weft_timeline *timeline = NULL;

  if (!weft_cli_is_disturbed (executor, &ask->options))
    return weft_exec_run (executor, plan, &ask->options, error);
  *disturbance = weft_cli_disturbed (plan, &ask->options, runs, &timeline, error);
  return timeline;
}

static gboolean
write_files (const weft_plan *plan, const weft_timeline *timeline, const struct sim_ask *ask,
             int64_t ranks, GError **error)
{
  if (ask->timeline && timeline->row_of)
    return weft_bad_input (error, "--timeline: a disturbed step is written only with --unfolded");
  if (ask->trace && !weft_trace_write (plan, timeline, ranks, ask->trace, error))
    return FALSE;
  return !ask->timeline || weft_timeline_save (plan, timeline, ask->timeline, error);
}

static gboolean
read_figures (struct sim_ask *ask, GError **error)
{
  if (ask->monochrome && !ask->figure)
    return weft_bad_input (error, "--monochrome needs --figure");
  ask->figures = weft_cli_step_figures_read (ask->figure, error);
  return ask->figures != NULL;
}

static gboolean
draw_figures (const weft_report *report, const struct sim_ask *ask, GError **error)
{
#define FIGURE(word, doc) weft_cli_figure_##word,
  static weft_figure *(*const make[]) (const weft_report *r) = { WEFT_CLI_STEP_FIGURE_LIST (
      FIGURE) };

  for (guint i = 0; i < ask->figures->len; i++) {
    const struct weft_cli_step_figure *at =
        &g_array_index (ask->figures, struct weft_cli_step_figure, i);
    g_autoptr (weft_figure) figure = make[at->kind](report);
    if (!weft_figure_write (figure, at->path, ask->monochrome, error))
      return FALSE;
  }
  return TRUE;
}

/* Whether the executor predicts the step as one graph. */
static gboolean
is_graph (const struct weft_exec_ops *executor, const struct sim_ask *ask)
{
  int row = weft_table_find (executor->options, "graph");

  return row >= 0 && ask->options.own.table && ask->options.own.at[row].i != 0;
}

/* Writes the page. The step of a disturbed machine has no critical path, because its ops do not
 * take the seconds of the plan. */
static gboolean
write_page (const weft_report *report, const struct weft_exec_ops *executor,
            const struct sim_ask *ask, GError **error)
{
  g_autoptr (weft_critical) critical =
      weft_cli_is_disturbed (executor, &ask->options)
          ? NULL
          : weft_critical_new (report->plan, report->timeline, is_graph (executor, ask), NULL);

  return weft_cli_html (report, critical, ask->html, error);
}

/* Adds the seconds of initialisation and of broadcast_params, if the job has them. The same
 * executor predicts them. */
static gboolean
add_startup (weft_report *report, const struct weft_exec_ops *executor, const struct sim_ask *ask,
             GError **error)
{
  const struct weft_job *job = &report->plan->job;

  if (!weft_init_does_something (job))
    return TRUE;
  g_autoptr (weft_plan) plan = weft_plan_new_startup (job, error);
  g_autoptr (weft_timeline) timeline =
      plan ? weft_exec_run (executor, plan, &ask->options, error) : NULL;
  if (timeline)
    weft_report_add_startup (report, plan, timeline);
  return timeline != NULL;
}

static int
run (const weft_cli_input *input, struct sim_ask *ask)
{
  g_autoptr (GError) error = NULL;
  struct weft_job job;
  const struct weft_exec_ops *executor = weft_cli_executor (ask->executor, &error);
  int64_t ranks, runs;

  if (!executor || !weft_cli_options_read (ask->own, executor, &ask->options.own, &error) ||
      !read_trace_ranks (ask, &ranks, &error) || !read_runs (ask, executor, &runs, &error) ||
      !read_figures (ask, &error) ||
      !weft_cli_job (input, &job, &error))
    return weft_cli_fail (error);
  g_autoptr (weft_cli_sure) sure = weft_cli_sure_new (&error);
  g_autoptr (weft_plan) plan = sure ? weft_plan_new (&job, &error) : NULL;
  if (!plan || !check_outputs (ask, &error))
    return weft_cli_fail (error);
  g_autoptr (weft_disturbance) disturbance = NULL;
  g_autoptr (weft_timeline) timeline =
      simulate (plan, executor, ask, runs, &disturbance, &error);
  if (!timeline || !write_files (plan, timeline, ask, ranks, &error))
    return weft_cli_fail (error);
  g_autoptr (weft_report) report = weft_report_new (plan, timeline);
  if (!add_startup (report, executor, ask, &error))
    return weft_cli_fail (error);
  if (!draw_figures (report, ask, &error) ||
      (ask->html && !write_page (report, executor, ask, &error)))
    return weft_cli_fail (error);
  const struct weft_cli_answer answer = { &plan->job, report->iteration.time_s,
                                          (double) report->peak_bytes };
  if (input->json)
    print_json (report, disturbance, sure, &answer);
  else
    print_text (report, disturbance, sure, &answer);
  return report->fits ? 0 : 3;
}

int
weft_cli_sim (int argc, char **argv)
{
  g_autoptr (weft_cli_options) own = weft_cli_options_new (weft_cli_executors ());
  struct sim_ask ask = { .own = own };
  const struct weft_cli_flag flags[] = {
    { .name = "executor",
      .value = weft_cli_executor_names (),
      .text = &ask.executor,
      .doc = "SimGrid with contention, or closed formulas without [sim]" },
    { .name = "trace",
      .value = "FILE",
      .text = &ask.trace,
      .doc = "write the timeline for Perfetto (.json or .json.gz)" },
    { .name = "trace-ranks",
      .value = "N",
      .text = &ask.trace_ranks,
      .doc = "only the first N ranks of the trace" },
    { .name = "timeline",
      .value = "FILE",
      .text = &ask.timeline,
      .doc = "write begin and end of every op, for weft compare (.json or .json.gz)" },
    { .name = "jitter-runs",
      .value = "N",
      .text = &ask.jitter_runs,
      .doc = "steps with --jitter to simulate, from rising seeds [20]" },
    { .name = "html",
      .value = "FILE",
      .text = &ask.html,
      .doc = "write the report as one self-contained HTML page" },
    { .name = "figure",
      .value = "KIND=FILE",
      .text = &ask.figure,
      .joins = TRUE,
      .doc = weft_cli_step_figures_doc () },
    WEFT_CLI_MONOCHROME_FLAG (&ask.monochrome),
  };
  struct weft_cli_page page = {
    .usage = "weft sim [JOB] [flags] [--json]",
    .doc =
        "Predicts one training step of a job: time, throughput, overlap, bubble and memory. --json "
        "prints one document (schema weft.sim/1) instead of the text. MFU counts the pairs of "
        "attention under the causal mask, or with --flops-convention full all pairs. Ends with "
        "status 3 if the job does not fit in GPU memory.",
    .examples = examples,
    .flags = flags,
    .n_flags = G_N_ELEMENTS (flags),
    .job = TRUE,
  };
  page.more = weft_cli_options_flags (own, &page.n_more);
  g_auto (weft_cli_input) input = { 0 };
  int status = weft_cli_begin (&page, argc, argv, &input);

  if (status == WEFT_CLI_GO_ON)
    status = run (&input, &ask);
  g_clear_pointer (&ask.figures, g_array_unref);
  return status;
}
