#include "core/base/error.h"
#include "core/base/json.h"
#include "core/passes/step.h"
#include "core/report/report.h"
#include "exec_sim/exec_sim.h"
#include "api/inside.h"
#include <string.h>

struct weft_open_simulation {
  const weft_job *job;
  weft_timeline *timeline;
  weft_prediction numbers;
  char *json;
};

const struct weft_exec_ops *
weft_api_predictor (const char *name, weft_error *error)
{
  g_autoptr (GString) known = g_string_new (NULL);

  for (unsigned i = 0; weft_predictors[i]; i++) {
    if (!name || strcmp (name, weft_predictors[i]->name) == 0)
      return weft_predictors[i];
    g_string_append_printf (known, "%s%s", i ? " or " : "", weft_predictors[i]->name);
  }
  weft_api_fail_with (error, WEFT_STATUS_BAD_INPUT, "executor: found \"%s\", wanted %s", name,
                      known->str);
  return NULL;
}

/* A simulation that the library's thread runs. */
struct running {
  const struct weft_exec_ops *ops;
  weft_simulation *into;
  GError *reason;
};

/* Runs the broadcasts of the parameters before the first step, and adds them to the report. */
static gboolean
add_startup (struct running *r, weft_report *report)
{
  const struct weft_exec_options options = { 0 };
  const struct weft_job *job = &r->into->job->plan->job;

  if (!weft_init_broadcasts (job))
    return TRUE;
  g_autoptr (weft_plan) plan = weft_plan_new_broadcast (job, &r->reason);
  g_autoptr (weft_timeline) t = plan ? weft_exec_run (r->ops, plan, &options, &r->reason) : NULL;
  if (t)
    weft_report_add_startup (report, plan, t);
  return t != NULL;
}

static char *
print_json (const weft_report *report)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();

  json_builder_begin_object (b);
  weft_report_to_json (report, b);
  json_builder_end_object (b);
  g_autoptr (JsonNode) root = json_builder_get_root (b);
  return weft_json_print (root, TRUE);
}

static weft_prediction
numbers_of (const weft_report *r)
{
  return (weft_prediction){ .seconds = r->iteration.time_s,
                            .tokens_per_s = r->iteration.tokens_per_s,
                            .mfu = r->iteration.mfu,
                            .compute_s = r->overlap.compute_s,
                            .exposed_communication_s = r->overlap.exposed_communication_s,
                            .bubble_s = r->overlap.bubble_s,
                            .broadcast_params_s = r->startup.broadcast_params_s,
                            .peak_bytes = r->peak_bytes,
                            .fits = r->fits };
}

static void
run_step (void *user)
{
  struct running *r = user;
  const struct weft_exec_options options = { 0 };
  const weft_plan *plan = r->into->job->plan;

  r->into->timeline = weft_exec_run (r->ops, plan, &options, &r->reason);
  if (!r->into->timeline)
    return;
  g_autoptr (weft_report) report = weft_report_new (plan, r->into->timeline);
  if (!add_startup (r, report))
    return;
  r->into->numbers = numbers_of (report);
  r->into->json = print_json (report);
}

weft_simulation *
weft_job_simulate (const weft_job *job, const char *executor, weft_error *error)
{
  struct running r = { 0 };

  if (!weft_api_given ("simulate", "job", job, error) ||
      !(r.ops = weft_api_predictor (executor, error)))
    return NULL;
  r.into = g_new0 (weft_simulation, 1);
  r.into->job = job;
  if (weft_api_in_thread (run_step, &r, error) && !r.reason) {
    weft_api_done (error);
    return r.into;
  }
  if (r.reason)
    weft_api_fail (error, r.reason);
  weft_simulation_close (r.into);
  return NULL;
}

void
weft_simulation_close (weft_simulation *s)
{
  if (!s)
    return;
  g_clear_pointer (&s->timeline, weft_timeline_free);
  g_free (s->json);
  g_free (s);
}

const weft_prediction *
weft_simulation_numbers (const weft_simulation *s)
{
  return s ? &s->numbers : NULL;
}

const char *
weft_simulation_json (const weft_simulation *s)
{
  return s ? s->json : NULL;
}

bool
weft_job_predict (const weft_job *job, const char *executor, weft_prediction *out,
                  weft_error *error)
{
  if (!weft_api_given ("predict", "job", job, error) ||
      !weft_api_given ("predict", "out", out, error))
    return false;
  weft_simulation *s = weft_job_simulate (job, executor, error);
  if (s)
    *out = s->numbers;
  weft_simulation_close (s);
  return s != NULL;
}

/* ----------------------------------------------------------------------- timeline */

static size_t
count_ops (const weft_timeline *t, const weft_plan *plan)
{
  size_t n = 0;

  for (uint32_t row = 0; row < t->n; row++)
    n += plan->role[t->role[row]]->n_op;
  return n;
}

weft_table *
weft_simulation_timeline (const weft_simulation *s, weft_error *error)
{
  if (!weft_api_given ("timeline", "simulation", s, error))
    return NULL;
  const weft_timeline *t = s->timeline;
  const weft_plan *plan = s->job->plan;
  weft_table *table = weft_api_table_new (count_ops (t, plan));
  int64_t *of = weft_api_add_integers (table, "row", "", "row of the simulation");
  int64_t *rank = weft_api_add_integers (table, "rank", "", "first rank that the row stands for");
  int64_t *role = weft_api_add_integers (table, "role", "", "pipeline stage of the rank");
  int64_t *ranks = weft_api_add_integers (table, "ranks", "", "number of ranks of the row");
  int64_t *op = weft_api_add_integers (table, "op", "", "number of the op in the program");
  double *begin = weft_api_add_reals (table, "begin", "s", "begin, since the step began");
  double *end = weft_api_add_reals (table, "end", "s", "end, since the step began");
  size_t at = 0;

  for (uint32_t row = 0; row < t->n; row++) {
    uint32_t n = plan->role[t->role[row]]->n_op;
    for (uint32_t i = 0; i < n; i++, at++) {
      of[at] = row;
      rank[at] = t->rank[row];
      role[at] = t->role[row];
      ranks[at] = t->stands_for[row];
      op[at] = i;
      begin[at] = t->begin[row][i];
      end[at] = t->end[row][i];
    }
  }
  weft_api_done (error);
  return table;
}
