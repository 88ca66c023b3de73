#include "planner/row_plans.h"
#include "core/plan/allocator.h"
#include <math.h>

/* Only software with an arena needs buffer offsets, which are the most expensive part of a plan. */
static enum weft_plan_depth
depth_of (const struct weft_job *job)
{
  return job->stack.live_memory ? WEFT_PLAN_PRICED : WEFT_PLAN_PLACED;
}

weft_row_plans *
weft_row_plans_new (weft_row_job *job, GError **error)
{
  g_autoptr (weft_row_plans) row = g_new0 (weft_row_plans, 1);

  row->job = job;
  weft_shorten (&job->job, &row->shortened);
  for (uint32_t i = 0; i < row->shortened.n; i++)
    if (!(row->plan[i] =
              weft_plan_new_draft (&row->shortened.job[i], depth_of (&job->job), NULL, error)))
      return NULL;
  return g_steal_pointer (&row);
}

void
weft_row_plans_free (weft_row_plans *row)
{
  g_clear_pointer (&row->plan[0], weft_plan_free);
  g_clear_pointer (&row->plan[1], weft_plan_free);
  weft_row_job_free (row->job);
  g_free (row);
}

void
weft_row_plans_price (weft_row_plans *row, const union weft_cluster_fields *cluster,
                      const union weft_stack *stack)
{
  for (uint32_t i = 0; i < row->shortened.n; i++)
    weft_plan_price (row->plan[i], cluster, stack);
}

double
weft_row_plans_seconds (const weft_row_plans *row, const struct weft_exec_ops *executor,
                        GError **error)
{
  struct weft_exec_options folded = { 0 };
  double seconds[2];

  if (row->job->graph == WEFT_MEASURED_GRAPH_STEP &&
      !weft_own_options_set (&folded.own, executor->options, "graph", "true", error))
    return NAN;
  for (uint32_t i = 0; i < row->shortened.n; i++) {
    g_autoptr (weft_timeline) timeline =
        weft_exec_run (executor, row->plan[i], &folded, error);
    if (!timeline)
      return NAN;
    seconds[i] = timeline->seconds;
  }
  return weft_shortened_seconds (&row->shortened, seconds);
}

static double
counted_bytes (const weft_plan *plan, int memory)
{
  double most = 0;

  for (uint32_t role = 0; role < plan->n_roles; role++) {
    double libraries = (double) weft_plan_reserved_bytes (plan, role), used, reserved;
    if (plan->job.stack.live_memory) {
      struct weft_allocated allocated = weft_allocator_run (&plan->job, plan->role[role]);
      used = allocated.peak;
      reserved = weft_allocator_reserved (&plan->job, &allocated, libraries);
    } else
      used = reserved = (double) weft_plan_peak_bytes (plan, role) - libraries;
    if (memory == WEFT_MEMORY_DEVICE)
      most = fmax (most, reserved + libraries);
    else
      most = fmax (most, (memory == WEFT_MEMORY_RESERVED ? reserved : used) +
                             plan->job.stack.workspace_bytes);
  }
  return most;
}

double
weft_row_plans_bytes (const weft_row_plans *row)
{
  double bytes[2];

  for (uint32_t i = 0; i < row->shortened.n; i++)
    bytes[i] = counted_bytes (row->plan[i], row->job->memory);
  return weft_shortened_bytes (&row->shortened, bytes);
}
