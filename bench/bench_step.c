/* Planning and simulation benchmark: what one large step costs (GPT-3 175B on 1024 GPUs, 16
 * pipeline stages, 192 microbatches). Each row measures a part of the work in a process of its own:
 * the time of this part alone, and the peak memory of this part and of all parts that it needs
 * before. Each measurement is repeated and the best one is shown, because other programs can only
 * add time. The plan need not fit into the memory of the GPUs. */
#include "core/base/json.h"
#include "core/plan/check.h"
#include "core/base/error.h"
#include "core/passes/step.h"
#include "exec_sim/exec_sim.h"
#include <errno.h>
#include <json-glib/json-glib.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const job_flags[][2] = {
  { "model", "gpt3-175b" },
  { "topology", "dgx-h100" },
  { "gpus", "1024" },
  { "pipeline-model-parallel-size", "16" },
  { "global-batch-size", "12288" },
  { "use-distributed-optimizer", "true" },
  { "overlap-grad-reduce", "true" },
  { "overlap-param-gather", "true" },
};

/* Figures that a measuring process sends to its parent. */
struct figures {
  double seconds;
  uint64_t ops, activities;
  char error[200];
};

struct result {
  struct figures best;
  double megabytes;
};

typedef gboolean (*measure) (struct figures *out, GError **error);

static double
now (void)
{
  return g_get_monotonic_time () * 1e-6;
}

static uint64_t
count_ops (const weft_plan *plan)
{
  uint64_t ops = 0;

  for (uint32_t role = 0; role < plan->n_roles; role++)
    ops += plan->role[role]->n_op;
  return ops;
}

static gboolean
make_job (struct weft_job *job, GError **error)
{
  g_autoptr (weft_settings) settings = weft_settings_new ();

  for (unsigned i = 0; i < G_N_ELEMENTS (job_flags); i++) {
    const char *section, *key;
    gboolean boolean;
    if (!weft_job_flag (job_flags[i][0], &section, &key, &boolean))
      return weft_job_unknown_flag (job_flags[i][0], error);
    weft_settings_add (settings, section, key, job_flags[i][1], job_flags[i][0]);
  }
  return weft_job_build (settings, job, error);
}

static weft_plan *
make_plan (GError **error)
{
  struct weft_job job;

  return make_job (&job, error) ? weft_plan_new (&job, error) : NULL;
}

/* -------------------------------------------------------------------------- stages */

static gboolean
plan_whole (struct figures *out, GError **error)
{
  double start = now ();
  g_autoptr (weft_plan) plan = make_plan (error);

  out->seconds = now () - start;
  out->ops = plan ? count_ops (plan) : 0;
  return plan != NULL;
}

static gboolean
build_programs (struct figures *out, GError **error)
{
  g_autoptr (weft_plan) plan = make_plan (error);

  if (!plan)
    return FALSE;
  double start = now ();
  for (uint32_t role = 0; role < plan->n_roles; role++) {
    g_autoptr (weft_program) p = weft_step_build (&plan->job, &plan->mesh, role);
    out->ops += p->n_op;
  }
  out->seconds = now () - start;
  return TRUE;
}

static gboolean
plan_memory (struct figures *out, GError **error)
{
  g_autoptr (weft_plan) plan = make_plan (error);

  if (!plan)
    return FALSE;
  for (uint32_t role = 0; role < plan->n_roles; role++) {
    g_autoptr (weft_program) p = weft_step_build (&plan->job, &plan->mesh, role);
    struct weft_memory memory = { { 0 } };
    double start = now ();
    weft_memory_plan (p, plan->seconds[role], G_MAXUINT64, &memory);
    out->seconds += now () - start;
    out->ops += p->n_op;
  }
  return TRUE;
}

static gboolean
check_plan (struct figures *out, GError **error)
{
  g_autoptr (weft_plan) plan = make_plan (error);

  if (!plan)
    return FALSE;
  out->ops = count_ops (plan);
  double start = now ();
  gboolean no_error = weft_plan_check (plan, error);
  out->seconds = now () - start;
  return no_error;
}

