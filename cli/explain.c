#include "cli/ask.h"
#include "cli/cli.h"
#include "cli/critical_page.h"
#include "cli/op_facts_page.h"
#include "cli/sure.h"
#include "core/base/error.h"
#include "core/report/explain.h"
#include "core/base/json.h"
#include "core/base/units.h"
#include "exec_sim/exec_sim.h"
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------------ text */

static char *
value_text (const struct weft_explain_row *row, double value)
{
  if (strcmp (row->unit, "%") == 0)
    return g_strdup_printf ("%.1f %%", 100 * value);
  if (*row->unit == '\0' && value < 1e6)
    return g_strdup_printf ("%.0f", value);
  return g_strchomp (weft_units_human (value, row->unit));
}

static void
print_row (const struct weft_explain_row *row, int width)
{
  g_autofree char *value = value_text (row, row->value);

  int used = printf ("  %s%-*s  %10s  ", row->sum ? "= " : "  ", width, row->what, value);
  g_autofree char *all = row->count > 1 ? value_text (row, row->value * row->count) : NULL;
  g_autofree char *text = all ? g_strdup_printf ("%s; x %u = %s", row->formula, row->count, all)
                              : g_strdup (row->formula);
  weft_cli_print_beside (text, used, weft_cli_columns ());
}

static void
print_section (const struct weft_explain_section *section)
{
  int width = 0;

  if (section->row->len == 0)
    return;
  for (guint i = 0; i < section->row->len; i++) {
    const char *what = g_array_index (section->row, struct weft_explain_row, i).what;
    width = MAX (width, (int) strlen (what));
  }
  int used = printf ("\n%s  ", section->title) - 1;
  g_autofree char *source = g_strdup_printf ("(%s)", section->source);
  weft_cli_print_beside (source, used, weft_cli_columns ());
  for (guint i = 0; i < section->row->len; i++)
    print_row (&g_array_index (section->row, struct weft_explain_row, i), width);
}

static void
print_text (const weft_report *report, const weft_explain *explain, weft_cli_sure *sure,
            const struct weft_cli_answer *answer)
{
  g_autoptr (GString) out = g_string_new (NULL);

  weft_report_print_job (&report->plan->job, out);
  weft_cli_print_beside (g_strchomp (out->str), 0, weft_cli_columns ());
  if (report->plan->n_roles > 1)
    printf ("stage %u of %u\n", explain->role, report->plan->n_roles);
  for (int topic = 0; topic < WEFT_N_EXPLAIN; topic++)
    print_section (&explain->section[topic]);
  weft_cli_print_sure (sure, answer);
}

/* ------------------------------------------------------------------------ JSON */

static void
build_row (JsonBuilder *b, const struct weft_explain_row *row)
{
  json_builder_begin_object (b);
  weft_json_text (b, "what", row->what);
  weft_json_text (b, "formula", row->formula);
  weft_json_real (b, "value", row->value);
  weft_json_text (b, "unit", strcmp (row->unit, "%") == 0 ? "fraction" : row->unit);
  if (row->count > 0)
    weft_json_int (b, "count", row->count);
  weft_json_bool (b, "sum", row->sum);
  json_builder_end_object (b);
}

static void
print_json (const weft_report *report, const weft_explain *explain, weft_cli_sure *sure,
            const struct weft_cli_answer *answer)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();

  json_builder_begin_object (b);
  weft_json_text (b, "schema", "weft.explain/1");
  json_builder_set_member_name (b, "job");
  weft_report_build_job (&report->plan->job, b);
  weft_json_int (b, "role", explain->role);
  weft_json_array (b, "sections");
  for (int topic = 0; topic < WEFT_N_EXPLAIN; topic++) {
    const struct weft_explain_section *section = &explain->section[topic];
    json_builder_begin_object (b);
    weft_json_text (b, "key", section->key);
    weft_json_text (b, "title", section->title);
    weft_json_text (b, "source", section->source);
    weft_json_array (b, "rows");
    for (guint i = 0; i < section->row->len; i++)
      build_row (b, &g_array_index (section->row, struct weft_explain_row, i));
    json_builder_end_array (b);
    json_builder_end_object (b);
  }
  json_builder_end_array (b);
  weft_cli_add_sure (sure, b, answer);
  json_builder_end_object (b);
  weft_cli_print_json (b);
}

/* --------------------------------------------------------------------- command */

static gboolean
read_role (const char *text, const weft_plan *plan, int64_t *role, GError **error)
{
  *role = 0;
  if (text && !weft_cli_number ("role", "a stage", text, 0, role, error))
    return FALSE;
  if (*role >= plan->n_roles)
    return weft_bad_input (error, "--role: found %" G_GINT64_FORMAT ", wanted a stage from 0 to %u",
                           *role, plan->n_roles - 1);
  return TRUE;
}

