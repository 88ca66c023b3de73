#include "planner/row_plans.h"
#include "core/base/error.h"
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
  int64_t microbatches = weft_job_microbatches (&job->job);

  row->job = job;
  if (microbatches % job->runs) {
    weft_bad_input (error, "measured.runs = %d must divide %" G_GINT64_FORMAT " microbatches",
                    job->runs, microbatches);
    return NULL;
  }
  struct weft_job run = weft_shorten_to (&job->job, microbatches / job->runs);
  weft_shorten (&run, &row->shortened);
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

/* Seconds of Adam's kernels on the stage where they take longest. */
static double
update_seconds (const weft_plan *plan)
{
  double most = 0;

  for (uint32_t role = 0; role < plan->n_roles; role++) {
    double sum = 0;
    for (uint32_t op = 0; op < plan->role[role]->n_op; op++)
      sum += plan->role[role]->op[op].kind == WEFT_OP_ADAM ? plan->seconds[role][op] : 0;
    most = fmax (most, sum);
  }
  return most;
}

/* Seconds from the first forward pass of a row of the timeline to the end of its step, without the
 * time in which it waits for all ranks: collectives of lane world check gradients, and sum up
 * metrics. */
static double
busy_seconds (const weft_plan *plan, const weft_timeline *timeline, uint32_t row)
{
  const weft_program *p = plan->role[timeline->role[row]];
  double begin = timeline->seconds, latest = 0, waits = 0;

  for (uint32_t i = 0; i < p->n_op; i++) {
    const struct weft_op *op = &p->op[i];
    if (op->lane == WEFT_LANE_GPU && op->phase == WEFT_PHASE_FORWARD && op->micro == 0 &&
        op->kind != WEFT_OP_ZERO)
      begin = fmin (begin, timeline->begin[row][i]);
    if (op->lane == WEFT_LANE_WORLD)
      waits += fmax (0, timeline->begin[row][i] - latest);
    latest = fmax (latest, timeline->end[row][i]);
  }
  return timeline->seconds - begin - waits;
}

/* The time from step to step: that of the rank that is busy longest, if the steps overlap. */
static double
step_seconds (const weft_row_plans *row, const weft_plan *plan, const weft_timeline *timeline)
{
  double most = 0;

  if (row->job->steps != WEFT_STEPS_OVERLAPPED)
    return timeline->seconds;
  for (uint32_t i = 0; i < timeline->n; i++)
    most = fmax (most, busy_seconds (plan, timeline, i));
  return most;
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
    g_autoptr (weft_timeline) timeline = weft_exec_run (executor, row->plan[i], &folded, error);
    if (!timeline)
      return NAN;
    seconds[i] = step_seconds (row, row->plan[i], timeline);
  }
  return row->job->runs * weft_shortened_seconds (&row->shortened, seconds) -
         (row->job->runs - 1) * update_seconds (row->plan[0]);
}

/* Memory of the role that needs most, of which the source counts the part `row->memory` in the
 * steps `row->peak`. */
static double
counted_bytes (const weft_row_job *row, const weft_plan *plan)
{
  int memory = row->memory;
  double most = 0;

  for (uint32_t role = 0; role < plan->n_roles; role++) {
    double libraries = (double) weft_plan_reserved_bytes (plan, role), used, reserved;
    if (plan->job.stack.live_memory) {
      struct weft_allocated allocated =
          row->peak == WEFT_PEAK_FIRST_STEP
              ? weft_allocator_run_first (&plan->job, plan->role[role])
              : weft_allocator_run (&plan->job, plan->role[role]);
      used = allocated.peak;
      reserved = weft_allocator_reserved (&plan->job, plan->role[role], &allocated, libraries);
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
    bytes[i] = counted_bytes (row->job, row->plan[i]);
  return weft_shortened_bytes (&row->shortened, bytes);
}
