#include "cli/ask.h"
#include "cli/cli.h"
#include "cli/compare_page.h"
#include "cli/executors.h"
#include "cli/executor_options.h"
#include "cli/outputs.h"
#include "cli/profile_page.h"
#include "interop/traces/costs.h"
#include "interop/traces/stack_fit.h"
#include "core/report/compare.h"
#include "core/base/error.h"
#include "core/exec/exec.h"
#include "core/exec/timeline_file.h"
#include <stdio.h>

static const char examples[] = "  weft compare before.ini after.ini --html both.html\n"
                               "  weft sim job.ini --timeline predicted.json\n"
                               "  weft sim job.ini --executor clock --timeline alone.json.gz\n"
                               "  weft compare predicted.json alone.json.gz --top 20\n"
                               "  weft compare job.ini traces/\n"
                               "  weft compare job.ini profile.sqlite --step 12 --json\n";

/* Number of ops that are listed if --top is not given. */
enum { DEFAULT_TOP = 10 };

struct compare_ask {
  const weft_cli_options *own; /* options that only one executor has */
  const char *executor, *top, *html;
  const char *step, *step_name, *cost_table, *stack_fit; /* flags for a measured trace */
  struct weft_exec_options options;
};

/* One side of the comparison: a plan and its timeline. The plan must outlive the timeline. */
struct side {
  weft_plan *plan;
  weft_timeline *timeline;
};

static gboolean
is_timeline (const char *path)
{
  return g_str_has_suffix (path, ".json") || g_str_has_suffix (path, ".json.gz");
}

/* Plans and simulates a job file. */
static gboolean
run_job (const char *path, const struct weft_exec_ops *executor,
         const struct weft_exec_options *options, weft_plan **plan, weft_timeline **timeline,
         GError **error)
{
  g_autoptr (weft_settings) settings = weft_settings_new ();
  struct weft_job job;

  if (!weft_flags_file (path, settings, error) || !weft_job_build (settings, &job, error))
    return FALSE;
  weft_cli_warn (&job);
  g_autoptr (weft_plan) made = weft_plan_new (&job, error);
  *timeline = made ? weft_exec_run (executor, made, options, error) : NULL;
  if (!*timeline)
    return FALSE;
  *plan = g_steal_pointer (&made);
  return TRUE;
}

static gboolean
open_side (const char *path, const struct weft_exec_ops *executor,
           const struct weft_exec_options *options, struct side *side, GError **error)
{
  if (is_timeline (path))
    return weft_timeline_load (path, &side->plan, &side->timeline, error);
  return run_job (path, executor, options, &side->plan, &side->timeline, error);
}

static void
print (const weft_compare *compare, gboolean json)
{
  g_autoptr (JsonBuilder) builder = json_builder_new ();
  g_autoptr (GString) out = g_string_new (NULL);

  if (json) {
    weft_compare_to_json (compare, builder);
    weft_cli_print_json (builder);
    return;
  }
  weft_compare_print (compare, weft_cli_columns (), out);
  weft_cli_print_fitting (out->str);
}

static void
side_clear (struct side *side)
{
  g_clear_pointer (&side->timeline, weft_timeline_free);
  g_clear_pointer (&side->plan, weft_plan_free);
}
typedef struct side compare_side;
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (compare_side, side_clear)

/* ---------------------------------------------------------------------- measured trace */

static void
print_profile (const struct weft_profile *profile, gboolean json)
{
  g_autoptr (JsonBuilder) builder = json_builder_new ();
  g_autoptr (GString) out = g_string_new (NULL);

  if (json) {
    weft_profile_to_json (profile, builder);
    weft_cli_print_json (builder);
    return;
  }
  weft_profile_print (profile, out);
  weft_cli_print_fitting (out->str);
}

/* Says on stderr of which classes some calls gave no row. */
static void
tell_unjoined (const weft_costs *costs)
{
  for (guint i = 0; i < costs->class->len; i++) {
    const struct weft_costs_class *c = &g_array_index (costs->class, struct weft_costs_class, i);
    if (c->joined < c->calls)
      fprintf (stderr,
               "weft: cost table: %s %s: joined %" G_GUINT64_FORMAT " of %" G_GUINT64_FORMAT
               " calls; the program has %" G_GUINT64_FORMAT "\n",
               weft_work_words[c->work], weft_axis_word (c->axis), c->joined, c->calls, c->ops);
  }
}

