#include "interop/traces/axes.h"
#include "interop/traces/names.h"
#include <math.h>
#include <string.h>

/* Collectives of one class, group and payload in the program of one role. */
struct use {
  enum weft_work work;
  enum weft_group_kind group;
  uint32_t role, calls;
  double bytes;
};

struct weft_axes {
  const weft_plan *plan;
  GArray *use; /* struct use */
};

static void
count_op (weft_axes *axes, uint32_t role, uint32_t op)
{
  const weft_program *p = axes->plan->role[role];
  struct use use = { .work = weft_work_of_op (p->op[op].kind),
                     .group = p->op[op].group,
                     .role = role,
                     .bytes = weft_op_bytes (p, op) };
  struct use *same = NULL;

  for (guint i = 0; i < axes->use->len && !same; i++) {
    struct use *u = &g_array_index (axes->use, struct use, i);
    if (u->work == use.work && u->group == use.group && u->role == role && u->bytes == use.bytes)
      same = u;
  }
  if (!same) {
    g_array_append_val (axes->use, use);
    same = &g_array_index (axes->use, struct use, axes->use->len - 1);
  }
  same->calls += !(p->op[op].flags & WEFT_OP_GROUPED);
}

weft_axes *
weft_axes_new (const weft_plan *plan)
{
  weft_axes *axes = g_new0 (weft_axes, 1);

  axes->plan = plan;
  axes->use = g_array_new (FALSE, FALSE, sizeof (struct use));
  for (uint32_t role = 0; role < plan->n_roles; role++)
    for (uint32_t op = 0; op < plan->role[role]->n_op; op++)
      if (weft_op_is_comm (plan->role[role]->op[op].kind))
        count_op (axes, role, op);
  return axes;
}

void
weft_axes_free (weft_axes *axes)
{
  g_array_unref (axes->use);
  g_free (axes);
}

/* ------------------------------------------------------------------ process groups */

/* Words in descriptions of process groups, and their axis: names of Megatron-Core's groups
 * (parallel_state.py) and of torchtitan's meshes. The first word that a description contains
 * counts. */
static const struct {
  const char *word;
  enum weft_lane lane;
} descriptions[] = {
  { "tensor", WEFT_LANE_TP },
  { "pipeline", WEFT_LANE_PP },
  { "expert_data", WEFT_LANE_DP },
  { "data", WEFT_LANE_DP },
  { "context", WEFT_LANE_CP },
  { "expert", WEFT_LANE_EP },
  { "dp_replicate", WEFT_LANE_DP_OUTER },
  { "mesh_tp", WEFT_LANE_TP },
  { "mesh_pp", WEFT_LANE_PP },
  { "mesh_dp", WEFT_LANE_DP },
  { "fsdp", WEFT_LANE_DP },
  { "mesh_cp", WEFT_LANE_CP },
  { "mesh_ep", WEFT_LANE_EP },
};

/* The axis that a description names; WEFT_AXIS_UNKNOWN: none. */
static unsigned
described_axis (const char *description)
{
  g_autofree char *lower = g_ascii_strdown (description ? description : "", -1);

  for (unsigned i = 0; i < G_N_ELEMENTS (descriptions); i++)
    if (strstr (lower, descriptions[i].word))
      return descriptions[i].lane;
  return WEFT_AXIS_UNKNOWN;
}

/* The next rank in a text like "[0, 1, 2, ...]"; FALSE at its end. */
static gboolean
next_rank (const char **text, uint32_t *rank)
{
  while (**text && !g_ascii_isdigit (**text))
    ++*text;
  if (!**text)
    return FALSE;
  char *end;
  *rank = (uint32_t) MIN (g_ascii_strtoull (*text, &end, 10), G_MAXUINT32);
  *text = end;
  return TRUE;
}

static gboolean
is_member (const struct weft_mesh *m, const struct weft_group *g, uint32_t rank)
{
  if (rank >= m->n_ranks || rank < g->first || (g->n[0] > 1 && !g->stride[0]) ||
      (g->n[1] > 1 && !g->stride[1]))
    return FALSE;
  uint32_t at = weft_group_index (g, rank);
  return at < weft_group_size (g) && weft_group_rank (g, at) == rank;
}