static gboolean
execute (const struct weft_exec_ops *ops, gboolean unfolded, double start, struct figures *out,
         GError **error)
{
  const union weft_sim_options own = { { .unfolded = TRUE } };
  struct weft_exec_options options = { 0 };
  g_autoptr (weft_plan) plan = make_plan (error);

  if (!plan)
    return FALSE;
  if (unfolded)
    options.own = weft_own_options_of (weft_exec_sim.options, own.at);
  if (start == 0)
    start = now ();
  g_autoptr (weft_timeline) t = weft_exec_run (ops, plan, &options, error);
  out->seconds = now () - start;
  if (!t)
    return FALSE;
  out->ops = t->n_ops;
  out->activities = t->n_activities;
  return TRUE;
}

static gboolean
run_clock (struct figures *out, GError **error)
{
  return execute (&weft_exec_clock, FALSE, 0, out, error);
}

static gboolean
simulate_folded (struct figures *out, GError **error)
{
  return execute (&weft_exec_sim, FALSE, 0, out, error);
}

static gboolean
simulate_unfolded (struct figures *out, GError **error)
{
  return execute (&weft_exec_sim, TRUE, 0, out, error);
}

static gboolean
whole_folded (struct figures *out, GError **error)
{
  return execute (&weft_exec_sim, FALSE, now (), out, error);
}

static gboolean
whole_unfolded (struct figures *out, GError **error)
{
  return execute (&weft_exec_sim, TRUE, now (), out, error);
}

/* Start-up time of a command that computes nothing: loading, linking, printing. */
static gboolean
start_up (struct figures *out, GError **error)
{
  const char *argv[] = { WEFT_BINARY, "knobs", NULL };
  int status;

  double start = now ();
  if (!g_spawn_sync (NULL, (char **) argv, NULL, G_SPAWN_STDOUT_TO_DEV_NULL, NULL, NULL, NULL, NULL,
                     &status, error))
    return FALSE;
  out->seconds = now () - start;
  return g_spawn_check_wait_status (status, error);
}

/* The measured stages. The limits are requirements of the project (seconds, megabytes); 0: no
 * limit. */
static const struct stage {
  const char *name, *doc;
  measure run;
  double seconds_limit, megabytes_limit;
} stages[] = {
  { "build", "the program of every role", build_programs, 0, 0 },
  { "memory", "offsets of all buffers", plan_memory, 0, 0 },
  { "check", "the proofs", check_plan, 0, 0 },
  { "plan", "job, build, prices, memory, check", plan_whole, 0, 0 },
  { "clock", "closed formulas", run_clock, 0, 0 },
  { "sim", "SimGrid, folded", simulate_folded, 0, 0 },
  { "sim unfolded", "SimGrid, every rank", simulate_unfolded, 0, 0 },
  { "all", "plan and folded simulation", whole_folded, 1, 200 },
  { "all unfolded", "plan and simulation of every rank", whole_unfolded, 15, 0 },
  { "weft knobs", "start-up of the command", start_up, 0.015, 0 },
};

/* ---------------------------------------------------------------------- processes */

static void
run_and_report (const struct stage *stage, int to)
{
  struct figures out = { 0 };
  g_autoptr (GError) error = NULL;

  if (!stage->run (&out, &error))
    g_strlcpy (out.error, error->message, sizeof out.error);
  _exit (write (to, &out, sizeof out) == sizeof out ? 0 : 1);
}

static gboolean
measure_once (const struct stage *stage, struct result *result, GError **error)
{
  int ends[2], status;
  struct rusage usage;

  if (pipe (ends) != 0)
    return weft_bad_input (error, "pipe: %s", g_strerror (errno));
  pid_t child = fork ();
  if (child == 0)
    run_and_report (stage, ends[1]);
  close (ends[1]);
  gboolean told = read (ends[0], &result->best, sizeof result->best) == sizeof result->best;
  close (ends[0]);
  if (child < 0 || wait4 (child, &status, 0, &usage) != child || !told || status != 0)
    return weft_bad_input (error, "%s: the process did not finish", stage->name);
  if (*result->best.error)
    return weft_bad_input (error, "%s: %s", stage->name, result->best.error);
  result->megabytes = usage.ru_maxrss * 1024e-6;
  return TRUE;
}

