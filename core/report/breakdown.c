#include "core/report/breakdown.h"
#include <math.h>

const char *const weft_work_words[] = { WEFT_WORK_LIST (WEFT_WORD_TEXT) NULL };

const char *
weft_axis_word (unsigned axis)
{
  return axis == WEFT_AXIS_UNKNOWN ? "unknown axis" : weft_lane_words[axis];
}

/* --------------------------------------------------------------------------- ops */

static enum weft_work
work_of_kernel (enum weft_op_kind kind)
{
  static const enum weft_work works[WEFT_N_KERNEL] = {
    [WEFT_KERNEL_POINTWISE] = WEFT_WORK_POINTWISE, [WEFT_KERNEL_NORM] = WEFT_WORK_NORM,
    [WEFT_KERNEL_MATMUL] = WEFT_WORK_MATMUL,       [WEFT_KERNEL_ATTENTION] = WEFT_WORK_ATTENTION,
    [WEFT_KERNEL_SOFTMAX] = WEFT_WORK_SOFTMAX,     [WEFT_KERNEL_QUANTISE] = WEFT_WORK_QUANTISE,
    [WEFT_KERNEL_OPTIMIZER] = WEFT_WORK_OPTIMIZER, [WEFT_KERNEL_DISPATCH] = WEFT_WORK_DISPATCH,
  };

  if (kind == WEFT_OP_ZERO || kind == WEFT_OP_FILL)
    return WEFT_WORK_COPY;
  return works[weft_op_kernel (kind)];
}

enum weft_work
weft_work_of_op (enum weft_op_kind kind)
{
  if (weft_op_info[kind].class == WEFT_CLASS_COMPUTE)
    return work_of_kernel (kind);
  if (weft_op_info[kind].class == WEFT_CLASS_COPY)
    return WEFT_WORK_HOST_COPY;
  switch (weft_op_even (kind)) {
  case WEFT_OP_ALL_REDUCE:
    return WEFT_WORK_ALL_REDUCE;
  case WEFT_OP_REDUCE_SCATTER:
    return WEFT_WORK_REDUCE_SCATTER;
  case WEFT_OP_ALL_GATHER:
    return WEFT_WORK_ALL_GATHER;
  case WEFT_OP_ALL_TO_ALL:
    return WEFT_WORK_ALL_TO_ALL;
  case WEFT_OP_BROADCAST:
    return WEFT_WORK_BROADCAST;
  default:
    return WEFT_WORK_SEND_RECV; /* send, recv, and the shift of a ring */
  }
}

/* ------------------------------------------------------------------------- sweep */

/* An activity starts (`by` = 1) or ends (-1). */
struct edge {
  double at, launched;
  uint8_t work, axis;
  int8_t by;
};

/* Activities that run at the moment of the sweep. */
struct running {
  uint32_t n[WEFT_N_WORK][WEFT_N_AXIS];
  uint32_t kernels, transfers;
};

static int
by_time (const void *a, const void *b)
{
  const struct edge *x = a, *y = b;
  return (x->at > y->at) - (x->at < y->at);
}