/* Whether a process group can be a group of kind `kind`: by its size, and by its ranks if they were
 * recorded. */
static gboolean
can_be (const weft_axes *axes, const struct weft_trace_comm *c, enum weft_group_kind kind)
{
  const struct weft_mesh *m = &axes->plan->mesh;
  uint32_t size = weft_mesh_group_size (m, kind), rank;
  const char *text = c->ranks ? c->ranks : "";

  if (size < 2 || (c->size && c->size != size))
    return FALSE;
  if (!next_rank (&text, &rank))
    return c->size != 0;
  if (rank >= m->n_ranks)
    return FALSE;
  struct weft_group group = weft_mesh_group (m, rank, kind);
  do {
    if (!is_member (m, &group, rank))
      return FALSE;
  } while (next_rank (&text, &rank));
  return TRUE;
}

/* Bytes of an element, by the first letters of the dtype that PyTorch has recorded. */
static double
element_bytes (const char *dtype)
{
  static const struct {
    const char *name;
    int bytes;
  } rows[] = { { "Float8", 1 }, { "Float", 4 },  { "Half", 2 }, { "BFloat16", 2 }, { "Byte", 1 },
               { "Char", 1 },   { "Double", 8 }, { "Int", 4 },  { "Long", 8 },     { "Bool", 1 } };

  for (unsigned i = 0; dtype && i < G_N_ELEMENTS (rows); i++)
    if (g_str_has_prefix (dtype, rows[i].name))
      return rows[i].bytes;
  return 2;
}

double
weft_axes_bytes (const struct weft_trace_comm *comm)
{
  return element_bytes (comm->dtype) * (double) MAX (comm->in, comm->out);
}

/* How much a recorded collective differs from a use in the program: 0 if class and payload are
 * equal. Another class counts more than any other payload. */
static double
distance (const struct use *use, enum weft_work work, const struct weft_trace_comm *c)
{
  double bytes = weft_axes_bytes (c);
  double far = bytes > 0 && use->bytes > 0 ? fabs (log (bytes / use->bytes)) : 0;

  return far + (use->work == work ? 0 : 1000);
}

/* The kind of group of a collective; WEFT_GROUP_NONE: the job has no such group. */
static enum weft_group_kind
find_group (const weft_axes *axes, const struct weft_trace_comm *c)
{
  enum weft_work work = c->collective ? weft_names_collective (c->collective) : WEFT_N_WORK;
  unsigned named = described_axis (c->description);
  enum weft_group_kind best = WEFT_GROUP_NONE;
  double least = INFINITY;

  for (int kind = WEFT_GROUP_NONE + 1; kind < WEFT_N_GROUP; kind++) {
    if (!can_be (axes, c, kind))
      continue;
    double far = 1e5 + (weft_group_lane (kind) == named ? 0 : 1e6);
    for (guint i = 0; i < axes->use->len; i++) {
      const struct use *use = &g_array_index (axes->use, struct use, i);
      if (use->group == (unsigned) kind)
        far = MIN (far, distance (use, work, c) + (weft_group_lane (kind) == named ? 0 : 1e6));
    }
    if (far < least) {
      least = far;
      best = kind;
    }
  }
  return best;
}

void
weft_axes_set_described (const weft_axes *axes, weft_trace *trace)
{
  for (guint i = 0; i < trace->comm->len; i++) {
    struct weft_trace_comm *c = &g_array_index (trace->comm, struct weft_trace_comm, i);
    enum weft_group_kind kind = find_group (axes, c);
    c->axis = kind == WEFT_GROUP_NONE ? WEFT_AXIS_UNKNOWN : weft_group_lane (kind);
    if (c->axis == WEFT_LANE_PP_BACK)
      c->axis = WEFT_LANE_PP;
  }
  for (guint i = 0; i < trace->rank->len; i++) {
    const struct weft_trace_rank *rank = g_ptr_array_index (trace->rank, i);
    for (guint j = 0; j < rank->kernel->len; j++) {
      struct weft_trace_kernel *k = &g_array_index (rank->kernel, struct weft_trace_kernel, j);
      if (k->axis == WEFT_AXIS_UNKNOWN && k->comm != WEFT_TRACE_NO_COMM)
        k->axis = g_array_index (trace->comm, struct weft_trace_comm, k->comm).axis;
    }
  }
}