/* Writes the times of a trace's ops as a cost table for weft sim. */
static gboolean
write_costs (const struct weft_profile *profile, const char *path, GError **error)
{
  g_autoptr (weft_costs) costs = weft_costs_new (profile->plan, profile->timeline, profile->trace,
                                                 profile->measured);
  g_autoptr (GString) text = g_string_new (NULL);

  g_string_append_printf (text,
                          "# Seconds in %s, %s, %s (weft compare)\n"
                          "# OP TYPE RESULT RANKS DIMENSIONS SECONDS\n",
                          profile->name[WEFT_MEASURED], profile->trace->tool,
                          profile->measured->step);
  for (guint i = 0; i < costs->row->len; i++)
    weft_cost_table_print (text, &g_array_index (costs->row, struct weft_measurement, i));
  tell_unjoined (costs);
  return weft_cli_write (path, text->str, error);
}

/* Writes a stack file with efficiencies out of the trace. */
static gboolean
write_stack (const struct weft_profile *profile, weft_plan *plan, const char *path, GError **error)
{
  if (plan->table)
    return weft_bad_input (error, "--stack-fit: found a job with a cost table, wanted one whose "
                                  "kernels are priced by formula");
  g_autoptr (GArray) fitted = weft_stack_fit_new (plan, profile->measured);
  g_autofree char *source = g_strdup_printf ("%s, %s, %s", profile->name[WEFT_MEASURED],
                                             profile->trace->tool, profile->measured->step);
  g_autofree char *text = weft_stack_fit_print (plan, fitted, source);
  return weft_cli_write (path, text, error);
}

/* Compares a prediction with a measured trace (interop/traces/trace.h). */
static gboolean
compare_trace (const weft_cli_input *input, const struct compare_ask *ask, const struct side *side,
               GError **error)
{
  const struct weft_trace_options options = { .step_name = ask->step_name,
                                              .shapes = ask->cost_table != NULL };
  g_autoptr (weft_trace) trace = weft_trace_load (input->second, &options, error);
  g_autoptr (weft_measured) measured =
      trace ? weft_measured_new (side->plan, trace, ask->step, error) : NULL;

  if (!measured)
    return FALSE;
  struct weft_profile profile = weft_profile_new (side->plan, side->timeline, trace, measured);
  profile.name[WEFT_PREDICTED] = input->operand;
  profile.name[WEFT_MEASURED] = input->second;
  print_profile (&profile, input->json);
  return (!ask->cost_table || write_costs (&profile, ask->cost_table, error)) &&
         (!ask->stack_fit || write_stack (&profile, side->plan, ask->stack_fit, error));
}

/* Whether B is a trace. Flags of a trace without a trace, and a trace as A, are errors. */
static gboolean
wants_trace (const weft_cli_input *input, const struct compare_ask *ask, gboolean *trace,
             GError **error)
{
  *trace = weft_trace_claims (input->second);
  if (weft_trace_claims (input->operand))
    return weft_bad_input (error, "%s: found a measured trace, wanted a job or a timeline first: "
                                  "weft compare JOB TRACE", input->operand);
  if (!*trace && (ask->step || ask->step_name || ask->cost_table || ask->stack_fit))
    return weft_bad_input (error, "%s: found no measured trace, wanted one with --%s",
                           input->second, ask->step         ? "step"
                                          : ask->step_name  ? "step-name"
                                          : ask->cost_table ? "cost-table"
                                                            : "stack-fit");
  if (*trace && ask->html)
    return weft_bad_input (error, "--html: found a measured trace, whose ops are not joined one by "
                                  "one, wanted two jobs or timelines");
  if (*trace && ask->top)
    return weft_bad_input (error, "--top: found a measured trace, whose ops are not joined one by "
                                  "one, wanted two jobs or timelines");
  return TRUE;
}

/* ----------------------------------------------------------------------------- command */

static gboolean
read_ask (const weft_cli_input *input, const struct compare_ask *ask, int64_t *top, GError **error)
{
  *top = DEFAULT_TOP;
  if (!input->second)
    return weft_bad_input (error, "found %s, wanted two job or timeline files: weft compare A B",
                           input->operand ? "one file" : "no file");
  if (!ask->top)
    return TRUE;
  if (!weft_cli_number ("top", "a number of ops", ask->top, 0, top, error))
    return FALSE;
  *top = MIN (*top, G_MAXUINT32);
  return TRUE;
}