static int
by_begin (const void *a, const void *b)
{
  const struct weft_activity *x = a, *y = b;
  return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Records an activity as a call, and returns its two edges within the step. */
static void
add_edges (GArray *edges, struct weft_breakdown *b, const struct weft_activity *a, double begin,
           double end)
{
  struct edge first = { fmax (a->begin, begin), a->launched, a->work, a->axis, 1 };
  struct edge last = { fmin (a->end, end), NAN, a->work, a->axis, -1 };
  struct weft_breakdown_cell *cell = &b->cell[a->work][a->axis];

  if (a->begin >= begin && a->begin < end && !a->silent)
    cell->calls++;
  if (!(last.at > first.at))
    return;
  cell->busy_s += last.at - first.at;
  g_array_append_val (edges, first);
  g_array_append_val (edges, last);
}

/* Gives the seconds of a moment to the kernels that run, or else to the transfers. */
static void
share (struct weft_breakdown *b, const struct running *r, double seconds)
{
  int from = r->kernels ? 0 : WEFT_WORK_ALL_REDUCE;
  int to = r->kernels ? WEFT_WORK_ALL_REDUCE : WEFT_N_WORK;
  double each = seconds / (r->kernels ? r->kernels : r->transfers);

  for (int work = from; work < to; work++)
    for (int axis = 0; axis < WEFT_N_AXIS; axis++)
      if (r->n[work][axis])
        b->cell[work][axis].alone_s += each * r->n[work][axis];
}

/* A moment in which nothing runs, before the activity of `next` starts (NULL: until the end). */
static void
idle (struct weft_breakdown *b, double from, double to, const struct edge *next)
{
  double late = next && !isnan (next->launched) ? next->launched - from : 0;
  double host = CLAMP (late, 0, to - from);

  b->host_s += host;
  b->idle_s += to - from - host;
}

static void
step (struct running *r, const struct edge *e)
{
  uint32_t *group = weft_work_moves (e->work) ? &r->transfers : &r->kernels;

  r->n[e->work][e->axis] += e->by;
  *group += e->by;
}

static void
sweep (struct weft_breakdown *b, GArray *edges, double begin, double end)
{
  struct running *r = g_new0 (struct running, 1);
  double at = begin;

  g_array_sort (edges, by_time);
  for (guint i = 0; i < edges->len; i++) {
    const struct edge *e = &g_array_index (edges, struct edge, i);
    if (e->at > at && (r->kernels || r->transfers))
      share (b, r, e->at - at);
    else if (e->at > at)
      idle (b, at, e->at, e);
    at = fmax (at, e->at);
    step (r, e);
  }
  if (end > at)
    idle (b, at, end, NULL);
  g_free (r);
}

struct weft_breakdown
weft_breakdown_of (GArray *activities, double begin, double end)
{
  struct weft_breakdown b = { .seconds = end - begin };
  g_autoptr (GArray) edges = g_array_new (FALSE, FALSE, sizeof (struct edge));

  g_array_sort (activities, by_begin);
  for (guint i = 0; i < activities->len; i++)
    add_edges (edges, &b, &g_array_index (activities, struct weft_activity, i), begin, end);
  sweep (&b, edges, begin, end);
  return b;
}

/* -------------------------------------------------------------------------- sums */

void
weft_breakdown_add (struct weft_breakdown *sum, const struct weft_breakdown *one, double weight)
{
  sum->seconds += weight * one->seconds;
  sum->host_s += weight * one->host_s;
  sum->idle_s += weight * one->idle_s;
  for (int work = 0; work < WEFT_N_WORK; work++) {
    sum->flops[work] += weight * one->flops[work];
    for (int axis = 0; axis < WEFT_N_AXIS; axis++) {
      sum->cell[work][axis].calls += weight * one->cell[work][axis].calls;
      sum->cell[work][axis].busy_s += weight * one->cell[work][axis].busy_s;
      sum->cell[work][axis].alone_s += weight * one->cell[work][axis].alone_s;
    }
  }
}

void
weft_breakdown_add_flops (struct weft_breakdown *sum, const weft_plan *plan, uint32_t role,
                          double weight)
{
  const weft_program *p = plan->role[role];

  for (uint32_t op = 0; op < p->n_op; op++)
    sum->flops[weft_work_of_op (p->op[op].kind)] += weight * weft_op_flops (p, op);
}

double
weft_breakdown_exposed (const struct weft_breakdown *b, unsigned axis)
{
  double sum = 0;

  for (int work = WEFT_WORK_ALL_REDUCE; work < WEFT_N_WORK; work++)
    sum += b->cell[work][axis].alone_s;
  return sum;
}

double
weft_breakdown_compute (const struct weft_breakdown *b)
{
  double sum = 0;

  for (int work = 0; work < WEFT_WORK_ALL_REDUCE; work++)
    for (int axis = 0; axis < WEFT_N_AXIS; axis++)
      sum += b->cell[work][axis].alone_s;
  return sum;
}

/* ---------------------------------------------------------------------- timeline */

static GArray *
activities_of_row (const weft_plan *plan, const weft_timeline *t, uint32_t row)
{
  const weft_program *p = plan->role[t->role[row]];
  GArray *list = g_array_new (FALSE, FALSE, sizeof (struct weft_activity));

  for (uint32_t op = 0; op < p->n_op; op++) {
    const struct weft_op *o = &p->op[op];
    struct weft_activity a = { t->begin[row][op], t->end[row][op], NAN };
    if (!(a.end > a.begin) || o->lane == WEFT_LANE_HOST)
      continue;
    a.work = weft_work_of_op (o->kind);
    a.axis = o->lane == WEFT_LANE_PP_BACK ? WEFT_LANE_PP : o->lane;
    a.silent = (o->flags & (WEFT_OP_GROUPED | WEFT_OP_FUSED)) != 0;
    g_array_append_val (list, a);
  }
  return list;
}

static void
add_row (struct weft_breakdown *sum, const weft_plan *plan, const weft_timeline *t, uint32_t row,
         double weight)
{
  g_autoptr (GArray) list = activities_of_row (plan, t, row);
  struct weft_breakdown one = weft_breakdown_of (list, 0, t->seconds);
  double late = t->launch_wait ? fmin (t->launch_wait[row], one.idle_s) : 0;

  one.host_s += late;
  one.idle_s -= late;
  weft_breakdown_add (sum, &one, weight);
  weft_breakdown_add_flops (sum, plan, t->role[row], weight);
}

struct weft_breakdown
weft_breakdown_of_timeline (const weft_plan *plan, const weft_timeline *t, const gboolean *roles)
{
  struct weft_breakdown sum = { 0 };
  g_autofree uint32_t *rows = g_new0 (uint32_t, plan->n_roles);
  uint32_t watched = 0;

  for (uint32_t row = 0; row < t->n; row++)
    if (!roles || roles[t->role[row]])
      watched += rows[t->role[row]]++ == 0;
  for (uint32_t row = 0; row < t->n; row++)
    if (rows[t->role[row]])
      add_row (&sum, plan, t, row, 1.0 / rows[t->role[row]] / watched);
  return sum;
}