/* ------------------------------------------------------------------------- counts */

/* All communication of one class on one stream. */
struct queue {
  uint32_t stream;
  enum weft_work work;
  double calls, seconds;
  uint8_t axis;
};

static gboolean
is_open (const struct weft_trace_kernel *k)
{
  return k->axis == WEFT_AXIS_UNKNOWN && k->comm == WEFT_TRACE_NO_COMM && weft_work_moves (k->work);
}

static struct queue *
queue_of (GArray *queues, const struct weft_trace_kernel *k)
{
  struct queue queue = { k->stream, k->work, 0, 0, WEFT_AXIS_UNKNOWN };

  for (guint i = 0; i < queues->len; i++) {
    struct queue *q = &g_array_index (queues, struct queue, i);
    if (q->stream == k->stream && q->work == k->work)
      return q;
  }
  g_array_append_val (queues, queue);
  return &g_array_index (queues, struct queue, queues->len - 1);
}

/* Whether a kernel of class `kernel` may belong to an op of class `op`. NCCL executes an all-to-all
 * as sends and receives. */
static gboolean
may_be (enum weft_work kernel, enum weft_work op)
{
  return kernel == op || (kernel == WEFT_WORK_SEND_RECV && op == WEFT_WORK_ALL_TO_ALL);
}

/* Sets calls[axis] to the number of calls of a class in the program of a role. */
static void
count_uses (const weft_axes *axes, uint32_t role, enum weft_work work, double *calls)
{
  for (guint i = 0; i < axes->use->len; i++) {
    const struct use *use = &g_array_index (axes->use, struct use, i);
    enum weft_lane lane = weft_group_lane (use->group);
    if (use->role == role && may_be (work, use->work))
      calls[lane == WEFT_LANE_PP_BACK ? WEFT_LANE_PP : lane] += use->calls;
  }
}

/* Chooses the axis of a queue. Returns whether there was a choice. */
static gboolean
choose_axis (const weft_axes *axes, uint32_t role, struct queue *queue)
{
  double calls[WEFT_N_LANE] = { 0 }, least = INFINITY;
  int choices = 0;

  count_uses (axes, role, queue->work, calls);
  for (int lane = 0; lane < WEFT_N_LANE; lane++) {
    if (!(calls[lane] > 0))
      continue;
    double far = fabs (log (fmax (queue->calls, 1) / calls[lane]));
    choices++;
    if (far < least) {
      least = far;
      queue->axis = lane;
    }
  }
  return choices > 1;
}

double
weft_axes_set_counted (const weft_axes *axes, struct weft_trace_rank *rank, uint32_t role,
                       int64_t begin, int64_t end)
{
  g_autoptr (GArray) queues = g_array_new (FALSE, FALSE, sizeof (struct queue));
  double chosen = 0;

  for (guint i = 0; i < rank->kernel->len; i++) {
    const struct weft_trace_kernel *k = &g_array_index (rank->kernel, struct weft_trace_kernel, i);
    if (!is_open (k) || k->begin < begin || k->begin >= end)
      continue;
    struct queue *q = queue_of (queues, k);
    q->calls++;
    q->seconds += (double) (k->end - k->begin) * 1e-9;
  }
  for (guint i = 0; i < queues->len; i++) {
    struct queue *q = &g_array_index (queues, struct queue, i);
    if (choose_axis (axes, role, q))
      chosen += q->seconds;
  }
  for (guint i = 0; i < rank->kernel->len; i++) {
    struct weft_trace_kernel *k = &g_array_index (rank->kernel, struct weft_trace_kernel, i);
    if (is_open (k) && k->begin >= begin && k->begin < end)
      k->axis = queue_of (queues, k)->axis;
  }
  return chosen;
}