static gboolean
check_page (const weft_cli_input *input, const struct compare_ask *ask, GError **error)
{
  const struct weft_cli_output output = { "html", ask->html };
  const char *const inputs[] = { input->operand, input->second, NULL };

  return weft_cli_check_outputs (&output, 1, inputs, error);
}

static int
run (const weft_cli_input *input, struct compare_ask *ask)
{
  g_autoptr (GError) error = NULL;
  g_auto (compare_side) a = { 0 }, b = { 0 };
  const struct weft_exec_ops *executor = weft_cli_executor (ask->executor, &error);
  gboolean trace;
  int64_t top;

  if (!executor || !weft_cli_options_read (ask->own, executor, &ask->options.own, &error) ||
      !read_ask (input, ask, &top, &error) || !wants_trace (input, ask, &trace, &error) ||
      !check_page (input, ask, &error) ||
      !open_side (input->operand, executor, &ask->options, &a, &error))
    return weft_cli_fail (error);
  if (trace)
    return compare_trace (input, ask, &a, &error) ? 0 : weft_cli_fail (error);
  if (!open_side (input->second, executor, &ask->options, &b, &error))
    return weft_cli_fail (error);
  const struct weft_compare_side left = { input->operand, a.plan, a.timeline },
                                 right = { input->second, b.plan, b.timeline };
  g_autoptr (weft_compare) compare = weft_compare_new (&left, &right, top);
  if (ask->html && !weft_cli_compare_html (compare, ask->html, &error))
    return weft_cli_fail (error);
  print (compare, input->json);
  return 0;
}

int
weft_cli_compare (int argc, char **argv)
{
  g_autoptr (weft_cli_options) own = weft_cli_options_new (weft_cli_executors ());
  struct compare_ask ask = { .own = own };
  const struct weft_cli_flag flags[] = {
    { .name = "executor",
      .value = weft_cli_executor_names (),
      .text = &ask.executor,
      .doc = "executor for job files: SimGrid, or closed formulas [sim]" },
    { .name = "top",
      .value = "N",
      .text = &ask.top,
      .doc = "number of single ops to list, largest difference first [10]" },
    { .name = "html",
      .value = "FILE",
      .text = &ask.html,
      .doc = "write one page with both timelines on one axis of time, and tables of what differs" },
    { .name = "step",
      .value = "STEP",
      .text = &ask.step,
      .doc = "step of a trace: its number, all (the whole trace), or seconds BEGIN:END [the one of "
             "median length]" },
    { .name = "step-name",
      .value = "NAME",
      .text = &ask.step_name,
      .doc = "name of the annotations or NVTX ranges that are steps, before their number "
             "[ProfilerStep, iteration, step, ...]" },
    { .name = "cost-table",
      .value = "FILE",
      .text = &ask.cost_table,
      .doc = "write the times of a trace's ops to FILE, for weft sim --cost-table" },
    { .name = "stack-fit",
      .value = "FILE",
      .text = &ask.stack_fit,
      .doc = "write a stack with the efficiencies of a trace's kernels to FILE, for --stack" },
  };
  struct weft_cli_page page = {
    .usage = "weft compare A B [flags] [--json]",
    .doc =
        "Compares two jobs, or a prediction and a measurement, op by op.  A and B are job files, "
        "which are simulated, or timelines (.json, .json.gz) written by --timeline; --executor and "
        "its flags affect job files only.  If both sides run the same program, ops are joined by "
        "rank and number; otherwise each side is summed separately.  The wait of an op is the time "
        "from when lane order and dependencies allow it to start until it starts.  B may also be "
        "a measured trace: a file of the PyTorch profiler (.json, .json.gz), an SQLite export of "
        "Nsight Systems, or a folder with a file per rank.  Then one step of it is compared with "
        "the prediction by class of op and axis, and the page shows where MFU is lost "
        "(docs/profile.md).  --json prints one document (schema weft.compare/1, or weft.profile/1 "
        "for a trace).",
    .examples = examples,
    .flags = flags,
    .n_flags = G_N_ELEMENTS (flags),
    .two = TRUE,
  };
  page.more = weft_cli_options_flags (own, &page.n_more);
  g_auto (weft_cli_input) input = { 0 };
  int status = weft_cli_begin (&page, argc, argv, &input);

  return status == WEFT_CLI_GO_ON ? run (&input, &ask) : status;
}
