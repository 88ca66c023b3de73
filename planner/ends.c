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

/* The program of a rank, and the least seconds that each op takes. */
struct rank {
  const weft_program *p;
  double *seconds;
};

double
weft_least_seconds (const weft_program *p, const double *seconds, uint32_t op)
{
  const struct weft_op *row = &p->op[op];
  gboolean beside =
      row->flags & WEFT_OP_GROUPED && weft_op_info[row->kind].class != WEFT_CLASS_COLLECTIVE;

  return beside || row->flags & WEFT_OP_FUSED ? 0 : seconds[op];
}

static double *
least_seconds (const weft_plan *plan, uint32_t role)
{
  const weft_program *p = plan->role[role];
  double *seconds = g_new (double, p->n_op + 1);

  for (uint32_t op = 0; op < p->n_op; op++)
    seconds[op] = weft_least_seconds (p, plan->seconds[role], op);
  return seconds;
}

/* Seconds from the begin of the program to the begin of each op. Returns an array that the caller
 * frees. */
static double *
begins (const struct rank *r)
{
  const weft_program *p = r->p;
  double *begin = g_new0 (double, p->n_op + 1), lane_end[WEFT_N_LANE] = { 0 };

  for (uint32_t op = 0; op < p->n_op; op++) {
    begin[op] = lane_end[p->op[op].lane];
    for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++)
      begin[op] = fmax (begin[op], begin[p->deps[d]] + r->seconds[p->deps[d]]);
    lane_end[p->op[op].lane] = begin[op] + r->seconds[op];
  }
  return begin;
}

/* Seconds from the end of op `from` to the end of the last op that follows it, on its lane or by
 * dependencies. */
static double
longest_after (const struct rank *r, uint32_t from)
{
  const weft_program *p = r->p;
  g_autofree double *end = g_new (double, p->n_op + 1);
  double lane_end[WEFT_N_LANE], last = 0;

  for (int lane = 0; lane < WEFT_N_LANE; lane++)
    lane_end[lane] = -INFINITY;
  lane_end[p->op[from].lane] = end[from] = 0;
  for (uint32_t op = from + 1; op < p->n_op; op++) {
    double begin = lane_end[p->op[op].lane];
    for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++)
      if (p->deps[d] >= from)
        begin = fmax (begin, end[p->deps[d]]);
    end[op] = lane_end[p->op[op].lane] = begin + r->seconds[op];
    last = fmax (last, end[op]);
  }
  return last;
}

/* Whether an op is the reduction of gradients of a pass. */
static gboolean
is_reduction (const struct weft_op *op)
{
  return op->lane == WEFT_LANE_DP && op->micro != WEFT_NO_MICRO &&
         (op->kind == WEFT_OP_REDUCE_SCATTER || op->kind == WEFT_OP_ALL_REDUCE);
}

/* Forgets the seconds of ops that belong to passes, which differ from those of the job, and of the
 * reductions of passes. */
static void
forget_passes (struct rank *r)
{
  for (uint32_t op = 0; op < r->p->n_op; op++) {
    const struct weft_op *row = &r->p->op[op];
    gboolean transfers = row->lane == WEFT_LANE_DP || row->lane == WEFT_LANE_DP_OUTER ||
                         weft_lane_traits[row->lane].copies;
    if (row->micro != WEFT_NO_MICRO && (!transfers || is_reduction (row)))
      r->seconds[op] = 0;
  }
}

/* Measures the work of a chunk that overlaps passes. */
static void
measure_chunk (const struct rank *whole, const struct rank *bare, const double *begin,
               uint32_t chunk, struct weft_end *end)
{
  const weft_program *p = whole->p;
  int64_t last = -1;

  for (uint32_t op = 0; op < p->n_op; op++) {
    if (p->op[op].chunk != chunk)
      continue;
    if (is_kernel (p, op) && p->op[op].phase == WEFT_PHASE_FORWARD)
      end->gathered = fmax (end->gathered, begin[op]);
    if (is_reduction (&p->op[op])) {
      end->reduced += whole->seconds[op];
      last = op;
    }
  }
  end->tail = last < 0 ? 0 : longest_after (bare, (uint32_t) last);
}

static void
measure_chunks (const struct rank *whole, uint32_t n, struct weft_end *end)
{
  g_autofree double *seconds = g_memdup2 (whole->seconds, whole->p->n_op * sizeof *whole->seconds);
  struct rank bare = { whole->p, seconds };

  forget_passes (&bare);
  g_autofree double *begin = begins (&bare);
  for (uint32_t chunk = 0; chunk < n; chunk++)
    measure_chunk (whole, &bare, begin, chunk, &end[chunk]);
}

/* Measures the ends of the n chunks of a rank. FALSE: the rank has no kernels. */
static gboolean
measure_rank (const struct rank *r, uint32_t n, struct weft_end *end)
{
  const weft_program *p = r->p;
  g_autofree double *begin = begins (r);
  int64_t last = -1;
  uint32_t first = 0;

  while (first < p->n_op && !is_kernel (p, first))
    first++;
  for (uint32_t op = first; op < p->n_op; op++)
    if (is_kernel (p, op))
      last = op;
  if (last < 0)
    return FALSE;
  double after = longest_after (r, (uint32_t) last);
  for (uint32_t chunk = 0; chunk < n; chunk++)
    end[chunk] = (struct weft_end){ .before = begin[first], .after = after };
  measure_chunks (r, n, end);
  return TRUE;
}

struct weft_ends *
weft_ends_measure (const struct weft_job *one, weft_placements *placements)
{
  uint32_t n = (uint32_t) one->strategy.pipeline_model_parallel_size,
           n_chunks = weft_job_chunks (one);
  struct weft_ends *ends = g_malloc0 (weft_ends_bytes (n, n_chunks));

  ends->n_chunks = n_chunks;
  if (!weft_job_check (one, NULL))
    return ends;
  g_autoptr (weft_plan) plan = weft_plan_new_draft (one, WEFT_PLAN_PRICED, placements, NULL);
  if (!plan || plan->n_roles != n)
    return ends;
  for (uint32_t i = 0; i < n; i++) {
    g_autofree double *seconds = least_seconds (plan, i);
    struct rank r = { plan->role[i], seconds };
    if (!measure_rank (&r, n_chunks, &ends->end[i * n_chunks]))
      return ends;
  }
  ends->n = n;
  return ends;
}