static int
show_critical (const weft_plan *plan, const weft_timeline *timeline, gboolean graph, gboolean json)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_critical) critical = weft_critical_new (plan, timeline, graph, &error);

  if (!critical)
    return weft_cli_fail (error);
  (json ? weft_cli_critical_print_json : weft_cli_critical_print) (critical, plan, timeline);
  return 0;
}

/* The op with this number or, if the text is no number, the first whose label contains it. */
static gboolean
find_op (const char *text, const weft_program *p, uint32_t *op, GError **error)
{
  char *end;
  guint64 number = g_ascii_strtoull (text, &end, 10);

  if (g_ascii_isdigit (*text) && !*end && number < p->n_op) {
    *op = (uint32_t) number;
    return TRUE;
  }
  for (*op = 0; *op < p->n_op && *text && *end; ++*op) {
    g_autofree char *label = weft_op_label (p, *op);
    if (strstr (label, text))
      return TRUE;
  }
  return weft_bad_input (error,
                         "--op: found \"%s\", wanted the number of an op of stage %u, 0 to %u, or "
                         "a part of its label; weft program lists them",
                         text, p->role, p->n_op - 1);
}

static int
show_op (const weft_plan *plan, int64_t role, const char *text, gboolean json)
{
  g_autoptr (GError) error = NULL;
  uint32_t op;

  if (!find_op (text, plan->role[role], &op, &error))
    return weft_cli_fail (error);
  (json ? weft_cli_op_facts_json : weft_cli_op_facts_print) (plan, (uint32_t) role, op);
  return 0;
}

/* What the flags ask for. */
struct explain_ask {
  const char *role, *op;
  gboolean graph, critical;
};

static int
run (const weft_cli_input *input, const struct explain_ask *ask)
{
  gboolean graph = ask->graph;
  const union weft_sim_options own = { { .graph = graph } };
  const struct weft_exec_options options = { .own = weft_own_options_of (weft_exec_sim.options,
                                                                         own.at) };
  g_autoptr (GError) error = NULL;
  struct weft_job job;
  int64_t role;

  if (!weft_cli_job (input, &job, &error))
    return weft_cli_fail (error);
  g_autoptr (weft_cli_sure) sure = weft_cli_sure_new (&error);
  g_autoptr (weft_plan) plan = sure ? weft_plan_new (&job, &error) : NULL;
  if (!plan || !read_role (ask->role, plan, &role, &error))
    return weft_cli_fail (error);
  if (ask->op)
    return show_op (plan, role, ask->op, input->json);
  g_autoptr (weft_timeline) timeline = weft_exec_run (&weft_exec_sim, plan, &options, &error);
  if (!timeline)
    return weft_cli_fail (error);
  if (ask->critical)
    return show_critical (plan, timeline, graph, input->json);
  g_autoptr (weft_report) report = weft_report_new (plan, timeline);
  g_autoptr (weft_explain) explain = weft_explain_new (report, role);
  const struct weft_cli_answer answer = { &plan->job, report->iteration.time_s,
                                          (double) report->peak_bytes };
  if (input->json)
    print_json (report, explain, sure, &answer);
  else
    print_text (report, explain, sure, &answer);
  return 0;
}

int
weft_cli_explain (int argc, char **argv)
{
  struct explain_ask ask = { 0 };
  const struct weft_cli_flag flags[] = {
    { .name = "role", .value = "N", .text = &ask.role, .doc = "the pipeline stage to explain [0]" },
    { .name = "op",
      .value = "OP",
      .text = &ask.op,
      .doc = "one op instead, by its number or a part of its label (\"L3 qkv m0\"): its formulas, "
             "the rates and their sources, its buffers" },
    { .name = "critical-path",
      .on = &ask.critical,
      .doc = "print what would shorten the step instead, and by how much" },
    { .name = "graph", .on = &ask.graph, .doc = WEFT_OPTION_PREDICTED_GRAPH_DOC },
  };
  const struct weft_cli_page page = {
    .usage = "weft explain [JOB] [flags] [--json]",
    .doc =
        "Prints the numbers behind a prediction, formula by formula: batch, parameters, model "
        "state per rank, every kind of communication, the kernels of a layer, the bubble, the step "
        "as a sum, and the memory of a stage.  Each section names the source of its formulas.",
    .examples = "  weft explain --model llama3-8b --topology dgx-h100 --use-megatron-fsdp\n"
                "  weft explain job.ini --role 1 --json\n"
                "  weft explain job.ini --op \"L3 fc1\"\n"
                "  weft explain --model llama3-8b --topology dgx-h100 --critical-path\n",
    .flags = flags,
    .n_flags = G_N_ELEMENTS (flags),
    .job = TRUE,
  };
  g_auto (weft_cli_input) input = { 0 };
  int status = weft_cli_begin (&page, argc, argv, &input);

  return status == WEFT_CLI_GO_ON ? run (&input, &ask) : status;
}