static gboolean
measure_best (const struct stage *stage, int runs, struct result *best, GError **error)
{
  if (!measure_once (stage, best, error))
    return FALSE;
  for (int i = 1; i < runs; i++) {
    struct result next = { 0 };
    if (!measure_once (stage, &next, error))
      return FALSE;
    if (next.best.seconds < best->best.seconds)
      *best = next;
  }
  return TRUE;
}

/* ------------------------------------------------------------------------- output */

static void
print_share (double value, double limit)
{
  if (limit > 0)
    printf (" %8.0f%%", 100 * value / limit);
  else
    printf (" %9s", "-");
}

static void
print_row (const struct stage *stage, const struct result *r)
{
  printf ("%-13s %9.1f %10" G_GUINT64_FORMAT " %10" G_GUINT64_FORMAT, stage->name,
          1e3 * r->best.seconds, r->best.ops, r->best.activities);
  if (r->best.ops)
    printf (" %10.2f", 1e-6 * r->best.ops / r->best.seconds);
  else
    printf (" %10s", "-");
  printf (" %8.0f", r->megabytes);
  print_share (r->best.seconds, stage->seconds_limit);
  print_share (r->megabytes, stage->megabytes_limit);
  printf ("  %s\n", stage->doc);
  fflush (stdout);
}

static void
add_row (JsonBuilder *builder, const struct stage *stage, const struct result *r)
{
  json_builder_begin_object (builder);
  weft_json_text (builder, "stage", stage->name);
  weft_json_real (builder, "seconds", r->best.seconds);
  weft_json_real (builder, "ops", r->best.ops);
  weft_json_real (builder, "activities", r->best.activities);
  weft_json_real (builder, "peak_megabytes", r->megabytes);
  if (stage->seconds_limit > 0)
    weft_json_real (builder, "limit_seconds", stage->seconds_limit);
  if (stage->megabytes_limit > 0)
    weft_json_real (builder, "limit_megabytes", stage->megabytes_limit);
  json_builder_end_object (builder);
}

static void
print_json (JsonBuilder *builder)
{
  g_autoptr (JsonNode) root = json_builder_get_root (builder);
  g_autofree char *text = json_to_string (root, TRUE);

  puts (text);
}

static gboolean
measure_all (int runs, gboolean json, GError **error)
{
  g_autoptr (JsonBuilder) builder = json_builder_new ();

  if (!json)
    printf ("%-13s %9s %10s %10s %10s %8s %9s %9s\n", "stage", "ms", "ops", "activities", "Mops/s",
            "MB peak", "of limit", "of limit");
  json_builder_begin_array (builder);
  for (unsigned i = 0; i < G_N_ELEMENTS (stages); i++) {
    struct result best = { 0 };
    if (!measure_best (&stages[i], runs, &best, error))
      return FALSE;
    add_row (builder, &stages[i], &best);
    if (!json)
      print_row (&stages[i], &best);
  }
  json_builder_end_array (builder);
  if (json)
    print_json (builder);
  return TRUE;
}

int
main (int argc, char **argv)
{
  int runs = 3;
  gboolean json = FALSE;
  const GOptionEntry entries[] = {
    { "json", 0, 0, G_OPTION_ARG_NONE, &json, "print one JSON array", NULL },
    { "runs", 0, 0, G_OPTION_ARG_INT, &runs, "runs of each stage; the quickest counts (3)", "N" },
    { NULL },
  };
  g_autoptr (GOptionContext) context = g_option_context_new (NULL);
  g_autoptr (GError) error = NULL;

  g_option_context_set_summary (context, "Times the stages of one step: GPT-3 175B, 1024 GPUs.");
  g_option_context_add_main_entries (context, entries, NULL);
  if (g_option_context_parse (context, &argc, &argv, &error) && measure_all (runs, json, &error))
    return 0;
  fprintf (stderr, "bench_step: %s\n", error->message);
  return weft_error_exit_status (error);
}
