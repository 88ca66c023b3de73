#include "interop/traces/costs.h"
#include "interop/traces/axes.h"
#include <math.h>
#include <string.h>

/* The sum over the joined calls of a shape. */
struct sum {
  struct weft_measurement row; /* kind and shape; seconds are set at the end */
  double seconds, least;
  uint64_t n;
};

struct joiner {
  const weft_plan *plan;
  const weft_trace *trace;
  GArray *sum; /* struct sum */
  weft_costs *costs;
};

/* ------------------------------------------------------------------------- samples */

static uint32_t
ranks_of_op (const weft_plan *plan, const struct weft_op *op)
{
  switch (weft_op_info[op->kind].class) {
  case WEFT_CLASS_COLLECTIVE:
    return weft_mesh_group_size (&plan->mesh, op->group);
  case WEFT_CLASS_P2P:
    return 2;
  case WEFT_CLASS_COPY:
    return 1;
  default:
    return plan->mesh.n_ranks;
  }
}

static void
add_sample (struct joiner *j, const weft_program *p, uint32_t op, double seconds)
{
  struct sum new = { .row = { .kind = p->op[op].kind,
                              .ranks = ranks_of_op (j->plan, &p->op[op]),
                              .shape = *weft_op_shape (p, op) },
                     .least = INFINITY };
  struct sum *sum = NULL;

  for (guint i = 0; i < j->sum->len && !sum; i++) {
    struct sum *s = &g_array_index (j->sum, struct sum, i);
    if (s->row.kind == new.row.kind && s->row.ranks == new.row.ranks &&
        !memcmp (&s->row.shape, &new.row.shape, sizeof new.row.shape))
      sum = s;
  }
  if (!sum) {
    g_array_append_val (j->sum, new);
    sum = &g_array_index (j->sum, struct sum, j->sum->len - 1);
  }
  sum->n++;
  sum->seconds += seconds;
  sum->least = fmin (sum->least, seconds);
}

static double
seconds_of (const struct weft_trace_kernel *k)
{
  return (double) (k->end - k->begin) * 1e-9;
}

/* --------------------------------------------------------------------------- shapes */

/* Reads the sizes of a matrix product from the shapes of its operands, such as "aten::mm
 * [[1024,64],[64,192]] ...". Skips the first operand of addmm, which is a vector. */
static gboolean
read_product (const char *text, uint64_t *size)
{
  const char *at = strchr (text, '[');
  unsigned n = 0;

  if (!g_str_has_prefix (text, "aten::mm ") && !g_str_has_prefix (text, "aten::addmm "))
    return FALSE;
  while (at && n < 2 && (at = strchr (at + 1, '['))) {
    char *end;
    uint64_t rows = g_ascii_strtoull (at + 1, &end, 10);
    if (*end != ',')
      continue;
    size[n + 1] = g_ascii_strtoull (end + 1, &end, 10);
    if (n++ == 0)
      size[0] = rows;
    else if (rows != size[1])
      return FALSE;
  }
  return n == 2;
}

/* Sets size[] to the sizes of the matrix product of an op: rows, inner dimension, columns. */
static gboolean
product_of_op (const weft_program *p, uint32_t op, uint64_t *size)
{
  const uint64_t *d = weft_op_shape (p, op)->dim; /* m, n, k */

  if (!weft_op_is_product (p->op[op].kind))
    return FALSE;
  switch (weft_op_info[p->op[op].kind].product) {
  case WEFT_PRODUCT_DGRAD:
    size[0] = d[0], size[1] = d[1], size[2] = d[2];
    return TRUE;
  case WEFT_PRODUCT_WGRAD:
    size[0] = d[1], size[1] = d[0], size[2] = d[2];
    return TRUE;
  default:
    size[0] = d[0], size[1] = d[2], size[2] = d[1];
    return TRUE;
  }
}

/* Whether a recorded call can belong to an op, by its recorded sizes or bytes. */
static gboolean
is_call_of (const struct joiner *j, const struct weft_trace_kernel *k, const weft_program *p,
            uint32_t op)
{
  uint64_t call[3], own[3];

  if (k->shape)
    return read_product (j->trace->shape->pdata[k->shape - 1], call) &&
           product_of_op (p, op, own) && memcmp (call, own, sizeof own) == 0;
  if (k->comm == WEFT_TRACE_NO_COMM)
    return FALSE;
  const struct weft_trace_comm *c =
      &g_array_index (j->trace->comm, struct weft_trace_comm, k->comm);
  double bytes = weft_axes_bytes (c);
  return bytes > 0 && fabs (bytes - weft_op_bytes (p, op)) < 0.5;
}

/* Joins a call with the first op of each kind that has the recorded sizes or bytes. Returns whether
 * there was such an op. */
static gboolean
join_recorded (struct joiner *j, const struct weft_trace_kernel *k, const weft_program *p,
               const GArray *ops)
{
  gboolean seen[WEFT_N_OP] = { FALSE }, found = FALSE;

  for (guint i = 0; i < ops->len; i++) {
    uint32_t op = g_array_index (ops, uint32_t, i);
    if (seen[p->op[op].kind] || !is_call_of (j, k, p, op))
      continue;
    seen[p->op[op].kind] = found = TRUE;
    add_sample (j, p, op, seconds_of (k));
  }
  return found;
}

