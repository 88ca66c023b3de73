#include "cli/disturbed.h"
#include "exec_sim/exec_sim.h"

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

/* Simulates the runs with jitter after the first and sets the spread of all. */
static gboolean
run_again (const weft_plan *plan, const union weft_sim_options *first, int64_t runs,
           weft_disturbance *d, GError **error)
{
  union weft_sim_options own = *first;
  g_autofree double *seconds = g_new (double, runs);

  seconds[0] = d->step_s;
  own.waits = 0;
  for (int64_t run = 1; run < runs; run++) {
    own.jitter_seed = first->jitter_seed + run;
    g_autoptr (weft_timeline) t = simulate (plan, &own, error);
    if (!t)
      return FALSE;
    seconds[run] = t->seconds;
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
