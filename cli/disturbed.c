#include "cli/disturbed.h"
#include "core/base/error.h"
#include "exec_sim/exec_sim.h"
#include "planner/workers.h"

static void
read_options (const struct weft_exec_options *options, union weft_sim_options *own)
{
  weft_own_options_read (&options->own, weft_exec_sim.options, own->at);
}

static struct weft_exec_options
with_options (const union weft_sim_options *own)
{
  return (struct weft_exec_options){ .own = weft_own_options_of (weft_exec_sim.options, own->at) };
}

gboolean
weft_cli_is_disturbed (const struct weft_exec_ops *executor,
                       const struct weft_exec_options *options)
{
  union weft_sim_options own;

  if (executor != &weft_exec_sim)
    return FALSE;
  read_options (options, &own);
  return *g_quark_to_string ((GQuark) own.straggler) || *g_quark_to_string ((GQuark) own.link) ||
         own.jitter > 0;
}

gboolean
weft_cli_has_jitter (const struct weft_exec_ops *executor, const struct weft_exec_options *options)
{
  union weft_sim_options own;

  if (executor != &weft_exec_sim)
    return FALSE;
  read_options (options, &own);
  return own.jitter > 0;
}

static weft_timeline *
simulate (const weft_plan *plan, const union weft_sim_options *own, GError **error)
{
  const struct weft_exec_options options = with_options (own);

  return weft_exec_run (&weft_exec_sim, plan, &options, error);
}

static weft_timeline *
simulate_undisturbed (const weft_plan *plan, const union weft_sim_options *disturbed,
                      GError **error)
{
  union weft_sim_options own = *disturbed;

  own.straggler = own.link = g_quark_from_static_string ("");
  own.jitter = 0;
  return simulate (plan, &own, error);
}

/* The runs with jitter after the first. */
struct runs {
  const weft_plan *plan;
  const union weft_sim_options *first;
};

struct outcome {
  double seconds;
  char message[200]; /* error message; "": no error */
};

static void
run_one (void *user, uint32_t task, void *result)
{
  const struct runs *runs = user;
  struct outcome *outcome = result;
  union weft_sim_options own = *runs->first;
  g_autoptr (GError) error = NULL;

  own.waits = 0;
  own.jitter_seed = runs->first->jitter_seed + 1 + task;
  g_autoptr (weft_timeline) t = simulate (runs->plan, &own, &error);
  if (t)
    outcome->seconds = t->seconds;
  else
    g_strlcpy (outcome->message, error->message, sizeof outcome->message);
}

/* Simulates the runs with jitter after the first, in several processes, and sets the spread of
 * all. */
static gboolean
run_again (const weft_plan *plan, const union weft_sim_options *first, int64_t runs,
           weft_disturbance *d, GError **error)
{
  struct runs user = { plan, first };
  uint32_t n = (uint32_t) runs - 1;
  g_autofree double *seconds = g_new (double, runs);
  g_autofree struct outcome *outcome = g_new0 (struct outcome, runs);
  g_autofree gboolean *done = g_new0 (gboolean, runs);
  const struct weft_workers tasks = { .n_tasks = n,
                                      .result_bytes = sizeof *outcome,
                                      .run = run_one,
                                      .user = &user };

  if (n && !weft_workers_run (&tasks, outcome, done, error))
    return FALSE;
  seconds[0] = d->step_s;
  for (uint32_t i = 0; i < n; i++) {
    if (!done[i] || *outcome[i].message)
      return weft_run_error (error, "run %u with --jitter: %s", i + 2,
                             done[i] ? outcome[i].message : "its process ended early");
    seconds[i + 1] = outcome[i].seconds;
  }
  weft_disturbance_set_runs (d, seconds, (uint32_t) runs);
  return TRUE;
}

weft_disturbance *
weft_cli_disturbed (const weft_plan *plan, const struct weft_exec_options *options, int64_t runs,
                    weft_timeline **timeline, GError **error)
{
  union weft_sim_options own;

  read_options (options, &own);
  own.waits = 1;
  /* the disturbed step first, because it may be refused */
  g_autoptr (weft_timeline) disturbed = simulate (plan, &own, error);
  g_autoptr (weft_timeline) undisturbed =
      disturbed ? simulate_undisturbed (plan, &own, error) : NULL;
  if (!undisturbed)
    return NULL;
  g_autoptr (weft_disturbance) d = weft_disturbance_new (undisturbed, disturbed, &plan->mesh);
  d->straggler = g_quark_to_string ((GQuark) own.straggler);
  d->link = g_quark_to_string ((GQuark) own.link);
  d->jitter = own.jitter;
  if (own.jitter > 0 && !run_again (plan, &own, runs, d, error))
    return NULL;
  *timeline = g_steal_pointer (&disturbed);
  return g_steal_pointer (&d);
}