/* --------------------------------------------------------------------------- classes */

/* Returns the ops of a class and axis in a row of the predicted timeline, without those that
 * breakdown.h does not count as calls. */
static GArray *
ops_of (const weft_program *p, const weft_timeline *t, uint32_t row, enum weft_work work,
        unsigned axis)
{
  GArray *ops = g_array_new (FALSE, FALSE, sizeof (uint32_t));

  for (uint32_t op = 0; op < p->n_op; op++) {
    unsigned lane = p->op[op].lane == WEFT_LANE_PP_BACK ? WEFT_LANE_PP : p->op[op].lane;
    if (lane == axis && weft_work_of_op (p->op[op].kind) == work &&
        t->end[row][op] - t->begin[row][op] > 0.5e-9 && /* traces have whole nanoseconds */
        !(p->op[op].flags & (WEFT_OP_GROUPED | WEFT_OP_FUSED)))
      g_array_append_val (ops, op);
  }
  return ops;
}

/* The calls of a class and axis of a rank that begin in its window. */
static GPtrArray *
calls_of (const struct weft_trace_rank *rank, const struct weft_measured_window *w,
          enum weft_work work, unsigned axis)
{
  GPtrArray *calls = g_ptr_array_new ();

  for (guint i = 0; i < rank->kernel->len; i++) {
    struct weft_trace_kernel *k = &g_array_index (rank->kernel, struct weft_trace_kernel, i);
    if (k->work == work && k->axis == axis && !k->silent && k->end > k->begin &&
        k->begin >= w->begin && k->begin < w->end)
      g_ptr_array_add (calls, k);
  }
  return calls;
}

static struct weft_costs_class *
class_of (weft_costs *costs, enum weft_work work, unsigned axis)
{
  const struct weft_costs_class new = { .work = work, .axis = axis };

  for (guint i = 0; i < costs->class->len; i++) {
    struct weft_costs_class *c = &g_array_index (costs->class, struct weft_costs_class, i);
    if (c->work == work && c->axis == axis)
      return c;
  }
  g_array_append_val (costs->class, new);
  return &g_array_index (costs->class, struct weft_costs_class, costs->class->len - 1);
}

static void
join_class (struct joiner *j, const weft_program *p, const GArray *ops, const GPtrArray *calls,
            struct weft_costs_class *class)
{
  uint64_t recorded = 0;

  for (guint i = 0; i < calls->len; i++)
    recorded += join_recorded (j, calls->pdata[i], p, ops);
  class->calls += calls->len;
  class->ops += ops->len;
  class->joined += recorded;
  if (recorded || ops->len != calls->len)
    return;
  for (guint i = 0; i < ops->len; i++)
    add_sample (j, p, g_array_index (ops, uint32_t, i), seconds_of (calls->pdata[i]));
  class->joined += calls->len;
}

static void
join_rank (struct joiner *j, const weft_timeline *t, uint32_t row,
           const struct weft_trace_rank *rank, const struct weft_measured_window *w)
{
  const weft_program *p = j->plan->role[t->role[row]];

  for (int work = 0; work < WEFT_N_WORK; work++)
    for (unsigned axis = 0; axis < WEFT_N_LANE; axis++) {
      g_autoptr (GPtrArray) calls = calls_of (rank, w, work, axis);
      if (calls->len == 0)
        continue;
      g_autoptr (GArray) ops = ops_of (p, t, row, work, axis);
      join_class (j, p, ops, calls, class_of (j->costs, work, axis));
    }
}

/* ----------------------------------------------------------------------------- whole */

static void
finish (struct joiner *j)
{
  for (guint i = 0; i < j->sum->len; i++) {
    struct sum *s = &g_array_index (j->sum, struct sum, i);
    gboolean moves = weft_work_moves (weft_work_of_op (s->row.kind));
    s->row.seconds = moves ? s->least : s->seconds / (double) s->n;
    g_array_append_val (j->costs->row, s->row);
  }
}

weft_costs *
weft_costs_new (const weft_plan *plan, const weft_timeline *timeline, const weft_trace *trace,
                const weft_measured *measured)
{
  struct joiner j = { plan, trace, g_array_new (FALSE, FALSE, sizeof (struct sum)),
                      g_new0 (weft_costs, 1) };

  j.costs->row = g_array_new (FALSE, FALSE, sizeof (struct weft_measurement));
  j.costs->class = g_array_new (FALSE, FALSE, sizeof (struct weft_costs_class));
  for (guint i = 0; i < trace->rank->len; i++) {
    const struct weft_trace_rank *rank = g_ptr_array_index (trace->rank, i);
    uint32_t role = weft_mesh_stage (&plan->mesh, (uint32_t) rank->rank), row = 0;
    while (row < timeline->n && timeline->role[row] != role)
      row++;
    if (row < timeline->n)
      join_rank (&j, timeline, row, rank, &measured->window[i]);
  }
  finish (&j);
  g_array_unref (j.sum);
  return j.costs;
}

void
weft_costs_free (weft_costs *costs)
{
  g_array_unref (costs->row);
  g_array_unref (costs->class);
  g_free (costs);
}
