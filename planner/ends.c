#include "planner/ends.h"
#include "core/job/pipeline.h"
#include "planner/shorten.h"
#include <math.h>

/* -------------------------------------------------------------------------- the job */

enum weft_schedule
weft_ends_schedule (const struct weft_schedule_row *row, gboolean chunked)
{
  switch (row->shape) {
  case WEFT_GRID_LOOP:
    return row->splits_backward ? WEFT_SCHEDULE_ZB_H1
           : chunked            ? WEFT_SCHEDULE_BREADTH_FIRST
                                : WEFT_SCHEDULE_1F1B;
  case WEFT_GRID_V:
    return WEFT_SCHEDULE_ZB_V;
  case WEFT_GRID_TWO_WAYS:
    break;
  }
  return WEFT_N_SCHEDULE;
}

/* Resets the settings that change only passes: recompute, transfers between stages, tensor parallel
 * overlap, offload of activations. Also resets the alignment of gathers, and with several chunks
 * that of reductions. These collectives then start as early as they can, so the ends are at most as
 * long. */
static void
reset (union weft_strategy *s, gboolean chunked)
{
  static const enum weft_knob knobs[] = {
    WEFT_KNOB_microbatch_group_size_per_vp_stage,
    WEFT_KNOB_overlap_p2p_comm,
    WEFT_KNOB_overlap_p2p_comm_warmup_flush,
    WEFT_KNOB_recompute_granularity,
    WEFT_KNOB_recompute_method,
    WEFT_KNOB_recompute_num_layers,
    WEFT_KNOB_recompute_modules,
    WEFT_KNOB_tp_comm_overlap,
    WEFT_KNOB_align_param_gather,
    WEFT_KNOB_param_sync_func,
    WEFT_KNOB_cpu_offloading,
    WEFT_KNOB_cpu_offloading_num_layers,
  };

  for (unsigned i = 0; i < G_N_ELEMENTS (knobs); i++)
    s->at[knobs[i]] = weft_strategy_defaults ()->at[knobs[i]];
  if (chunked)
    s->grad_sync_func = weft_strategy_defaults ()->grad_sync_func;
}

gboolean
weft_ends_job (const struct weft_job *job, struct weft_job *one)
{
  const struct weft_schedule_row *row = weft_job_schedule (job);
  gboolean chunked = weft_job_chunks (job) > 1;
  enum weft_schedule schedule = row ? weft_ends_schedule (row, chunked) : WEFT_N_SCHEDULE;

  if (schedule == WEFT_N_SCHEDULE)
    return FALSE;
  *one = *job;
  one->strategy.pipeline_schedule = schedule;
  reset (&one->strategy, chunked);
  one->train.micro_batch_size = 1;
  *one = weft_shorten_to (one, 1);
  return TRUE;
}

/* -------------------------------------------------------------------------- the paths */

/* Whether an op belongs to a pass: passes begin with their first kernel and end with their last
 * (segments.h). */
static gboolean
is_kernel (const weft_program *p, uint32_t op)
{
  return p->op[op].lane == WEFT_LANE_GPU && p->op[op].micro != WEFT_NO_MICRO;
}

/* The least seconds that an op takes. The ops of a group run at the same time, and so add nothing
 * to the first; fused ops are part of the kernel before them. */
static double
least (const weft_program *p, const double *seconds, uint32_t op)
{
  return p->op[op].flags & (WEFT_OP_GROUPED | WEFT_OP_FUSED) ? 0 : seconds[op];
}

/* Seconds from the end of op `from` to the end of the last op that follows it, on its lane or by
 * dependencies. With `from` = -1: from the begin of the program to the begin of op `to`. */
static double
longest (const weft_program *p, const double *seconds, int64_t from, uint32_t to)
{
  g_autofree double *end = g_new (double, p->n_op + 1);
  double lane_end[WEFT_N_LANE], last = 0;

  for (int lane = 0; lane < WEFT_N_LANE; lane++)
    lane_end[lane] = from < 0 ? 0 : -INFINITY;
  if (from >= 0)
    lane_end[p->op[from].lane] = end[from] = 0;
  for (uint32_t op = (uint32_t) (from + 1); op < p->n_op; op++) {
    double begin = lane_end[p->op[op].lane];
    for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++)
      if (p->deps[d] >= (uint32_t) MAX (from, 0))
        begin = fmax (begin, end[p->deps[d]]);
    if (from < 0 && op == to)
      return begin;
    end[op] = lane_end[p->op[op].lane] = begin + least (p, seconds, op);
    last = fmax (last, end[op]);
  }
  return last;
}

static gboolean
measure_role (const weft_program *p, const double *seconds, struct weft_end *end)
{
  int64_t last = -1;
  uint32_t first = 0;

  while (first < p->n_op && !is_kernel (p, first))
    first++;
  for (uint32_t op = first; op < p->n_op; op++)
    if (is_kernel (p, op))
      last = op;
  if (last < 0)
    return FALSE;
  end->before = longest (p, seconds, -1, first);
  end->after = longest (p, seconds, last, p->n_op);
  return TRUE;
}

struct weft_ends *
weft_ends_measure (const struct weft_job *one, weft_placements *placements)
{
  uint32_t n = (uint32_t) one->strategy.pipeline_model_parallel_size;
  struct weft_ends *ends = g_malloc0 (weft_ends_bytes (n));

  if (!weft_job_check (one, NULL))
    return ends;
  g_autoptr (weft_plan) plan = weft_plan_new_draft (one, WEFT_PLAN_PRICED, placements, NULL);
  if (!plan || plan->n_roles != n)
    return ends;
  for (uint32_t r = 0; r < n; r++)
    if (!measure_role (plan->role[r], plan->seconds[r], &ends->rank[r]))
      return ends;
  ends->n = n;
  return ends;
}
